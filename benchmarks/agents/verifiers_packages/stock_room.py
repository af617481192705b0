"""A store room that two tools change: the state of an episode, shared by a tool server and the reward."""

from collections.abc import Iterator

import verifiers.v1 as vf
from pydantic import Field


class RoomState(vf.State):
    boxes: dict[str, int] = Field(default_factory=dict)


class RoomData(vf.TaskData):
    goods: str
    wanted: int


class RoomTools(vf.Toolset[vf.ToolsetConfig, RoomState]):
    async def setup_task(self, task: RoomData) -> None:
        self.goods = task.goods

    @vf.tool
    async def add(self, goods: str, count: int) -> str:
        """Put goods into the room."""
        self.state.boxes[goods] = self.state.boxes.get(goods, 0) + count
        return f"there are {self.state.boxes[goods]} {goods}"

    @vf.tool
    async def count(self) -> dict[str, int]:
        """All goods in the room."""
        return self.state.boxes


class RoomTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class RoomTask(vf.Task[RoomData, RoomState, RoomTaskConfig]):
    @classmethod
    def toolsets(cls, config: RoomTaskConfig) -> list[vf.Toolset]:
        return [RoomTools(config.tools)]

    @vf.reward
    async def stocked(self, trace: vf.Trace) -> float:
        return float(trace.state.boxes.get(self.data.goods, 0) == self.data.wanted)

    @vf.reward(weight=0.5)
    async def told(self, trace: vf.Trace) -> float:
        return float(
            trace.last_reply.strip() == "done" and any("there are" in str(each.content) for each in trace.tool_messages)
        )


class RoomConfig(vf.TasksetConfig):
    task: RoomTaskConfig = RoomTaskConfig()


class RoomTaskset(vf.Taskset[RoomTask, RoomConfig]):
    def load(self) -> Iterator[RoomTask]:
        for wanted in range(2, 10):
            for goods in ("apples", "bolts"):
                prompt = f"Put {wanted} {goods} into the room, in two calls at least, then say done."
                yield RoomTask(RoomData(prompt=prompt, goods=goods, wanted=wanted), self.config.task)


__all__ = ["RoomTaskset"]

if __name__ == "__main__":
    RoomTools.run()
