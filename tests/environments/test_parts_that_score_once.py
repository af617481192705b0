"""Packages whose parts alone say that their scores cannot be made again: prepare asks of each task, and no stranger rewards itself."""

from pathlib import Path
from typing import Any

import pytest

from samples import run_config
from shoal.contracts import keys
from shoal.contracts.evaluation import Benchmark, EvaluationSettings
from shoal.contracts.model_source import ModelSource
from shoal.contracts.pools import PoolTerms
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import RunConfig
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.environments.mixture import environment_of
from shoal.environments.prepare import prepare
from shoal.environments.results import is_repeatable
from shoal.environments.run_checks import CannotPrepare
from shoal.storage import Store
from wheels_made import entry, wheel

PARTS = '''"""Sums, of which one in eight is judged by a model somewhere else. The whole says nothing of it."""

from shoal.environments.arithmetic import Arithmetic


class Asked(Arithmetic):
    name, version, repeatable = "asked", "1", False


class Parts(Arithmetic):
    name, version = "parts", "1"

    def part_of(self, task):
        return Asked() if int(task.verification_info["answer"]) % 8 == 7 else Arithmetic()


class Deeper(Arithmetic):
    name, version = "deeper", "1"

    def part_of(self, task):
        return Parts()


class Plain(Arithmetic):
    name, version = "plain", "1"

    def part_of(self, task):
        return self
'''
NAMES = ("parts", "deeper", "plain")
POINTS = "[shoal.environments]\n" + "".join(f"{name} = parts_env:{name.capitalize()}\n" for name in NAMES)
OPEN = [PoolTerms(name="home"), PoolTerms(name="world", open=True)]
MIXED = {"mixture": [{"name": "sums", "environment": "arithmetic", "count": 24}]}


pytestmark = pytest.mark.usefixtures("no_packages")


def brings(folder: Path, model: ModelSource, tasks: dict[str, Any], **changes: Any) -> RunConfig:
    """A run that brings the package, with these tasks."""
    data = wheel("parts-env", {"parts_env.py": PARTS}, points=POINTS)
    (folder / "parts.whl").write_bytes(data)
    source = TaskSource.model_validate(tasks | {"packages": [entry("parts-env", data, path=str(folder / "parts.whl"))]})
    fields = {"model": model, "tasks": source, "recipe": Recipe(max_sequence_length=96), "length_reward": None}
    return run_config(**(fields | changes))


def mixed(name: str) -> dict[str, Any]:
    return {"mixture": [*MIXED["mixture"], {"name": "theirs", "environment": name, "count": 24}]}


@pytest.mark.parametrize("name", ["parts", "deeper"])
@pytest.mark.parametrize("within", ["alone", "mixture", "benchmark"])
def test_a_pool_of_strangers_is_refused_whatever_the_whole_says(
    store: Store, base: ModelSource, tmp_path: Path, name: str, within: str
) -> None:
    changes: dict[str, Any] = {"pools": OPEN}
    tasks = {"alone": {"environment": name, "count": 24}, "mixture": mixed(name)}.get(within, MIXED)
    if within == "benchmark":
        judged = Benchmark.model_validate({"name": "held-out", "tasks": {"environment": name, "count": 24}})
        changes["evaluation"] = EvaluationSettings(benchmarks=[judged])
    with pytest.raises(CannotPrepare) as refused:
        prepare(brings(tmp_path, base, tasks, **changes), store, tmp_path / "scratch")
    assert str(refused.value).startswith(
        "spec.tasks: environment asked gives scores that cannot be made again (`repeatable` is false), and pool world is open to strangers"
    )
    assert not store.exists(keys.PREPARED)


@pytest.mark.parametrize("within", ["alone", "mixture"])
def test_members_score_the_tasks_of_that_part_alone(
    store: Store, base: ModelSource, tmp_path: Path, within: str
) -> None:
    tasks = {"environment": "deeper", "count": 24} if within == "alone" else mixed("deeper")
    done = prepare(brings(tmp_path, base, tasks, pools=OPEN[:1]), store, tmp_path / "scratch")
    assert done.rewards_claimed
    judge = environment_of(done.environment, done.mixture)
    table = read_tasks(store.get(keys.task_table(done.tasks_digest)))
    claimed = [task for task in table if not is_repeatable(judge, task)]
    assert 0 < len(claimed) < len(table) / 4
    assert all(int(task.verification_info["answer"]) % 8 == 7 and task.task_type != "sums" for task in claimed)


def test_parts_that_all_score_again_are_open_to_strangers(store: Store, base: ModelSource, tmp_path: Path) -> None:
    done = prepare(
        brings(tmp_path, base, {"environment": "plain", "count": 24}, pools=OPEN), store, tmp_path / "scratch"
    )
    assert not done.rewards_claimed
