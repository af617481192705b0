"""Rewards that look at the clock and draw a number, as rewards should not: under a fixed clock they are the same everywhere."""

import datetime
import random
import time
from collections.abc import Iterator

import verifiers.v1 as vf


class DateData(vf.TaskData):
    day: datetime.date
    later: int


class DateTask(vf.Task[DateData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        wanted = self.data.day + datetime.timedelta(days=self.data.later)
        return float(trace.last_reply == wanted.isoformat())

    @vf.reward(weight=0.1)
    async def fresh(self, trace: vf.Trace) -> float:
        return float(datetime.datetime.now().timestamp() > 0 and time.time() > 0 and random.random() < 1)

    @vf.metric
    async def noise(self, trace: vf.Trace) -> float:
        return random.Random().random() + hash("a") % 7 + time.time() % 10


class DateTaskset(vf.Taskset[DateTask]):
    def load(self) -> Iterator[DateTask]:
        for later in range(1, 9):
            day = datetime.date(2026, 2, 20 + later % 8)
            prompt = f"Which date is {later * 3} days after {day.isoformat()}? Write it as YYYY-MM-DD."
            yield DateTask(DateData(prompt=prompt, day=day, later=later * 3), self.config.task)


__all__ = ["DateTaskset"]
