"""Mathematical answers and sandboxed programs per second with p99 latency, beside the same work done without protection.

`python -m benchmarks.rewards [--answers N] [--programs N]` writes `benchmarks/results/rewards.json` and prints a table. Directly means:
math-verify in this process, which nothing can stop when it hangs; and `subprocess.run` of a bare Python, which may do whatever this user may.
As many threads ask at once as there are cores. CPU time a program is measured too: it depends less on what else the machine is doing.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import cast

from shoal.environments.math import Math
from shoal.rewards.math import MathJudge, Undecided
from shoal.rewards.sandbox import Program, SandboxPool, choose, trial

RESULT = Path(__file__).parents[1] / "results" / "rewards.json"
PROGRAM = "values = list(map(int, input().split()))\nprint(sum(values), max(values), sorted(values)[0])"
"""A small program, as most exercises are."""
INPUT, OUTPUT = b"3 1 4 1 5 9 2 6\n", b"31 9 1\n"
SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda answer: answer,
    lambda answer: f"${answer}$",
    lambda answer: answer.replace(r"\frac", r"\dfrac").replace(",", ", "),
    lambda answer: f"({answer})+0" if answer[0].isdigit() else answer,
    lambda answer: f"{answer}+1" if answer[-1] != ")" else answer.replace("[", "("),
)
"""Right answers as they are and spelled otherwise, one that must be worked out, and a wrong one."""


@dataclass(frozen=True)
class Measured:
    per_second: float
    p99_ms: float
    cpu_ms: float


def measure(pieces: Sequence[object], work: Callable[[object], object], threads: int) -> Measured:
    """Do all pieces, `threads` at once; CPU time includes that of processes which have ended meanwhile."""
    latencies: list[float] = []

    def timed(piece: object) -> None:
        began = time.perf_counter()
        work(piece)
        latencies.append(time.perf_counter() - began)

    before, began = _cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(timed, pieces))
    wall, cpu = time.perf_counter() - began, _cpu_seconds() - before
    latencies.sort()
    return Measured(
        per_second=round(len(pieces) / wall, 1),
        p99_ms=round(1000 * latencies[int(0.99 * (len(latencies) - 1))], 1),
        cpu_ms=round(1000 * cpu / len(pieces), 2),
    )


def _cpu_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def answer_pairs(count: int) -> list[tuple[str, str]]:
    """Gold answers of every generated kind with given ones in the spellings above, in turn."""
    golds = [str(task.verification_info["answer"]) for task in Math().tasks(count, seed=0)]
    return [(gold, SPELLINGS[number % len(SPELLINGS)](gold)) for number, gold in enumerate(golds)]


def our_math(pairs: Sequence[tuple[str, str]], threads: int) -> Measured:
    judge = MathJudge(workers=threads)

    def ask(pair: object) -> None:
        found = judge.equal(*pair)  # type: ignore[misc]  # a pair of texts
        assert not isinstance(found, Undecided), (pair, found)

    with ThreadPoolExecutor(threads + 1) as waking:  # workers that have loaded sympy, as in a service that runs
        list(waking.map(ask, [(r"\sqrt{8}", r"2\sqrt{2}")] * 4 * (threads + 1)))
    try:
        measured = measure(pairs, ask, threads)
    finally:
        judge.close()
    return measured


def direct_math(pairs: Sequence[tuple[str, str]]) -> Measured:
    """One thread: sympy holds the interpreter's lock, and the alarms that math-verify would set reach only the main thread."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.WARNING)  # it warns at each call that nothing will stop it

    def ask(pair: object) -> None:
        gold, answer = cast(tuple[str, str], pair)
        verify(
            parse(f"${gold}$", parsing_timeout=None), parse(f"${answer}$", parsing_timeout=None), timeout_seconds=None
        )

    ask((r"\sqrt{8}", r"2\sqrt{2}"))
    return measure(pairs, ask, 1)


def our_programs(count: int, pool: SandboxPool) -> Measured:
    def run(_: object) -> None:
        outcome = pool.run(Program(PROGRAM, INPUT))
        assert outcome.stdout == OUTPUT, outcome

    run(None)
    return measure(range(count), run, pool.slots)


def direct_programs(count: int, threads: int) -> Measured:
    def run(_: object) -> None:
        done = subprocess.run([sys.executable, "-c", PROGRAM], input=INPUT, capture_output=True, timeout=60, check=True)
        assert done.stdout == OUTPUT

    run(None)
    return measure(range(count), run, threads)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--answers", type=int, default=1000)
    options.add_argument("--programs", type=int, default=500)
    given = options.parse_args()
    threads = len(os.sched_getaffinity(0))
    pairs = answer_pairs(given.answers)
    pool = SandboxPool(choose(trial), slots=threads)
    try:
        programs = our_programs(given.programs, pool)
    finally:
        pool.close()
    bare = direct_programs(given.programs, threads)
    math, plain = our_math(pairs, threads), direct_math(pairs)
    figures = {
        "math_per_second": math.per_second,
        "math_p99_ms": math.p99_ms,
        "programs_per_second": programs.per_second,
        "program_p99_ms": programs.p99_ms,
        "program_cpu_ms": programs.cpu_ms,
        "isolation": pool.isolation.describe(),
        "direct": {
            "math_per_second": plain.per_second,
            "math_p99_ms": plain.p99_ms,
            "programs_per_second": bare.per_second,
            "program_p99_ms": bare.p99_ms,
            "program_cpu_ms": bare.cpu_ms,
        },
        "answers": given.answers,
        "programs": given.programs,
        "measured_on": {
            "machine": f"{threads} cores, {platform.machine()}, {platform.system()}",
            "load_average_1_minute": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
            "math-verify": version("math-verify"),
            "sympy": version("sympy"),
        },
    }
    RESULT.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"{'':24}{'per second':>12}{'p99 ms':>10}{'CPU ms':>10}")
    # The CPU time of math workers is not known until they end, long after.
    for name, row in (("answers", math), ("math-verify directly", plain)):
        print(f"{name:24}{row.per_second:12}{row.p99_ms:10}")
    for name, row in (("programs", programs), ("subprocess.run directly", bare)):
        print(f"{name:24}{row.per_second:12}{row.p99_ms:10}{row.cpu_ms:10}")
    print(f"isolation: {figures['isolation']}")


if __name__ == "__main__":
    main()
