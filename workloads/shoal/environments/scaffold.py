"""A new environment as an installable package: what `shoal env new` writes.

In: a name and a folder. Out: a package with an entry point and a working example of every part, which passes `shoal env check` as it is.
"""

import re
from pathlib import Path
from string import Template

NAME = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")

PYPROJECT = Template("""[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "shoal-environment-$name"
version = "0.1.0"
description = "The Shoal environment $name"
requires-python = ">=3.11"
# Shoal is not named: it is on no package index, and what is called `shoal` there is not ours. Install this into Shoal's own environment.
dependencies = []

# This makes the environment known: `shoal env list` shows it once the package is installed.
[project.entry-points."shoal.environments"]
$name = "$module:$class_name"

[tool.hatch.build.targets.wheel]
packages = ["$module"]
""")

MODULE = Template('''"""The environment $name: what is asked, and how an answer is judged.

The example asks for a word backwards. Replace the tasks, the prompt and the score, then run `shoal env check $name`. Workers and validators run
this same code and must agree: no clock, no network, no random numbers without a seed, time linear in the text.
"""

import random

from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable, length_suffix

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class $class_name:
    """`verification_info` of a task is `{"answer": "..."}`."""

    name = "$name"
    version = "1"  # change it whenever a score or a prompt may change: a run pins the environment by a digest

    def tasks(self, count: int, seed: int) -> list[Task]:
        """`count` different tasks, the same ones for the same seed."""
        chance = random.Random(seed)
        words: dict[str, None] = {}
        while len(words) < count:
            words["".join(chance.choices(LETTERS, k=8))] = None
        return [
            Task(
                problem_id=f"$name-{word}",
                task_type="$name",
                prompt=f"Write {word} backwards.",
                verification_info={"answer": word[::-1]},
            )
            for word in words
        ]

    def prompt(self, task: Task, target_length: int | None) -> str:
        """The text that the model continues, with the request for a length where the run has one."""
        return f"{task.prompt}{length_suffix(target_length)}\\n"

    def score(self, task: Task, completion: str) -> Score | Unscorable:
        """1 or 0. Unscorable is for failures of the scoring itself, never for a wrong answer. Any text is allowed."""
        answer = task.verification_info.get("answer")
        if not isinstance(answer, str):
            return Unscorable(f"task {task.problem_id}: verification_info.answer is missing")
        lines = completion.strip().splitlines()
        right = bool(lines) and lines[-1] == answer
        return Score(float(right), "the word is right" if right else f"the word is {answer}")

    def gold(self, task: Task) -> str:
        """A completion that scores 1."""
        return str(task.verification_info["answer"])

    def broken(self, task: Task) -> str:
        """A completion close to it that scores 0."""
        return self.gold(task) + "a"
''')

README = Template("""# $name

An environment for Shoal. Install it where workers, validators and the prepare job run, into the Python environment that has Shoal: the
`.venv` of a checkout, then name it in a run. It does not ask for Shoal by name: Shoal is on no package index, and what is called `shoal` there is not
ours.

    source CHECKOUT/.venv/bin/activate
    pip install -e .
    shoal env check $name

    spec:
      tasks: {environment: $name}
""")


class CannotMake(ValueError):
    """The package cannot be written; the message says what is allowed."""


def new_environment(name: str, parent: Path) -> Path:
    """Write the package `shoal-environment-<name>` into `parent`; returns its folder. CannotMake for a bad name or a folder that is there."""
    if not NAME.match(name) or len(name) > 40:
        raise CannotMake(
            f"{name!r} cannot name an environment; allowed: small letters, digits and single hyphens, at most 40, a letter first"
        )
    folder = parent / f"shoal-environment-{name}"
    if folder.exists():
        raise CannotMake(f"{folder} exists already; remove it or choose another name")
    values = {
        "name": name,
        "module": f"shoal_environment_{name.replace('-', '_')}",
        "class_name": "".join(part.capitalize() for part in name.split("-")),
    }
    package = folder / values["module"]
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.substitute(values))
    (folder / "README.md").write_text(README.substitute(values))
    (package / "__init__.py").write_text(MODULE.substitute(values))
    return folder
