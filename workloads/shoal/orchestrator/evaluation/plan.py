"""Which versions of a run are scored, when work for one is handed out and when it is over. Pure.

Comes in: the run's benchmarks as prepare pinned them, its steps, how long versions are served. Goes out: versions.
Made once by `run_state`; asked by `evaluations` and `work`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from shoal.contracts.evaluation import BenchmarkTerms, EvaluationSettings


@dataclass(frozen=True)
class EvaluationPlan:
    """The rules of one run. Without benchmarks nothing is ever due."""

    settings: EvaluationSettings | None
    benchmarks: tuple[BenchmarkTerms, ...]
    steps: int
    async_level: int
    kept_versions: int

    def is_due(self, version: int) -> bool:
        """Whether a version is scored: every n-th from 0 on, and the last one."""
        if self.settings is None or not self.benchmarks:
            return False
        return version % self.settings.every_versions == 0 or version == self.steps

    def due(self, versions: Collection[int]) -> list[int]:
        """Those of `versions` that are scored, ascending."""
        return sorted(version for version in versions if self.is_due(version))

    def next_due(self, version: int) -> int | None:
        """The version that is scored after this one; None after the last."""
        if self.settings is None or not self.benchmarks or version >= self.steps:
            return None
        every = self.settings.every_versions
        return min(self.steps, (version // every + 1) * every)

    def is_served(self, version: int, latest: int) -> bool:
        """Whether work for a version is handed out: nodes keep a version for one step longer than training uses it, and relays keep as many as
        configured."""
        return latest - version <= min(self.async_level + 1, max(self.kept_versions - 1, self.async_level))

    def is_over(self, version: int, latest: int) -> bool:
        """Whether files of a version can be judged no more: its weights may be gone from the store."""
        return latest - version > max(self.kept_versions - 1, self.async_level)


def open_leases_allowed(share: float, members: int) -> int:
    """Evaluation leases open at a time while training continues: the share of the nodes, one at least."""
    return max(1, round(share * members))


def credit_of_a_lease(share: float) -> float:
    """The credit that a training lease earns; an evaluation lease takes 1: with share s, s / (1 - s)."""
    return share / (1.0 - share)
