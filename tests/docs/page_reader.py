"""A reader who follows a page word by word: each line of its shell blocks runs by bash, in the page's order, with what it exports.

A page names hosts and keys that are not here: `words` says what stands for each. What this machine cannot run has an `Instead`, with the reason and
the nearest real thing, which runs in its place. An `Instead` that no line needs fails, and so does a line that fails.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from doc_pages import blocks

SECONDS = 300.0


@dataclass(frozen=True)
class Instead:
    """Lines that begin so are not run as they are."""

    begins: str
    why: str
    do: Callable[[str], str]
    """The nearest real thing: gets the line with the words of here, and gives what it said."""


@dataclass
class PageReader:
    """`scratch` keeps what lines export; lines run in `folder`."""

    folder: Path
    scratch: Path
    words: Mapping[str, str]
    instead: Sequence[Instead]
    environment: Mapping[str, str] = field(default_factory=dict)

    def follow(self, page: str) -> dict[str, str]:
        """What each line said, by the line as the page has it."""
        said: dict[str, str] = {}
        used: set[str] = set()
        for block in blocks(page):
            if block.language != "sh":
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                other = next((each for each in self.instead if line.startswith(each.begins)), None)
                if other is not None:
                    used.add(other.begins)
                said[line] = (other.do if other is not None else self.run)(self.here(line))
        assert said, f"{page} has no shell block"
        unused = [each.begins for each in self.instead if each.begins not in used]
        assert not unused, f"{page} has no line that begins with {unused}"
        return said

    def here(self, line: str) -> str:
        for word, ours in self.words.items():
            line = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", lambda _, ours=ours: ours, line)
        return line

    def settings(self) -> dict[str, str]:
        """The environment of a line: the reader's home is `scratch`."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "HOME": str(self.scratch), **self.environment}

    def run(self, line: str) -> str:
        """What bash says of a line; fails with its errors."""
        exports = self.scratch / "exports"
        kept = f'. "{exports}"\n' if exports.exists() else ""
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f'{kept}{line}\nexport -p >"{exports}"'],
            cwd=self.folder,
            env=self.settings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert ended.returncode == 0, f"{line}: {ended.stdout[-500:]}{ended.stderr[-2000:]}"
        return ended.stdout
