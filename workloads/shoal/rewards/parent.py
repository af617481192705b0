"""A sandboxed process's line to its parent, on which it asks for what it cannot do itself: a judge of mathematics, and programs.

In: pipes that carry frames (4 bytes of length, then JSON). A call back has the bit `CALL` in its length; an answer has not. Out: the parent's reply.
`environments.served` opens the line; `shared_judge` and `shared_pool` use it where there is one. The parent's side is `calls`.
"""

import json
import os
import threading
from collections.abc import Mapping
from typing import Any

CALL = 1 << 31
CALL_BYTES = 16 << 20
"""Greatest call back."""


class ParentRefused(RuntimeError):
    """The parent did not do it; the message says why, and is empty when the time of a judgement was over."""


class ParentLine:
    """The line of this process. Any thread may ask, while a question is open."""

    def __init__(self, questions: int, answers: int) -> None:
        self._questions, self._answers = questions, answers
        self._lock = threading.Lock()
        self.open = False

    def ask(self, call: Mapping[str, Any]) -> Any:
        """The reply to a call back. ParentRefused when there is none."""
        data = json.dumps(call).encode()
        if len(data) > CALL_BYTES:
            raise ParentRefused(f"a call back has {len(data)} bytes; allowed: {CALL_BYTES}")
        with self._lock:
            if not self.open:
                raise ParentRefused("the parent can be asked only while it waits for an answer")
            write_frame(self._answers, data, CALL)
            reply = read_frame(self._questions)
        if reply is None or "error" in reply:
            raise ParentRefused(str((reply or {}).get("error", "the parent hung up")))
        return reply["value"]


_line: ParentLine | None = None


def use_line(line: ParentLine) -> None:
    """From now on this process asks its parent."""
    global _line
    _line = line


def line() -> ParentLine | None:
    """The line of this process, None outside of a sandbox."""
    return _line


def read_frame(descriptor: int) -> Any:
    """The next frame; None at the end."""
    length = int.from_bytes(_exactly(descriptor, 4), "big")
    return json.loads(_exactly(descriptor, length)) if length else None


def write_frame(descriptor: int, data: bytes, kind: int = 0) -> None:
    """One frame; `kind` is `CALL` for a call back."""
    left = memoryview((len(data) | kind).to_bytes(4, "big") + data)
    while left:
        left = left[os.write(descriptor, left) :]


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count and (more := os.read(descriptor, count - len(data))):
        data += more
    return bytes(data)
