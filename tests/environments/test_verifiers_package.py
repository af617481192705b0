"""Packages written for verifiers: unchanged, in a sandbox only, rewards equal on both sides; what cannot be scored again is refused in a line."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.agents.malformed_packages import package
from benchmarks.agents.verifiers_environments import PACKAGES, compare
from hypothesis import given
from hypothesis import strategies as st

from shoal.contracts.task_table import read_tasks, write_tasks
from shoal.contracts.tasks import ChatMessage, Task, tasks_digest
from shoal.environments import apart, base
from shoal.environments.apart import Apart
from shoal.environments.base import BadEnvironment, Environment, digest, load
from shoal.environments.mixture import Mixture
from shoal.environments.places import FOLDERS_VARIABLE
from shoal.environments.results import Answers, EnvironmentBroke, Score, Unscorable
from shoal.environments.turns import TURN_END, FunctionCall, WithTurns
from shoal.environments.verifiers_names import BadPackageName, NamedPackage, parse_package
from shoal.environments.verifiers_package import VerifiersPackage


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed beside Shoal, with those of the benchmark."""
    before = os.environ.get(FOLDERS_VARIABLE)
    monkeypatch.setenv(FOLDERS_VARIABLE, ":".join([*([before] if before else []), str(PACKAGES), str(tmp_path)]))
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o755)
    load.cache_clear()
    yield tmp_path
    load.cache_clear()


def loaded(folder: Path, source: str, name: str = "given") -> Environment:
    (folder / f"{name}.py").write_text(source)
    return load(f"verifiers:{name}")


@pytest.mark.parametrize("name", ["word_sums", "stock_room"])
def test_worker_and_validator_score_a_package_alike(name: str, folder: Path) -> None:
    found = compare(name, folder, most=4)
    assert found.equal, found
    assert (found.with_tools > 0) == (name == "stock_room")


def test_its_code_is_in_a_sandbox_whatever_the_owner_trusts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(base.TRUSTED_VARIABLE, "verifiers")
    environment = load('verifiers:word-sums{"terms":3,"size":40}')
    assert isinstance(environment, Apart)
    assert not [name for name in sys.modules if name.partition(".")[0] in ("verifiers", "word_sums")]
    with pytest.raises(ValueError, match="packages are loaded in a sandbox only"):
        VerifiersPackage("word-sums")
    assert environment.task_count() == 40
    tasks = environment.tasks(8, 5)
    assert tasks_digest(read_tasks(write_tasks(tasks))) == tasks_digest(tasks) == tasks_digest(environment.tasks(8, 5))
    assert tasks_digest(environment.tasks(8, 6)) != tasks_digest(tasks)
    assert str(tasks[0].prompt).count(" plus ") == 2
    assert environment.prompt(tasks[0], 60).endswith("digits. Think for 60 tokens before giving a response.")
    assert environment.score(tasks[0], environment.gold(tasks[0])) == Score(
        1.0, environment.score(tasks[0], environment.gold(tasks[0])).detail
    )
    half = environment.score(tasks[0], "Answer: no")
    assert isinstance(half, Score)
    assert (half.task_reward, half.detail) == (0.2, "word-sums gives 0.25 (correct 0, form 0.25, length 10)")
    assert base.packages_of(environment) == ("verifiers", "word_sums")
    assert "shoal.environments.verifiers_package" in base.sources_of(environment)
    assert len({digest(each) for each in (environment, load("verifiers"), Mixture({"a": environment}))}) == 3


def test_a_change_of_the_package_is_another_digest(folder: Path) -> None:
    first = digest(loaded(folder, package()))
    load.cache_clear()
    assert digest(loaded(folder, package() + "# another version\n")) != first


def test_retrieval_reads_a_corpus_that_the_digest_pins(folder: Path) -> None:
    """A corpus is a file of the package, such as `atlas`: whoever has another one has another digest, before any call is answered."""
    asked = [[FunctionCall("atlas_tools_search", {"words": "Peru"})]]
    digests, said = set(), []
    for name, capital in (("first_atlas", "Lima"), ("second_atlas", "Cusco")):
        shutil.copytree(PACKAGES / "atlas", folder / name)
        for file in (folder / name).glob("*.py"):
            file.write_text(file.read_text().replace("from atlas", f"from {name}"))
        (folder / name / "capitals.json").write_text(json.dumps({"Peru": capital}))
        environment = load(f"verifiers:{name}")
        assert isinstance(environment, WithTurns)
        (task,) = environment.tasks(1, 0)
        answers = [environment.answers(task, asked) for _ in range(2)]
        assert isinstance(answers[0], Answers)
        assert isinstance(answers[1], Answers)
        assert answers[0].turns == answers[1].turns, "the same corpus answers alike each time"
        said.append(answers[0].turns[0][0].text)
        before = digest(environment)
        digests.add(before)
        (folder / name / "capitals.json").write_text(json.dumps({"Peru": "Quito"}))
        assert digest(environment) != before
    assert ["Lima" in said[0], "Cusco" in said[1]] == [True, True]
    assert len(digests) == 2


def test_messages_and_a_system_prompt_are_asked_as_they_are(folder: Path) -> None:
    (task, *_) = load("verifiers:boxed-products").tasks(12, 1)
    assert isinstance(task.prompt, list)
    assert task.prompt[0] == ChatMessage(role="system", content="Put the answer into \\boxed{}.")
    assert task.prompt[1].role == "user"
    assert "Put the answer" in load("verifiers:boxed-products").prompt(task, None)


def test_the_clock_and_unseeded_numbers_are_the_same_each_time(folder: Path) -> None:
    reward = (
        "import datetime, os, random, time, uuid\nimport numpy\n"
        "noise = [random.random(), random.Random().random(), uuid.uuid4().int, time.time(), datetime.datetime.now().timestamp(),\n"
        "    hash('a'), numpy.random.rand(), numpy.random.default_rng().random(), os.urandom(4)]\n"
        "if trace.last_reply == 'tell':\n    raise ValueError(repr(noise)[:250])\nreturn 0.5\n"
    )
    environment = loaded(folder, package(reward))
    (task,) = environment.tasks(1, 0)
    first = environment.score(task, "tell")
    environment.score(task, "another question")
    assert isinstance(first, Unscorable)
    assert first.reason.count(",") >= 5
    assert environment.score(task, "tell") == first
    apart_again = Apart(environment.name, "shoal.environments.verifiers_package:VerifiersPackage")
    assert apart_again.score(task, "tell") == first


def test_tools_keep_the_state_of_their_own_episode_alone(folder: Path) -> None:
    environment = load("verifiers:stock-room")
    assert isinstance(environment, WithTurns)
    assert [each["name"] for each in environment.functions] == ["room_tools_add", "room_tools_count"]
    task = next(each for each in environment.tasks(16, 1) if each.verification_info["data"]["wanted"] == 2)
    goods = task.verification_info["data"]["goods"]
    add = FunctionCall("room_tools_add", {"goods": goods, "count": 1})
    turns = [[add], [add, FunctionCall("room_tools_count"), FunctionCall("room_tools_add", {"count": "x"})], []]
    for _ in range(2):  # nothing is left of the first episode
        found = environment.answers(task, turns)
        assert not isinstance(found, Unscorable)
        texts = [[each.text for each in turn] for turn in found.turns]
        assert not any(each.sure for turn in found.turns for each in turn)
        assert texts[0] == [f"there are 1 {goods}"]
        assert texts[1][:2] == [f"there are 2 {goods}", f'{{\n  "{goods}": 2\n}}']
        assert texts[1][2].startswith("Error executing tool add: 2 validation errors")
        assert texts[2] == []
    call = f'<tool_call>{{"name": "room_tools_add", "arguments": {{"goods": "{goods}", "count": 1}}}}</tool_call>'
    assert environment.score(task, TURN_END.join([call, call, "done"])) == Score(
        1.0, "stock-room gives 1.5 (stocked 1, told 0.5)"
    )
    assert environment.score(task, TURN_END.join([call, "done"])).task_reward == 0.5 / 1.5


REMEMBERS = """
import verifiers.v1 as vf

SEEN = []

class Memory(vf.Toolset[vf.ToolsetConfig, vf.State]):
    calls = 0
    notes: dict = {}

    @vf.tool
    async def note(self, text: str) -> str:
        \"\"\"Note a text.\"\"\"
        type(self).calls += 1
        self.notes[text] = True
        SEEN.append(text)
        return f"{self.calls} {sorted(self.notes)} {SEEN}"

class Data(vf.TaskData):
    answer: str = ""

class One(vf.Task[Data]):
    votes: list = []

    @vf.reward
    async def few(self, trace: vf.Trace) -> float:
        self.votes.append(1)
        return 1 / (len(SEEN) + Memory.calls + len(self.votes))

class Set(vf.Taskset[One]):
    @classmethod
    def toolsets(cls, config):
        return [Memory(vf.ToolsetConfig())]

    def load(self):
        return [One(Data(prompt="What is 1+1?", answer="2"), self.config.task)]

__all__ = ["Set"]
"""
"""A package whose tool server and task keep what they see in their module and their classes."""


def test_nothing_of_another_episode_is_left_in_a_module_or_a_class(folder: Path) -> None:
    environment = loaded(folder, REMEMBERS)
    assert isinstance(environment, WithTurns)
    (name,) = (each["name"] for each in environment.functions)
    (task,) = environment.tasks(1, 0)
    first = [[FunctionCall(name, {"text": "a"})], [FunctionCall(name, {"text": "b"})]]
    other = [[FunctionCall(name, {"text": "c"})] * 3]
    said = {}
    for number, turns in enumerate((first, other, first)):
        found = environment.answers(task, turns)
        assert isinstance(found, Answers)
        said[number] = [each.text for turn in found.turns for each in turn]
    assert said[0] == said[2] == ["1 ['a'] ['a']", "2 ['a', 'b'] ['a', 'b']"]
    call = f'<tool_call>{{"name": "{name}", "arguments": {{"text": "a"}}}}</tool_call>'
    episodes = [TURN_END.join([call] * count + ["done"]) for count in (0, 1, 2, 1, 0)]
    rewards = [environment.score(task, each) for each in episodes]
    assert [each.task_reward for each in rewards if isinstance(each, Score)] == [1, 1 / 3, 1 / 5, 1 / 3, 1]
    # A validator's process, which has seen no other episode, says the same.
    alone = Apart(environment.name, "shoal.environments.verifiers_package:VerifiersPackage")
    assert alone.score(task, episodes[3]) == rewards[3]


def test_a_package_with_much_at_its_head_is_scored_as_long_as_a_process_lives(folder: Path) -> None:
    head = "import verifiers.v1 as vf\n\nDATA = bytearray(32 << 20)\n"
    environment = loaded(folder, REMEMBERS.replace("import verifiers.v1 as vf\n", head), "heavy")
    (task,) = environment.tasks(1, 0)
    found = [environment.score(task, "done") for _ in range(100)]
    assert [each for each in found if not isinstance(each, Score)] == [], "of two GiB it may have 64 times that"


def test_a_reward_that_fails_for_an_answer_leaves_the_row_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = (
        "if trace.last_reply == 'raise':\n    raise ValueError('two\\nlines')\n"
        "if trace.last_reply == 'nan':\n    return float('nan')\nif trace.last_reply == 'reach':\n    open('/etc/shadow')\n"
        "if trace.last_reply == 'loop':\n    while True:\n        pass\nif trace.last_reply == 'below':\n    return -2.0\n"
        "if trace.last_reply == 'above':\n    return 7\nreturn 0.25\n"
    )
    environment = loaded(folder, package(reward))
    (task,) = environment.tasks(1, 0)
    for text, words in {
        "raise": "scoring raised ValueError: two lines",
        "nan": "its reward is nan",
        "reach": "scoring raised ",
    }.items():
        found = environment.score(task, text)
        assert isinstance(found, Unscorable)
        assert words in found.reason
        assert "\n" not in found.reason
    monkeypatch.setattr(apart, "QUESTION_SECONDS", 1.0)
    assert isinstance(environment.score(task, "loop"), EnvironmentBroke)
    assert [environment.score(task, text).task_reward for text in ("below", "above", "else")] == [0.0, 1.0, 0.25]
    other = task.model_copy(update={"verification_info": {"data": {"prompt": 1}}})
    assert isinstance(environment.score(other, "x"), Unscorable)
    assert isinstance(environment.score(Task(problem_id="0", task_type="verifiers", prompt="?"), "x"), Unscorable)


def test_a_missing_package_or_setting_is_named(folder: Path) -> None:
    with pytest.raises(BadEnvironment, match="verifiers:riddles: there is no module riddles; name its wheel in tasks"):
        load("verifiers:riddles")
    with pytest.raises(BadEnvironment, match=r"verifiers:word_sums: loading it raised ValidationError: [^\n]*colour"):
        load('verifiers:word_sums{"colour":1}')
    with pytest.raises(ValueError, match=r"a package must be named: verifiers:PACKAGE"):
        load("verifiers").tasks(1, 0)
    metadata = folder / "given-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: given\nVersion: 1\nRequires-Dist: not-there>=2\n")
    with pytest.raises(BadEnvironment, match="verifiers:given: it needs not-there>=2, which is not installed here"):
        loaded(folder, package())


def test_names_of_packages() -> None:
    assert parse_package('My-Sums{"terms":3}') == NamedPackage("My-Sums", {"terms": 3})
    assert parse_package("My-Sums").module == "my_sums"


@given(st.text(alphabet='ab-_{}[]":1 \\./', max_size=30))
def test_any_text_names_a_package_or_is_refused_in_a_line(text: str) -> None:
    try:
        named, line = parse_package(text), ""
    except BadPackageName as error:
        named, line = None, str(error)
    assert named or re.fullmatch(r"verifiers: .*", line)
