"""A trace of verifiers from what a model wrote, scored by the task's own rewards; and the answers of its tool servers.

In: a task of verifiers, and the texts of the model's turns. Nothing else is recorded: tools run again, each episode with servers and a state of its
own, in a package that is imported again (`verifiers_package`). So none carries memory from another. Out: the reward, its parts and metrics. Tool
servers run in this process, not behind HTTP, with the names, schemas and texts that verifiers' own loop gives. Runs in a sandbox only, with what
`verifiers_world` fixes.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shoal.environments import verifiers_world
from shoal.environments.prompts import CALL
from shoal.environments.turns import LONGEST_ANSWER, FunctionCall, calls_of

TOOL_SECONDS = 2.0
"""A tool that waits longer answers with an error."""
NO_RUNTIME = (
    "the task uses the files and programs of a runtime, which an episode here does not have;"
    " only tasks that are judged by their trace can be scored again"
)


class NeedsRuntime(RuntimeError):
    """A hook needs what only a rollout's machine has."""


class NoRuntime:
    """Stands where a hook expects a runtime, and refuses every use."""

    def __getattr__(self, name: str) -> Any:
        raise NeedsRuntime(NO_RUNTIME)


@dataclass(frozen=True)
class JudgedEpisode:
    """A trace's reward as verifiers gives it, the sum of positive weights, and rewards and metrics in words."""

    reward: float
    weights: float
    words: str


def functions_of(toolsets: Sequence[Any]) -> list[dict[str, Any]]:
    """Schemas of all tools, in order. ValueError when two have one name."""
    found = verifiers_world.run(_listed(toolsets))
    names = [each["name"] for each in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two tools have the name {twice!r}: give a tool server a TOOL_PREFIX of its own")
    return found


async def _listed(toolsets: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": _full(toolset, each.name),
            "description": each.description or "",
            "parameters": each.input_schema,
        }
        for toolset in toolsets
        for each in await _server_of(toolset).list_tools()
    ]


def answers(
    task: Any, toolsets: Sequence[Any], shared: int, turns: Sequence[Sequence[FunctionCall]]
) -> list[list[str]]:
    """What the tools answer to the calls of an episode's turns. `shared`: how many of the servers belong to the task set, and see no task."""
    return verifiers_world.run(_answers(task, toolsets, shared, turns))


async def _answers(
    task: Any, toolsets: Sequence[Any], shared: int, turns: Sequence[Sequence[FunctionCall]]
) -> list[list[str]]:
    trace = _trace(task)
    await task.setup(trace, NoRuntime())
    tools = await _Tools.begun(task, trace, toolsets, shared)
    return [[await tools.call(call) for call in turn] for turn in turns]


def judged(task: Any, toolsets: Sequence[Any], shared: int, turns: Sequence[str]) -> JudgedEpisode:
    """Score an episode. Whatever the package raises comes through; ValueError when the reward is no finite number."""
    trace = verifiers_world.run(_scored(task, toolsets, shared, turns))
    named = {name: each for name, each in trace.rewards.items() if each is not None}
    words = [f"{name} {each.value:g}" for name, each in named.items()]
    words += [f"{name} {value:g}" for name, value in trace.metrics.items() if value is not None]
    reward = float(trace.reward)
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward} ({', '.join(words)})")
    return JudgedEpisode(reward, sum(max(each.weight, 0.0) for each in named.values()), ", ".join(words))


async def _scored(task: Any, toolsets: Sequence[Any], shared: int, turns: Sequence[str]) -> Any:
    types, trace = import_module("verifiers.v1.types"), _trace(task)
    await task.setup(trace, NoRuntime())
    tools = await _Tools.begun(task, trace, toolsets, shared)
    for message in _asked(task.data):
        _add(trace, message, sampled=False)
    for number, turn in enumerate(turns):
        calls = calls_of(turn) if toolsets else []
        thoughts, said, text = turn.rpartition("</think>")
        content = text.partition(CALL)[0] if calls else text
        given = [
            types.ToolCall(id=f"call_{number}_{place}", name=call.name, arguments=json.dumps(dict(call.arguments)))
            for place, call in enumerate(calls)
        ]
        reply = types.AssistantMessage(
            content=content.strip() or None if calls else content,
            reasoning_content=thoughts.replace("<think>", "", 1).strip() if said else None,
            tool_calls=given or None,
        )
        _add(trace, reply, sampled=True)
        if number + 1 == len(turns):  # the calls of the last turn have no answer
            break
        for call, sent in zip(calls, given, strict=True):
            answer = await tools.call(call)
            _add(trace, types.ToolMessage(tool_call_id=sent.id, content=answer, name=call.name), sampled=False)
    trace.stop("agent_completed")
    trace.ok = True
    await task.finalize(trace, NoRuntime())
    await task.score(trace, NoRuntime())
    return trace


class _Tools:
    """The tool servers of one episode."""

    def __init__(self) -> None:
        self._servers: dict[str, tuple[Any, str]] = {}

    @classmethod
    async def begun(cls, task: Any, trace: Any, toolsets: Sequence[Any], shared: int) -> "_Tools":
        """Each set up for the task as verifiers does, and bound to the trace's state."""
        made = cls()
        for number, toolset in enumerate(toolsets):
            await toolset.setup()
            if number >= shared:
                await toolset.setup_task(task.data)
            _bind(toolset, trace)
            server = _server_of(toolset)
            for each in await server.list_tools():
                made._servers[_full(toolset, each.name)] = (server, each.name)
        return made

    async def call(self, call: FunctionCall) -> str:
        """The text of an answer, as the model was given it (`turns`). A tool that fails tells so to the model, as verifiers' servers do."""
        if call.problem is not None or call.name not in self._servers:
            return f"error: {call.problem or 'there is no such function; allowed: ' + ', '.join(self._servers)}"
        server, name = self._servers[call.name]
        try:
            async with asyncio.timeout(TOOL_SECONDS):
                found = await server.call_tool(name, dict(call.arguments))
        except TimeoutError:
            return "error: the tool took too long"
        except Exception as error:
            return str(error)[:LONGEST_ANSWER]
        blocks = getattr(found, "content", [])
        return "\n".join(each.text if each.type == "text" else f"({each.type})" for each in blocks)[:LONGEST_ANSWER]


def _bind(toolset: Any, trace: Any) -> None:
    """Let a server's calls read and write the trace's state, each as a copy by JSON, where verifiers asks a channel of HTTP."""
    adapter = toolset._state_adapter

    async def pull() -> Any:
        return adapter.validate_json(adapter.dump_json(trace.state))

    async def push(before: bytes) -> None:
        after = adapter.dump_json(toolset.state)
        if after != before:
            trace.state = adapter.validate_json(after)

    toolset._pull_state, toolset._push_state = pull, push


def _server_of(toolset: Any) -> Any:
    server = import_module("mcp.server.mcpserver").MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


def _full(toolset: Any, name: str) -> str:
    return f"{toolset.server_name}_{name}" if toolset.server_name else name


def _asked(data: Any) -> list[Any]:
    """The messages that the model answers."""
    types = import_module("verifiers.v1.types")
    first = [] if data.system_prompt is None else [types.SystemMessage(content=data.system_prompt)]
    return first + ([types.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt))


def _trace(task: Any) -> Any:
    v1, state = import_module("verifiers.v1"), import_module("verifiers.v1.state")
    return v1.Trace(
        id="0" * 32,
        verifiers=v1.VersionInfo(version=import_module("verifiers").__version__),
        task=v1.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state.state_cls(type(task))(),
        agent=v1.AgentInfo(config=v1.AgentConfig(runtime=v1.SubprocessConfig())),
        timing=v1.Timing(start=verifiers_world.now()),
    )


def _add(trace: Any, message: Any, sampled: bool) -> None:
    v1, number = import_module("verifiers.v1"), len(trace.nodes)
    parent = number - 1 if number else None
    trace.nodes.append(v1.MessageNode(parent=parent, message=message, sampled=sampled, timestamp=verifiers_world.now()))
    if sampled:
        calls = bool(message.tool_calls)
        trace.calls.append(v1.ModelCall(node=number, finish_reason="tool_calls" if calls else "stop"))


def wants_runtime(hook: Any) -> bool:
    """Whether a reward or metric cannot do without a runtime."""
    found = inspect.signature(hook).parameters.get("runtime")
    return found is not None and found.default is inspect.Parameter.empty
