"""The sandbox against programs that mean harm: each ends with the true reason, none gets out, none finds what it should answer."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import ON_THE_OWNER, owners_machine, survived

from shoal.rewards.cpu_time import cpu_seconds
from shoal.rewards.sandbox import (
    Call,
    Isolation,
    Limits,
    NoIsolation,
    Outcome,
    Program,
    SandboxFailed,
    SandboxPool,
    choose,
)
from shoal.rewards.sandbox import isolation as isolation_module
from shoal.rewards.sandbox import pool as pool_module
from shoal.rewards.sandbox import process as process_module
from shoal.rewards.sandbox.pool import trial

SHORT = Limits(cpu_seconds=1, wall_seconds=60.0)
LONG = Limits(cpu_seconds=20, wall_seconds=60.0)
"""For programs that must come to their own end: a gigabyte of fresh memory takes a busy virtual machine more than a second."""


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    try:
        made = SandboxPool(choose(trial, request.param), slots=2)
    except NoIsolation as error:
        pytest.skip(f"{error}")
    yield made
    made.close()


def run(pool: SandboxPool, source: str, stdin: bytes = b"", limits: Limits = SHORT) -> Outcome:
    return pool.run(Program(source, stdin, limits=limits))


def test_a_program_reads_its_input_and_prints_its_answer(pool: SandboxPool) -> None:
    done = run(pool, "import sys\nprint(sum(map(int, sys.stdin.read().split())))", b"1 2\n3\n")
    assert (done.ended, done.exit_code, done.stdout, done.stderr) == ("exited", 0, b"6\n", "")
    assert done.succeeded
    assert 0 < done.cpu_seconds < 1


def test_a_megabyte_of_input_and_output_goes_through(pool: SandboxPool) -> None:
    data = b"x" * (1 << 20)
    assert run(pool, "import sys\nsys.stdout.write(sys.stdin.read())", data).stdout == data


def test_a_functions_value_comes_back_as_json_and_its_prints_do_not(pool: SandboxPool) -> None:
    source = "class Solution:\n    def double(self, n):\n        print('thinking')\n        return {'n': [n * 2, None, True]}"
    done = pool.run(Program(source, call=Call("Solution.double", [21]), limits=SHORT))
    assert (done.exit_code, done.stdout) == (0, b'{"n": [42, null, true]}')


def test_an_error_of_the_program_is_told_with_its_last_line(pool: SandboxPool) -> None:
    done = run(pool, "print(1 // 0)")
    assert not done.succeeded
    assert done.reason() == "ended with exit code 1: ZeroDivisionError: integer division or modulo by zero"


def test_the_program_is_nobody_and_alone(pool: SandboxPool) -> None:
    done = run(pool, "import os\nprint(os.getuid(), os.geteuid(), os.getgid(), os.getgroups(), os.listdir('.'))")
    uid, effective, gid, groups, *files = done.stdout.decode().split()
    assert uid == effective == gid != "0"
    assert (groups, files) == ("[]", ["[]"])
    if os.geteuid() == 0:
        assert int(uid) >= 64_000


def test_no_program_gets_anything_of_its_owners_machine(pool: SandboxPool) -> None:
    """A hundred programs, and the pool runs others afterwards. `benchmarks.trust.system` tries them as a user without rights, too."""
    found = survived(pool)
    assert len(found) >= 90
    assert not {name: got for name, got in found.items() if got}
    assert not Path("/tmp/shoal-sandbox-escape").exists()
    pool.run_all([Program("print(1)") for _ in range(8)])
    assert len(list(pool._folder.glob("box-*"))) <= 3 * pool.slots, "folders are removed, however deep they are"


@pytest.mark.parametrize(
    "name",
    ["the owner's SSH key", "the node's key", "the agent's environment", "the agent's socket", "a server on loopback"],
)
def test_what_it_tries_is_there_to_be_had_without_walls(name: str) -> None:
    pool = SandboxPool(Isolation("none", sys.executable, own_user=False), slots=1)
    try:
        with owners_machine() as machine:
            assert b"escaped" in run(pool, machine.program(ON_THE_OWNER[name])).stdout
    finally:
        pool.close()


def test_of_an_interpreter_in_somebodys_home_only_its_libraries_are_shown(tmp_path: Path) -> None:
    for folder in ("bin", "lib/python3.11", ".ssh"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin" / "python3").touch()
    shown = isolation_module.python_paths(str(tmp_path / "bin" / "python3"))
    assert shown == [str(tmp_path / "bin" / "python3"), str(tmp_path / "lib")]
    assert isolation_module.python_paths("/usr/bin/true") == []


def test_a_fork_bomb_does_not_go_off(pool: SandboxPool) -> None:
    bomb = "import os\nfor _ in range(1000):\n    try:\n        os.fork()\n    except OSError:\n        pass\nprint(os.getpid())"
    done = run(pool, bomb)
    assert len(done.stdout.split()) == 1


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("while True: pass", "cpu"),
        ("import signal\nsignal.signal(signal.SIGXCPU, lambda *a: None)\nwhile True: pass", "cpu"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "cpu"),
        ("while True: print('x' * 1000)", "output"),
        ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
    ],
)
def test_a_program_that_does_not_stop_is_stopped_with_the_true_reason(
    pool: SandboxPool, source: str, ended: str
) -> None:
    done = run(pool, source)
    assert done.ended == ended
    assert not done.succeeded


def test_a_program_that_sleeps_and_threads_that_outlive_it_end_with_the_wall_clock(pool: SandboxPool) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=0.7)
    sleeping = "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(60)"
    outliving = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nprint('done')"
    closing = "import os, time\nos.close(1); os.close(2)\ntime.sleep(60)"
    for done in pool.run_all([Program(source, limits=limits) for source in (sleeping, outliving, closing)]):
        assert done.ended == "wall"
        assert done.reason().startswith("did not end within ")


def test_a_program_that_computes_is_not_ended_by_the_wall_clock(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "MOST_WALLS", 1000)
    source = "import time\nwhile time.process_time() < 0.8: pass\nprint('done')"
    assert run(pool, source, limits=Limits(cpu_seconds=10, wall_seconds=0.3)).stdout == b"done\n"


def test_the_cpu_time_of_a_process_that_is_gone_is_zero() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert cpu_seconds(1 << 30) == 0


def test_files_of_a_program_are_bounded_together(pool: SandboxPool) -> None:
    done = run(pool, "for i in range(400): open(f'f{i}', 'wb').write(b'x' * 1_000_000)")
    assert not done.succeeded
    assert done.ended == "files" or "No space left" in done.stderr


def test_a_file_too_large_is_refused_to_the_program(pool: SandboxPool) -> None:
    assert not run(pool, "f = open('f', 'wb')\nfor _ in range(40): f.write(b'x' * 1_000_000)").succeeded


def test_nothing_of_a_program_is_left_for_the_next(pool: SandboxPool) -> None:
    leaving = (
        "import os\nos.mkdir('d')\nopen('d/x', 'w').write('1')\nos.symlink('/', 'd/root')\nos.mkdir('d/locked', 0)"
    )
    for _ in range(4):  # more than wait in the pool
        assert run(pool, leaving).succeeded
    assert run(pool, "import os\nprint(os.listdir('.'))").stdout == b"[]\n"
    assert Path("/etc/passwd").exists()


def test_threads_within_their_number_work(pool: SandboxPool) -> None:
    source = "import threading\nt = [threading.Thread(target=print, args=(i,)) for i in range(8)]\n[x.start() for x in t]\n[x.join() for x in t]"
    assert sorted(run(pool, source).stdout.split()) == [b"%d" % i for i in range(8)]


def test_sets_print_in_the_same_order_every_time(pool: SandboxPool) -> None:
    shown = {run(pool, "print({'a', 'b', 'c', 'd', 'e'})").stdout for _ in range(3)}
    assert len(shown) == 1


CLOCKED = """
import datetime, os, random, secrets, tempfile, time, uuid, zoneinfo
began = time.time()
print(began, time.strftime("%F %T"), time.ctime(), datetime.datetime.now(), datetime.date.today(), time.perf_counter())
time.sleep(0.01)
print(time.time() - began, time.process_time(), time.clock_gettime(time.CLOCK_REALTIME), time.localtime())
print(random.random(), random.Random().random(), random.SystemRandom().random(), secrets.token_hex(4), uuid.uuid4())
print(os.urandom(4), os.getrandom(2), os.urandom(0), random.sample(range(100), 5), tempfile.mkdtemp()[-8:])
"""


def test_clock_and_random_numbers_are_the_same_every_time(pool: SandboxPool) -> None:
    first, second = run(pool, CLOCKED), run(pool, CLOCKED)
    assert first.succeeded, first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.startswith(b"1735689600.0")
    assert b"2025-01-01 00:00:00" in first.stdout


def test_a_loop_that_waits_for_the_clock_ends_and_waits_with_a_limit_do_too(pool: SandboxPool) -> None:
    waits = """
import queue, threading, time
began = time.time()
while time.time() - began < 1.0:
    pass
try:
    queue.Queue().get(timeout=0.05)
except queue.Empty:
    print("empty", threading.Event().wait(0.01))
"""
    assert run(pool, waits).stdout == b"empty False\n"


def test_seeds_that_a_program_gives_count(pool: SandboxPool) -> None:
    done = run(pool, "import random\nrandom.seed(3)\na = random.random()\nprint(a == random.Random(3).random(), a)")
    import random

    assert done.stdout.decode().split() == ["True", str(random.Random(3).random())]


def test_programs_at_once_get_their_own_answers(pool: SandboxPool) -> None:
    done = pool.run_all([Program("print(int(input()) ** 2)", b"%d" % n) for n in range(20)])
    assert [int(one.stdout) for one in done] == [n * n for n in range(20)]


def test_a_pool_has_no_more_slots_than_its_users_suffice_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "POOLS_APART", 4)
    monkeypatch.setattr(pool_module, "START_SECONDS", 10.0)
    pool = SandboxPool(choose(trial), slots=6)
    try:
        outcomes = pool.run_all([Program(f"print({number})") for number in range(12)])
    finally:
        pool.close()
    assert pool.slots == 2
    assert [outcome.stdout for outcome in outcomes] == [f"{number}\n".encode() for number in range(12)]


def test_sandboxes_outlive_the_thread_that_asked_first(pool: SandboxPool) -> None:
    thread = threading.Thread(target=run, args=(pool, "print(1)"))
    thread.start()
    thread.join()
    assert run(pool, "print(2)").stdout == b"2\n"


def test_a_sandbox_that_was_killed_while_it_waited_is_replaced(pool: SandboxPool) -> None:
    with pool._changed:
        assert pool._changed.wait_for(lambda: pool._idle, 20)
        pool._idle[0]._kill()
    assert run(pool, "print(3)").stdout == b"3\n"


def test_a_sandbox_that_dies_before_it_has_its_program_says_nothing_about_the_program(pool: SandboxPool) -> None:
    box = pool._next()
    try:
        os.killpg(box._process.pid, signal.SIGSTOP)  # it can no longer read, and is then killed
        threading.Timer(0.2, box._kill).start()
        with pytest.raises(SandboxFailed, match="ended before it received its program"):
            box.run(Program("print(1)"))
    finally:
        pool._done(box)


def test_a_closed_pool_says_so_and_leaves_no_process_and_no_folder() -> None:
    pool = SandboxPool(choose(trial), slots=1)
    assert run(pool, "print(1)").succeeded
    folder = pool._folder
    pool.close()
    assert not folder.exists()
    with pytest.raises(SandboxFailed, match="the pool of sandboxes is closed"):
        run(pool, "print(1)")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in listed


def test_the_best_isolation_that_works_is_chosen_and_says_why_not_a_better_one() -> None:
    def only(kind: str):
        return lambda isolation: None if isolation.kind == kind else "refused here"

    assert choose(only("bubblewrap"), "auto").kind == "bubblewrap"
    weaker = choose(only("landlock"), "auto")
    assert weaker.kind == "landlock"
    assert weaker.weaker_because == ("bubblewrap: refused here",)
    assert "Landlock + seccomp + rlimits" in weaker.describe()


def test_no_isolation_at_all_is_refused_unless_the_admin_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_works(isolation: Isolation) -> str | None:
        return None if isolation.kind == "none" else "not on this machine"

    with pytest.raises(
        NoIsolation, match=r"cannot be isolated .*bubblewrap: not on this machine; landlock: .*set SHOAL_SANDBOX=none"
    ):
        choose(none_works, "auto")
    monkeypatch.setenv("SHOAL_SANDBOX", "none")
    assert "NOT isolated" in choose(none_works).describe()
    monkeypatch.setenv("SHOAL_SANDBOX", "gvisor")
    with pytest.raises(NoIsolation, match="SHOAL_SANDBOX is 'gvisor'; allowed: auto, bubblewrap, landlock, none"):
        choose(none_works)


def test_without_isolation_limits_still_hold() -> None:
    pool = SandboxPool(choose(trial, "none"), slots=1)
    try:
        assert run(pool, "print(1)").stdout == b"1\n"
        assert run(pool, "x = bytearray(10 << 30)").exit_code == 1
    finally:
        pool.close()


def test_a_sandbox_that_cannot_start_is_a_failure_of_the_sandbox_and_not_of_the_program() -> None:
    pool = SandboxPool(Isolation("landlock", "/usr/bin/true", own_user=False), slots=1)
    try:
        with pytest.raises(SandboxFailed, match="3 sandboxes in a row did not start"):
            run(pool, "print(1)")
    finally:
        pool.close()


def test_a_process_has_one_pool() -> None:
    assert pool_module.shared_pool() is pool_module.shared_pool()


SYSTEM_PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")
PACKAGES = [Path(pool_module.__file__).parents[3], Path(pytest.__file__).parents[1]]
AS_NOBODY = """
import sys
from shoal.rewards.sandbox import Program, SandboxPool, choose
from shoal.rewards.sandbox.pool import trial
pool = SandboxPool(choose(trial, sys.argv[1]), slots=1)
done = [pool.run(Program(source)) for source in (
    "print(1)", "import os; os.fork()", "open('/etc/passwd')", "import os; os.mkdir('d'); open('d/a', 'w'); os.mkdir('d/e', 0)",
    "import os, sys; os.chmod(sys.path[0], 0)", "print(2)")]
pool.close()
print(pool.isolation.describe(), [one.exit_code for one in done], done[0].stdout, pool._folder.exists())
"""

if os.geteuid() == 0 and SYSTEM_PYTHON.exists() and all(map(isolation_module.readable_by_all, PACKAGES)):

    @pytest.mark.parametrize(
        ("kind", "described"),
        [
            ("bubblewrap", "bubblewrap (namespaces) + seccomp + rlimits, a user namespace of its own"),
            ("landlock", "Landlock + seccomp + rlimits, the same user"),
        ],
    )
    def test_a_user_without_rights_can_isolate_programs_too(tmp_path: Path, kind: str, described: str) -> None:
        found = subprocess.run(
            [SYSTEM_PYTHON, "-B", "-c", AS_NOBODY, kind],
            env={"PYTHONPATH": os.pathsep.join(map(str, PACKAGES)), "PATH": os.environ["PATH"]},
            user=65533, group=65533, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert found.stdout == f"{described} [0, 1, 1, 0, 1, 0] b'1\\n' False\n", found.stderr
