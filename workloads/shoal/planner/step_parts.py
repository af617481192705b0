"""How long each part of a step takes, alone: generate, upload, verify, train, save state, publish, broadcast. Closed form, pure.

A worker fills its engine with rows of several leases and uploads beside it, so that only a lease's own time has its last row. Decoding reads all
weights once an iteration and the cache of every running sequence; prefill, checks and training compute. The formulas are beside the code that they
describe; ADR 0079 has what they leave out. Called by `plan`.
"""

import math
from dataclasses import dataclass

from shoal.planner.facts import MBIT, WIDTH, PoolFacts, RunFacts, Surroundings
from shoal.planner.lengths import CompletionLengths
from shoal.planner.memory import recomputes, state_every
from shoal.planner.rates import (
    APPLY_BYTES_A_SECOND,
    CHECK_SECONDS_A_TOKEN,
    CORES,
    CUT_BYTES_A_SECOND,
    DECODE_SHARE,
    ENGINE_SEQUENCES,
    EXPORT_BYTES_A_SECOND,
    FILE_BYTES_A_TOKEN,
    PROOF_SECONDS_A_TOKEN,
    SLOT_OCCUPANCY,
    SWAP_SECONDS,
    TRAINING_SHARE,
)

LEAST_SLOTS = 1
CONNECTIONS = 4
"""Of a node that fetches a version, over all relays together (broadcast/transfer.py)."""


@dataclass(frozen=True)
class LeaseTime:
    """One lease of one worker of a pool, in seconds."""

    pool: str
    workers: int
    prefill: float
    decode: float
    upload: float
    last_row: float
    """Decoding of one lease until its last row ends, beside rows of other leases."""
    alone: float
    """The same of a lease that has the engine for itself: a node on probation holds one at a time."""
    slots: int
    """Sequences that run at once, of the file's rows."""

    @property
    def seconds(self) -> float:
        """From lease to lease, in the long run."""
        return max(self.prefill + self.decode, self.upload)

    @property
    def latency(self) -> float:
        """From a lease until its file is there."""
        return self.prefill + self.last_row + self.upload

    @property
    def latency_alone(self) -> float:
        """The same of a node on probation, which then asks for its next lease."""
        return self.prefill + self.alone + self.upload

    def between(self, *, on_probation: bool = False) -> tuple[float, float]:
        """Seconds from lease to lease, and the share of them in which the engine does nothing: files travel longer than they are made, or before the
        next lease."""
        if on_probation:
            return self.latency_alone, self.upload / self.latency_alone
        return self.seconds, 1 - (self.prefill + self.decode) / self.seconds


def lengths(around: Surroundings, run: RunFacts) -> CompletionLengths:
    """Of this run's completions."""
    return CompletionLengths(min(around.mean_tokens, run.completion_tokens), run.completion_tokens, around.spread)


def attention_flops(around: Surroundings, positions: float) -> float:
    """Of one token that looks back at `positions`, beside those of the weights."""
    return 4.0 * positions * around.model.hidden_size * around.model.layers


def workers_of(pool: PoolFacts, around: Surroundings) -> int:
    """Pods, and strangers' machines."""
    return pool.replicas + (around.strangers.get(pool.name, 0) if pool.open else 0)


def lease(run: RunFacts, around: Surroundings, pool: PoolFacts, *, stranger: bool) -> LeaseTime:
    """One lease. Strangers upload through `uplink_mbit`, pods through the store's line, which all of them share in `rollout_seconds`."""
    device, devices = around.device(pool.gpus, pool.gpu), max(1, pool.gpus)
    each, rows = lengths(around, run), run.file_rows
    tokens, position = rows * run.sampled_share * each.mean, around.prompt_tokens + each.mean_position
    prefilled = around.prompt_tokens + (1 - run.sampled_share) * each.mean
    weights = WIDTH * around.model.parameters
    one = WIDTH * around.model.layers * around.model.key_values
    room = devices * device.nbytes * pool.memory_share - weights
    slots = max(LEAST_SLOTS, min(rows, pool.max_sequences or ENGINE_SEQUENCES, int(room / (one * position))))
    full = tokens / slots / SLOT_OCCUPANCY
    cache = tokens * position * one
    flops = 2.0 * around.model.parameters + attention_flops(around, position)
    computing = devices * device.flops * TRAINING_SHARE
    bandwidth = devices * device.bandwidth * DECODE_SHARE
    decode = max((full * weights + cache) / bandwidth, tokens * flops / computing)
    iteration = decode / full
    last_alone = each.last_of(rows, tokens / slots * (1 - slots / rows))  # those that find no place begin as others end
    uplink = around.uplink_mbit if stranger else around.store_mbit
    return LeaseTime(
        pool=pool.name,
        workers=around.strangers.get(pool.name, 0) if stranger else pool.replicas,
        prefill=rows * prefilled * 2.0 * around.model.parameters / computing,
        decode=decode,
        last_row=iteration * each.last_of(rows, full),
        alone=max((max(last_alone, full) * weights + cache) / bandwidth, tokens * flops / computing),
        upload=file_bytes(run, around) / (uplink * MBIT),
        slots=slots,
    )


def leases(run: RunFacts, around: Surroundings) -> list[LeaseTime]:
    """Those of all pools that have workers; strangers of a pool beside its pods."""
    made = [lease(run, around, pool, stranger=False) for pool in run.pools if pool.replicas]
    made += [
        lease(run, around, pool, stranger=True) for pool in run.pools if pool.open and around.strangers.get(pool.name)
    ]
    return made


def file_bytes(run: RunFacts, around: Surroundings) -> float:
    """Of one submitted file."""
    return run.file_rows * run.sampled_share * lengths(around, run).mean * FILE_BYTES_A_TOKEN


def files_a_step(run: RunFacts, around: Surroundings) -> float:
    """Files that must be judged until a step is full."""
    share = around.signal_share if run.filtered else 1.0
    return run.prompts_per_step / share / run.groups_per_file


def rollout_seconds(run: RunFacts, around: Surroundings, *, on_probation: bool = False) -> tuple[float, float]:
    """Generating and uploading of one step, by all workers together; infinite without workers. On probation each has one lease at a time."""
    made = leases(run, around)
    files_a_second = sum(each.workers / each.between(on_probation=on_probation)[0] for each in made)
    if not files_a_second:
        return math.inf, 0.0
    whole, waiting = files_a_step(run, around) / files_a_second, 0.0
    for each in made:
        seconds, share = each.between(on_probation=on_probation)
        waiting += each.workers / seconds * share / files_a_second
    through_store = files_a_step(run, around) * file_bytes(run, around) / (around.store_mbit * MBIT)
    return whole * (1 - waiting), max(whole * waiting, through_store)


def rows_looked_at(run: RunFacts, accepted_files: int | None = None) -> int:
    """Of a file, by its node's accepted files (validation/sequential.py); None: of a node that has shown enough."""
    if accepted_files is not None and accepted_files < run.probation_files:
        return run.file_rows
    earned = 0.0 if accepted_files is None else run.probation_files / max(1, accepted_files)
    share = min(1.0, max(run.proof_share, earned))
    return min(run.file_rows, max(run.proof_floor, math.ceil(share * run.file_rows)))


def file_check_seconds(run: RunFacts, around: Surroundings, rows: int | None = None) -> float:
    """Judging one file of which `rows` are looked at (default: those of a node that has shown enough). All GPUs of a validator compute each pass
    (validation/group.py); one core does the rest."""
    tokens = lengths(around, run).mean + around.prompt_tokens
    checked = (rows_looked_at(run) if rows is None else rows) * tokens
    device = around.device(run.validator_gpus, run.validator_gpu)
    flops = 2.0 * around.model.parameters + attention_flops(around, lengths(around, run).mean_position)
    proofs = PROOF_SECONDS_A_TOKEN * max(1.0, around.model.hidden_size / 5120)
    prefill = checked * flops / (max(1, run.validator_gpus) * device.flops * TRAINING_SHARE)
    return run.file_rows * tokens * CHECK_SECONDS_A_TOKEN + checked * proofs + prefill


def verify_seconds(run: RunFacts, around: Surroundings, rows: int | None = None) -> float:
    """Judging a step's files by all validators, `rows` of each (default: those of a node that has shown enough); infinite without one."""
    if not run.validators:
        return math.inf
    return files_a_step(run, around) * file_check_seconds(run, around, rows) / run.validators


def forward_units(run: RunFacts, around: Surroundings) -> float:
    """Forward passes that a trained token costs: forward, backward (two), recomputation; log-probabilities of others where they are asked for.

    PRIME's reward model is asked for rewards, and learns as the policy does.
    """
    backward = 2 if run.method.startswith("Full") else 1
    again = recomputes(around.model) if run.recomputes is None else run.recomputes
    update = 1 + backward + again
    return update + run.reference + run.old_share + run.behaviour + run.reward_model * (1 + update)


def train_seconds(run: RunFacts, around: Surroundings) -> float:
    """All passes of one step; measured where `Surroundings` has it."""
    if around.train_seconds is not None:
        return around.train_seconds
    tokens = run.rows * (lengths(around, run).mean + around.prompt_tokens)
    flops = 2.0 * around.model.parameters + attention_flops(around, lengths(around, run).mean_position)
    device = around.device(run.trainer_gpus, run.trainer_gpu)
    ranks = run.trainer_pods * run.trainer_ranks
    return tokens * flops * forward_units(run, around) / (ranks * device.flops * TRAINING_SHARE)


def save_seconds(run: RunFacts, around: Surroundings) -> float:
    """A step's share of the states that go to the store, behind versions and beside the next steps; with adapters each one's, and before it."""
    asked = 1 if run.method == "LoRA" else run.state_every
    model = around.model
    saved = run.state(model.parameters, model) / (around.store_mbit * MBIT)
    return saved / state_every(asked, run.trained(model.parameters, model))


def delta_bytes(run: RunFacts, around: Surroundings) -> float:
    """Of a version as holders of the one before fetch it: a delta, which lies beside those in full too."""
    return around.version if run.anchor_every == 1 else around.version / around.delta_ratio


def mean_version_bytes(run: RunFacts, around: Surroundings) -> float:
    """That a relay and the store get a version, over the versions from one in full to the next: a delta each, and one version in full."""
    if run.anchor_every == 1:
        return around.version
    return around.version / run.anchor_every + delta_bytes(run, around)


def write_seconds(run: RunFacts, around: Surroundings) -> float:
    """The leader's ranks write a version, and the publisher cuts it meanwhile."""
    return around.version / min(run.trainer_ranks * EXPORT_BYTES_A_SECOND, CORES * CUT_BYTES_A_SECOND)


def publish_seconds(run: RunFacts, around: Surroundings) -> float:
    """Writing a version, cutting it, and putting it into the store: beside each other, so the slowest counts."""
    return max(write_seconds(run, around), mean_version_bytes(run, around) / (around.store_mbit * MBIT))


def nodes(run: RunFacts, around: Surroundings) -> int:
    """Workers of all pools: what fetches versions from relays."""
    return sum(workers_of(pool, around) for pool in run.pools)


def links_seconds(run: RunFacts, around: Surroundings, nbytes: float) -> dict[str, float]:
    """A version's way to all nodes, by the link that it passes: they pass it on while it comes, so the slowest of them counts.

    Pods inside the cluster and strangers alike fetch from relays. The validators read versions from the store.
    """
    if not run.relays:
        return {"relays": math.inf}
    rate, shards = around.relay_mbit * MBIT, around.version / run.shard_bytes
    found = {
        "origin": run.relays * nbytes / rate,
        "relays": nodes(run, around) * nbytes / (run.relays * rate),
        "requests": shards / (run.relays * run.relay_requests),
    }
    if run.relay_connection_bytes is not None:
        found["connections"] = nbytes / (CONNECTIONS * run.relay_connection_bytes)
    if any(pool.open and around.strangers.get(pool.name) for pool in run.pools):
        found["downlinks"] = nbytes / (around.downlink_mbit * MBIT)
    return found


def fetch_seconds(run: RunFacts, around: Surroundings, nbytes: float) -> float:
    """A version's way to all nodes."""
    return max(links_seconds(run, around, nbytes).values())


def apply_seconds(around: Surroundings) -> float:
    """A node puts a version together from its delta."""
    return around.version / (CORES * APPLY_BYTES_A_SECOND)


def arrival_seconds(run: RunFacts, around: Surroundings) -> dict[str, float]:
    """What a broadcast waits for on average: the links of `links_seconds`, and `nodes` that put a version together."""
    links = links_seconds(run, around, delta_bytes(run, around))  # a version in full follows its delta
    return links | {"nodes": apply_seconds(around)}


def slowest_link(run: RunFacts, around: Surroundings) -> str:
    """What a broadcast waits for longest."""
    found = arrival_seconds(run, around)
    return max(found, key=lambda name: found[name])


def broadcast_seconds(run: RunFacts, around: Surroundings) -> float:
    """A version's way to all nodes and into their engines, on average."""
    return max(arrival_seconds(run, around).values()) + SWAP_SECONDS
