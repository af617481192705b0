"""Malformed packages of verifiers: the source of each, and part of the line that it is refused with. Called by `malformed` and tests."""

import os
from pathlib import Path
from textwrap import indent

from shoal.environments.places import FOLDERS_VARIABLE

HEAD = "import verifiers.v1 as vf\n\nclass Data(vf.TaskData):\n    answer: str = ''\n\n"
ONE = "return [One(Data(prompt='What is 1+1?', answer='2'), self.config.task)]"
RIGHT = "return float(trace.last_reply == self.data.answer)"


def package(reward: str = RIGHT, load: str = ONE, *, more: str = "", head: str = "", taskset: str = "") -> str:
    """A package with one reward, whose body is given; `more` stands in its task, `taskset` in its task set."""
    return (
        f"{head}{HEAD}class One(vf.Task[Data]):\n{indent(more, '    ')}\n    @vf.reward\n    async def right(self, trace: vf.Trace) -> float:\n"
        f"{indent(reward, ' ' * 8)}\n\nclass Set(vf.Taskset[One]):\n{indent(taskset, '    ')}\n    def load(self):\n{indent(load, ' ' * 8)}\n\n"
        "__all__ = ['Set']\n"
    )


TOOLS = """import verifiers.v1 as vf

class Bag(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    async def take(self, words: str) -> str:
        \"\"\"Take something.\"\"\"
        return words


"""
BAGS = "@classmethod\ndef toolsets(cls, config):\n    return [Bag(vf.ToolsetConfig())]\n"

CASES: dict[str, tuple[str, str]] = {
    "it has no Taskset": ("x = 1\n", "defines no `__all__`"),
    "it raises when it is imported": ("1 / 0\n", "loading it raised ZeroDivisionError: division by zero"),
    "it needs a module": ("import not_there\n", "loading it raised ModuleNotFoundError: "),
    "no reward": (package().replace("@vf.reward", "@vf.metric"), "its tasks have no @vf.reward"),
    "a runtime": (
        package().replace("trace: vf.Trace)", "trace: vf.Trace, runtime: vf.Runtime)"),
        "right wants a runtime",
    ),
    "a container": (package(more="NEEDS_CONTAINER = True"), "its tasks need a container"),
    "a stop": (
        package(more="@vf.stop\nasync def enough(self, trace: vf.Trace) -> bool:\n    return True\n"),
        "enough of its task stops or changes turns",
    ),
    "a loop of its own": (
        package().replace("__all__ = ['Set']", "class Own(vf.SingleAgentEnv):\n    pass\n\n__all__ = ['Set', 'Own']"),
        "it has a loop of its own (Own)",
    ),
    "an import of itself that is not there": ("from .other import x\n", "loading it raised ImportError: "),
    "a slip in its grammar": ("def load(:\n", "loading it raised SyntaxError: "),
    "indented wrongly": ("x = 1\n  y = 2\n", "loading it raised IndentationError: "),
    "bytes that are no text": ("# coding: utf-8\nx = '\\ud800'.encode()\n", "loading it raised UnicodeEncodeError: "),
    "it ends Python": ("raise SystemExit(3)\n", "loading it raised SystemExit: 3"),
    "it raises several lines": ("raise ValueError('one\\ntwo')\n", "loading it raised ValueError: one two"),
    "it calls itself for ever": ("def f():\n    f()\n\nf()\n", "loading it raised RecursionError: "),
    "an assertion": ("assert 1 == 2, 'sums are wrong'\n", "loading it raised AssertionError: sums are wrong"),
    "a file that is not there": ("open('/no/file')\n", "loading it raised FileNotFoundError: "),
    "names that are not there": ("__all__ = ['Set']\n", "loading it raised "),
    "no list of names": ("__all__ = 7\n", "loading it raised "),
    "two task sets": (
        package().replace("__all__ = ['Set']", "class Two(Set):\n    pass\n\n__all__ = ['Set', 'Two']"),
        "loading it raised ",
    ),
    "a task without data": (
        "import verifiers.v1 as vf\n\nclass Set(vf.Taskset):\n    pass\n\n__all__ = ['Set']\n",
        "loading it raised ",
    ),
    "a judge": (
        package(),
        "a judge model scores its tasks, and nothing can be reached from a sandbox; a judge gives another answer on another day",
    ),
    "a metric that wants a runtime": (
        package(
            more="@vf.metric\nasync def files(self, trace: vf.Trace, runtime: vf.Runtime) -> float:\n    return 1.0\n"
        ),
        "files wants a runtime",
    ),
    "two tools of one name": (
        package(
            head=TOOLS,
            more="@classmethod\ndef toolsets(cls, config):\n    return [Bag(vf.ToolsetConfig()), Bag(vf.ToolsetConfig())]\n",
        ),
        "two tools have the name ",
    ),
    "tools that cannot be made": (
        package(more="@classmethod\ndef toolsets(cls, config):\n    raise OSError('no tools')\n"),
        "loading it raised OSError: no tools",
    ),
    "a tool whose type has no schema": (
        package(head=TOOLS.replace("words: str", "words: object()"), more=BAGS),
        "loading it raised ",
    ),
    "an empty task set": (package(load="return []"), "its task set is empty"),
    "an endless task set": (
        package(
            load="number = 0\nwhile True:\n    number += 1\n    yield One(Data(prompt=f'What is {number}?'), self.config.task)"
        ),
        "gives more than 50 tasks; one without an end sets INFINITE = True",
    ),
    "the same task twice": (package(load=f"{ONE} * 2"), "has 1 different tasks, and 2 are asked for"),
    "a task set that raises": (
        package(load="raise OSError('no file')"),
        "its task set raised OSError: no file; nothing can be reached",
    ),
    "no prompt": (package(load="return [One(Data(), self.config.task)]"), "task 0 has no prompt"),
    "an image": (
        package(load="return [One(Data(prompt='?', image='debian'), self.config.task)]"),
        "task 0 has image, so it needs a container",
    ),
    "a reward that raises": (package("raise KeyError('gone')"), "scoring raised KeyError: 'gone'"),
    "a reward that is no number": (
        package("return float('nan')"),
        "scoring raised ValueError: its reward is nan (right nan)",
    ),
    "a reward that loops": (
        package("while True:\n    pass"),
        "scoring raised _TooLong: it takes more than 0.5 s of CPU time",
    ),
    "a reward that asks the network": (
        package("import urllib.request\nreturn float(urllib.request.urlopen('http://127.0.0.1:9').status)"),
        "nothing can be reached from a sandbox, and what another machine cannot score again is refused",
    ),
    "a judge in a reward": (
        package(
            "import openai\nclient = openai.AsyncOpenAI(base_url='http://127.0.0.1:9', api_key='x', max_retries=0)\n"
            "await client.models.list()\nreturn 1.0"
        ),
        "what another machine cannot score again is refused",
    ),
    "a reward that counts in a library": (
        package("import math\nmath.count = getattr(math, 'count', 0) + 1\nreturn math.count / 100"),
        "the same answer is scored as 0.01 and then as 0.02",
    ),
    "a hook that uses the runtime": (
        package(
            more="async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:\n    await runtime.run(['ls'])\n"
        ),
        "scoring raised NeedsRuntime: the task uses the files and programs of a runtime",
    ),
    "no list": (package(load="return 7"), "its task set raised TypeError: "),
    "nothing for a list": (package(load="return None"), "its task set raised TypeError: "),
    "texts for tasks": (package(load="return ['What is 1+1?']"), "its task set raised AttributeError: 'str' object"),
    "data for tasks": (package(load="return [Data(prompt='?')]"), "its task set raised AttributeError: 'Data' object"),
    "a task of another class": (
        package(load="class Other(One):\n    pass\nreturn [Other(Data(prompt='?'), self.config.task)]"),
        "its task set gives Other, and says One",
    ),
    "a list that breaks off": (
        package(load="yield One(Data(prompt='a'), self.config.task)\nraise OSError('gone')"),
        "its task set raised OSError: gone",
    ),
    "data of a wrong type": (
        package(load="return [One(Data(prompt='?', answer=7), self.config.task)]"),
        "its task set raised ValidationError: ",
    ),
    "a number for a prompt": (
        package(load="return [One(Data(prompt=7), self.config.task)]"),
        "its task set raised ValidationError: ",
    ),
    "it needs the network for its tasks": (
        package(load="import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')"),
        "its task set raised URLError: ",
    ),
    "it needs another name": (
        package(load="import socket\nsocket.create_connection(('127.0.0.1', 9))"),
        "its task set raised ConnectionRefusedError: ",
    ),
    "a work folder": (
        package(load="return [One(Data(prompt='?', workdir='/x'), self.config.task)]"),
        "task 0 has workdir, so it needs a runtime",
    ),
    "a user of its own": (
        package(load="return [One(Data(prompt='?', agent_user='me'), self.config.task)]"),
        "task 0 has agent_user, so it needs a runtime",
    ),
    "pictures": (
        package(
            load="return [One(Data(prompt=[{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': 'data:,'}}]}]), self.config.task)]"
        ),
        "task 0 has a message of images or calls in its prompt; only texts are allowed",
    ),
    "data that JSON changes": (
        package(load="return [One(Data(prompt='?', number=float('nan')), self.config.task)]").replace(
            "answer: str = ''", "number: float = 0.0\n    answer: str = ''"
        ),
        "task 0 is another one after it has been written as JSON",
    ),
    "a reward of text": (package("return 'right'"), "scoring raised "),
    "a reward of nothing": (package("return None"), "scoring raised "),
    "a reward of a list": (package("return [1.0]"), "scoring raised "),
    "a reward without an end": (package("return float('inf')"), "scoring raised ValueError: its reward is inf"),
    "a reward that divides by zero": (package("return 1 / 0"), "scoring raised ZeroDivisionError: division by zero"),
    "a reward of another's field": (package("return self.data.colour"), "scoring raised AttributeError: "),
    "a reward that reads a file": (
        package("return float(open('/no/file').read())"),
        "scoring raised FileNotFoundError: ",
    ),
    "a reward that imports what is not here": (
        package("import not_there\nreturn 1.0"),
        "scoring raised ModuleNotFoundError: ",
    ),
    "a reward that raises several lines": (
        package("raise ValueError('one\\ntwo\\nthree')"),
        "scoring raised ValueError: one two three",
    ),
    "a reward that ends Python": (package("raise SystemExit(3)"), "scoring raised SystemExit: 3"),
    "a reward that calls itself": (package("def f():\n    return f()\nreturn f()"), "scoring raised RecursionError: "),
    "a reward that waits for the network": (
        package("import socket\nsocket.create_connection(('127.0.0.1', 9))\nreturn 1.0"),
        "what another machine cannot score again is refused",
    ),
    "a reward that asks for a name": (
        package("import socket\nsocket.getaddrinfo('no.such.host.invalid', 80)\nreturn 1.0"),
        "scoring raised gaierror: ",
    ),
    "a setup that raises": (
        package(
            more="async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:\n    raise OSError('no room')\n"
        ),
        "scoring raised OSError: no room",
    ),
    "an end that raises": (
        package(
            more="async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:\n    raise OSError('no end')\n"
        ),
        "scoring raised OSError: no end",
    ),
    "an end that reads a runtime's files": (
        package(
            more="async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:\n    await runtime.read('x')\n"
        ),
        "scoring raised NeedsRuntime: the task uses the files and programs of a runtime",
    ),
    "a metric that raises": (
        package(more="@vf.metric\nasync def long(self, trace: vf.Trace) -> float:\n    raise KeyError('words')\n"),
        "scoring raised KeyError: 'words'",
    ),
    "a tool server that does not start": (
        package(
            head=TOOLS.replace(
                "    @vf.tool", "    async def setup(self):\n        raise OSError('no bag')\n\n    @vf.tool"
            ),
            more=BAGS,
        ),
        "scoring raised OSError: no bag",
    ),
}
SETTINGS = {"a judge": '{"task":{"judges":[{"id":"reference"}]}}'}
"""Of the task set, behind the package's name."""
ASKED = {"the same task twice": 2}
"""Tasks that are asked for, where it is not one."""

TRY_ALL = """
import json, sys
from shoal.rewards.parent import ParentLine, use_line
import shoal.environments.verifiers_package as ours
use_line(ParentLine(-1, -1))
ours.MOST_TASKS, ours.TRIAL_SECONDS = 50, 0.5
said = {}
for name, count in json.load(sys.stdin).items():
    try:
        ours.VerifiersPackage(name).tasks(count, 0)
        said[name] = "nothing"
    except ValueError as error:
        said[name] = str(error)
print(json.dumps(said))
"""
"""Answers a JSON object of packages and how many tasks are asked of each with what is said of them."""


def environment(folder: str) -> dict[str, str]:
    """Of a process that finds the packages of a folder."""
    workloads = Path(__file__).parents[2] / "workloads"
    places = [folder, str(workloads), *filter(None, [os.environ.get(FOLDERS_VARIABLE)])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
