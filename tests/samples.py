"""One valid sample of every document that crosses a process boundary, and the keys that sign them.

Tests take a sample and change one thing. Nothing here is random, so that a failure names the same bytes every time.
"""

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from changed_keys import RunKeys
from ledger_samples import COMPUTE, ledger_samples, terms_by
from shoal.contracts.admin import LogsTicket, NodeList, NodeView, ReasonRequest
from shoal.contracts.base import Contract
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.evaluation import BenchmarkTerms, BestVersion, EvaluationProgress, Truncation
from shoal.contracts.final_model import FinalModel, ModelOrigin
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
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.packages import EnvironmentPackage, PinnedPackage
from shoal.contracts.pools import PoolTerms
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.proof_profile import (
    CalibrationSize,
    Control,
    ErrorRate,
    HonestErrors,
    ProofProfile,
    ProofTerms,
)
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
from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import Rollout, RolloutMetadata
from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.run import (
    Addresses,
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
from shoal.contracts.sft import SftManifest, SftShard
from shoal.contracts.signed import sign
from shoal.contracts.steps import BatchFile, Beacon, SourceGroups, StepBatch, StepMetrics, TypeMeans
from shoal.contracts.storage import S3Storage, StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.tasks import ChatMessage, JudgedTasks, RefusedTasks, Task, TaskReport
from shoal.contracts.thresholds import ProofThresholds
from shoal.contracts.trust import KeysNotice, PastWork
from shoal.contracts.uplink import UplinkRequest, UplinkResult, UplinkTest
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Opinion, RowReward, ValidatorCard, Verdict
from shoal.contracts.weights import (
    CheckpointFile,
    DeltaBase,
    ShardDescriptor,
    VersionIndex,
    VersionOpen,
    WeightsManifest,
)
from shoal.crypto.canonical import document_digest
from shoal.crypto.keys import PrivateKey
from shoal.evaluation.scores import Answer, AnsweredTask, scores
from shoal.evaluation.versions import VersionEvaluation
from shoal.ledger.entries import GENESIS, ConsistencyProof, InclusionProof, LedgerCheckpoint, LedgerEntry

RUN = "arithmetic"
LEASE = "ab" * 16
DIGEST = "0123456789abcdef" * 4
NOW = 1_795_000_000
ISLAND_SHARED_TERMS = IslandSharedTerms(inner_steps=100, exchange="int8", base=DIGEST, layout=DIGEST, islands=DIGEST)
ISLANDS_PROGRESS = IslandsProgress(
    round=4,
    made_unix=1795000000.5,
    members=["island-0", "island-1"],
    missed=2,
    absent=["island-2"],
    problem="settings differ",
    differing=[IslandDifference(island="island-1", setting="innerSteps", values="7 there, 100 here")],
)
AGREEMENT = IslandAgreement(run="demo", meeting="3-1795000000-12", round=4, digest=DIGEST, members=["island-0"])


def key(number: int) -> PrivateKey:
    """The same key for the same number, always."""
    return PrivateKey(Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")))


RUN_KEY, NODE_KEY, TRAINER_KEY, ORCHESTRATOR_KEY = key(1), key(2), key(3), key(4)
NODE = NODE_KEY.public
ROLE_KEYS = {role: key(100 + number) for number, role in enumerate(ROLES)} | {
    "trainer": TRAINER_KEY,
    "orchestrator": ORCHESTRATOR_KEY,
}
ROSTER = sign(Roster(run=RUN, keys={role: held.public for role, held in ROLE_KEYS.items()}), RUN_KEY)
CARD = ValidatorCard(run=RUN, validator="v-0", key=key(205).public, unix=NOW)


CHANGED_KEYS = RunKeys(RUN, RUN_KEY, dict(ROLE_KEYS), fixed=key(201))
CHANGED_KEYS.change("run", NOW, after=key(202))
CHANGED_KEYS.change("trainer", NOW + 1, leaked=True, new=key(203))
CHANGED_ROSTER = CHANGED_KEYS.roster
"""After a planned change of the run key, and one of the trainer's that leaked."""
PAST = PastWork(run=RUN, versions={0: DIGEST, 7: DIGEST}, step=7)


def run_config(s3: S3Storage | None = None, **changes: Any) -> RunConfig:
    """Configuration of a small run; a folder store unless `s3` is given."""
    return RunConfig(
        **{
            "run": RUN,
            "steps": 60,
            "async_level": 2,
            "model_id": "arithmetic-tiny",
            "model": ModelSource(generated=GeneratedModel()),
            "tasks": TaskSource(environment="arithmetic"),
            "recipe": Recipe(),
            "sampling": Sampling(),
            "length_reward": LengthReward(),
            "validation": Validation(),
            "storage": StorageSpec(s3=s3),
            "addresses": Addresses(
                discovery="http://127.0.0.1:8081",
                orchestrator="http://127.0.0.1:8080",
                origin="http://127.0.0.1:8090",
                relays=["http://127.0.0.2:8090", "http://127.0.0.3:8090"],
                redis="redis://127.0.0.1:6379/0",
            ),
            "roster": ROSTER,
            "run_key": RUN_KEY.public,
            "pools": [PoolTerms(name="pool", open=True)],
            **changes,
        }
    )


METADATA = RolloutMetadata(
    model="arithmetic-tiny", weights_digest=DIGEST, environment_digest="1" * 64, software_version="0.1.0"
)


def rollout(**changes: Any) -> Rollout:
    """One row: three prompt tokens, four completion tokens, one proof."""
    fields: dict[str, Any] = {
        "run": RUN, "step": 7, "policy_version": 6, "node": NODE, "submission": 2,
        "problem_id": "add-12-34", "prompt_index": 11, "sample_index": 0,
        "prompt_tokens": [49, 50, 43], "completion_tokens": [60, 50, 43, 257],
        "completion_logprobs": [-0.5, -0.25, -1.5, -0.125], "completion_mask": [True, True, True, True],
        "finish_reason": "stop", "task_type": "arithmetic", "target_length": 32,
        "task_reward": 1.0, "length_penalty": 0.25, "reward": 0.75,
        "seed": 2**62 + 1, "temperature": 1.0, "proofs": bytes(258),
    }  # fmt: skip
    return Rollout(**(fields | changes))


REFUSED_TASKS = RefusedTasks(reason="the gold answer is no expression", count=2, first=["p1", "p7"])
METRICS = StepMetrics(
    run=RUN, step=7, policy_version=8, attempt="arithmetic-trainer-0", started_unix=NOW, finished_unix=NOW + 20.5,
    reward=0.5, task_reward=0.625, length_penalty=0.125, loss=-0.01, gradient_norm=0.3, gradient_norm_max=0.4,
    skipped_updates=0, clip_low=0.01, clip_high=0.02, clip_delta=0.0, entropy=0.7, kl=0.001, mismatch_kl=1e-6,
    policy_lag_mean=1.5, policy_lag_max=2, rows=128, completion_tokens=4096, completion_length_mean=32.0,
    packing_density=0.97, learning_rate=1e-4, phase_seconds={"update": 12.5, "wait": 3.0},
)  # fmt: skip

OPEN = VersionOpen(
    run=RUN, version=7, shard_size=1024, shard_count=3,
    files=[CheckpointFile(name="config.json", size=100), CheckpointFile(name="model.safetensors", size=2400)],
)  # fmt: skip
DELTA_OPEN = OPEN.model_copy(
    update={"version": 8, "encoding": "delta", "base": DeltaBase(version=7, sha256=DIGEST, item_size=2)}
)
NEVER = ErrorRate(events=0, trials=384, low=0.0, high=0.0096)
PROOF_PROFILE = ProofProfile(
    hidden_size=128, dtype="float32", masked_dimensions=[3, 17],
    thresholds=ProofThresholds(max_exponent_mismatches=2, max_mantissa_error_mean=0.1, max_mantissa_error_median=0.0),
    size=CalibrationSize(prover="transformers", sequences=384, tokens=9000, chunks=384, file_sequences=48),
    honest=HonestErrors(
        max_mismatches=0, max_mantissa_error_mean=0.01, max_mantissa_error_median=0.0,
        rejected_chunks=NEVER, rejected_files=ErrorRate(events=0, trials=8, low=0.0, high=0.37),
    ),
    controls=[Control(name="int8", chunks=NEVER, files=NEVER)],
)  # fmt: skip
HARDWARE = Hardware(cpus=2, memory_bytes=1 << 30, disk_free_bytes=1 << 34, gpus=1, gpu_type="H200", uplink_mbps=41.5)
REGISTRATION = Registration(node=NODE, run=RUN, pool="workers", software_version="0.1.0", hardware=HARDWARE)
INVITE = Invite(
    run=RUN, pool="workers", node=NODE, orchestrator_url="http://127.0.0.1:8080", nonce=LEASE, expires_unix=NOW + 60
)
PUBLIC = PublicRun(
    run=RUN, steps=60, async_level=2, model_id="arithmetic-tiny", environment="arithmetic",
    environment_digest=DIGEST, tasks_digest=DIGEST, task_count=4096, group_size=16, max_sequence_length=256,
    sampling=Sampling(), length_reward=LengthReward(),
)  # fmt: skip
BENCHMARK = BenchmarkTerms(
    name="sums", environment="arithmetic", environment_digest=DIGEST, tasks_digest=DIGEST, task_count=64, samples=4,
    sampling=Sampling(temperature=0.6), target_length=4000,
)  # fmt: skip
PROMPT_TERMS = PromptTerms(
    template="Chat", system="You are terse.", assistant_prefix="<think>\n", template_arguments={"enable_thinking": True},
    tokenizer_digest=DIGEST,
)  # fmt: skip
TRUNCATION = Truncation(min_p=0.05, top_k=20, top_p=0.95)
BENCHMARK_CHAT = BENCHMARK.model_copy(update={"prompt": PROMPT_TERMS, "truncation": TRUNCATION})
PREPARED_CHAT = Prepared(
    run=RUN, model_id="chat-tiny", environment="arithmetic", environment_digest=DIGEST, tasks_digest=DIGEST, task_count=4096,
    prompt=PROMPT_TERMS, example_prompt="<|user|>12+34=", tasks_digest_found=DIGEST,
)  # fmt: skip
EVALUATION = VersionEvaluation(
    run=RUN, version=6, benchmark=BENCHMARK, slices_done=16, tasks_asked=1, nodes=2, unix=NOW + 0.5,
    scores=scores([AnsweredTask("add-12-34", [Answer(1.0, 20, False), Answer(0.0, 32, True)])], 2),
)  # fmt: skip
ENTRY = LedgerEntry(number=0, previous=GENESIS, run=RUN, kind="node-joined", unix=NOW + 0.5, node=NODE)
TERMS = terms_by(RUN_KEY.public)
CHECKPOINT = LedgerCheckpoint(run=RUN, size=1, root=DIGEST, head=document_digest(ENTRY), unix=ENTRY.unix)

PROMOTED_SCORE = PromotedScore(benchmark="sums", avg_at_k=0.5, low=0.25, high=0.75)
GROUP_PLACE = GroupPlace(group="0" * 32, rank=0, nodes=[NODE, "ab" * 32])
ASSIGNMENT = Assignment(restarts=1, group=GROUP_PLACE)
PART = PartStatus(name="worker", state="running", pid=7)
PART_STATE = PartState(
    component="RelayServer",
    name="sums-relay",
    ready=False,
    pods_ready=1,
    pods_desired=2,
    reason="PodsNotReady",
    message="1 of 2",
)
NODE_VIEW = NodeView(node=NODE, state="Healthy", pool="workers", assignment=ASSIGNMENT)


DOCUMENTS: list[Contract] = [
    HARDWARE, REGISTRATION, INVITE, METRICS, OPEN, PUBLIC, run_config(), ROSTER.document,
    CHANGED_ROSTER.document, *(change.document for change in CHANGED_ROSTER.document.changes), CARD, PAST,
    KeysNotice(roster=CHANGED_ROSTER, past=sign(PAST, ORCHESTRATOR_KEY)),
    LedgerEntry.model_validate(
        {"number": 9, "previous": GENESIS, "run": RUN, "unix": NOW, "kind": "keys-changed", "keys": CHANGED_ROSTER}
    ),
    Registered(node=NODE, invited=True), UplinkRequest(node=NODE, pool="pool"), UplinkResult(mbps=41.5, size=1, seconds=0.2),
    UplinkTest(test=LEASE, node=NODE, size=1, limit_seconds=15.0), ChallengeResult(seconds=3.5, gflops=40.0), ChallengeRequest(node=NODE),
    Challenge(challenge=LEASE, node=NODE, seed=DIGEST, lanes=16, depth=20, limit_seconds=6.0),
    ChallengeAnswer(node=NODE, challenge=LEASE, product="AAAA"),
    AGREEMENT,
    IslandsSettings(inner_steps=100, exchange="int8"),
    IslandTerms(
        peers={"island-0": NODE, "island-1": DIGEST}, publisher="island-0", lighthouse="http://10.0.0.3:29510",
        settings=IslandsSettings(),
    ),
    IslandTerms(
        peers={"run-a": NODE, "run-b": DIGEST}, publisher="run-a", lighthouse="http://meet.example.com:29510", settings=IslandsSettings(),
        group="north-south",
    ),
    CertificateLink(agreement=AGREEMENT, signatures={"island-0": "0" * 128}),
    ISLAND_SHARED_TERMS,
    IslandNotice(
        run=RUN, island="island-0", round=4, digest=DIGEST, live=True, terms=ISLAND_SHARED_TERMS, store="10.0.0.1:4000",
        certificate=[CertificateLink(agreement=AGREEMENT, signatures={"island-0": "0" * 128})], refuses=["island-1"],
        holds=["island-2"], at_unix=NOW,
    ),
    IslandContribution(
        run=RUN, island="island-0", meeting="3-1795000000-12", round=4, rank=0, contributes=True, sha256=DIGEST,
        inner_seconds=61.5, position=500,
    ),
    PROMOTED_SCORE,
    Promotion(
        run=RUN, tag="serving", number=0, version=7, sha256=DIGEST, how="best", by="ann@example.org", reason="best on sums",
        unix=NOW + 0.5, scores=[PROMOTED_SCORE],
    ),
    Promotion(
        run=RUN, tag="serving", number=1, version=6, sha256=DIGEST, how="back", by="bob", reason="wrong dates", unix=NOW + 1.5, keep=2,
    ),
    FinalModel(run=RUN, version=70, model_id="arithmetic-tiny", files={"config.json": DIGEST}),
    ModelOrigin(run=RUN, version=70, targets=[20], max_completion_tokens=48),
    SftManifest(
        run=RUN, source="/data", completion_tokens=9,
        shards=[SftShard(name="learnt-00000.parquet", sha256=DIGEST, rows=2, tokens=12, held_out=False)],
    ),
    SftShard(name="held-out-00000.parquet", sha256=DIGEST, rows=2, tokens=12, held_out=True),
    KnownNode(registration=REGISTRATION, address="127.0.0.9", seen_unix=NOW),
    KnownNodes(nodes=[KnownNode(registration=REGISTRATION, address="127.0.0.9", seen_unix=NOW)]),
    Heartbeat(node=NODE, invite=sign(INVITE, ORCHESTRATOR_KEY), policy_version=6, metrics={"tokens_per_second": 900.5}),
    Exclusions(nodes=[NODE]),
    RelayToken(run=RUN, node=NODE, expires_unix=NOW + 30),
    HeartbeatReply(state="Healthy", relay_token="a.b", relays=["http://127.0.0.2:8090"], latest_version=7),
    StepInfo(
        run=RUN, step=7, beacon=DIGEST, commitment=DIGEST, min_version=5, max_version=7, latest_version=7,
        needed_groups=16, accepted_groups=4, pending_groups=8,
    ),
    LeaseRequest(node=NODE, step=7),
    LeaseReturn(node=NODE, lease=LEASE),
    LocalReturn(lease=LEASE),
    HeldByPod(
        leases=[Lease(lease=LEASE, node=NODE, step=7, submission=2, expires_unix=NOW + 120)],
        handing_in=[LEASE],
        stays=True,
    ),
    Lease(lease=LEASE, node=NODE, step=7, submission=2, expires_unix=NOW + 120),
    HandedPart(groups=[0, 2], keep=True),
    UploadRequest(node=NODE, lease=LEASE, size=1000, sha256=DIGEST),
    UploadGrant(url="http://127.0.0.1:8080/v1/staging", fields={"key": "staging/a"}, expires_unix=NOW + 60),
    SubmissionNotice(node=NODE, lease=LEASE, size=1000, sha256=DIGEST, groups=4),
    SubmissionReceipt(lease=LEASE, sha256=DIGEST, status="queued"),
    VersionAnnouncement(run=RUN, version=7, weights_digest=DIGEST, total_size=2500),
    TrainerProgress(run=RUN, step=7, phase="update", metrics=METRICS, islands=ISLANDS_PROGRESS),
    ISLANDS_PROGRESS,
    ISLANDS_PROGRESS.differing[0],
    ClaimRequest(validator="arithmetic-validator-0"),
    ClaimRenewal(validator="arithmetic-validator-0", node=NODE, sha256=DIGEST),
    ValidationJob(
        claim=LEASE, run=RUN, node=NODE, lease=LEASE, step=7, submission=2, sha256=DIGEST, size=1000, beacon=DIGEST,
        min_version=5, max_version=7,
    ),
    LocalSubmission(lease=LEASE, file="step-7.parquet", groups=4),
    DatasetAnnouncement(run=RUN, name="traces", card_digest=DIGEST),
    DatasetProgress(name="traces", steps=16, steps_collected=4, rows_seen=64, rows_kept=21, problems=16, problems_solved=9),
    RunProgress(run=RUN, steps_total=60, open_step=7, latest_version=7, nodes={"Healthy": 2}, last_step=METRICS),
    BatchFile(node=NODE, submission=2, sha256=DIGEST, policy_version=6, rows=64, prompt_indices=[11, 12]),
    StepBatch(
        run=RUN, step=7, beacon=DIGEST, groups=2, groups_dropped=1,
        files=[BatchFile(node=NODE, submission=2, sha256=DIGEST, policy_version=6, rows=64, prompt_indices=[11, 12])],
    ),
    Beacon(run=RUN, step=7, beacon=DIGEST),
    SourceGroups(sampled=8, with_signal=5),
    RowReward(task_reward=1.0, length_penalty=0.25, reward=0.75),
    Verdict(
        run=RUN, node=NODE, lease=LEASE, step=7, submission=2, sha256=DIGEST, policy_version=6, outcome="accept",
        rewards=[RowReward(task_reward=None, length_penalty=None, reward=None)], rows=1, completion_tokens=4,
        compute=COMPUTE,
    ),
    Verdict(
        run=RUN, node=NODE, lease=LEASE, step=7, submission=2, sha256=DIGEST, outcome="reject", reason="sampling",
        evidence="row 3: prompt_index is 9, drawn is 11",
    ),
    Opinion(validator="v-0", verdict=sign(
        Verdict(run=RUN, node=NODE, lease=LEASE, step=7, submission=2, sha256=DIGEST, outcome="reject", reason="redraw"),
        ROLE_KEYS["validator"],
    )),
    ShardDescriptor(run=RUN, version=7, index=2, size=452, sha256=DIGEST),
    DeltaBase(version=6, sha256=DIGEST, item_size=4),
    DELTA_OPEN,
    ShardDescriptor(run=RUN, version=8, index=2, size=45, sha256=DIGEST, encoding="delta"),
    WeightsManifest(
        run=RUN, version=7, model="arithmetic-tiny", sha256=DIGEST, open_digest=document_digest(OPEN), shards=[DIGEST] * 3
    ),
    VersionIndex(versions=[3, 4, 5, 6, 7]),
    ENTRY, CHECKPOINT, *ledger_samples(RUN, RUN_KEY.public, NODE, HARDWARE),
    InclusionProof(
        roster=ROSTER, entry=sign(ENTRY, ORCHESTRATOR_KEY), path=[DIGEST], checkpoint=sign(CHECKPOINT, ORCHESTRATOR_KEY)
    ),
    ConsistencyProof(
        roster=ROSTER, old=sign(CHECKPOINT, ORCHESTRATOR_KEY), new=sign(CHECKPOINT, ORCHESTRATOR_KEY), path=[DIGEST]
    ),
    ChatMessage(role="user", content="12+34="),
    Task(problem_id="add-12-34", task_type="arithmetic", prompt="12+34=", verification_info={"answer": "46"}),
    Task(problem_id="chat", task_type="chat", prompt=[ChatMessage(role="user", content="hello")]),
    Prepared(
        run=RUN, model_id="arithmetic-tiny", environment="arithmetic", environment_digest=DIGEST, tasks_digest=DIGEST,
        task_count=4096, base_pass_rate=0.31,
    ),
    PREPARED_CHAT, PROMPT_TERMS, TRUNCATION, BENCHMARK_CHAT,
    EnvironmentPackage(package="echoes", version="1.0", sha256=DIGEST, object="packages/echoes.whl"),
    PinnedPackage(package="echoes", version="1.0", sha256=DIGEST, size_bytes=4096),
    PromptSettings(template="Chat", system="You are terse.", assistant_prefix="<think>\n", template_arguments={"enable_thinking": True}),
    BENCHMARK, EVALUATION, BestVersion(version=6, benchmark="sums", value=0.62),
    EvaluationProgress(version=6, benchmark="sums", slices=4, slices_done=4, avg_at_k=0.62, low=0.5, high=0.73, ended=True),
    Verdict(
        run=RUN, node=NODE, lease=LEASE, step=1_000_024, submission=2, sha256=DIGEST, policy_version=6, outcome="accept",
        rewards=[RowReward(task_reward=1.0, length_penalty=0.0, reward=1.0)], rows=1, completion_tokens=4,
        completion_lengths=[4], cut_rows=[0],
    ),
    PROOF_PROFILE, PROOF_PROFILE.size, PROOF_PROFILE.honest, PROOF_PROFILE.controls[0], NEVER,
    ProofTerms.in_force(None, PROOF_PROFILE),
    AgentState(node=NODE, state="Healthy", relays=["http://127.0.0.2:8090"], trainer_key=TRAINER_KEY.public, public=PUBLIC, restarts=7),
    NodeConfig(run=RUN, pool="workers", discovery="http://127.0.0.1:8081", roster=ROSTER, run_key=RUN_KEY.public),
    OpenPool(name="workers", codes=True),
    JoinOffer(run=RUN, run_key=RUN_KEY.public, roster=ROSTER, model_id="m", pools=[OpenPool(name="workers")]),
    GROUP_PLACE,
    ASSIGNMENT,
    NodeLogs(node=NODE, request="0" * 32, parts={"worker": "file done"}),
    PART,
    AgentStatus(
        run=RUN,
        pool="workers",
        node=NODE,
        discovery="http://127.0.0.1:8081",
        state="Healthy",
        assignment=ASSIGNMENT,
        parts=[PART],
        written_unix=1.8e9,
    ),
    NODE_VIEW,
    NodeList(nodes=[NODE_VIEW], next=NODE),
    ReasonRequest(reason="ten keys on one machine"),
    LogsTicket(request="0" * 32),
    PART_STATE,
    RunParts(run=RUN, parts=[PART_STATE]),
    Lending(upload_bits=20_000_000, download_bits=100_000_000, hours="22:00-07:00", gpus=["0"]),
    OwnersRequest(request="pause", unix=1.8e9),
    TypeMeans(groups=2, rows=8, task_reward=0.5, reward=0.25, completion_length_mean=7.5),
    REFUSED_TASKS,
    TaskReport(rows=9, tasks=4, skipped={"another split": 3}, refused=[REFUSED_TASKS], proven=4),
    JudgedTasks(flaws={"p1": "the gold answer is no expression"}, proven=4),
]  # fmt: skip
