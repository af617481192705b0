"""Counting: which step is open, which groups carry signal, and which groups make the batch of a step. Pure.

Comes in: sealed steps and versions from the ledger, verdicts with their rewards. Goes out: the open step, and `StepBatch` when a step is full.
Called by `sealing` and `schedule`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from shoal.contracts.prime import PrimeSettings
from shoal.contracts.steps import BatchFile, SourceGroups, StepBatch
from shoal.contracts.verdicts import SMALLEST_GROUP, RowReward
from shoal.contracts.work import LeasePart

OnlineFilter = Literal["TaskReward", "TotalReward", "None"]


def smallest_unsealed(sealed: Collection[int], steps: int) -> int | None:
    """The first step without a batch; None when every step of the run has one."""
    return next((step for step in range(steps) if step not in sealed), None)


def openable_steps(sealed: Collection[int], latest_version: int | None, async_level: int, steps: int) -> list[int]:
    """Steps without a batch that the newest version may feed (`latest_version >= step - k`), smallest first."""
    if latest_version is None:
        return []
    # The newest version v was made by step v-1, so no step below v is unsealed; the window above it has k+1 steps.
    last = min(steps - 1, latest_version + async_level)
    return [step for step in range(latest_version, last + 1) if step not in sealed]


def signal_groups(
    rewards: Sequence[RowReward],
    prompts: Sequence[int],
    group_size: int,
    online_filter: OnlineFilter,
    prime: PrimeSettings | None = None,
) -> list[int]:
    """Prompt indices of the groups that carry signal (paper section 3.3.2).

    `rewards` has `group_size` rows for each of `prompts`, in that order. A group carries signal when the rewards that the filter looks at are not all
    equal; with `prime`, when its accuracy filter keeps it. Rows without a reward are left out of their group; a group with fewer than two others
    never counts, as nothing is compared there.
    """
    if len(rewards) != len(prompts) * group_size:
        raise ValueError(f"{len(rewards)} rewards do not fit {len(prompts)} groups of {group_size}")
    carrying = []
    for number, prompt in enumerate(prompts):
        rows = rewards[number * group_size : (number + 1) * group_size]
        values = [row.reward if prime is None and online_filter == "TotalReward" else row.task_reward for row in rows]
        scored = [value for value in values if value is not None]
        if len(scored) < SMALLEST_GROUP:
            continue
        if prime.keeps(scored) if prime is not None else online_filter == "None" or min(scored) != max(scored):
            carrying.append(prompt)
    return carrying


def solved_groups(
    rewards: Sequence[RowReward], prompts: Sequence[int], group_size: int
) -> tuple[tuple[int, float], ...]:
    """For each of `prompts` whose group has scored answers the share of these that are right: those with a task reward of 1 or more."""
    found = []
    for number, prompt in enumerate(prompts):
        rows = rewards[number * group_size : (number + 1) * group_size]
        scored = [row.task_reward for row in rows if row.task_reward is not None]
        if scored:
            found.append((prompt, sum(reward >= 1.0 for reward in scored) / len(scored)))
    return tuple(found)


class _MayBePart(Protocol):
    @property
    def part(self) -> LeasePart | None: ...


F = TypeVar("F", bound=_MayBePart)


def counting(files: Sequence[F], groups: int) -> list[F]:
    """Of accepted files, in the ledger's order, those whose groups count, in the order in which they came to count.

    Parts of a lease of `groups` groups count together, once all of it was accepted: nobody chooses which of its groups a batch has. A part with a
    group that is there already counts for nothing.
    """
    counted: list[F] = []
    parts: dict[tuple[str, int], list[F]] = {}
    there: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if file.part is None:
            counted.append(file)
            continue
        of = file.part.drawn_for
        if there.setdefault(of, set()).isdisjoint(file.part.groups):
            there[of].update(file.part.groups)
            parts.setdefault(of, []).append(file)
            if len(there[of]) == groups:
                counted += parts[of]
    return counted


@dataclass(frozen=True)
class AcceptedFile:
    """One accepted file: its groups with signal by prompt index, in the order drawn, and how many groups carried none."""

    node: str
    submission: int
    sha256: str
    policy_version: int
    rows: int
    signal_prompts: tuple[int, ...]
    dropped_groups: int
    by_source: Mapping[str, SourceGroups] = field(default_factory=dict)
    """Of a run on a mixture."""
    solved: tuple[tuple[int, float], ...] = ()
    """Of a run with a curriculum (`solved_groups`)."""
    part: LeasePart | None = None


def select_batch(run: str, step: int, beacon_hex: str, needed: int, files: Sequence[AcceptedFile]) -> StepBatch | None:
    """The batch of a step: whole groups with signal in the order of acceptance, exactly `needed` of them; None while there are too few.

    A function of the ledger's order alone, so that every orchestrator that reads the same ledger seals the same batch.
    """
    chosen: list[BatchFile] = []
    taken = dropped = 0
    sampled: Counter[str] = Counter()
    with_signal: Counter[str] = Counter()
    solved: list[tuple[int, float]] = []
    for file in files:
        solved += file.solved
        dropped += file.dropped_groups
        for name, groups in file.by_source.items():
            sampled[name] += groups.sampled
            with_signal[name] += groups.with_signal
        prompts = list(file.signal_prompts[: needed - taken])
        if prompts:
            chosen.append(
                BatchFile(
                    node=file.node,
                    submission=file.submission,
                    sha256=file.sha256,
                    policy_version=file.policy_version,
                    rows=file.rows,
                    prompt_indices=prompts,
                )
            )
            taken += len(prompts)
        if taken == needed:
            return StepBatch(
                run=run,
                step=step,
                beacon=beacon_hex,
                groups=needed,
                groups_dropped=dropped,
                files=chosen,
                by_source={
                    name: SourceGroups(sampled=sampled[name], with_signal=with_signal[name]) for name in sorted(sampled)
                },
                solved=solved,
            )
    return None
