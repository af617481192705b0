"""A timed challenge that shows what a machine computes: chains of matrix products modulo a small prime, checked by Freivalds' method. Pure.

Comes in: a seed and how much work. Goes out: the product (by whoever is asked) and whether a product is right (by who asked). There are `lanes`
chains of `depth` matrices each, and the answer is the sum of the lanes' products: `SIZE` x `SIZE` numbers, as long whatever the work was.
Freivalds (1977): for a random vector r, (A B) r = A (B r) takes two products with a vector instead of one of matrices. A wrong product passes
with a chance of at most 1 / p. With `VECTORS` of them that is 3e-11, for 1 / 100 of the work.

All values are whole numbers below `PRIME`, so that every sum stays below 2^24: float32 is exact in any order of addition, and so are tensor cores,
which multiply in bfloat16 or TF32 and add in float32. A right answer is therefore right to the bit on every device.
"""

import base64
import binascii
import hashlib
import itertools
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SIZE = 512
PRIME = 127
"""The largest prime with (PRIME - 1)^2 * SIZE < 2^24."""
BASES = 16
"""Matrices made from the seed; those of the chains are these, turned in rows and columns: 16 * 512 * 512 of them, each cheap to have."""
VECTORS = 5
FLOP_PER_PRODUCT = 2 * SIZE**3
MOST_PRODUCTS = 16_384
"""4.4 * 10^12 operations: what an 8-core machine does in ten seconds, and a second or so of checking. Above 1466 * 10^9 a second (this
over `WORK_SECONDS`) the work would be over sooner than the allowance for the way, and show little: `Requirements.gflops` ends below."""
LANES = 16  # products side by side: enough to fill a GPU, little memory
WORK_SECONDS = 3.0
"""Work that takes this long on a machine which is just fast enough: long against the way to it."""
ALLOWANCE_SECONDS = 3.0
"""For the way there and back, 350 kB of answer, and making the matrices."""
ANSWER_BYTES = SIZE * SIZE

Values = npt.NDArray[np.float32]


class BadProduct(ValueError):
    """An answer that is not a product, or a wrong one."""


@dataclass(frozen=True)
class ChallengeWork:
    """The question: `lanes` chains of `depth` matrices from `seed` (32 bytes)."""

    seed: bytes
    lanes: int
    depth: int

    @property
    def flop(self) -> int:
        """Operations of the straight way, the first matrix of a chain being free."""
        return self.lanes * (self.depth - 1) * FLOP_PER_PRODUCT


def plan(gflops: int) -> tuple[int, int, float]:
    """Lanes, depth and seconds allowed for a machine that must do `gflops` (1 to 1400, 10^9 operations a second)."""
    products = min(max(int(gflops * 1e9 * WORK_SECONDS / FLOP_PER_PRODUCT), LANES), MOST_PRODUCTS)
    depth = -(-products // LANES) + 1
    seconds = LANES * (depth - 1) * FLOP_PER_PRODUCT / (gflops * 1e9)
    return LANES, depth, seconds + ALLOWANCE_SECONDS


def base_matrices(seed: bytes) -> Values:
    """The matrices that all others are made of, (BASES, SIZE, SIZE), from SHAKE-256 of the seed."""
    stream = hashlib.shake_256(b"shoal/challenge/v1\0matrices" + seed).digest(BASES * SIZE * SIZE)
    return (np.frombuffer(stream, np.uint8) % PRIME).astype(np.float32).reshape(BASES, SIZE, SIZE)


def turns(work: ChallengeWork) -> npt.NDArray[np.int64]:
    """For each matrix of each chain its base and by how much its rows and columns are turned, (lanes, depth, 3)."""
    count = work.lanes * work.depth * 3
    stream = hashlib.shake_256(b"shoal/challenge/v1\0turns" + work.seed).digest(count * 2)
    drawn = np.frombuffer(stream, "<u2").reshape(work.lanes, work.depth, 3)
    return np.asarray(drawn % [BASES, SIZE, SIZE], dtype=np.int64)


class TooSlow(RuntimeError):
    """The answer would come too late; the message says how far the work had come."""


def solve(work: ChallengeWork, go_on: Callable[[], bool] = lambda: True, threads: int | None = None) -> bytes:
    """The answer, by numpy: the sum over lanes of their products modulo `PRIME`, row by row, one byte each.

    Lanes are shared out over `threads` (None: as many as there are processors). `go_on` is asked before every product and from every thread; once
    it says no, `TooSlow` is raised.
    """
    bases, drawn = base_matrices(work.seed), turns(work)
    done = itertools.count(1)

    def lane(number: int) -> Values:
        running = turned(bases, drawn[number, 0])
        product, scratch = np.empty_like(running), np.empty_like(running)
        for place in range(1, work.depth):
            if not go_on():
                raise TooSlow(f"{next(done) - 1} of {work.lanes * (work.depth - 1)} products were computed in time")
            np.matmul(running, turned(bases, drawn[number, place]), out=product)
            reduce(product, scratch)
            running, product = product, running
            next(done)
        return running

    total = np.zeros((SIZE, SIZE), np.int64)
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        for lanes_product in pool.map(lane, range(work.lanes)):
            total += lanes_product.astype(np.int64)
    return (total % PRIME).astype(np.uint8).tobytes()


def turned(bases: Values, drawn: npt.NDArray[np.int64]) -> Values:
    """A base with its rows and columns turned, (SIZE, SIZE)."""
    g, s, t = drawn
    return np.roll(bases[g], (s, t), axis=(0, 1))


def reduce(values: Values, scratch: Values) -> None:
    """Whole numbers from 0 to 2^24 modulo `PRIME`, in place: about ten times faster than `np.mod`, and as exact.

    The quotient by way of a reciprocal is off by one at most, and its product with `PRIME` is exact below 2^24.
    """
    np.multiply(values, np.float32(1.0 / PRIME), out=scratch)
    np.floor(scratch, out=scratch)
    np.multiply(scratch, np.float32(PRIME), out=scratch)
    np.subtract(values, scratch, out=values)
    np.add(values, np.float32(PRIME), out=values, where=values < 0)
    np.subtract(values, np.float32(PRIME), out=values, where=values >= PRIME)


def solve_with_torch(work: ChallengeWork, torch: Any, device: str, go_on: Callable[[], bool] = lambda: True) -> bytes:
    """The same answer on a device of torch: the matrices are turned there too. `torch` is handed in, so that nothing here needs it."""
    bases, drawn = torch.from_numpy(base_matrices(work.seed)).to(device), turns(work).tolist()

    def matrices(place: int) -> Any:
        return torch.stack([torch.roll(bases[g], (s, t), dims=(0, 1)) for g, s, t in (lane[place] for lane in drawn)])

    running = matrices(0)
    for place in range(1, work.depth):
        if not go_on():
            raise TooSlow(f"{place - 1} of {work.depth - 1} rounds were computed in time")
        running = torch.remainder(running @ matrices(place), PRIME)
    total = torch.remainder(running.sum(dim=0), PRIME).to(torch.uint8)
    found: bytes = total.cpu().numpy().tobytes()
    return found


def check(work: ChallengeWork, answer: bytes, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
    """Raise `BadProduct` unless `answer` is the product. `draw` gives random bytes, which the answering side must not be able to guess."""
    claimed = parse_answer(answer)
    vectors = random_vectors(draw)
    bases, drawn = base_matrices(work.seed), turns(work)
    total = np.zeros((SIZE, VECTORS), np.float64)
    for lane in drawn:
        found = vectors
        for g, s, t in lane[::-1]:
            # A matrix turned by (s, t), times v, is the matrix times v turned back by t, turned by s.
            found = np.roll(bases[g] @ np.roll(found, -t, axis=0), s, axis=0) % PRIME
        total += found
    if not np.array_equal((claimed @ vectors) % PRIME, (total % PRIME).astype(np.float32)):
        raise BadProduct("the product is wrong")


def parse_answer(answer: bytes) -> Values:
    """The matrix of an answer, (SIZE, SIZE); raises `BadProduct`."""
    if len(answer) != ANSWER_BYTES:
        raise BadProduct(f"a product has {ANSWER_BYTES} bytes, but this one has {len(answer)}")
    values = np.frombuffer(answer, np.uint8)
    if int(values.max()) >= PRIME:
        raise BadProduct(f"a product's values are below {PRIME}")
    return values.astype(np.float32).reshape(SIZE, SIZE)


def random_vectors(draw: Callable[[int], bytes]) -> Values:
    """Uniform values below `PRIME`, (SIZE, VECTORS); bytes that would make them uneven are drawn again."""
    wanted, found = SIZE * VECTORS, np.empty(0, np.uint8)
    while len(found) < wanted:
        drawn = np.frombuffer(draw(wanted), np.uint8) & 0x7F
        found = np.concatenate([found, drawn[drawn < PRIME]])
    return found[:wanted].astype(np.float32).reshape(SIZE, VECTORS)


def encode_answer(answer: bytes) -> str:
    """Base64, as it travels."""
    return base64.b64encode(answer).decode()


def decode_answer(text: str) -> bytes:
    """The inverse; raises `BadProduct`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadProduct("the product is not base64") from error
