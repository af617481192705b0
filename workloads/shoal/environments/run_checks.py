"""What a run asks of its tasks and environments beyond what a manifest shows: each check says in one line what does not go together.

In: a run's settings, its sources and their tasks. Out: nothing, or CannotPrepare, whose words name the field to change.
"""

from collections.abc import Sequence

from shoal import environments
from shoal.contracts.evaluation import MOST_SLICES, BenchmarkTerms
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.tasks import Task
from shoal.environments.episodes import WithTools, has_tools
from shoal.environments.results import is_repeatable, judge_of
from shoal.environments.task_source import RunSource
from shoal.environments.turns import WithTurns
from shoal.errors import MayPass
from shoal.sampling.mixture import most_of_a_file


class CannotPrepare(MayPass):
    """The run's model or tasks are not available; the message says which field of the manifest to change."""


def check_same_model(config: RunConfig, prepared: Prepared) -> None:
    """Raises CannotPrepare where an earlier run of this name left another model in the store: every file would be rejected, and its node evicted."""
    if prepared.model_id != config.model_id:
        raise CannotPrepare(
            f"spec.model: {config.storage.prefix}/{config.run} in the store is of an earlier run of this name, with the model {prepared.model_id},"
            f" not {config.model_id}: give this run another metadata.name or spec.storage.prefix, or delete what is there"
        )


def check_count(config: RunConfig, sources: list[RunSource], tasks: list[list[Task]]) -> None:
    """Raises CannotPrepare for a source with fewer tasks than a file may hold of it."""
    if config.mode == "SFT":
        return
    groups = config.sampling.groups_per_submission
    if (count := sum(map(len, tasks))) < groups:
        raise CannotPrepare(
            f"spec.tasks: there are {count} tasks; a submission has {groups} different ones (spec.sampling.groupsPerSubmission): lower it,"
            " or give more tasks"
        )
    needed = most_of_a_file(tuple(source.weight for source in sources), groups)
    for source, own, most in zip(sources, tasks, needed, strict=True):
        if len(own) < most and config.mode == "Train":
            raise CannotPrepare(
                f"{source.field}: there are {len(own)} tasks; a submission has up to {most} different ones of it"
                " (weight, spec.sampling.groupsPerSubmission): lower one of them, or give more tasks"
            )


def check_machine(source: RunSource) -> None:
    """Raises CannotPrepare, as passing, for what this machine lacks: another may have it."""
    if missing := list(getattr(source.environment, "problems", list)()):
        raise CannotPrepare(f"{source.field}.environment: {missing[0]}", passing=True)


def check_vine(config: RunConfig, environment: environments.Environment) -> None:
    """Raises CannotPrepare for continuations in an environment with tools: an episode cannot be cut anywhere and gone on with."""
    if config.recipe.vine is not None and has_tools(environment):
        raise CannotPrepare(
            f"spec.recipe.algorithm.vineppo: environment {environment.name} has tools, whose episodes cannot be continued from any token: "
            "use another algorithm, or an environment without tools"
        )


def check_several_versions(config: RunConfig, environment: environments.Environment) -> None:
    """Raises CannotPrepare for rows of several versions in an environment with tools, whose stretches have no place for a swap between them; and in a
    run that records routes, which are of whole rows."""
    if config.several_versions and config.recipe.router_replay is not None:
        raise CannotPrepare(
            "spec.rollouts.versions: Several does not go with recipe.routerReplay, which records the routes of whole rows: "
            "use One, or leave recipe.routerReplay out"
        )
    if config.several_versions and has_tools(environment):
        raise CannotPrepare(
            f"spec.rollouts.versions: environment {environment.name} has tools, and rows with calls are of one version: "
            "use One, or an environment without tools"
        )


def check_credit(config: RunConfig, environment: environments.Environment) -> None:
    """Raises CannotPrepare for credit by turns where nothing rewards a turn."""
    turns = isinstance(environment, WithTurns) and getattr(environment, "rewards_turns", False)
    if config.recipe.credit == "Turn" and not turns:
        raise CannotPrepare(
            f"spec.recipe.credit: environment {environment.name} rewards whole episodes only, and Turn needs a reward for each turn "
            "(`rewards_turns`): use Episode, or another environment"
        )


def rewards_claimed(config: RunConfig, used: Sequence[tuple[environments.Environment, Sequence[Task]]]) -> bool:
    """Whether some scores cannot be made again. Raises CannotPrepare where strangers would make them, or where more than scores is run again.

    An environment of several is asked about each of its tasks, whatever it says as a whole: in a sandbox a minute for 285,000 of them.
    """
    once = next((name for judge, tasks in used if (name := _scored_once(judge, tasks)) is not None), None)
    if once is None:
        return False
    words = f"environment {once} gives scores that cannot be made again (`repeatable` is false)"
    if pools := [pool.name for pool in config.pools if pool.open]:
        raise CannotPrepare(
            f"spec.tasks: {words}, and pool {pools[0]} is open to strangers, who would give themselves any reward:"
            " close the pool, or use another environment"
        )
    if config.recipe.credit == "Turn":
        raise CannotPrepare(f"spec.recipe.credit: {words}, and Turn needs those that validators make: use Episode")
    if any(isinstance(each, WithTools) and not isinstance(each, WithTurns) for each, _ in used):
        raise CannotPrepare(
            f"spec.tasks: {words}, and its calls are run again before its scores: use functions of turns (`answers`)"
        )
    return True


def _scored_once(environment: environments.Environment, tasks: Sequence[Task]) -> str | None:
    """The name of the environment, or of its first part, whose scores cannot be made again."""
    if not is_repeatable(environment):
        return environment.name
    if not hasattr(environment, "part_of"):
        return None
    judges = (judge_of(environment, task) for task in tasks)
    return next((str(getattr(each, "name", "?")) for each in judges if not is_repeatable(each)), None)


def check_slices(benchmarks: list[BenchmarkTerms]) -> None:
    slices = sum(each.slices for each in benchmarks)
    if slices > MOST_SLICES:
        raise CannotPrepare(
            f"spec.evaluation.benchmarks: they are {slices} files for each version; allowed: {MOST_SLICES}: lower samples or count,"
            " or raise spec.sampling.groupsPerSubmission"
        )
