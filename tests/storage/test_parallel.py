"""Many reads at once: their order, their errors, and the end of a process in which they go on."""

import subprocess
import sys

import pytest

from shoal.storage.parallel import AHEAD, in_parallel

MANY = 10 * AHEAD


def test_results_come_in_the_order_of_the_names() -> None:
    assert in_parallel(lambda number: number * number, range(MANY)) == [number * number for number in range(MANY)]
    assert in_parallel(str, ()) == []


def test_an_error_is_raised_and_what_was_not_begun_is_not_read() -> None:
    read: list[int] = []

    def fails(number: int) -> None:
        read.append(number)
        if number == 3:
            raise KeyError(number)

    with pytest.raises(KeyError, match="3"):
        in_parallel(fails, range(MANY))
    assert len(read) <= 2 * AHEAD


ENDS = """
import sys, threading, time
from shoal.storage.parallel import READERS, in_parallel

begun = threading.Event()

def read(number):
    if number == READERS:  # all have been handed out that are handed out before one is done
        begun.set()
    time.sleep(0.01)
    print(number, flush=True)

threading.Thread(target=lambda: in_parallel(read, range(int(sys.argv[1]))), daemon=True).start()
begun.wait()
raise SystemExit("another rank is lost")
"""


def test_a_process_that_ends_does_not_read_the_rest_first() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, str(MANY)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "another rank is lost" in ended.stderr
    assert len(ended.stdout.split()) <= 2 * AHEAD
