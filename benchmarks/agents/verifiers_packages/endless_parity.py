"""A task set without an end: is a number even?"""

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf


class ParityData(vf.TaskData):
    answer: str


class ParityTask(vf.Task[ParityData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.casefold() == self.data.answer)


class ParityTaskset(vf.Taskset[ParityTask]):
    INFINITE = True

    def load(self) -> Iterator[ParityTask]:
        for number in itertools.count(1):
            data = ParityData(
                id=f"n{number}",
                prompt=f"Is {number * number + 3} even or odd?",
                answer="odd" if number % 2 == 0 else "even",
            )
            yield ParityTask(data, self.config.task)


__all__ = ["ParityTaskset"]
