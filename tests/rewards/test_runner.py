"""Runner pods: the same program gets the same outcome there as here; a runner that is busy, away or killed never makes an answer wrong."""

import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from servers import PLAIN, ROOT, Loopback, Server, wait_until
from shoal.contracts.programs import MAX_PROGRAM_BYTES
from shoal.environments import Score, Unscorable, load
from shoal.rewards.sandbox import Call, Limits, Program, SandboxFailed, shared_pool, slots_here, use_runners
from shoal.rewards.sandbox.documents import request_of
from shoal.rewards.sandbox.remote import RunnerPool

PORT = 9107
SHORT = Limits(cpu_seconds=1, wall_seconds=20.0)


def runner(loopback: Loopback, folder: Path, name: str) -> Server:
    folder = folder / name
    folder.mkdir()
    address = loopback.address()
    settings = {"SHOAL_HOME": str(folder), "SHOAL_BIND": address, "SHOAL_ROLE": "runner", "TMPDIR": str(folder)}
    settings["PYTHONPATH"] = str(ROOT / "workloads")
    made = Server([sys.executable, "-m", "shoal.rewards.runner"], address, PORT, folder, settings)
    made.start()
    return made


def url(server: Server) -> str:
    return f"http://{server.address}:{PORT}"


@pytest.fixture(scope="module")
def running(loopback: Loopback, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # One core, so that the number of slots is known: it is inherited by the runner.
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        server = runner(loopback, tmp_path_factory.mktemp("runner"), "one")
    finally:
        os.sched_setaffinity(0, cores)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def pool(running: Server) -> Iterator[RunnerPool]:
    made = RunnerPool([url(running)])
    yield made
    made.close()


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{url(server)}/metrics", **PLAIN).text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_a_program_gets_its_input_and_gives_its_output(pool: RunnerPool) -> None:
    outcome = pool.run(Program("print(input()[::-1])", stdin="äbc\n".encode()))
    assert (outcome.ended, outcome.exit_code, outcome.stdout) == ("exited", 0, "cbä\n".encode())


def test_arguments_and_values_of_a_function_arrive_as_they_were_sent(pool: RunnerPool) -> None:
    arguments = [10**30, 0.1, -0.0, "\ud800ä", None, True, {"a": [1]}, float("inf")]
    outcome = pool.run(Program("def same(*given):\n    return list(given)", call=Call("same", arguments)))
    assert outcome.succeeded, outcome.reason()
    assert json.loads(outcome.stdout) == arguments


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("raise SystemExit(3)", "exited"),
        ("while True: pass", "cpu"),
        ("import os; os.abort()", "signal"),
        ("print('x' * 10_000_000)", "output"),
    ],
)
def test_a_program_ends_there_as_it_would_here(pool: RunnerPool, source: str, ended: str) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=20.0, output_bytes=1 << 20)
    outcome = pool.run(Program(source, limits=limits))
    assert outcome.ended == ended
    assert not outcome.succeeded


def test_a_runner_has_health_metrics_and_says_what_isolates(running: Server) -> None:
    for path in ("/healthz", "/readyz"):
        assert httpx.get(url(running) + path, **PLAIN).status_code == 200
    assert metric(running, "shoal_sandbox_isolation_info") == 1.0
    log = (running.folder / "log").read_text()
    assert "judging programs in sandboxes" in log
    assert "seccomp" in log


def test_more_programs_than_fit_are_turned_away_and_all_are_judged_in_the_end(running: Server) -> None:
    eager = [RunnerPool([url(running)]) for _ in range(3)]
    outcomes: list[bytes] = []

    def ask(pool: RunnerPool) -> None:
        outcomes.extend(one.stdout for one in pool.run_all([Program("import time; time.sleep(0.3); print(1)")] * 4))

    threads = [threading.Thread(target=ask, args=(each,)) for each in eager]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert outcomes == [b"1\n"] * 12
    assert metric(running, "shoal_runner_refused_total") > 0
    for each in eager:
        each.close()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 422, "This is not a program"),
        (b"[]", 422, "This is not a program"),
        (b"{" * 100_000, 422, "This is not a program"),
        (b'{"source": "cA==", "limits": {}}', 422, "limits.cpu_seconds: Field required"),
        (b'{"source": "%%%", "limits": {}}', 422, "source"),
        (b'{"source": "cA==", "environment": {}}', 422, "environment: Extra inputs are not permitted"),
        (b"x" * (MAX_PROGRAM_BYTES + 1), 413, "Body is too large"),
    ],
    ids=["empty", "a list", "nested", "no limits", "no base64", "unknown field", "too large"],
)
def test_what_is_no_program_is_refused_in_words(running: Server, body: bytes, status: int, said: str) -> None:
    answer = httpx.post(f"{url(running)}/v1/programs", content=body, **PLAIN)
    assert answer.status_code == status
    assert said in answer.text


@pytest.mark.parametrize(
    ("field", "value"), [("cpu_seconds", 601), ("wall_seconds", 1e9), ("memory_bytes", 1 << 40), ("output_bytes", -1)]
)
def test_limits_beyond_a_runners_own_are_refused(running: Server, field: str, value: float) -> None:
    asked = json.loads(request_of(Program("pass")))
    asked["limits"][field] = value
    answer = httpx.post(f"{url(running)}/v1/programs", json=asked, **PLAIN)
    assert answer.status_code == 422
    assert f"limits.{field}" in answer.json()["detail"]


@pytest.mark.parametrize("arguments", ["{}", "[1", "7"])
def test_arguments_that_are_no_list_are_refused(running: Server, arguments: str) -> None:
    asked = json.loads(request_of(Program("pass", call=Call("f", []))))
    asked["call"]["arguments_json"] = arguments
    assert httpx.post(f"{url(running)}/v1/programs", json=asked, **PLAIN).status_code == 422


def test_a_program_that_no_runner_may_take_fails_before_it_is_sent() -> None:
    with pytest.raises(SandboxFailed, match=r"cannot send the program to a runner.*cpu_seconds"):
        request_of(Program("pass", limits=Limits(cpu_seconds=100_000)))
    with pytest.raises(SandboxFailed, match="cannot send the program to a runner"):
        request_of(Program("pass", call=Call("f", [object()])))


def test_programs_of_a_killed_runner_are_run_again_by_another(loopback: Loopback, tmp_path: Path) -> None:
    doomed, other = runner(loopback, tmp_path, "doomed"), runner(loopback, tmp_path, "other")
    pool = RunnerPool([url(doomed), url(other)])
    outcomes: list[bytes] = []
    # More than one runner takes at once, so that both have some.
    programs = [Program("import time; time.sleep(1); print('done')")] * 12
    asking = threading.Thread(target=lambda: outcomes.extend(one.stdout for one in pool.run_all(programs)))
    asking.start()
    wait_until(
        "the runner to have programs", lambda: metric(doomed, "shoal_runner_in_flight") > 0.0, 30.0, interval=0.05
    )
    doomed.kill()
    asking.join(120.0)
    assert outcomes == [b"done\n"] * 12
    other.kill()
    impatient = RunnerPool([url(doomed), url(other)], patience_seconds=-118.0)
    with pytest.raises(SandboxFailed, match=r"no runner accepted the program within 2 s: .* cannot be reached"):
        impatient.run(Program("pass", limits=Limits(wall_seconds=20.0)))
    pool.close()
    impatient.close()


def test_a_runner_whose_sandboxes_fail_says_so_and_is_not_ready(loopback: Loopback, tmp_path: Path) -> None:
    server = runner(loopback, tmp_path, "broken")
    (guest,) = server.folder.glob("shoal-sandbox-*/guest")
    guest.rename(guest.with_name("gone"))
    asked = request_of(Program("print(1)"))
    # The sandboxes that were up before are used up first.
    answers = [httpx.post(f"{url(server)}/v1/programs", content=asked, **PLAIN, timeout=120.0) for _ in range(8)]
    assert answers[-1].status_code == 500
    assert answers[-1].json()["type"] == "urn:shoal:problem:sandbox-failed"
    ready = httpx.get(f"{url(server)}/readyz", **PLAIN)
    assert (ready.status_code, "sandbox" in ready.text) == (503, True)
    alive = httpx.get(f"{url(server)}/healthz", **PLAIN, timeout=30.0)
    assert (alive.status_code, "sandbox" in alive.text) == (503, True)
    guest.with_name("gone").rename(guest)

    def alive_again() -> bool:  # those that failed to start are used up by trials, with no program from outside
        return httpx.get(f"{url(server)}/healthz", **PLAIN, timeout=30.0).status_code == 200

    wait_until("a trial program to succeed", alive_again, 60.0, interval=0.2)
    assert httpx.get(f"{url(server)}/readyz", **PLAIN).status_code == 200
    server.stop()


class Lost(http.server.BaseHTTPRequestHandler):
    """A runner that dies with each program, or answers something else."""

    answer: bytes | None = None

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.answer is not None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.answer)))
            self.end_headers()
            self.wfile.write(self.answer)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing is to be said."""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "a runner was lost 3 times with this program in it"),
        (b"{}", "gave no outcome: 3 fields are wrong"),
        (b'{"ended": "won", "cpu_seconds": 0, "wall_seconds": 0}', "gave no outcome: 1 fields are wrong"),
        (b" " * (17 << 20), "a runner was lost 3 times"),
    ],
    ids=["dies", "says nothing", "says nonsense", "talks for ever"],
)
def test_a_runner_that_is_lost_or_talks_nonsense_is_no_wrong_answer(
    loopback: Loopback, answer: bytes | None, said: str
) -> None:
    handler = type("Answering", (Lost,), {"answer": answer})
    server = http.server.ThreadingHTTPServer((loopback.address(), 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pool = RunnerPool([f"http://{server.server_address[0]}:{server.server_address[1]}"])
    with pytest.raises(SandboxFailed, match=said):
        pool.run(Program("pass", limits=SHORT))
    use_runners([f"http://{server.server_address[0]}:{server.server_address[1]}"])
    try:
        code = load("code")
        task = code.tasks(1, seed=1)[0]
        assert isinstance(code.score(task, code.gold(task)), Unscorable)
    finally:
        use_runners([])
    pool.close()
    server.shutdown()
    server.server_close()


def test_the_code_environment_is_judged_by_runners_when_there_are_any(running: Server) -> None:
    before = metric(running, "shoal_runner_programs_total")
    use_runners([url(running)])
    try:
        assert isinstance(shared_pool(), RunnerPool)
        code = load("code")
        for task in code.tasks(2, seed=4):
            found = code.score(task, code.gold(task))
            assert isinstance(found, Score)
            assert found.task_reward == 1.0
            wrong = code.score(task, code.broken(task))
            assert isinstance(wrong, Score)
            assert wrong.task_reward == 0.0
    finally:
        use_runners([])
    assert metric(running, "shoal_runner_programs_total") >= before + 4


@pytest.mark.parametrize(
    ("cpu", "memory", "slots"),
    [
        ("max 100000", "max", None),
        ("100000 100000", "max", 1),
        ("50000 100000", "max", 1),
        ("max 100000", str(256 << 20), 1),
        ("max 100000", str((256 + 2 * 544) << 20), 2),
        ("nonsense", "nonsense", None),
        (None, None, None),
    ],
)
def test_a_runner_has_as_many_slots_as_its_container_has_cores_and_memory_for(
    tmp_path: Path, cpu: str | None, memory: str | None, slots: int | None
) -> None:
    for name, text in (("cpu.max", cpu), ("memory.max", memory)):
        if text is not None:
            (tmp_path / name).write_text(text + "\n")
    cores = len(os.sched_getaffinity(0))
    assert slots_here(tmp_path) == min(cores, slots or cores)


def test_a_pool_of_no_runners_is_refused() -> None:
    with pytest.raises(ValueError, match="no runner is given"):
        RunnerPool([])
