"""Products whose answer stands in a box, judged by verifiers' own symbolic check; the prompt is a list of messages with a system prompt."""

from collections.abc import Iterator

import verifiers.v1 as vf


class ProductData(vf.TaskData):
    answer: str


class ProductTask(vf.Task[ProductData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return vf.verify_boxed_math_answer(trace.last_reply, self.data.answer)


class ProductTaskset(vf.Taskset[ProductTask]):
    def load(self) -> Iterator[ProductTask]:
        for first in range(3, 9):
            for second in (11, 12):
                prompt = [vf.UserMessage(content=f"Multiply {first} by {second}.")]
                data = ProductData(
                    prompt=prompt,
                    system_prompt="Put the answer into \\boxed{}.",
                    answer=f"\\frac{{{2 * first * second}}}{{2}}",
                )
                yield ProductTask(data, self.config.task)


__all__ = ["ProductTaskset"]
