"""Large products and a calculator whose tool has no prefix; it fails on bad input, and the model is told."""

from collections.abc import Iterator

import verifiers.v1 as vf


class Calculator(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def multiply(self, first: int, second: int) -> int:
        """Multiply two whole numbers."""
        return first * second

    @vf.tool(name="divide")
    async def share(self, first: int, second: int) -> str:
        """Divide two whole numbers."""
        return str(first / second)


class CalculatorConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class CalculatorData(vf.TaskData):
    answer: str


class CalculatorTask(vf.Task[CalculatorData, vf.State, CalculatorConfig]):
    @classmethod
    def toolsets(cls, config: CalculatorConfig) -> list[vf.Toolset]:
        return [Calculator(config.tools)]

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.1)
    async def used(self, trace: vf.Trace) -> float:
        return float(
            any(call.name == "multiply" for each in trace.assistant_messages for call in each.tool_calls or ())
        )


class CalculatorTasksetConfig(vf.TasksetConfig):
    task: CalculatorConfig = CalculatorConfig()


class CalculatorTaskset(vf.Taskset[CalculatorTask, CalculatorTasksetConfig]):
    def load(self) -> Iterator[CalculatorTask]:
        for number in range(6):
            first, second = 1234 + 77 * number, 4321 + 13 * number
            data = CalculatorData(prompt=f"What is {first} times {second}?", answer=str(first * second))
            yield CalculatorTask(data, self.config.task)


__all__ = ["CalculatorTaskset"]

if __name__ == "__main__":
    Calculator.run()
