"""Thoughts apart from the answer: a reward reads what the model reasoned, another what it said."""

import verifiers.v1 as vf


class RiddleData(vf.TaskData):
    answer: str


class RiddleTask(vf.Task[RiddleData]):
    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.lower().rstrip(".") == self.data.answer)

    @vf.reward(weight=0.2)
    async def thought(self, trace: vf.Trace) -> float:
        return float(bool(trace.assistant_messages[-1].reasoning_content))


class RiddleTaskset(vf.Taskset[RiddleTask]):
    def load(self) -> list[RiddleTask]:
        riddles = {"What has hands and cannot clap?": "a clock", "What gets wet while drying?": "a towel"}
        return [RiddleTask(RiddleData(prompt=asked, answer=said), self.config.task) for asked, said in riddles.items()]


__all__ = ["RiddleTaskset"]
