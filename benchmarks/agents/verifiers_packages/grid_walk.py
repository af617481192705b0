"""A walk on a grid: the task's setup draws the place of the treasure into the state, two tools move and look, finalize sums up."""

from collections.abc import Iterator

import verifiers.v1 as vf

STEPS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


class GridState(vf.State):
    place: tuple[int, int] = (0, 0)
    treasure: tuple[int, int] = (0, 0)
    moves: int = 0


class GridData(vf.TaskData):
    far: int


class GridTools(vf.Toolset[vf.ToolsetConfig, GridState]):
    @vf.tool
    async def move(self, direction: str) -> str:
        """Go one step north, south, east or west."""
        if direction not in STEPS:
            raise ValueError(f"there is no direction {direction}")
        across, up = STEPS[direction]
        self.state.place = (self.state.place[0] + across, self.state.place[1] + up)
        self.state.moves += 1
        return f"you are at {self.state.place}"

    @vf.tool
    async def look(self) -> str:
        """How far the treasure is."""
        away = [there - here for there, here in zip(self.state.treasure, self.state.place, strict=True)]
        return f"east {away[0]}, north {away[1]}"


class GridTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class GridTask(vf.Task[GridData, GridState, GridTaskConfig]):
    @classmethod
    def toolsets(cls, config: GridTaskConfig) -> list[vf.Toolset]:
        return [GridTools(config.tools)]

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.state.treasure = (self.data.far, 1)

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["found"] = trace.state.place == trace.state.treasure

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(trace.info["found"])

    @vf.reward(weight=0.3)
    async def short(self, trace: vf.Trace) -> float:
        return float(trace.state.moves <= self.data.far + 1)


class GridConfig(vf.TasksetConfig):
    task: GridTaskConfig = GridTaskConfig()


class GridTaskset(vf.Taskset[GridTask, GridConfig]):
    def load(self) -> Iterator[GridTask]:
        for far in (1, 2, 3):
            prompt = f"Go to the treasure. It lies at ({far}, 1), and you are at (0, 0)."
            yield GridTask(GridData(prompt=prompt, far=far), self.config.task)


__all__ = ["GridTaskset"]

if __name__ == "__main__":
    GridTools.run()
