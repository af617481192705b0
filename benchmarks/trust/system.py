"""`python -m benchmarks.trust.system [programs] [hoarding] [attacks] [flaky]`: what keys and programs of strangers can do to a run and to a machine.

Writes its figures into `benchmarks/results/trust_system.json` and leaves the others as they are. `programs` takes a minute: 40 files whose proofs
do not fit, and a count of the programs that run for them. `hoarding` takes some ten minutes: runs of 30
steps on the real orchestrator with a clock moved by hand, 4 honest nodes beside 24 hoarding keys of each kind. `attacks` takes two: every program of
`tests/rewards/attacks.py` under each isolation of this machine, as this user and, where this user is root, as one without rights.
`flaky` takes some minutes: 10,000 files of honest nodes whose programs answer differently each time (`flaky_programs`).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.trust.system_figures import ROOT, merge, recorded

PROGRAMS_TEST = "tests/validation/test_program_rewards.py::test_nothing_runs_for_a_file_whose_proofs_do_not_fit"
STEPS, HONEST, HOARDING = 30, 4, 24
NOBODY = 65533
WALLS = (("bubblewrap", 0), ("landlock", 0), ("landlock", 3))
"""Kinds of isolation, and the version of Landlock's interface that is pretended; 0: the kernel's own."""
ATTACK_SECONDS = 600
FLAKY_FILES, FLAKY_RUNS = 10_000, 4


def hoarding() -> dict[str, Any]:
    """Seconds a step without hoarders and with each kind, and the greatest quotient."""
    sys.path.insert(0, str(ROOT / "tests"))
    import hoarders
    from servers import Loopback, redis

    loopback = Loopback()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = redis(loopback.address(), folder)
        server.start()
        try:
            found = {}
            for number, kind in enumerate(["", *hoarders.HOARDERS]):
                (folder / str(number)).mkdir()
                keys = HOARDING if kind else 0
                pool = hoarders.finished(folder / str(number), server.url, STEPS, HONEST, keys, kind)
                found[kind] = round(pool.seconds_a_step, 1)
                print(f"{kind or 'no hoarders':46} {found[kind]:7.1f} s a step", file=sys.stderr, flush=True)
        finally:
            server.stop()
            loopback.close()
    without = found.pop("")
    return {
        "hoarding_slowdown": round(max(found.values()) / without, 3),
        "hoarding": {
            "honest_nodes": HONEST,
            "hoarding_keys": HOARDING,
            "steps": STEPS,
            "seconds_a_step_without": without,
            "seconds_a_step": found,
            "slowdown": {kind: round(seconds / without, 3) for kind, seconds in found.items()},
        },
    }


def attacks() -> dict[str, Any]:
    """How many programs were tried, and how many of them got nothing under every isolation that was tried."""
    users = [None, NOBODY] if os.geteuid() == 0 else [None]
    tried = [attacked(kind, version, user) for user in users for kind, version in WALLS]
    succeeded = {name for each in tried for name, got in each["attacks"].items() if got}
    names = {name for each in tried for name in each["attacks"]}
    return {
        "runner_attacks": len(names),
        "runner_attacks_survived": len(names - succeeded),
        "runner_attacks_under": [
            {"isolation": each["isolation"], "landlock": each["landlock"], "user": each["user"]} for each in tried
        ],
        "runner_attacks_succeeded": sorted(succeeded),
    }


def attacked(kind: str, version: int, user: int | None) -> dict[str, Any]:
    """One isolation as one user (None: this one). RuntimeError where the programs cannot be run."""
    source = ROOT / "tests" / "rewards"
    # The interpreter of a user without rights must be one that it can read.
    python = sys.executable if user is None else f"/usr/bin/python3.{sys.version_info.minor}"
    paths = [str(ROOT / "workloads"), *(entry for entry in sys.path if "site-packages" in entry)]
    done = subprocess.run(
        [python, "-B", str(source / "attacks.py"), kind, str(version)],
        env={"PYTHONPATH": os.pathsep.join(paths), "PATH": os.environ["PATH"]},
        cwd="/", capture_output=True, text=True, timeout=ATTACK_SECONDS, check=False,
        user=user, group=user, extra_groups=None if user is None else [],
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{kind} as user {user}: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found | {"user": os.geteuid() if user is None else user}


def flaky() -> dict[str, Any]:
    """How many honest nodes are evicted for programs that answer differently each time, in a few runs beside each other."""
    from benchmarks.trust import flaky_programs

    outcomes = flaky_programs.measured()
    with ProcessPoolExecutor(FLAKY_RUNS) as pool:
        share = FLAKY_FILES // FLAKY_RUNS
        found = list(pool.map(_flaky_run, [(outcomes, share, seed) for seed in range(FLAKY_RUNS)]))
    return {
        "honest_nodes_evicted": sum(each["evicted"] for each in found),
        "flaky_programs": {name: sum(each[name] for each in found) for name in found[0]}
        | {"right_of_measured_runs": flaky_programs.right(outcomes)},
    }


def _flaky_run(of: tuple[Any, int, int]) -> dict[str, int]:
    """One run of its own; `of`: outcomes, files, seed."""
    sys.path.insert(0, str(ROOT / "tests"))
    from benchmarks.trust import flaky_programs
    from servers import Loopback, redis

    outcomes, files, seed = of
    loopback = Loopback()
    with tempfile.TemporaryDirectory() as name:
        server = redis(loopback.address(), Path(name))
        server.start()
        try:
            return flaky_programs.judged(Path(name), server.url, outcomes, files, seed=seed)
        finally:
            server.stop()
            loopback.close()


def programs() -> dict[str, Any]:
    """How many programs run for files whose proofs do not fit, each row of which is checked."""
    return recorded(PROGRAMS_TEST, "programs_")


PARTS = {"programs": programs, "hoarding": hoarding, "attacks": attacks, "flaky": flaky}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust.system", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all if absent")
    wanted = parser.parse_args().parts or PARTS
    for part in wanted:
        found = PARTS[part]()
        machine = {"cores": os.cpu_count(), "kernel": platform.release(), "machine": platform.machine()}
        merge(found | {f"{part}_machine": machine})
        for name, value in found.items():
            if not isinstance(value, dict):
                print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
