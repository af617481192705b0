"""What a sandboxed process may ask its parent for while it answers a question: judgements of mathematics, and runs of programs.

In: call backs (`parent.ParentLine`), which anybody may have written. Out: replies. The processes of `math.judge` judge, and programs run in
this process's pool, as for environments of Shoal. Both are bounded in number, size and CPU time. Called by `service`, for `environments.apart`.
"""

import json
import time
from dataclasses import fields
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from shoal.rewards.cpu_time import Took
from shoal.rewards.judging import NoReply
from shoal.rewards.math import shared_judge
from shoal.rewards.sandbox.documents import document_of, program_of
from shoal.rewards.sandbox.pool import shared_pool
from shoal.rewards.sandbox.program import Limits, NoIsolation, Program, SandboxFailed
from shoal.rewards.sandbox.service import ServiceFailed

MOST_JUDGEMENTS = 64
"""Of one question; each has 5 s of CPU time."""
MOST_PROGRAMS = 1000
"""Of one question: the most tests of a task of `environments.code`."""
MOST_PROGRAM_SECONDS = 600.0
"""CPU time of one question's programs, after which no other begins. The budget of a file counts them as well."""
MOST_WAIT_SECONDS = 1200.0
"""Of the wall clock for the same programs, which may sleep."""
WIDEST = Limits(cpu_seconds=120, wall_seconds=130.0)
"""What `environments.code` gives a program at most."""
LONGEST_TEXT = 20_000
"""Characters of an answer. Those of models have at most 2,000 (`math.extract`)."""

Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT)]
Pairs = Annotated[list[Annotated[list[Text], Field(min_length=2, max_length=2)]], Field(max_length=16)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ToProve(_Strict):
    prove: Pairs


class ToJudge(_Strict):
    judge: Pairs | ToProve


class ToRun(_Strict):
    run: list[str] = Field(min_length=1, max_length=16)


CALLS: TypeAdapter[ToJudge | ToRun] = TypeAdapter(ToJudge | ToRun)


class Calls:
    """The call backs of one question. `programs`: whether the environment says that its scores come from programs (`runs_programs`)."""

    def __init__(self, programs: bool = False) -> None:
        self._programs = programs
        self._judgements = self._runs = 0
        self._waited = 0.0
        self.program_seconds = 0.0
        """CPU time of its programs so far, as measured here."""
        self.took = Took()
        """That of its judgements and of its own process."""

    @property
    def cpu_seconds(self) -> float:
        """All that the question has cost so far."""
        return self.program_seconds + self.took.seconds

    def answer(self, call: bytes) -> bytes:
        """The reply. ServiceFailed for what is no call back, or one too many."""
        try:
            asked = CALLS.validate_json(call)
            if isinstance(asked, ToJudge):
                return self._judged(asked)
            programs = [program_of(document.encode()) for document in asked.run]
        except (ValidationError, ValueError, RecursionError) as error:
            raise ServiceFailed(f"called back with no call of its kind: {_short(error)}") from None
        return self._ran(programs)

    def _judged(self, asked: ToJudge) -> bytes:
        self._judgements += 1
        if self._judgements > MOST_JUDGEMENTS:
            raise ServiceFailed(f"asked for more judgements than one question may; allowed: {MOST_JUDGEMENTS}")
        question = asked.judge.model_dump() if isinstance(asked.judge, ToProve) else asked.judge
        reply = shared_judge().judges.ask(question, self.took)
        return _reply(error=reply.reason) if isinstance(reply, NoReply) else _reply(value=reply)

    def _ran(self, programs: list[Program]) -> bytes:
        self._runs += len(programs)
        if self._runs > MOST_PROGRAMS:
            raise ServiceFailed(f"asked for more programs than one question may; allowed: {MOST_PROGRAMS}")
        if not self._programs:
            return _reply(error="an environment that runs programs must say so: set runs_programs = True")
        for program in programs:
            for each in fields(Limits):
                value, most = getattr(program.limits, each.name), getattr(WIDEST, each.name)
                if value > most:
                    return _reply(error=f"a program's limit {each.name} is {value}; allowed: at most {most}")
        if self.program_seconds >= MOST_PROGRAM_SECONDS:
            return _reply(error=f"the programs of one answer have had {MOST_PROGRAM_SECONDS:.0f} s of CPU time")
        if self._waited >= MOST_WAIT_SECONDS:
            return _reply(error=f"the programs of one answer have had {MOST_WAIT_SECONDS:.0f} s")
        began = time.monotonic()
        try:
            outcomes = shared_pool().run_all(programs)
        except (SandboxFailed, NoIsolation, OSError, ValueError) as error:
            return _reply(error=str(error))
        finally:
            self._waited += time.monotonic() - began
        self.program_seconds += sum(outcome.cpu_seconds for outcome in outcomes)
        return _reply(value=[document_of(outcome).decode() for outcome in outcomes])


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))} {first['msg']}"[:200]
    return str(error)[:200] or type(error).__name__


def _reply(**reply: Any) -> bytes:
    return json.dumps(reply).encode()
