"""Hoarding keys at the real services: requests over HTTP, signed, with the machine's own clock."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from protocol_stack import Node, Stack, post, verdict_on
from servers import Loopback
from shoal.contracts import keys
from shoal.contracts.problems import ProblemCode
from shoal.contracts.protocol import Lease
from shoal.transport import Refused

HONEST, HOARDING, STEPS = 4, 24, 4
FILE_SECONDS, POLL_SECONDS = 1.5, 0.5
SLACK_SECONDS = 2.0  # of a busy machine; a step that waited for a lease to run out would take 60 s


@pytest.fixture
def stack(tmp_path: Path, loopback: Loopback) -> Iterator[Stack]:
    running = Stack(tmp_path, loopback.address(), steps=100)
    try:
        running.start()
        yield running
    finally:
        running.close()


def lease(node: Node) -> Lease | None:
    try:
        step = node.step()
        return node.lease(step.step) if step is not None else None
    except Refused:
        return None


def honest(node: Node, stop: threading.Event) -> None:
    while not stop.is_set():
        held = lease(node)
        if held is None:
            stop.wait(POLL_SECONDS)
            continue
        time.sleep(FILE_SECONDS)
        data = f"rollouts of {node.id} for {held.step}/{held.submission}".encode()
        try:
            post(node.grant(held, data), data)
            node.confirm(held, data)
        except Refused:
            continue


def hoards(node: Node, stop: threading.Event, held: list[Lease]) -> None:
    """Takes a lease, keeps it for good, and asks for no other before it has run out."""
    while not stop.is_set():
        taken = lease(node)
        if taken is not None:
            held.append(taken)
            return
        stop.wait(POLL_SECONDS)


def trusted(stack: Stack, stop: threading.Event) -> None:
    """A validator that accepts everything, and a trainer without delay."""
    version = 0
    while not stop.is_set():
        job = stack.claim(wait=1)
        if job is not None:
            stack.judge(verdict_on(job))
        while stack.store.exists(keys.step_batch(version)):
            try:
                stack.announce(version + 1)
            except Refused as refusal:
                if refusal.code != ProblemCode.VERSION_TOO_EARLY:
                    raise
                break  # the batch is stored, and not in the ledger yet
            version += 1


def seconds_for_steps(stack: Stack) -> float:
    first = stack.progress().open_step
    assert first is not None
    began = time.monotonic()
    while (now := stack.progress().open_step) is None or now < first + STEPS:
        assert time.monotonic() < began + 60, "a step waits for a lease to run out"
        time.sleep(0.1)
    return time.monotonic() - began


def test_24_keys_that_keep_their_leases_do_not_slow_4_honest_nodes(stack: Stack) -> None:
    with ThreadPoolExecutor(HONEST + HOARDING) as threads:
        nodes = list(threads.map(lambda _: Node(stack).join(), range(HONEST + HOARDING)))
    stack.announce(0)
    stop, held = threading.Event(), list[Lease]()
    lives = [threading.Thread(target=honest, args=(node, stop)) for node in nodes[:HONEST]]
    lives.append(threading.Thread(target=trusted, args=(stack, stop)))
    lives += [threading.Thread(target=hoards, args=(node, stop, held)) for node in nodes[HONEST:]]
    try:
        for life in lives[: HONEST + 1]:
            life.start()
        without = seconds_for_steps(stack)
        for life in lives[HONEST + 1 :]:
            life.start()
        with_them = seconds_for_steps(stack)
    finally:
        stop.set()
        for life in lives:
            if life.ident is not None:
                life.join(timeout=30)
    assert held, "they got some leases"
    assert with_them <= 1.2 * without + SLACK_SECONDS
