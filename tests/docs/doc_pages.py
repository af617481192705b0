"""What the tests of the documentation read: Markdown files of the repository, their headings, fenced blocks and commands."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from servers import ROOT

FOLDERS = ("docs", "examples", "e2e", "images", "tools", "charts", "tests", "benchmarks")
FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})\s*([\w+-]*)\s*$")
PROGRAM_LINE = re.compile(r"^    (shoal|make|pip|kubectl|helm) ")
RUN_MARK = re.compile(r"<!-- run(?:: (?P<how>[a-z ]+))? -->")


@cache
def page_names() -> tuple[str, ...]:
    """Every Markdown file of the project, by its path from the root."""
    found = ["README.md"]
    for folder in FOLDERS:
        found += [path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.md")]
    return tuple(sorted(found))


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text()


@dataclass(frozen=True)
class Block:
    """A block of code of a page; `run` is what the comment before it says: None, "" or a word such as "soak"."""

    page: str
    line: int
    language: str
    text: str
    run: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> Iterator[Block]:
    """Fenced blocks, and indented lines that begin with one of our programs."""
    opened: tuple[int, str, str, str] | None = None
    lines: list[str] = []
    run: str | None = None
    for number, line in enumerate(text_of(page).splitlines(), 1):
        if opened is not None:
            start, closing, language, indent = opened
            if line.strip() == closing:
                yield Block(page, start, language, "\n".join(lines) + "\n", run)
                opened, lines, run = None, [], None
            else:
                lines.append(line.removeprefix(indent))
            continue
        if found := FENCE.match(line):
            opened = (number, found.group(2), found.group(3), found.group(1))
        elif PROGRAM_LINE.match(line):
            yield Block(page, number, "sh", line.strip() + "\n")
        elif mark := RUN_MARK.match(line.strip()):
            run = mark.group("how") or ""
        elif line.strip():
            run = None
    assert opened is None, f"{page}:{opened[0]}: the block is not closed" if opened else ""


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each simple command of a shell block: comments, pipes and assignments are taken apart, `for x in a b; do` is unrolled."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line)
        loop = re.fullmatch(r"\s*for (\w+) in ([^;]+); do (.+); done\s*", line)
        bodies = (
            [loop.group(3).replace(f"${loop.group(1)}", value) for value in loop.group(2).split()] if loop else [line]
        )
        for body in bodies:
            lexer = shlex.shlex(body, posix=True, punctuation_chars="|;&<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("|;&"):
                    words = _without_assignments(words)
                    if words:
                        yield words
                    words = []
                else:
                    words.append(word)


def _without_assignments(words: list[str]) -> list[str]:
    kept = list(words)
    while kept and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", kept[0]):
        kept.pop(0)
    for place, word in enumerate(kept):  # what follows a redirection is a file
        if set(word) <= set("<>"):
            return kept[:place] + kept[place + 2 :]
    return kept


def headings(page: str) -> set[str]:
    """The fragments by which a page's headings are linked, as forges and the site make them."""
    found: dict[str, int] = {}
    fragments = set()
    fenced = False
    for line in text_of(page).splitlines():
        if FENCE.match(line):
            fenced = not fenced
        if fenced or not re.match(r"#{1,6} ", line):
            continue
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("# ")).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found.get(slug, 0)
        found[slug] = number + 1
        fragments.add(slug if number == 0 else f"{slug}_{number}")
    return fragments


def shell_blocks() -> list[Block]:
    """Blocks that hold commands: marked `sh`, or unmarked and beginning with a program of ours."""
    found = []
    for page in page_names():
        for block in blocks(page):
            begins = block.text.lstrip().split(" ")[0].removeprefix(".venv/bin/")
            if block.language in ("sh", "bash", "shell", "console") or (
                not block.language and begins in ("shoal", "make", "helm", "kubectl")
            ):
                found.append(block)
    return found


def as_path(name: str) -> Path:
    return ROOT / name
