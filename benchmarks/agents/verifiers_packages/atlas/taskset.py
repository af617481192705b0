"""Questions about a small atlas, with a tool that looks a place up."""

import json
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

CAPITALS: dict[str, str] = json.loads((Path(__file__).parent / "capitals.json").read_text())


class AtlasTools(vf.Toolset[vf.SharedToolsetConfig]):
    async def setup(self) -> None:
        self.pages = {name.casefold(): f"The capital of {name} is {capital}." for name, capital in CAPITALS.items()}

    @vf.tool
    async def search(self, words: str, most: int = 3) -> list[str]:
        """Pages about a country."""
        return [page for name, page in sorted(self.pages.items()) if words.casefold() in name][:most]


class AtlasConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class AtlasData(vf.TaskData):
    answer: str


class AtlasTask(vf.Task[AtlasData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def searches(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class AtlasTaskset(vf.Taskset[AtlasTask, AtlasConfig]):
    @classmethod
    def toolsets(cls, config: AtlasConfig) -> list[vf.Toolset]:
        return [AtlasTools(config.tools)]

    def load(self) -> Iterator[AtlasTask]:
        for name, capital in CAPITALS.items():
            yield AtlasTask(
                AtlasData(name=name, prompt=f"What is the capital of {name}?", answer=capital), self.config.task
            )


if __name__ == "__main__":
    AtlasTools.run()
