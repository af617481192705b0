"""Sums in words. A reward and a smaller one for the form; settings of the task set."""

import random
from collections.abc import Iterator

import verifiers.v1 as vf

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class SumData(vf.TaskData):
    answer: str


class SumConfig(vf.TasksetConfig):
    terms: int = 2
    size: int = 64


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.rpartition("Answer:")[2].strip() == self.data.answer)

    @vf.reward(weight=0.25)
    async def form(self, trace: vf.Trace) -> float:
        return float("Answer:" in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> Iterator[SumTask]:
        chance = random.Random(3)
        for _ in range(self.config.size):
            terms = [chance.randrange(10) for _ in range(self.config.terms)]
            text = " plus ".join(WORDS[each] for each in terms)
            data = SumData(prompt=f"What is {text}? End with `Answer:` and digits.", answer=str(sum(terms)))
            yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
