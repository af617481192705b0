"""Messages of discovery, orchestrator and the agent's socket (docs/http.md).

A worker's message is a claim about itself: every field is bounded, and the orchestrator compares `node` with the key that signed the request.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from shoal.contracts.answers import LearningProgress
from shoal.contracts.base import LARGEST_INTEGER, Contract, LeaseId, NodeId, RunName, Sha256Hex, unset
from shoal.contracts.datasets import DatasetName
from shoal.contracts.evaluation import BestVersion, EvaluationProgress
from shoal.contracts.hub import HubCommit
from shoal.contracts.islands import IslandsProgress
from shoal.contracts.pools import CodeClaim, Quantization, Sampler
from shoal.contracts.proof_profile import ProofTerms
from shoal.contracts.signed import Signed
from shoal.contracts.steps import PromptIndex, StepMetrics
from shoal.contracts.weights import VersionNumber
from shoal.contracts.work import LeasePart, ascending

NodeState = Literal["Discovered", "Invited", "Healthy", "Unhealthy", "Dead", "Evicted", "Banned"]

Url = Annotated[str, StringConstraints(pattern=r"^https?://[A-Za-z0-9.\[\]:_-]+(/[A-Za-z0-9._~/-]*)?$", max_length=500)]
MetricName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,79}$")]
PrintableText = Annotated[str, StringConstraints(max_length=200, pattern=r"^[\x20-\x7e]*$")]
"""Printable ASCII: nothing that a terminal or a page could take for markup of its own control codes."""

HEARTBEAT_SECONDS = 10.0
"""Seconds between heartbeats; three missed make a node Dead (DESIGN section 4)."""
LEAVE_SECONDS = 20.0
"""A pool's pod that is asked to end has handed in or given back its work after this; ten more are left of its grace period to end in."""
RELAY_TOKEN_SECONDS = 30
"""Life of a relay token: an evicted node is cut off within this time."""


class Hardware(Contract):
    """Hardware that a machine reports."""

    cpus: int = Field(ge=1, le=4096)
    memory_bytes: int = Field(ge=0, le=1 << 50)
    disk_free_bytes: int = Field(ge=0, le=LARGEST_INTEGER)
    gpus: int = Field(default=0, ge=0, le=1024)
    gpu_type: PrintableText = ""
    gpu_memory_bytes: int | None = Field(
        default=None, ge=0, le=1 << 50, exclude_if=unset, description="of the smallest GPU; null: not known"
    )
    uplink_mbps: float | None = Field(
        default=None,
        ge=0.0,
        le=10_000_000.0,
        description="10^6 bits a second out to discovery, which measured it and replaces what a node says; null: not measured",
    )


class Registration(Contract):
    """Node metadata at discovery."""

    node: NodeId
    run: RunName
    pool: RunName
    software_version: PrintableText
    hardware: Hardware
    proof: Sha256Hex | None = Field(default=None, description="of a pool's own pod (contracts/pools.py)")
    code: Signed[CodeClaim] | None = Field(default=None, description="of a machine with an invite code")
    quantization: Quantization | None = Field(
        default=None, exclude_if=unset, description="how the node rounds the weights that it samples with"
    )


class Registered(Contract):
    """Answer to a registration."""

    tells = True
    node: NodeId
    invited: bool


class KnownNode(Contract):
    """A registration as the orchestrator reads it from discovery."""

    registration: Registration
    address: PrintableText
    seen_unix: float


class KnownNodes(Contract):
    """Registrations that wait for an invite, oldest first, as many as one answer holds."""

    nodes: list[KnownNode]
    more: bool = Field(default=False, description="others wait that registered later than the last of these")


class Invite(Contract):
    """Signed by the orchestrator: single use, expiring, bound to node, pool and run."""

    run: RunName
    pool: RunName
    node: NodeId
    orchestrator_url: Url
    nonce: LeaseId
    expires_unix: int = Field(ge=0)


class ChallengeRequest(Contract):
    """An invited node is ready for a challenge."""

    node: NodeId


class Challenge(Contract):
    """Work of `crypto/challenge.py`, to be answered once and within `limit_seconds` of the moment it was given out."""

    challenge: LeaseId
    node: NodeId
    seed: Sha256Hex
    lanes: int = Field(ge=1, le=1024)
    depth: int = Field(ge=1, le=65_536)
    limit_seconds: float = Field(gt=0.0, le=3600.0)


class ChallengeAnswer(Contract):
    """The product, base64 of one byte an entry: as long whatever the work was."""

    node: NodeId
    challenge: LeaseId
    product: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=400_000)]


class ChallengeResult(Contract):
    """The product is correct and arrived in time."""

    seconds: float = Field(ge=0.0)
    gflops: float = Field(
        ge=0.0, description="10^9 operations a second, including the network time to and from the node"
    )


class Heartbeat(Contract):
    """Sent every `HEARTBEAT_SECONDS`; the first one after an invite carries it."""

    node: NodeId
    invite: Signed[Invite] | None = None
    policy_version: VersionNumber | None = Field(default=None, description="newest version that the node holds")
    metrics: dict[MetricName, float] = Field(default_factory=dict, max_length=64)


class RelayToken(Contract):
    """A token that a relay checks offline; travels as `relay_token.encode` writes it."""

    run: RunName
    node: NodeId
    expires_unix: int = Field(ge=0)


class Exclusions(Contract):
    """Nodes that were evicted or banned: relays no longer serve them, whatever their tokens say."""

    nodes: list[NodeId] = Field(max_length=100_000)


class GroupPlace(Contract):
    """A node's place in a group of nodes, which the orchestrator of 0.2.0 could form. Read, never written."""

    group: LeaseId = Field(description="never reused after it is dissolved")
    rank: int = Field(ge=0, le=63)
    nodes: list[NodeId] = Field(min_length=2, max_length=64, description="all of the group, by rank, this node too")
    ready: bool = Field(default=False, description="every node of the group has been told")


class Assignment(Contract):
    """A member's task in its pool. A name of work, never a command: the node's own installation decides what it starts."""

    kind: Literal["rollouts"] = "rollouts"
    restarts: int = Field(
        default=0,
        ge=0,
        description="grows when an admin asks for a restart; a smaller value than before has no meaning",
    )
    group: GroupPlace | None = Field(default=None, description="always absent; an orchestrator of 0.2.0 could set it")


class HeartbeatReply(Contract):
    tells = True
    state: NodeState
    relay_token: str | None = Field(default=None, max_length=1000, description="None unless Healthy")
    relays: list[Url] = Field(default_factory=list, max_length=1000)
    latest_version: VersionNumber | None = None
    heartbeat_seconds: float = Field(default=HEARTBEAT_SECONDS, ge=1.0, le=60.0)
    assignment: Assignment | None = Field(default=None, description="None: nothing to do")
    logs_wanted: LeaseId | None = Field(default=None, description="an admin asks for logs: POST /v1/logs with this id")
    files_accepted: int = Field(default=0, ge=0, description="of this node, in all")
    files_rejected: int = Field(default=0, ge=0)
    run_complete: bool = Field(default=False, description="nothing is left to do; a stranger's machine may leave")


MAX_LOG_CHARACTERS = 65_536
"""Of one process, the newest; a request for logs brings at most eight times as many."""


class NodeLogs(Contract):
    """The last log lines of a node's processes, on request. A stranger's words: escape them before showing them."""

    node: NodeId
    request: LeaseId
    parts: dict[MetricName, Annotated[str, StringConstraints(max_length=MAX_LOG_CHARACTERS)]] = Field(max_length=8)


class StepInfo(Contract):
    """The open step: the smallest one with too few accepted groups that carry signal. Or a slice of an evaluation, by its number
    (`contracts.evaluation`), with one version to answer it.
    """

    run: RunName
    step: int = Field(ge=0)
    beacon: Sha256Hex = Field(description="32 bytes in hex")
    commitment: Sha256Hex
    min_version: VersionNumber
    max_version: VersionNumber
    latest_version: VersionNumber
    needed_groups: int = Field(ge=1)
    accepted_groups: int = Field(ge=0)
    pending_groups: int = Field(ge=0, description="in files that wait for a verdict or are leased")
    first_unsealed_step: int | None = Field(default=None, ge=0, description="files of earlier steps expire")
    leases: int | None = Field(
        default=None,
        ge=1,
        exclude_if=unset,
        description="that the node may have at a time: a further one drops the oldest. Told to a node that asks with `together`",
    )
    hand_in_every_seconds: int | None = Field(
        default=None,
        ge=1,
        exclude_if=unset,
        description="whole groups of a lease may be handed in, and are after this time. Told to a node that asks with `parts`",
    )
    again_seconds: int | None = Field(
        default=None,
        ge=1,
        le=600,
        exclude_if=unset,
        description="ask again after this time, unless a lease is wanted meanwhile: many nodes ask. Told to a node that asks with `pace`",
    )


class LeaseRequest(Contract):
    node: NodeId
    step: int = Field(ge=0)
    held: list[LeaseId] | None = Field(
        default=None,
        max_length=99,
        exclude_if=lambda held: held is None,
        description="leases that the node works on: none of them is dropped for this one. Named to whoever tells `leases`",
    )
    parts: bool = Field(
        default=False,
        exclude_if=lambda parts: not parts,
        description="it finishes what others began, too. Said to whoever tells `hand_in_every_seconds`",
    )


class LeaseReturn(Contract):
    """This lease gets no file: another node may have its place."""

    node: NodeId
    lease: LeaseId


class Lease(Contract):
    """The right to submit one file: submission numbers of a node are leased one after the other."""

    lease: LeaseId
    node: NodeId
    step: int = Field(ge=0)
    submission: int = Field(ge=0)
    expires_unix: float
    part: LeasePart | None = Field(
        default=None,
        exclude_if=unset,
        description="the groups that it is for: as many as its node is fast, or the rest of a lease; absent: all of its number",
    )
    prompts: list[PromptIndex] | None = Field(
        default=None,
        min_length=1,
        max_length=65536,
        exclude_if=unset,
        description="of a run with a curriculum: rows of the task table for all groups of the draw, in their order."
        " Whoever has the batches draws them again",
    )


def rest_of(lease: LeaseId) -> LeaseId:
    """The name of the lease for what a part of this one left: the same for everybody, however often it is asked for."""
    return hashlib.sha256(b"shoal/rest/v1\0" + bytes.fromhex(lease)).hexdigest()[:32]


class HandedPart(Contract):
    """A file has some of its lease's groups only. The rest is a lease of its own from then on: this node's with `keep`, else anybody's."""

    groups: list[int] = Field(
        min_length=1, max_length=65536, description="places in the draw, from 0, ascending; not all of the lease"
    )
    keep: bool = False

    @field_validator("groups")
    @classmethod
    def _ascending(cls, groups: list[int]) -> list[int]:
        return ascending(groups)


class UploadRequest(Contract):
    node: NodeId
    lease: LeaseId
    size: int = Field(ge=1, le=1 << 30, description="bytes")
    sha256: Sha256Hex


class UploadGrant(Contract):
    """A POST policy for exactly one staging key: post `fields` and then the file as `file` to `url`."""

    url: str = Field(max_length=2000)
    fields: dict[str, str] = Field(max_length=32)
    expires_unix: float


OF_ROWS = "version of all rows, of several the oldest; validators check the files of a version together. A file of another one is rejected"


class SubmissionNotice(Contract):
    """The upload is complete; the orchestrator hashes it itself."""

    node: NodeId
    lease: LeaseId
    size: int = Field(ge=1, le=1 << 30)
    sha256: Sha256Hex
    groups: int = Field(ge=1, le=65536)
    policy_version: VersionNumber | None = Field(default=None, exclude_if=unset, description=OF_ROWS)
    part: HandedPart | None = Field(default=None, exclude_if=unset, description="None: the file has all of its lease")


class SubmissionReceipt(Contract):
    tells = True
    lease: LeaseId
    sha256: Sha256Hex
    status: Literal["queued", "accepted", "rejected", "expired", "inconclusive"]
    rest: Lease | None = Field(
        default=None, exclude_if=unset, description="the lease for what a part left, if it was kept"
    )


class VersionAnnouncement(Contract):
    """Sent by the trainer, after all pieces are durable; the training state may come later."""

    run: RunName
    version: VersionNumber
    weights_digest: Sha256Hex = Field(description="`WeightsManifest.sha256`")
    total_size: int = Field(ge=0, description="bytes")


class DatasetAnnouncement(Contract):
    """Sent by the collector of a run of mode Generate, after every file of the data set is durable."""

    run: RunName
    name: DatasetName
    card_digest: Sha256Hex = Field(description="SHA-256 of `card.json`")


class DatasetProgress(Contract):
    """Progress of a run of mode Generate. Steps are slices of the task table."""

    name: PrintableText
    steps: int = Field(ge=1)
    steps_collected: int = Field(default=0, ge=0)
    rows_seen: int = Field(default=0, ge=0, description="accepted completions")
    rows_kept: int = Field(default=0, ge=0)
    problems: int = Field(default=0, ge=0, description="problems that were sampled")
    problems_solved: int = Field(default=0, ge=0, description="problems with at least one right completion")


class TrainerProgress(Contract):
    """The trainer's progress; `metrics` is the last finished step."""

    run: RunName
    step: int = Field(ge=0)
    phase: PrintableText
    note: str = Field(default="", max_length=500, description="in words, such as why it is `paused` and how to resume")
    metrics: StepMetrics | None = None
    dataset: DatasetProgress | None = Field(default=None, description="of a run of mode Generate")
    islands: IslandsProgress | None = Field(default=None, description="of a trainer that is one of several islands")


class ClaimRequest(Contract):
    validator: PrintableText = Field(description="pod name; a second opinion must come from another pod")
    versions: list[VersionNumber] = Field(
        default_factory=list,
        exclude_if=unset,
        max_length=64,
        description="versions that it holds: their files come first; none: the file that waits longest",
    )


class ClaimRenewal(Contract):
    """A validator that is still judging a file; the claim begins again."""

    validator: PrintableText = Field(description="name with which the file was claimed")
    node: NodeId
    sha256: Sha256Hex
    program_seconds: float = Field(
        default=0.0,
        ge=0.0,
        exclude_if=lambda seconds: seconds == 0.0,
        description="CPU seconds that programs and judges of the file took since it was claimed",
    )


class ValidationJob(Contract):
    """One file to check. Another validator gets it when no verdict and no renewal came within `claim_seconds`."""

    claim: LeaseId
    run: RunName
    node: NodeId
    lease: LeaseId
    step: int = Field(ge=0)
    submission: int = Field(ge=0)
    sha256: Sha256Hex
    size: int = Field(ge=1)
    beacon: Sha256Hex
    min_version: VersionNumber
    max_version: VersionNumber
    accepted_files: int = Field(default=0, ge=0, description="of this node, since its last rejected one")
    on_probation: bool = Field(default=True, description="every row is to be checked")
    second_opinion: bool = Field(
        default=False, description="a statistical check of another claim rejected this file: every row is to be checked"
    )
    sampler: Sampler | None = Field(
        default=None, description="the rule by which this node's tokens are drawn; None: nothing to draw again"
    )
    policy_version: VersionNumber | None = Field(
        default=None, exclude_if=unset, description="that the node said with the file; None: it said none"
    )
    program_seconds: float | None = Field(
        default=None,
        ge=0.0,
        exclude_if=unset,
        description="CPU seconds that are left to programs and judges of this node's files; None: a whole file's",
    )
    part: LeasePart | None = Field(
        default=None, exclude_if=unset, description="that the file must hold; None: all that is drawn for its number"
    )
    pools: Sha256Hex | None = Field(
        default=None,
        exclude_if=unset,
        description="of a run with a curriculum: digest of the step's pools, as the orchestrator has them",
    )


class LocalSubmission(Contract):
    """From worker to agent: a file under the pod's `tmp/`, by its plain name."""

    lease: LeaseId
    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
    groups: int = Field(ge=1, le=65536)
    policy_version: VersionNumber | None = Field(default=None, exclude_if=unset, description=OF_ROWS)
    part: HandedPart | None = Field(default=None, exclude_if=unset)


class LocalReturn(Contract):
    """From worker to agent: leases that no file will come for. None: all that this pod holds."""

    lease: LeaseId | None = None


class HeldByPod(Contract):
    """From agent to worker: leases that this pod holds, for a worker that comes in the place of another."""

    leases: list[Lease]
    handing_in: list[LeaseId] = Field(
        description="of which files are on their way to the orchestrator, so that their names may change"
    )
    stays: bool = Field(
        description="whether a worker that ends now is followed by another one: false once the pod ends, or its owner stops it"
    )


class RunProgress(Contract):
    """`GET /v1/run`: aggregates of the whole run; nothing in it is secret."""

    tells = True
    run: RunName
    steps_total: int = Field(ge=1)
    open_step: int | None = Field(ge=0, description="None while no step is open, or when the run is complete")
    waiting_for: PrintableText = Field(default="", description="why no step is open, in words")
    latest_version: VersionNumber | None
    accepted_groups: int = Field(default=0, ge=0)
    needed_groups: int = Field(default=0, ge=0)
    pending_groups: int = Field(default=0, ge=0)
    files_accepted: int = Field(default=0, ge=0)
    files_rejected: int = Field(default=0, ge=0)
    files_expired: int = Field(default=0, ge=0)
    files_inconclusive: int = Field(default=0, ge=0)
    files_pending: int = Field(default=0, ge=0)
    reject_reasons: dict[str, int] = Field(default_factory=dict)
    nodes: dict[NodeState, int] = Field(default_factory=dict)
    completion_tokens_accepted: int = Field(default=0, ge=0)
    groups_accepted_total: int = Field(default=0, ge=0)
    groups_dropped_total: int = Field(default=0, ge=0)
    judged_groups: int = Field(
        default=0, ge=0, description="groups of the open step that were accepted, with signal or not"
    )
    stalled_on_signal: str = Field(
        default="",
        max_length=1000,
        description="why sampling for the open step stopped, and what to do; empty while all is well",
    )
    learning: LearningProgress | None = Field(
        default=None,
        exclude_if=unset,
        description="of a run of mode Train: whether the newest groups carry signal, and if not why",
    )
    trainer_phase: str = ""
    trainer_note: str = Field(default="", max_length=500, description="in words, such as why the trainer is `paused`")
    last_step: StepMetrics | None = None
    proofs: ProofTerms | None = Field(
        default=None, description="thresholds and error rates in force; None: not known yet"
    )
    dataset: DatasetProgress | None = Field(default=None, description="of a run of mode Generate")
    evaluations: list[EvaluationProgress] = Field(
        default_factory=list, max_length=64, description="scores of the newest versions on benchmarks"
    )
    best_version: BestVersion | None = Field(default=None, description="None: no evaluation is complete")
    islands: IslandsProgress | None = Field(default=None, description="what the trainer says of its exchanges")
    commits: list[HubCommit] | None = Field(
        default=None, exclude_if=unset, max_length=64, description="of hub repositories, as prepare resolved them"
    )
    version_bytes: int | None = Field(
        default=None, exclude_if=unset, ge=0, description="bytes of the newest version in full; None before the first"
    )
    store_away_since: float | None = Field(
        default=None,
        exclude_if=unset,
        ge=0.0,
        description="Unix time since when the store does not answer; None while it does",
    )
    complete: bool = False
