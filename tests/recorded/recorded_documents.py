"""Names of the recorded documents, and how each is built: the one table that `test_recorded_contracts` and `record_contracts` read.

A name is for good: files are found by it, whatever its class is called or wherever it is defined.
"""

from typing import Any, TypeVar

import samples
from shoal.collection.dataset import DatasetState
from shoal.contracts.admin import LogsTicket, NodeList, NodeView, ReasonRequest
from shoal.contracts.algorithm import Algorithm, Clip, Dapo, Prime, VinePpo
from shoal.contracts.answers import AnswerSample, FileAnswers, LearningProgress, TurnFaults
from shoal.contracts.base import Contract
from shoal.contracts.compute import Compute
from shoal.contracts.dataset_card import DatasetCard, DatasetFile
from shoal.contracts.datasets import AnswerExtraction, DatasetColumns, DatasetSource, GenerateSettings, RowFilter
from shoal.contracts.evaluation import (
    Benchmark,
    BenchmarkTasks,
    BestVersion,
    EvaluationProgress,
    EvaluationSettings,
)
from shoal.contracts.failures import RollBack, Stability
from shoal.contracts.filtering import FilterReport
from shoal.contracts.final_model import FinalModel, ModelOrigin
from shoal.contracts.hub import HubCommit
from shoal.contracts.islands import (
    CertificateLink,
    IslandAgreement,
    IslandContribution,
    IslandDifference,
    IslandNotice,
    IslandSharedTerms,
    IslandsProgress,
    IslandsSettings,
    IslandTerms,
)
from shoal.contracts.machine import Lending, OwnersRequest
from shoal.contracts.mixture import SourceTerms
from shoal.contracts.model_source import ModelSource
from shoal.contracts.muon import MuonSettings
from shoal.contracts.packages import EnvironmentPackage, PinnedPackage
from shoal.contracts.pools import Admission, CodeClaim, EngineSettings, PoolTerms, Requirements
from shoal.contracts.programs import ProgramCall, ProgramLimits, ProgramOutcome, ProgramRequest
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.proof_profile import CalibrationSize, Control, ErrorRate, HonestErrors, ProofProfile, ProofTerms
from shoal.contracts.protocol import (
    Assignment,
    Challenge,
    ChallengeAnswer,
    ChallengeRequest,
    ChallengeResult,
    ClaimRenewal,
    ClaimRequest,
    DatasetAnnouncement,
    DatasetProgress,
    Exclusions,
    GroupPlace,
    HandedPart,
    Hardware,
    Heartbeat,
    HeartbeatReply,
    HeldByPod,
    Invite,
    KnownNode,
    KnownNodes,
    Lease,
    LeaseRequest,
    LeaseReturn,
    LocalReturn,
    LocalSubmission,
    NodeLogs,
    Registered,
    Registration,
    RelayToken,
    RunProgress,
    StepInfo,
    SubmissionNotice,
    SubmissionReceipt,
    TrainerProgress,
    UploadGrant,
    UploadRequest,
    ValidationJob,
    VersionAnnouncement,
)
from shoal.contracts.recipe import OverlongShaping, Recipe
from shoal.contracts.relays import RelayConfig
from shoal.contracts.roster import KeyChange, Roster
from shoal.contracts.routes import RouteShape
from shoal.contracts.run import (
    AgentState,
    AgentStatus,
    JoinOffer,
    NodeConfig,
    OpenPool,
    PartStatus,
    Prepared,
    PublicRun,
    RunConfig,
)
from shoal.contracts.run_parts import PartState, RunParts
from shoal.contracts.serving import PromotedScore, Promotion
from shoal.contracts.settings import Rollouts
from shoal.contracts.sft import SftDataset, SftManifest, SftSettings, SftShard
from shoal.contracts.signed import Signed, sign
from shoal.contracts.steps import BatchFile, Beacon, SourceGroups, StepBatch, StepMetrics, TypeMeans
from shoal.contracts.storage import (
    AzureStorage,
    AzureWorkload,
    GcsStorage,
    GcsWorkload,
    Retention,
    S3Storage,
    StorageSpec,
    WorkloadIdentity,
)
from shoal.contracts.task_source import Curriculum, MixtureSource, OfflineFilter, PoolWeights, TaskSource
from shoal.contracts.tasks import ChatMessage, JudgedTasks, RefusedTasks, Task, TaskReport
from shoal.contracts.thresholds import DrawnGaps, FileMean, ProofThresholds
from shoal.contracts.trackers import TensorBoardTracker, Trackers, TrackioTracker, WandbTracker
from shoal.contracts.trainer import Lora, Offload, TrainerSettings
from shoal.contracts.trust import KeysNotice, PastWork
from shoal.contracts.uplink import UplinkRequest, UplinkResult, UplinkTest
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import UNSCORED, Opinion, RowReward, ValidatorCard, Verdict
from shoal.contracts.weights import DeltaBase, ShardDescriptor, VersionIndex, VersionOpen, WeightsManifest
from shoal.contracts.work import LeasePart
from shoal.crypto.keys import PrivateKey
from shoal.discovery.uplink_check import GivenTest
from shoal.evaluation.versions import VersionEvaluation
from shoal.inference.evaluation.record import Evaluation
from shoal.ledger.entries import GENESIS, ConsistencyProof, InclusionProof, LedgerCheckpoint, LedgerEntry
from shoal.ledger.facts import DeclaredPool, InvitedNode, RunTerms
from shoal.orchestrator.nodes.capability_check import GivenChallenge, SeenAnswer
from shoal.orchestrator.nodes.invites import InviteTerms
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.orchestrator.verdicts.queue import Job, OpinionNote
from shoal.orchestrator.work.records import DrawnBy, LeaseRecord, SubmissionRecord
from shoal.recompute.record import AuditFinding, AuditRecord, AuditTerms
from shoal.report.records import SampleRecord, SessionRecord
from shoal.storage.checkpoint_files import AssembledShards
from shoal.training.stability import History, Incident, Point
from shoal.training.state import MadeVersion, SealedState
from shoal.training.state_files import StateIndex, StateRows

Kind = TypeVar("Kind", bound=Contract)


def sample(kind: type[Kind], number: int = 0) -> Kind:
    """The sample `number` (from 0) of a class."""
    return [each for each in samples.DOCUMENTS if isinstance(each, kind)][number]


def entry(kind: str, **fields: Any) -> Signed[LedgerEntry]:
    """A ledger entry, signed by the orchestrator."""
    common = {"number": 9, "previous": GENESIS, "run": samples.RUN, "kind": kind, "unix": samples.NOW + 0.5}
    return sign(LedgerEntry.model_validate({**common, **fields}), samples.ORCHESTRATOR_KEY)


DIGEST, LEASE, NODE, RUN, NOW = samples.DIGEST, samples.LEASE, samples.NODE, samples.RUN, float(samples.NOW)
FILE = {"node": NODE, "step": 7, "submission": 2, "digest": DIGEST}
VALIDATOR_KEY = samples.ROLE_KEYS["validator"]
CODE_KEY = samples.key(9)
AUDIT = AuditRecord(
    terms=AuditTerms(run=samples.RUN, run_key=samples.RUN_KEY.public, seed="5f2c", rows=0.05, files=1.0),
    checked={"steps": {-1: "", 0: "", 1: "step 1 is not sealed"}},
    findings=[AuditFinding(stage="steps", where="step 0, version 1", what="1 tensors or files differ")],
)
DATASET = DatasetSource(
    hugging_face="owner/name",
    revision="main",
    columns=DatasetColumns(prompt="problem", answer="answer", metadata=["source"]),
)
SAMPLE = AnswerSample(problem_id="add-12-34", prompt="12+34=\n", answer="<2+4", tokens=4, cut=True, task_reward=0.0)
ANSWERS = FileAnswers(
    rows=16, right=0, cut=16, unscorable=0, unanswered=16, groups=2, groups_right=0, groups_wrong=2, samples=[SAMPLE]
)
COMMIT = HubCommit(kind="dataset", repository="owner/name", revision="main", commit="0" * 40)
TRACES = [DatasetFile(name="part-00000.parquet", sha256=DIGEST, size=1000, rows=21)]
SUBMISSION = SubmissionRecord(
    run=RUN,
    node=NODE,
    lease=LEASE,
    step=7,
    submission=2,
    sha256=DIGEST,
    size=1000,
    groups=4,
    received_unix=NOW,
    drawn_by=DrawnBy(pool="workers", sampler="vllm-cpu"),
)
POOL = PoolTerms(
    name="workers",
    open=True,
    requirements=Requirements(gpus=1, gpu_types=["H200"], cpus=2, memory_gib=8, disk_gib=20, uplink_mbps=10, gflops=40),
    admission=Admission(nodes=[NODE], codes=[CODE_KEY.public], nodes_per_address=2),
    gpus=1,
    group_size=2,
)

SIGNED: dict[str, tuple[Contract, PrivateKey]] = {
    "signed-roster": (sample(Roster), samples.RUN_KEY),
    "signed-roster-changed": (samples.CHANGED_ROSTER.document, samples.key(201)),
    "signed-key-change-run": (sample(KeyChange), samples.RUN_KEY),
    "signed-key-change-leaked": (sample(KeyChange, 1), samples.key(203)),
    "signed-validator-card": (sample(ValidatorCard), VALIDATOR_KEY),
    "signed-past-work": (sample(PastWork), samples.ORCHESTRATOR_KEY),
    "signed-invite": (sample(Invite), samples.ORCHESTRATOR_KEY),
    "signed-ledger-checkpoint": (sample(LedgerCheckpoint), samples.ORCHESTRATOR_KEY),
    "signed-verdict-accept": (sample(Verdict), VALIDATOR_KEY),
    "signed-verdict-reject": (sample(Verdict, 1), VALIDATOR_KEY),
    "signed-verdict-evaluation": (sample(Verdict, 2), VALIDATOR_KEY),
    "signed-code-claim": (CodeClaim(run=RUN, pool="workers", node=NODE), CODE_KEY),
    "signed-version-open": (sample(VersionOpen), samples.TRAINER_KEY),
    "signed-version-open-delta": (sample(VersionOpen, 1), samples.TRAINER_KEY),
    "signed-shard-descriptor": (sample(ShardDescriptor), samples.TRAINER_KEY),
    "signed-shard-descriptor-delta": (sample(ShardDescriptor, 1), samples.TRAINER_KEY),
    "signed-weights-manifest": (sample(WeightsManifest), samples.TRAINER_KEY),
    "signed-island-notice": (sample(IslandNotice), samples.key(10)),
    "signed-island-contribution": (sample(IslandContribution), samples.key(10)),
    "signed-island-agreement": (sample(IslandAgreement), samples.key(10)),
}
"""Documents whose signature is recorded, with who signs them."""

ENTRIES: dict[str, Signed[LedgerEntry]] = {
    "ledger-run-declared": entry("run-declared", digest=DIGEST, terms=samples.TERMS),
    "ledger-terms-changed": entry("terms-changed", digest=DIGEST, terms=samples.TERMS, replaces=0),
    "ledger-keys-changed": entry("keys-changed", keys=samples.CHANGED_ROSTER),
    "ledger-node-invited": entry("node-invited", node=NODE, detail=LEASE, digest=DIGEST, invited=sample(InvitedNode)),
    "ledger-beacon-committed": entry("beacon-committed", step=7, digest=DIGEST),
    "ledger-beacon-revealed": entry("beacon-revealed", step=7, digest=DIGEST),
    "ledger-node-joined": entry("node-joined", node=NODE, detail=LEASE),
    "ledger-node-dead": entry("node-dead", node=NODE),
    "ledger-node-evicted": entry("node-evicted", node=NODE, detail="file was rejected"),
    "ledger-node-banned": entry("node-banned", node=NODE, detail="ten keys on one machine"),
    "ledger-node-unbanned": entry("node-unbanned", node=NODE),
    "ledger-version-published": entry("version-published", version=7, digest=DIGEST),
    "ledger-accepted": entry("accepted", **FILE, tokens=4, groups=2, signal_groups=1, compute=sample(Compute)),
    "ledger-accepted-uncounted": entry("accepted", **FILE, tokens=4, groups=2),
    "ledger-accepted-without-rows": entry(
        "accepted", **FILE, tokens=4, groups=2, signal_groups=1, compute=sample(Compute), left_out=[3], looked_at=2
    ),
    "ledger-accepted-claimed": entry("accepted", **FILE, tokens=4, groups=2, signal_groups=1, claimed_rows=3),
    "ledger-accepted-evaluation": entry("accepted", **{**FILE, "step": 1_000_024}, tokens=4, groups=1),
    "ledger-rejected": entry("rejected", **FILE, detail="sampling: row 3: prompt_index is 9, drawn is 11"),
    "ledger-dataset-published": entry("dataset-published", digest=DIGEST, detail="traces"),
    "ledger-batch-sealed": entry("batch-sealed", step=7, digest=DIGEST, groups=2),
}
"""Every kind of ledger entry."""

WITHOUT_A_ROW = sample(Verdict).model_copy(
    update={"rewards": [*sample(Verdict).rewards[:-1], UNSCORED], "left_out": [len(sample(Verdict).rewards) - 1]}
)
ROUTES = RouteShape(layers=48, choices=8, experts=128)
PINNED = PinnedPackage(package="echoes", version="1.0", sha256=DIGEST, size_bytes=4096)
DOCUMENTS: dict[str, Contract] = {
    "hardware": sample(Hardware),
    "hardware-gpu-memory": sample(Hardware).model_copy(update={"gpu_memory_bytes": 81559 << 20}),
    "requirements-gpu-memory": Requirements(gpus=1, gpu_memory_gib=80),
    "registration": sample(Registration),
    "invite": sample(Invite),
    "beacon": sample(Beacon),
    "step-metrics": sample(StepMetrics),
    "step-metrics-digest": sample(StepMetrics).model_copy(update={"data_digest": DIGEST}),
    "audit-record": AUDIT,
    "audit-terms": AUDIT.terms,
    "audit-finding": AUDIT.findings[0],
    "step-metrics-mixed": sample(StepMetrics).model_copy(
        update={"by_task_type": {"math": TypeMeans(groups=2, rows=8, task_reward=0.5, reward=0.25, completion_length_mean=7.5)}}
    ),
    "assembled-shards": AssembledShards(open=sample(VersionOpen), sha256=[DIGEST]),
    "version-open": sample(VersionOpen),
    "public-run": sample(PublicRun),
    "trackers": Trackers(
        wandb=WandbTracker(project="sums", entity="lab", mode="Offline"),
        trackio=TrackioTracker(project="sums", space="lab/sums"),
        tensorboard=TensorBoardTracker(),
    ),
    "run-config": sample(RunConfig),
    "roster": sample(Roster),
    "keys-notice": sample(KeysNotice),
    "registered": sample(Registered),
    "uplink-request": sample(UplinkRequest),
    "uplink-result": sample(UplinkResult),
    "uplink-test": sample(UplinkTest),
    "challenge-result": sample(ChallengeResult),
    "challenge-request": sample(ChallengeRequest),
    "challenge": sample(Challenge),
    "challenge-answer": sample(ChallengeAnswer),
    "island-agreement": sample(IslandAgreement),
    "islands-settings": sample(IslandsSettings),
    "island-terms": sample(IslandTerms),
    "island-terms-2": sample(IslandTerms, 1),
    "certificate-link": sample(CertificateLink),
    "island-shared-terms": sample(IslandSharedTerms),
    "island-notice": sample(IslandNotice),
    "island-contribution": sample(IslandContribution),
    "final-model": sample(FinalModel),
    "promoted-score": sample(PromotedScore),
    "promotion": sample(Promotion),
    "promotion-back": sample(Promotion, 1),
    "model-origin": sample(ModelOrigin),
    "sft-manifest": sample(SftManifest),
    "sft-shard": sample(SftShard),
    "known-node": sample(KnownNode),
    "known-nodes": sample(KnownNodes),
    "heartbeat": sample(Heartbeat),
    "exclusions": sample(Exclusions),
    "relay-token": sample(RelayToken),
    "heartbeat-reply": sample(HeartbeatReply),
    "step-info": sample(StepInfo),
    "lease-request": sample(LeaseRequest),
    "lease-return": sample(LeaseReturn),
    "local-return": sample(LocalReturn),
    "held-by-pod": sample(HeldByPod),
    "lease": sample(Lease),
    "upload-request": sample(UploadRequest),
    "upload-grant": sample(UploadGrant),
    "submission-notice": sample(SubmissionNotice),
    "submission-notice-of-a-part": sample(SubmissionNotice).model_copy(update={"part": HandedPart(groups=[0, 2], keep=True)}),
    "lease-of-a-part": sample(Lease).model_copy(
        update={"part": LeasePart(node=NODE, submission=2, groups=[1, 3], left=1)}
    ),
    "submission-receipt": sample(SubmissionReceipt),
    "version-announcement": sample(VersionAnnouncement),
    "trainer-progress": sample(TrainerProgress),
    "islands-progress": sample(IslandsProgress),
    "island-difference": sample(IslandDifference),
    "claim-request": sample(ClaimRequest),
    "claim-renewal": sample(ClaimRenewal),
    "validation-job": sample(ValidationJob),
    "local-submission": sample(LocalSubmission),
    "dataset-announcement": sample(DatasetAnnouncement),
    "dataset-progress": sample(DatasetProgress),
    "run-progress": sample(RunProgress),
    "batch-file": sample(BatchFile),
    "step-batch": sample(StepBatch),
    "row-reward": sample(RowReward),
    "verdict": sample(Verdict),
    "verdict-2": sample(Verdict, 1),
    "opinion": sample(Opinion),
    "shard-descriptor": sample(ShardDescriptor),
    "delta-base": sample(DeltaBase),
    "version-open-2": sample(VersionOpen, 1),
    "shard-descriptor-2": sample(ShardDescriptor, 1),
    "weights-manifest": sample(WeightsManifest),
    "version-index": sample(VersionIndex),
    "ledger-checkpoint": sample(LedgerCheckpoint),
    "declared-pool": sample(DeclaredPool),
    "run-terms": sample(RunTerms),
    "invited-node": sample(InvitedNode),
    "compute": sample(Compute),
    "inclusion-proof": sample(InclusionProof),
    "consistency-proof": sample(ConsistencyProof),
    "chat-message": sample(ChatMessage),
    "task": sample(Task),
    "task-2": sample(Task, 1),
    "prepared": sample(Prepared, 0),
    "prepared-chat": samples.PREPARED_CHAT,
    "prompt-terms": samples.PROMPT_TERMS,
    "prompt-settings": sample(PromptSettings),
    "truncation": samples.TRUNCATION,
    "benchmark-terms-chat": samples.BENCHMARK_CHAT,
    "benchmark-terms": samples.BENCHMARK,
    "version-evaluation": sample(VersionEvaluation),
    "best-version": sample(BestVersion),
    "evaluation-progress": sample(EvaluationProgress),
    "verdict-3": sample(Verdict, 2),
    "verdict-programs": sample(Verdict).model_copy(update={"program_seconds": 12.5}),
    "verdict-left-out": WITHOUT_A_ROW,
    "verdict-answers": sample(Verdict).model_copy(update={"answers": ANSWERS}),
    "answer-sample": SAMPLE,
    "run-progress-learning": sample(RunProgress).model_copy(
        update={"learning": LearningProgress(groups=32, decided=True, reason="NoFinalAnswer", message="none", samples=[SAMPLE])}
    ),
    "run-progress-version-bytes": sample(RunProgress).model_copy(update={"version_bytes": 65_527_752_704}),
    "prepared-commits": sample(Prepared).model_copy(update={"commits": [COMMIT]}),
    "hub-commit": COMMIT,
    "proof-profile": sample(ProofProfile),
    "calibration-size": sample(CalibrationSize),
    "honest-errors": sample(HonestErrors),
    "control": sample(Control),
    "error-rate": sample(ErrorRate),
    "proof-terms": sample(ProofTerms),
    "agent-state": sample(AgentState),
    "node-config": sample(NodeConfig),
    "open-pool": sample(OpenPool),
    "join-offer": sample(JoinOffer),
    "group-place": sample(GroupPlace),
    "assignment": sample(Assignment),
    "node-logs": sample(NodeLogs),
    "part-status": sample(PartStatus),
    "agent-status": sample(AgentStatus),
    "agent-status-paused": sample(AgentStatus).model_copy(update={"owner": "paused"}),
    "lending": sample(Lending),
    "lending-everything": Lending(),
    "owners-request": sample(OwnersRequest),
    "node-view": sample(NodeView),
    "node-list": sample(NodeList),
    "reason-request": sample(ReasonRequest),
    "logs-ticket": sample(LogsTicket),
    "part-state": sample(PartState),
    "run-parts": sample(RunParts),
    "run-config-full": samples.run_config(
        S3Storage(endpoint="http://127.0.0.1:9000", public_endpoint="https://s3.example.com", bucket="shoal", credentials_secret="store"),
        model=ModelSource(hugging_face="owner/model", revision="main"),
        tasks=TaskSource(environment="math", count=100, dataset=DATASET, offline_filter=OfflineFilter()),
        recipe=Recipe(algorithm=Algorithm(dapo=Dapo(importance_cap=2.0)), overlong_shaping=OverlongShaping(), pack_length=40000),
        evaluation=EvaluationSettings(
            benchmarks=[Benchmark(name="sums", tasks=BenchmarkTasks(environment="arithmetic", count=64), target_length=4000)]
        ),
        trainer=TrainerSettings(lora=Lora()),
        islands=sample(IslandTerms, 1),
        roll_back=RollBack(to_version=3, at_step=9),
        validation=Validation(thresholds=ProofThresholds(file_mean=FileMean(bound=0.5, deviation=0.1)), slash_votes=2),
        pools=[POOL],
    ),
    "registration-quantization": sample(Registration).model_copy(update={"quantization": "fp8"}),
    "pool-terms-quantization": POOL.model_copy(update={"quantization": "fp8"}),
    "pool-terms-divided": POOL.model_copy(update={"engine": EngineSettings(tensor_parallel_size=4)}),
    "open-pool-divided": sample(OpenPool).model_copy(update={"engine": EngineSettings(tensor_parallel_size=4)}),
    "node-config-quantization": sample(NodeConfig).model_copy(update={"quantization": "fp8"}),
    "public-run-quantization": sample(PublicRun).model_copy(update={"quantization": "fp8"}),
    "proof-profile-quantization": samples.PROOF_PROFILE.model_copy(update={"quantization": "fp8"}),
    "proof-profile-logits": samples.PROOF_PROFILE.model_copy(update={"dtype": "bfloat16", "logits": "float32"}),
    "public-run-logits": sample(PublicRun).model_copy(update={"logits": "float32"}),
    "run-config-quantization": sample(RunConfig).model_copy(update={"rollouts": Rollouts(quantization="fp8")}),
    "public-run-routes": sample(PublicRun).model_copy(update={"routes": ROUTES}),
    "prepared-routes": sample(Prepared).model_copy(update={"routes": ROUTES}),
    "route-shape": ROUTES,
    "run-config-router-replay": samples.run_config(recipe=Recipe(router_replay="Replay")),
    "run-config-credit": samples.run_config(recipe=Recipe(credit="Turn")),
    "verdict-turns": sample(Verdict).model_copy(
        update={"rewards": [RowReward(task_reward=0.5, length_penalty=0.0, reward=0.5, turns=(0.75, -0.25))]}
    ),
    "verdict-turn-faults": sample(Verdict).model_copy(
        update={
            "answers": ANSWERS.model_copy(
                update={"turn_faults": TurnFaults(environment="by-turn", rows=3, first="row 0: 1 turns have a reward, and the episode has 2")}
            )
        }
    ),
    "verdict-claimed": sample(Verdict).model_copy(update={"claimed_rows": 1}),
    "prepared-claimed": sample(Prepared).model_copy(update={"rewards_claimed": True}),
    "step-metrics-routes": sample(StepMetrics).model_copy(update={"router_replay_mismatch": 0.015625}),
    "public-run-sampler": sample(PublicRun).model_copy(update={"sampler": "gumbel-murmur3-1"}),
    "drawn-gaps-outliers": DrawnGaps(share=0.001, mean=5e-5, deviation=0.002, largest=0.05, outliers=2.5e-5),
    "run-config-drawn": samples.run_config(
        pools=[PoolTerms(name="own", sampler="none"), POOL],
        validation=Validation(
            thresholds=ProofThresholds(drawn_gaps=DrawnGaps(share=0.001, mean=5e-5, deviation=0.002, largest=0.3))
        ),
    ),
    "run-config-prime": samples.run_config(recipe=Recipe(algorithm=Algorithm(prime=Prime()))),
    "run-config-dr-grpo": samples.run_config(recipe=Recipe(algorithm=Algorithm(dr_grpo=Clip()))),
    "run-config-gspo": samples.run_config(
        recipe=Recipe(
            algorithm={"gspo": {}},
            overlong_filter=True,
            mismatch_correction={"icepop": {}, "sequence": {}},
            schedules={"learning_rate": [{"step": 0, "value": 1e-6}]},
        )
    ),
    "run-config-clip-limit": samples.run_config(stability=Stability(max_clip_ratio=0.1)),
    "run-config-muon": samples.run_config(recipe=Recipe(muon=MuonSettings(momentum=0.9))),
    "run-config-sft-muon": samples.run_config(
        mode="SFT", sft=SftSettings(dataset=SftDataset(run="traces-run", name="traces"), muon=MuonSettings())
    ),
    "run-config-offload": samples.run_config(trainer=TrainerSettings(offload=Offload(reference=True, optimizer=True))),
    "run-config-context-parallel": samples.run_config(trainer=TrainerSettings(context_parallel=8)),
    "run-config-expert-parallel": samples.run_config(trainer=TrainerSettings(expert_parallel="Tokens")),
    "run-config-cispo": samples.run_config(recipe=Recipe(algorithm={"cispo": {}}, mismatch_correction={"truncate": {}})),
    "run-config-sources": samples.run_config(
        recipe=Recipe(
            sources=[
                {"name": "sums", "algorithm": {"gspo": {}}, "loss_weight": 2.0},
                {"name": "programs", "loss_weight": 0.5},
            ]
        )
    ),
    "run-config-dppo": samples.run_config(recipe=Recipe(algorithm={"dppo": {}})),
    "run-config-custom": samples.run_config(
        recipe=Recipe(algorithm={"custom": {"path": "lab.objectives:OURS", "sha256": "ab" * 32}})
    ),
    "run-config-parts-and-identity": samples.run_config(
        S3Storage(
            endpoint="https://s3.eu-central-1.amazonaws.com",
            bucket="shoal",
            workload_identity=WorkloadIdentity(
                service_account="store", role_arn="arn:aws:iam::123456789012:role/store", sts_endpoint="https://sts.eu-central-1.amazonaws.com"
            ),
        ),
        rollouts=Rollouts(hand_in_every_seconds=300),
    ),
    "run-config-azure": samples.run_config(
        storage=StorageSpec(
            azure=AzureStorage(
                account="research",
                container="rollouts",
                workload_identity=AzureWorkload(
                    service_account="store", tenant_id="example.org", client_id="66666666-7777-8888-9999-000000000000"
                ),
            )
        )
    ),
    "run-config-gcs": samples.run_config(
        storage=StorageSpec(
            gcs=GcsStorage(
                bucket="rollouts",
                workload_identity=GcsWorkload(
                    service_account="store", provider="//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
                ),
            )
        )
    ),
    "run-config-several-versions": samples.run_config(rollouts=Rollouts(versions="Several")),
    "run-config-retention": samples.run_config(storage=StorageSpec(retention=Retention(keep="Verify", steps=4))),
    "run-config-vineppo": samples.run_config(recipe=Recipe(algorithm=Algorithm(vineppo=VinePpo()))),
    "run-config-generate": samples.run_config(mode="Generate", steps=0, generate=GenerateSettings(max_completion_tokens=100)),
    "run-config-sft": samples.run_config(mode="SFT", sft=SftSettings(dataset=SftDataset(run="traces-run", name="traces"))),
    "relay-config": RelayConfig(sources=["http://127.0.0.2:8090"], disk_bytes=1 << 30, trusted_proxies=["10.0.0.0/8"]),
    "node-config-full": sample(NodeConfig).model_copy(
        update={"engine": EngineSettings(kv_cache_bytes=1 << 30, max_sequences=8), "runners": ["http://127.0.0.5:8070"]}
    ),
    "program-request": ProgramRequest(
        source=b"print(1)",
        stdin=b"1\n",
        call=ProgramCall(function="Solution.add", arguments_json="[1, 2]"),
        limits=ProgramLimits(
            cpu_seconds=2, wall_seconds=5.0, memory_bytes=1 << 28, output_bytes=1 << 20, threads=16, open_files=64
        ),
    ),
    "program-outcome": ProgramOutcome(ended="exited", exit_code=0, stdout=b"1\n", cpu_seconds=0.25, wall_seconds=0.5),
    "filter-report": FilterReport(
        run=RUN, model_id="arithmetic-tiny", weights_digest=DIGEST, samples=2, min_correct=0.125, max_correct=0.5,
        tasks_digest_before=DIGEST, tasks_before=4, tasks_kept=2, outcomes={"kept": 2, "too hard": 1, "too easy": 1}, histogram=[1, 2, 1],
    ),
    "tasks-of-a-mixture": TaskSource(
        mixture=[
            MixtureSource(name="sums", environment="arithmetic", weight=3, length_targets=[16, 32]),
            MixtureSource(name="programs", environment="code", count=64, prompt=PromptSettings(template="Raw")),
        ]
    ),
    "tasks-with-a-curriculum": TaskSource(environment="arithmetic", curriculum=Curriculum(weights=PoolWeights(middle=8), votes=6)),
    "lease-of-a-curriculum": sample(Lease).model_copy(update={"prompts": [7, 3]}),
    "validation-job-of-a-curriculum": sample(ValidationJob).model_copy(update={"pools": DIGEST}),
    "batch-of-a-curriculum": sample(StepBatch).model_copy(update={"solved": [(7, 0.5), (3, 1.0)]}),
    "public-run-of-a-curriculum": sample(PublicRun).model_copy(update={"curriculum": True}),
    "tasks-with-packages": TaskSource(
        environment="echoes",
        packages=[
            EnvironmentPackage(package="echoes", version="1.0", sha256=DIGEST),
            EnvironmentPackage(package="echo-words", version="1.1", sha256=DIGEST, object="packages/echo_words.whl"),
        ],
    ),
    "package": EnvironmentPackage(package="echoes", version="1.0", sha256=DIGEST, url="https://wheels.example/echoes.whl"),
    "pinned-package": PINNED,
    "prepared-packages": sample(Prepared).model_copy(update={"packages": [PINNED]}),
    "public-run-packages": sample(PublicRun).model_copy(update={"packages": [PINNED]}),
    "run-config-packages": samples.run_config(
        tasks=TaskSource(environment="echoes", packages=[EnvironmentPackage(package="echoes", version="1.0", sha256=DIGEST)])
    ),
    "public-run-several-versions": sample(PublicRun).model_copy(update={"several_versions": True}),
    "sources-of-a-mixture": sample(PublicRun).model_copy(
        update={
            "environment": "mixture",
            "mixture": [
                SourceTerms(name="sums", environment="arithmetic", task_count=30, weight=3, targets=[16, 32]),
                SourceTerms(name="programs", environment="code", task_count=10, weight=1),
            ],
        }
    ),
    "batch-of-a-mixture": sample(StepBatch).model_copy(
        update={"by_source": {"programs": SourceGroups(sampled=2, with_signal=1), "sums": SourceGroups(sampled=6, with_signal=5)}}
    ),
    "metrics-of-a-mixture": sample(StepMetrics).model_copy(
        update={
            "by_task_type": {
                "sums": TypeMeans(
                    groups=3, rows=12, task_reward=0.5, reward=0.25, completion_length_mean=7.5, share=1.0, sampled_share=0.75, signal_share=0.5
                )
            }
        }
    ),
    "metrics-of-sources": sample(StepMetrics).model_copy(
        update={
            "by_task_type": {
                "sums": TypeMeans(
                    groups=3, rows=12, task_reward=0.5, reward=0.25, completion_length_mean=7.5, share=1.0, objective="gspo", loss_weight=2.0,
                    loss=-0.125, entropy=0.5, clip_ratio=0.25,
                )
            }
        }
    ),
    "task-report": TaskReport(
        rows=9, tasks=4, skipped={"has no answer": 3}, proven=4,
        refused=[RefusedTasks(reason="the gold answer is no expression", count=2, first=["p1", "p7"])],
    ),
    "judged-tasks": JudgedTasks(flaws={"p1": "the gold answer is no expression"}, proven=4),
    "run-config-dataset": samples.run_config(
        tasks=TaskSource(
            environment="math",
            dataset=DatasetSource(
                hugging_face="example/maths", revision="main", subset="main", row_limit=1000, shuffle_seed=3, max_refused_share=0.1,
                columns=DatasetColumns(template="{question}", answer="solution", extract=AnswerExtraction(after="####")),
                where=[RowFilter(column="level", one_of=["a"], none_of=["b"], at_least=1.0, at_most=5.0, matches="^a")],
            ),
            offline_filter=OfflineFilter(solve_rate="solve_rate_7b"),
        )
    ),
    "dataset-card": DatasetCard(
        name="traces", run=RUN, licence="apache-2.0", model_id="arithmetic-tiny", weights_digest=DIGEST, environment="arithmetic",
        environment_digest=DIGEST, tasks_digest=DIGEST, task_count=16, samples_per_problem=4, temperature=1.0, filters=GenerateSettings(),
        rows=21, completion_tokens=84, left_out={"wrong": 43}, problems=16, problems_solved=9, correct_histogram=[7, 2, 2, 3, 2],
        parts=TRACES, problem_files=TRACES,
    ),
    "dataset-card-claimed": DatasetCard(
        name="traces", run=RUN, licence="apache-2.0", model_id="arithmetic-tiny", weights_digest=DIGEST, environment="judged",
        environment_digest=DIGEST, rewards_claimed=True, tasks_digest=DIGEST, task_count=16, samples_per_problem=4, temperature=1.0,
        filters=GenerateSettings(), rows=21, completion_tokens=84, problems=16, problems_solved=9, correct_histogram=[7, 2, 2, 3, 2],
        parts=TRACES, problem_files=TRACES,
    ),
    "dataset-state": DatasetState(run=RUN, tasks_digest=DIGEST, filters=GenerateSettings(), next_step=4, rows_seen=64, rows=21, parts=TRACES),
    "evaluation": Evaluation(
        environment="arithmetic", environment_version="0.1.0", environment_digest=DIGEST, tasks=1, samples=2, temperature=0.6, max_tokens=32,
        targets=[], seed=0, seconds=1.5, scores=samples.EVALUATION.scores,
    ),
    "given-challenge": GivenChallenge(challenge=sample(Challenge), invite_nonce=LEASE, given_unix=NOW),
    "seen-answer": SeenAnswer(challenge=LEASE, digest=DIGEST, seen_unix=NOW),
    "given-uplink-test": GivenTest(test=sample(UplinkTest), given_unix=NOW, address="127.0.0.9"),
    "invite-terms": InviteTerms(run=RUN, orchestrator_url="http://127.0.0.1:8080"),
    "node-record": NodeRecord(
        node=NODE, state="Healthy", pool="workers", outside=True, address="127.0.0.9", last_heartbeat_unix=NOW, invite_nonce=LEASE,
        uplink_mbps=41.5, group=samples.GROUP_PLACE, metrics={"tokens_per_second": 900.5},
    ),
    "lease-record": LeaseRecord(lease=sample(Lease), groups=4, status="submitted", sha256=DIGEST, size=1000, drawn_by=SUBMISSION.drawn_by),
    "lease-record-of-a-sized-lease": LeaseRecord(
        lease=sample(Lease).model_copy(update={"part": LeasePart(node=NODE, submission=2, groups=[0, 1])}), groups=2,
        drawn_by=SUBMISSION.drawn_by, given_unix=NOW, part=LeasePart(node=NODE, submission=2, groups=[0, 1]), sized=True,
        more=LeasePart(node=NODE, submission=2, groups=[2, 3]),
    ),
    "submission-record": SUBMISSION,
    "validation-queue-job": Job(record=SUBMISSION, opinions=[OpinionNote(validator="v-0", reason="redraw", digest=DIGEST)]),
    "report-session": SessionRecord(unix=NOW, event="start"),
    "report-sample": SampleRecord(unix=NOW, pod="pool-0", container="worker", pid=7, cpu_seconds=1.5, metrics={"tokens_total": 4.0}),
    "trainer-state": SealedState(
        run=RUN, version=8, updates=64, ranks=1, files={"rank-0.safetensors": DIGEST}, metrics=samples.METRICS,
        history=History(
            points=[Point(version=8, gradient_norm=0.3, entropy=0.7, clip_ratio=0.01)],
            entropy_minimum=0.6,
            warned_from=7,
            incident=Incident(version=8, calm_version=6),
        ),
    ),
    "trainer-state-index": StateIndex(
        run=RUN, version=8, rank=1, size=28, block_bytes=16, blocks=[DIGEST, DIGEST],
        tensors=[
            StateRows(key="weights/model.norm.weight", dtype="float32", shape=[8], first=4, rows=4, start=0),
            StateRows(key="step/model.norm.weight", dtype="float32", shape=[], first=0, rows=1, start=16),
            StateRows(key="random/cpu/00001", dtype="uint8", shape=[8], first=0, rows=8, start=20),
        ],
    ),
    "trainer-made-version": MadeVersion(
        run=RUN, version=8, updates=64, metrics=samples.METRICS, history=History(entropy_minimum=0.6)
    ),
    **{name: sign(document, key) for name, (document, key) in SIGNED.items()},
    **ENTRIES,
}  # fmt: skip
"""Every recorded document. A signed one is the envelope that travels: document, signer and signature."""
