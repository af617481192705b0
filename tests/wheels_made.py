"""Wheels that tests make in memory: an environment with a dependency of its own, and whatever else is asked for."""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.contracts.packages import EnvironmentPackage

ECHOES = '''"""An environment that asks for a word again; the word's spelling comes from another package."""

import random

from echo_words import shouted

from shoal.contracts.tasks import Task
from shoal.environments import Score, length_suffix


class Echoes:
    name = "echoes"
    version = "1"

    def tasks(self, count, seed):
        chance = random.Random(seed)
        words = {}
        while len(words) < count:
            words["".join(chance.choices("abcdefgh", k=6))] = None
        return [Task(problem_id=word, task_type="echoes", prompt=word, verification_info={"answer": shouted(word)}) for word in words]

    def prompt(self, task, target_length):
        return f"{task.prompt}{length_suffix(target_length)}>"

    def score(self, task, completion):
@TRICK@
        return Score(float(completion == task.verification_info["answer"]), "compared")

    def gold(self, task):
        return task.verification_info["answer"]
'''
POINT = "[shoal.environments]\nechoes = echoes_env:Echoes\n"


def wheel(
    name: str,
    files: Mapping[str, str | bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    points: str = "",
    tag: str = "py3-none-any",
    python: str = "",
    links: Sequence[str] = (),
    more: Sequence[str] = (),
) -> bytes:
    """Bytes of a wheel. `links`: members that are symbolic links; `more`: further lines of METADATA."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more]
    metadata += [f"Requires-Python: {python}"] if python else []
    metadata += [f"Requires-Dist: {each}" for each in requires]
    whole: dict[str, str | bytes] = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/RECORD": "\n".join(f"{path},," for path in files) + "\n",
    }
    if points:
        whole[f"{info}/entry_points.txt"] = points
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in whole.items():
            member = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o120777 if path in links else 0o100644) << 16
            archive.writestr(member, data)
    return made.getvalue()


def echoes(trick: str = "        pass", **changes: Any) -> bytes:
    """The wheel of the environment; `trick` is what its score does first."""
    files = {"echoes_env/__init__.py": ECHOES.replace("@TRICK@", trick)}
    given: dict[str, Any] = {"requires": ["echo-words>=1"], "points": POINT} | changes
    return wheel("shoal-environment-echoes", files, **given)


def echo_words(trick: str = "") -> bytes:
    """The wheel of what it needs."""
    return wheel(
        "echo-words", {"echo_words.py": f"def shouted(word):\n    {trick or 'pass'}\n    return word.upper()\n"}
    )


def entry(name: str, data: bytes, version: str = "1.0", **where: str) -> EnvironmentPackage:
    """The line of a manifest for a wheel."""
    return EnvironmentPackage(package=name, version=version, sha256=hashlib.sha256(data).hexdigest(), **where)
