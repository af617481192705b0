"""What a worker needs for one kind of work: the run's own tasks, or a benchmark that is scored on versions.

In: the run's public description, the agent. Out: a `WorkContext` for each, with environment, task table and sampling. Called by
`worker`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import environments
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.contracts.pools import SAMPLER, Sampler
from shoal.contracts.run import PublicRun
from shoal.contracts.tasks import Task
from shoal.environments import BadEnvironment, Environment, packages
from shoal.environments.mixture import environment_of
from shoal.telemetry import get_logger


class WrongRuleError(RuntimeError):
    """The run's tokens are drawn by a rule that this release does not have."""


class WrongEnvironmentError(RuntimeError):
    """The environment that the run pins is not the installed one, or not installed."""


@dataclass(frozen=True)
class WorkContext:
    """`public` is the run's description, or what stands in its place for a benchmark: its environment, tasks, samples and sampling."""

    public: PublicRun
    environment: Environment
    tasks: Sequence[Task]


def require_rule(rule: Sampler) -> None:
    """Raise `WrongRuleError` unless our engine draws by the run's rule: its files would be rejected and its node excluded, though nobody lied."""
    if rule != SAMPLER:
        raise WrongRuleError(
            f"this run draws tokens by rule {rule}, this worker by {SAMPLER}: install the version of shoal that the run uses"
        )


def have_packages(public: PublicRun, read: Callable[[str], bytes], folder: Path) -> None:
    """Lay out the packages that the run brings below `folder`; `read` gives the wheel with a digest. Raises WrongEnvironmentError."""
    try:
        packages.install(public.packages, read, folder)
    except packages.BadPackages as error:
        raise WrongEnvironmentError(str(error)) from None


def work_on(public: PublicRun, tasks: Callable[[str], list[Task]]) -> WorkContext:
    """The work that a description stands for; `tasks` gives the table with a digest. Raises WrongEnvironmentError."""
    try:
        environment = environment_of(public.environment, public.mixture)
        found = environments.digest(environment)
    except BadEnvironment as error:
        raise WrongEnvironmentError(str(error)) from None
    if found != public.environment_digest:
        raise WrongEnvironmentError(
            f"environment {public.environment} has digest {found[:12]}... here, but the run pins "
            f"{public.environment_digest[:12]}...: install the version of shoal that the run uses"
        )
    return WorkContext(public, environment, tasks(public.tasks_digest))


def benchmarks_here(public: PublicRun, tasks: Callable[[str], list[Task]]) -> dict[str, WorkContext]:
    """The run's benchmarks by name, or none of them where this node lacks the environment of one: it trains all the same.

    All or none, because the orchestrator knows only whether a node takes slices, and not of which benchmarks.
    """
    found: dict[str, WorkContext] = {}
    for each in public.benchmarks:
        try:
            found[each.name] = work_on(as_run(public, each), tasks)
        except WrongEnvironmentError as error:
            get_logger().warning("this node scores no versions", benchmark=each.name, reason=str(error))
            return {}
    return found


def as_run(public: PublicRun, terms: BenchmarkTerms) -> PublicRun:
    """The run's description with a benchmark's instead of its tasks and sampling."""
    return public.model_copy(
        update={
            "environment": terms.environment,
            "environment_digest": terms.environment_digest,
            "tasks_digest": terms.tasks_digest,
            "task_count": terms.task_count,
            "group_size": terms.samples,
            "sampling": terms.sampling,
            "length_reward": terms.length_reward,
            "vine": None,
            "several_versions": False,
            "prompt": terms.prompt,
            "truncation": terms.truncation,
            "mixture": [],
            "routes": None,
        }
    )
