"""The worker's threads around its decoding loop, without vLLM: an engine that only has a clock, and a real agent's socket.

Runs in a process of its own, because a module stands in for the engine's there: `python test_worker_threads.py FOLDER` writes what it saw.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.workers.clock_engine import length_of

from servers import STARTED_WITH


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    return what_it_saw("whole")


@pytest.fixture(scope="module", params=["parts", "parting"])
def in_parts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """`parting`: a part is still being handed in as the worker is asked to stop."""
    return what_it_saw(request.param)


@pytest.fixture(scope="module")
def failing() -> dict[str, Any]:
    return what_it_saw("failing")


def what_it_saw(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, folder, kind],
            env=STARTED_WITH | {"PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found: dict[str, Any] = json.loads((Path(folder) / "seen.json").read_text())
        return found


def test_two_leases_are_held_at_a_time_and_each_file_is_whole(seen: dict[str, Any]) -> None:
    assert seen["most_held"] == 2
    assert set(seen["rows"]) == {6}


def test_what_is_held_is_named_with_each_question_for_a_lease(seen: dict[str, Any]) -> None:
    assert {len(named) for named in seen["named"]} == {0, 1}


def test_a_lease_is_given_back_while_an_upload_takes_its_time_and_counts_until_it_is(seen: dict[str, Any]) -> None:
    assert seen["behind_uploads"] == ["ee" * 16]
    assert seen["counted"]


def test_a_refused_file_and_a_failed_scoring_cost_their_own_lease_only(seen: dict[str, Any]) -> None:
    assert seen["refused"]
    assert len(seen["failed"]) == 1
    assert seen["failed"][0] in seen["returned"]
    assert not {*seen["refused"], *seen["failed"]} & set(seen["files"])
    assert seen["files_after"] > 0


def test_on_stop_each_lease_is_in_a_file_or_given_back_those_of_refused_files_too(seen: dict[str, Any]) -> None:
    assert {*seen["refused"]} <= {*seen["returned"]}, "or each would be given once more, with the same rows"
    ends = [*seen["files"], *seen["returned"]]
    assert len(ends) == len(set(ends)) == seen["leases"]
    assert seen["left_in_tmp"] == []


def test_rows_are_scored_as_they_end_so_that_a_whole_lease_asks_nothing_more(seen: dict[str, Any]) -> None:
    assert seen["scored_ahead"].count(False) == 1, "the file whose scoring the test has fail"
    assert len(seen["scored_ahead"]) > 3


def test_no_version_is_named_for_which_rows_would_have_to_end_first(seen: dict[str, Any]) -> None:
    assert seen["holds"] == [[], [3], [2, 3]]


def test_the_time_to_leave_is_counted_once(seen: dict[str, Any]) -> None:
    assert seen["ended_seconds"] < 3.0


def test_no_group_of_a_lease_is_handed_in_twice_and_parts_come_under_the_lease_for_the_rest(
    in_parts: dict[str, Any],
) -> None:
    for first in {file["first"] for file in in_parts["files"]}:
        of_one = [file for file in in_parts["files"] if file["first"] == first]
        seeds = [seed for file in of_one for seed in file["seeds"]]
        assert len(seeds) == len(set(seeds)), "each row once"
        names = [file["lease"] for file in of_one]
        assert len(names) == len(set(names)), "a lease has one file"
        assert all(file["submission"] == file["leased"] for file in of_one)
    assert any(file["groups"] not in (None, []) for file in in_parts["files"])


def test_a_worker_that_is_stopped_hands_in_whole_groups_and_gives_nothing_back_beside_them(
    in_parts: dict[str, Any],
) -> None:
    left = [file["lease"] for file in in_parts["files"] if file["groups"] and not file["keep"]]
    assert left
    assert not {*left} & {*in_parts["returned"]}
    assert not {file["lease"] for file in in_parts["files"]} & {*in_parts["returned"]}
    assert in_parts["left_in_tmp"] == []


def test_a_group_that_is_whole_when_a_worker_is_stopped_is_in_a_file(in_parts: dict[str, Any]) -> None:
    handed = {seed for file in in_parts["files"] for seed in file["seeds"]}
    assert in_parts["whole_at_stop"]
    assert {*in_parts["whole_at_stop"]} <= handed


def test_each_lease_is_in_a_file_or_given_back_in_parts_too(in_parts: dict[str, Any]) -> None:
    ends = [*(file["lease"] for file in in_parts["files"]), *in_parts["returned"]]
    assert sorted(ends) == sorted({*in_parts["leased"]})


def test_what_a_worker_leaves_when_it_is_asked_to_end_the_next_one_finishes() -> None:
    seen = what_it_saw("resumed")
    assert len(seen["held"]) == seen["journals"] == 2
    assert not {*seen["held"]} & {*seen["returned_before"]}
    assert {*seen["held"]} <= {*seen["files_after"]}
    assert 0 < seen["kept"] <= seen["drawn"]
    assert seen["whole"]
    assert seen["lengths"] == [[seed, length_of(seed, 600.0, 1, 30_720)] for seed, _ in seen["lengths"]]
    assert seen["left_in_tmp"] == []


@pytest.mark.parametrize("at", ["score", "write"])
def test_a_part_that_fails_ends_its_lease_and_nothing_comes_under_it_any_more(failing: dict[str, Any], at: str) -> None:
    failed = failing["failed"][at]
    assert failed["lease"] in failing["returned"]
    later = [
        file for file in failing["files"] if file["first"] == failed["first"] and file["number"] >= failed["files"]
    ]
    assert later == []
    ends = [*(file["lease"] for file in failing["files"]), *failing["returned"]]
    assert sorted(ends) == sorted({*failing["leased"]})


def two_processes(folder: Path, agent: Any, made: Any, policy: Any) -> dict[str, Any]:
    """A worker that is asked to end in the middle of rows, and the one in its place."""
    from benchmarks.workers.clock_engine import ClockEngine

    from shoal.contracts.rollouts import read_rollouts
    from shoal.inference import journal_files
    from shoal.telemetry import STOP
    from shoal.toploc.codec import PROOF_BYTES

    def told(found: Any) -> Any:
        return [
            (
                name,
                replace(
                    each, logprobs=[-0.5] * len(each.tokens), proofs=bytes(-(-len(each.tokens) // 32) * PROOF_BYTES)
                ),
            )
            for name, each in found
        ]

    class Proving(ClockEngine):
        """Gives proofs that have their size, and lets a row go on where its prefix ends."""

        def start(self, request: Any, pauses: Any = None) -> str:
            name = super().start(request, pauses)
            row, had = self.rows[name], len(request.prompt_tokens) - 2
            row.done = row.had = row.proved = row.told = had
            return name

        def step(self) -> Any:
            time.sleep(0.001)
            return told(super().step())

        def grown(self) -> Any:
            return told(super().grown())

        def cut(self) -> Any:
            return told(super().cut())

    def engine() -> Any:
        return Proving(sequences=8, means=(600.0,), stride=1, limit=30_720)

    journal_files.EVERY_SECONDS = 0.05
    agent.remembers = agent.stays = True
    first = made(engine())
    thread = threading.Thread(target=first.run)
    thread.start()
    ends = time.monotonic() + 120
    while not (agent.files and len(agent.held) == 2 and first._engine.rows):
        assert time.monotonic() < ends
        time.sleep(0.01)
    time.sleep(0.3)
    STOP.set()
    thread.join(60)
    assert not thread.is_alive()
    held, files, drawn = {*agent.held}, len(agent.files), first._engine.tokens
    journals = len(list((folder / "tmp").glob("*.journal")))
    STOP.clear()
    second = made(engine())
    taken = second._take_up()
    again = [(lease, left, second._version_of(left)) for lease, left in taken]
    second._resumed = [second._planned_again(*each, policy) for each in again]
    kept = sum(len(row.tokens) for _, rows, _ in second._resumed for row in rows.values())
    thread = threading.Thread(target=second.run)
    thread.start()
    while not held <= {handed.lease for handed, _ in agent.files}:
        assert time.monotonic() < ends
        time.sleep(0.01)
    agent.stays = False
    STOP.set()
    thread.join(60)
    rows = [row for _, data in agent.files for row in read_rollouts(data)[0]]
    return {
        "held": sorted(held),
        "journals": journals,
        "returned_before": agent.returned[: agent.returned.index(None)] if None in agent.returned else agent.returned,
        "files_after": [handed.lease for handed, _ in agent.files[files:]],
        "kept": kept,
        "drawn": drawn,
        "whole": all(len(row.proofs) == -(-len(row.completion_tokens) // 32) * PROOF_BYTES for row in rows),
        "lengths": sorted((row.seed, len(row.completion_tokens)) for row in rows),
        "left_in_tmp": [path.name for path in (folder / "tmp").iterdir()],
    }


def main(folder: Path, kind: str) -> None:
    from benchmarks.workers.clock_engine import ClockEngine

    class Engine(ClockEngine):
        """The same in real time, a step in a millisecond."""

        def step(self) -> Any:
            time.sleep(0.001)
            return [(name, replace(made, logprobs=[-0.5] * len(made.tokens))) for name, made in super().step()]

    stand_in: Any = types.ModuleType("shoal.inference.engine")
    stand_in.Engine = Engine
    sys.modules["shoal.inference.engine"] = stand_in

    from benchmarks.workers.fleet import TASK
    from socket_agent import Agent, SocketAgent

    import samples
    from shoal.contracts.completions import Sampling
    from shoal.contracts.keys import version_name
    from shoal.contracts.pools import EngineSettings
    from shoal.contracts.protocol import LEAVE_SECONDS, Lease, StepInfo
    from shoal.contracts.rollouts import read_rollouts
    from shoal.contracts.run import AgentState, PublicRun
    from shoal.contracts.weights import WeightsManifest
    from shoal.environments import Score
    from shoal.inference import generation
    from shoal.inference import worker as module
    from shoal.inference.assignments import WorkContext
    from shoal.inference.generation import Wish
    from shoal.inference.weights import VersionOnDisk
    from shoal.telemetry import STOP, Liveness

    class Environment:
        """Scores nothing right; fails once, when it is asked to."""

        name = "clock"
        fail = fail_a_file = False
        calls = 0

        def score(self, task: Any, text: str) -> Score:
            Environment.calls += 1
            if self.fail:
                Environment.fail = False
                raise RuntimeError("the scorer died")
            return Score(0.0, "wrong")

    public = PublicRun(
        run="clock",
        steps=10,
        async_level=2,
        model_id="clock",
        environment="clock",
        environment_digest="0" * 64,
        tasks_digest="0" * 64,
        task_count=3,
        group_size=6 if kind == "whole" else 2,
        max_sequence_length=31_000,
        sampling=Sampling(max_completion_tokens=30_720, groups_per_submission=1 if kind == "whole" else 3),
        length_reward=None,
    )
    manifest = WeightsManifest(
        run="clock", version=3, model="m", sha256="0" * 64, open_digest="0" * 64, shards=["0" * 64]
    )
    policy = VersionOnDisk(3, folder, manifest)
    agent = Agent(
        state=AgentState(node="ab" * 32, state="Healthy", trainer_key=samples.ROLE_KEYS["trainer"].public), tasks=[]
    )
    agent.step = StepInfo(
        run="clock", step=4, beacon="0" * 64, commitment="0" * 64, min_version=2, max_version=4, latest_version=3,
        needed_groups=8, accepted_groups=0, pending_groups=0, first_unsealed_step=4,
    )  # fmt: skip
    (folder / "tmp").mkdir()
    server = SocketAgent(folder, agent)
    module.AGENT_HEARS_SECONDS = 0.0
    module.prompt_tokens = lambda *_: [5, 6]
    module.scored_text = lambda *_: "some tokens"

    def unsigned(_: object, lowest: int, highest: int) -> Any:
        return policy if lowest <= 3 <= highest else None

    module.Worker._newest = unsigned
    environment = Environment()

    def made(engine: Any) -> Any:
        worker: Any = module.Worker(folder, Liveness(60.0), EngineSettings())
        worker._state, worker._public, worker._codec = agent.state, public, public.codec
        worker._training, worker._benchmarks = WorkContext(public, environment, [TASK] * 3), {}
        worker._tokenizer, worker._eos, worker._tools = None, frozenset(), [(worker._training, None)]
        worker._engine, worker._first = engine, policy
        worker._engine.close = lambda: None
        worker._prepare = lambda: None
        return worker

    if kind == "resumed":
        (folder / "seen.json").write_text(json.dumps(two_processes(folder, agent, made, policy)))
        server.close()
        return
    worker = made(Engine(sequences=8, means=(1500.0,)))
    held: list[int] = []

    def until(what: str, wanted: Any) -> None:
        ends = time.monotonic() + 120
        while not wanted():
            held.append(agent.leases - len(agent.files) - len(agent.refused_files) - len(agent.returned))
            if time.monotonic() > ends:
                raise SystemExit(f"waited 120 s for {what}")
            time.sleep(0.001)

    class Stopping(generation.Generation):
        """Is asked to stop behind some files, when groups of a lease are whole and others are not."""

        def at_stop(self) -> None:
            """Seeds of rows whose groups are whole now."""
            for lease in self.batch.leases:
                for group in range(len(lease.planned) // 2):
                    rows = (2 * group, 2 * group + 1)
                    if {*rows} <= lease.made.keys():
                        whole_at_stop.extend(lease.planned[row].request.seed for row in rows)

        def turn(self) -> bool:
            if kind != "failing" and len(agent.files) >= 12 and not STOP.is_set():
                for lease in self.batch.leases:
                    lease.next_part = 1e18 if kind == "parts" or lease.parting else lease.next_part
                    groups = len(lease.planned) // 2
                    whole = sum({2 * group, 2 * group + 1} <= lease.made.keys() for group in range(groups))
                    if 0 < whole < groups and lease.parting == (kind == "parting"):
                        STOP.set()
                        self.at_stop()
                        for row in self._engine.rows.values():
                            row.length += 10_000  # no row ends in the moment that is left, or the lease could be whole
            return super().turn()

    patched: Any = module
    submit, score = worker._submit, worker._score
    failures: dict[str, dict[str, Any]] = {}
    whole_at_stop: list[int] = []

    def slowly(lease: Any, rows: Any) -> None:
        """A part of which the rest goes on takes its time, so that more of that is whole by then."""
        if len(agent.files) >= 12 and lease.keeps_rest:
            STOP.wait(0.3)
            time.sleep(0.1)
        submit(lease, rows)

    def note_failed(at: str, lease: Any) -> None:
        name = lease.holder.given.lease.lease
        rest = agent.rests.get(name)
        first = int(name, 16) if rest is None or rest.part is None else rest.part.submission
        failures[at] = {"lease": name, "first": first, "files": len(agent.files)}

    scored_ahead: list[bool] = []

    def scores(lease: Any) -> None:
        if Environment.fail_a_file:  # what was scored with its rows is forgotten
            Environment.fail_a_file, Environment.fail = False, True
            lease.given = replace(lease.given, scored=None)
        before = Environment.calls
        score(lease)
        scored_ahead.append(Environment.calls == before)

    def score_fails(lease: Any) -> None:
        if "score" not in failures and len(agent.files) >= 4 and lease.keeps_rest:
            Environment.fail_a_file = True
            note_failed("score", lease)
        scores(lease)

    written = patched.write_rollouts

    def disk_is_full(*_: object) -> bytes:
        raise OSError("the disk is full")

    def write_fails(lease: Any, rows: Any) -> None:
        if "write" not in failures and "score" in failures and len(agent.files) >= 8 and lease.keeps_rest:
            note_failed("write", lease)
            patched.write_rollouts = disk_is_full
        submit(lease, rows)
        patched.write_rollouts = written

    if kind != "whole":
        agent.groups = 3
        if kind == "parting":
            worker._submit = slowly
        if kind == "failing":
            worker._score, worker._submit = score_fails, write_fails
        module.Generation = Stopping
        plan = worker._desk._plan
        worker._desk._plan = lambda *about: replace(plan(*about), part_seconds=0.002)
        generation.PART_LOOK_SECONDS = 0.0
        generation.GENERATE_SECONDS = 0.01  # too short for rows of the greatest length
        thread = threading.Thread(target=worker.run)
        thread.start()
        if kind == "failing":
            until(
                "files behind two failures",
                lambda: len(failures) == 2 and len(agent.files) >= failures["write"]["files"] + 8,
            )
            STOP.set()
        until("files, and a lease with a whole group", STOP.is_set)
        thread.join(60)
        assert not thread.is_alive()
        files = []
        for number, (handed, data) in enumerate(agent.files):
            rows, rest = read_rollouts(data)[0], agent.rests.get(handed.lease)
            files.append(
                {
                    "first": int(handed.lease, 16) if rest is None or rest.part is None else rest.part.submission,
                    "lease": handed.lease,
                    "number": number,
                    "leased": int(handed.lease, 16) if rest is None else rest.submission,
                    "submission": rows[0].submission,
                    "groups": handed.part.groups if handed.part is not None else None,
                    "keep": handed.part is not None and handed.part.keep,
                    "seeds": [row.seed for row in rows],
                }
            )
        left = [path.name for path in (folder / "tmp").iterdir()]
        leased = [*(f"{number:032x}" for number in range(agent.leases)), *agent.rests]
        found = {
            "files": files, "returned": agent.returned, "left_in_tmp": left, "leased": leased, "failed": failures,
            "whole_at_stop": whole_at_stop,
        }  # fmt: skip
        (folder / "seen.json").write_text(json.dumps(found))
        server.close()
        return
    worker._score = scores
    line_is_free = threading.Event()
    worker._uploading.put(line_is_free.wait)
    lease = Lease(lease="ee" * 16, node="ab" * 32, step=4, submission=99, expires_unix=0.0)

    class GivenUp(types.SimpleNamespace):
        __hash__ = object.__hash__

    given_up: Any = GivenUp(given=types.SimpleNamespace(lease=lease), planned=[], made=[], parting=False)
    worker._given_up(given_up, "sealed", None)
    counted = [*worker._returning] == ["ee" * 16] or bool(agent.returned)
    until("the return of a lease", lambda: agent.returned and not worker._returning)
    behind_uploads = list(agent.returned)
    agent.returned.clear()
    line_is_free.set()
    thread = threading.Thread(target=worker.run)
    thread.start()
    until("two files", lambda: len(agent.files) >= 2)
    agent.refuse_files = True
    until("a refused file", lambda: agent.refused_files)
    agent.refuse_files = False
    Environment.fail_a_file = True
    until("a lease given back", lambda: {*agent.returned} - {*agent.refused_files})
    failed, before = [*({*agent.returned} - {*agent.refused_files})], len(agent.files)
    until("two more files", lambda: len(agent.files) >= before + 2)
    after = len(agent.files) - before
    STOP.set()
    thread.join(60)
    assert not thread.is_alive()
    worker._returning.add("ff" * 16)  # which nobody takes
    worker._leaves_by -= LEAVE_SECONDS
    began = time.monotonic()
    worker._end()
    ended_seconds = time.monotonic() - began
    shown: list[list[int]] = []
    for number in (2, 3):
        version_folder = folder / "weights" / version_name(number)
        version_folder.mkdir(parents=True)
    worker._benchmarks = {"one": None}
    worker._agent.step = lambda holds, together, parts: shown.append(list(holds))
    for wish in (None, Wish(policy, False, False), Wish(policy, True, False)):
        worker._step(wish)
    found = {
        "holds": shown,
        "scored_ahead": scored_ahead,
        "ended_seconds": ended_seconds,
        "most_held": max(held),
        "named": agent.named,
        "behind_uploads": behind_uploads,
        "counted": counted,
        "rows": [len(read_rollouts(data)[0]) for _, data in agent.files],
        "files": [handed.lease for handed, _ in agent.files],
        "refused": agent.refused_files,
        "failed": failed,
        "returned": agent.returned,
        "files_after": after,
        "leases": agent.leases,
        "left_in_tmp": [path.name for path in (folder / "tmp").iterdir()],
    }
    (folder / "seen.json").write_text(json.dumps(found))
    server.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
