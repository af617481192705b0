"""What a journal of unfinished rows says (ADR 0140): lines of one lease, and the rows that are known from them. Pure: functions of bytes.

A line is a checksum and JSON: the lease with its version (`heading`), what a row has more (`row`), or that a process goes on with it (`tried`).
A torn or wrong line is as if it were not there. A row is known by its seed, which follows from run, step, node, submission, group and sample.
It is kept up to whole proofs, of 32 tokens each, or to its end. Written and read by `journal_files`.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.contracts.protocol import Lease, StepInfo, rest_of
from shoal.inference.completions import Completion
from shoal.toploc.codec import CHUNK_TOKENS, PROOF_BYTES

ENDS = ("stop", "length", "cut")
"""Ways in which a row's part may end; rows with calls of tools are not kept."""


@dataclass(frozen=True)
class Heading:
    """Whose rows these are. `lease`: the name of the lease by now; `software`: the release that drew them."""

    lease: str
    step: StepInfo
    version: int
    weights_digest: str
    software: str


@dataclass
class Recovered:
    """What one journal says. `rows`: by seed, each from its first token; `cut` are those that go on. `tried`: a process went on with it, and
    nothing came of that."""

    heading: Heading
    rows: dict[int, Completion] = field(default_factory=dict)
    tried: bool = False


def heading_line(heading: Heading) -> bytes:
    told = heading.__dict__ | {"step": heading.step.model_dump(mode="json")}
    return _line({"heading": told})


def row_line(seed: int, first: int, made: Completion) -> bytes:
    """Tokens of a row from number `first` on, a multiple of 32."""
    return _line(
        {
            "row": seed,
            "first": first,
            "ends": made.finish_reason,
            "tokens": _text(np.array(made.tokens, "<i4").tobytes()),
            "logprobs": _text(np.array(made.logprobs, "<f4").tobytes()),
            "proofs": _text(made.proofs),
        }
    )


def tried_line() -> bytes:
    return _line({"tried": True})


def recover(data: bytes) -> Recovered | None:
    """What these bytes say; None without a heading. Never raises, whatever they are."""
    found: Recovered | None = None
    for told in _lines(data):
        try:
            if "heading" in told:
                heading = _heading(told["heading"])
                if found is None or _same_draw(found.heading, heading):
                    found = Recovered(heading, found.rows if found else {}, found.tried if found else False)
            elif found is not None and "tried" in told:
                found.tried = True
            elif found is not None:
                seed = int(told["row"])
                found.rows[seed] = _joined(found.rows.get(seed), int(told["first"]), _part(told))
                found.tried = False
        except (KeyError, TypeError, ValueError):
            continue
    return found


def lease_of(heading: Heading, held: Sequence[Lease]) -> Lease | None:
    """The held lease that these rows are of. A process may end behind the receipt of a part, and before it has written the rest's name."""
    names = (heading.lease, rest_of(heading.lease))
    return next((lease for name in names for lease in held if lease.lease == name), None)


def _same_draw(before: Heading, now: Heading) -> bool:
    """Whether only the lease's name is another."""
    return before == Heading(before.lease, now.step, now.version, now.weights_digest, now.software)


def _line(told: dict[str, Any]) -> bytes:
    """It begins with a line break too: what was torn before it ends there."""
    text = json.dumps(told, separators=(",", ":")).encode()
    return b"\n%08x %s\n" % (zlib.crc32(text), text)


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text) and text.startswith(b"{"):
            try:
                yield json.loads(text)
            except ValueError:
                continue


def _heading(told: dict[str, Any]) -> Heading:
    step = StepInfo.model_validate(told["step"])
    return Heading(str(told["lease"]), step, int(told["version"]), str(told["weights_digest"]), str(told["software"]))


def _part(told: dict[str, Any]) -> Completion:
    """Raises ValueError for what no engine gives."""
    tokens = np.frombuffer(base64.b64decode(told["tokens"]), "<i4").tolist()
    logprobs = np.frombuffer(base64.b64decode(told["logprobs"]), "<f4").tolist()
    proofs, ends = base64.b64decode(told["proofs"]), told["ends"]
    whole = ends != "cut" or len(tokens) % CHUNK_TOKENS == 0
    fits = len(tokens) == len(logprobs) and len(proofs) == -(-len(tokens) // CHUNK_TOKENS) * PROOF_BYTES
    if not (tokens and whole and fits and ends in ENDS):
        raise ValueError("not a part of a row")
    return Completion(tokens, logprobs, ends, proofs)


def _joined(before: Completion | None, first: int, part: Completion) -> Completion:
    """A row with a further part: the newer part counts where both have a token. Raises ValueError where something lies between them."""
    before = before or Completion([], [], "cut", b"")
    if before.finish_reason != "cut" or first % CHUNK_TOKENS or not 0 <= first <= len(before.tokens):
        raise ValueError("does not go on where the row ends")
    return Completion(
        before.tokens[:first] + part.tokens,
        before.logprobs[:first] + part.logprobs,
        part.finish_reason,
        before.proofs[: first // CHUNK_TOKENS * PROOF_BYTES] + part.proofs,
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
