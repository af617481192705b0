"""Words to sort: a share of the order, a penalty for length, and metrics by name."""

import difflib
from collections.abc import Iterator

import verifiers.v1 as vf

LISTS = (("pear", "fig", "plum"), ("zinc", "iron", "tin", "lead"), ("oak", "ash", "elm"))


class SortData(vf.TaskData):
    words: tuple[str, ...]


class SortTask(vf.Task[SortData]):
    @vf.reward(priority=2)
    async def order(self, trace: vf.Trace) -> float:
        said = trace.last_reply.replace(",", " ").split()
        return difflib.SequenceMatcher(a=said, b=sorted(self.data.words), autojunk=False).ratio()

    @vf.reward(weight=-0.1)
    async def chatter(self, trace: vf.Trace) -> float:
        return min(len(trace.last_reply) / 1000, 1.0)

    @vf.metric
    async def counts(self, trace: vf.Trace) -> dict[str, float]:
        return {"words": float(len(trace.last_reply.split())), "turns": float(trace.num_turns)}


class SortTaskset(vf.Taskset[SortTask]):
    def load(self) -> Iterator[SortTask]:
        for words in LISTS:
            data = SortData(prompt=f"Sort these words, with commas between them: {' '.join(words)}", words=words)
            yield SortTask(data, self.config.task)


__all__ = ["SortTaskset"]
