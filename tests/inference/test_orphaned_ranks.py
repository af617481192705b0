"""A rank of an engine whose parent is killed: what vLLM does about it does not reach a rank that waits for a peer."""

import os
import signal
import subprocess
import sys

PARENT = """
import multiprocessing, threading, time

def rank(lives):
    from shoal.inference.process_settings import end_with_parent
    end_with_parent()
    lives.set()
    held = threading.Lock()
    held.acquire()
    held.acquire()  # as in a collective that nobody joins

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    lives = context.Event()
    child = context.Process(target=rank, args=(lives,))
    child.start()
    lives.wait()
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_a_rank_ends_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    rank = int(parent.stdout.readline())
    parent.kill()
    try:
        parent.communicate(timeout=20)  # the end of the pipe, of which the rank has the other end too
    except subprocess.TimeoutExpired:
        os.kill(rank, signal.SIGKILL)
        raise
