"""Checks the prose of the project with Vale: hand-written pages, and the docstrings and texts of the Python sources.

`python -m tools.prose` builds the pinned Vale unless it is built, prints each finding as `file:line: text`, and has status 1 if there is one. A
source is shown to Vale as Markdown below .cache/prose: each paragraph of a docstring and each string of four words or more, as one line. Vale reads
the 700 files in about ten seconds. The rules are in tools/vale/styles.
"""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ROOT / ".cache" / "prose"
SOURCES = ("operator", "workloads", "tools")
PAGES = ("docs", "examples", "e2e", "images", "tools", "charts")
OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the root with conventions of their own."""
RECORDS = "docs/adr/"
"""Decisions are written once, not rewritten."""
GENERATED = re.compile(r"^Made (from the code )?by `make \w+`", re.MULTILINE)
"""At the head of a page that a program writes; its words are those of the sources."""
FEWEST_WORDS = 4
"""Of a string that is taken for prose; keys, names and patterns have fewer."""
CODE = re.compile(r"redis\.call|^ *(from|import|def|local|if) ", re.MULTILINE)
"""In a string that is a program or a template of one."""
NO_COMPILER = 3
"""Status of tools/build.sh without Go or a C compiler."""
MARKUP = str.maketrans(dict.fromkeys("<>#|*_[]\\", " "))


@dataclass(frozen=True)
class Finding:
    """A line of a file that breaks a rule."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(line from 0, paragraph on one line) for each paragraph and list item of a text; indented blocks are code."""
    begin, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""]):
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if lines and (item or not line.strip()):
            yield begin, " ".join(lines)
            lines = []
        if line.strip() and (lines or item or not line.startswith("    ")):
            begin = begin if lines else number
            lines.append(line.strip())


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(line from 1, paragraph) for docstrings, notes below constants, and strings of prose. An inserted value is one word."""

    def walk(node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for line, paragraph in paragraphs(inspect.cleandoc(node.value.value)):
                yield node.lineno + line, paragraph
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            text = _string(node)
            if _is_prose(text):
                yield node.lineno, re.sub(r"\s*\n\s*\n\s*", ". ", text.strip())
        else:
            for below in ast.iter_child_nodes(node):
                yield from walk(below)

    yield from walk(ast.parse(source))


def _string(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def _is_prose(text: str) -> bool:
    if CODE.search(text):
        return False
    words = re.findall(r"(?<!\S)[\"'(`]?[A-Za-z][A-Za-z'-]+(?=[\s.,:;!?)\"'`]|$)", text)
    return len(words) >= FEWEST_WORDS and len(words) > len(text.split()) / 2


def as_markdown(source: str) -> str:
    """The prose of a Python source: line N of it is line 2N - 1 here, so that no two texts make one paragraph."""
    lines: dict[int, str] = {}
    for number, text in texts(source):
        flat = " ".join(text.translate(MARKUP).split())
        lines[number] = f"{lines[number]}. {flat}" if number in lines else flat
    return "\n".join(f"{lines.get(number, '')}\n" for number in range(1, max(lines, default=0) + 1))


def pages() -> Iterator[Path]:
    """Hand-written pages."""
    for path in [*ROOT.glob("*.md"), *(path for folder in PAGES for path in (ROOT / folder).rglob("*.md"))]:
        name = path.relative_to(ROOT).as_posix()
        if name not in OTHERS and not name.startswith(RECORDS) and not GENERATED.search(path.read_text()):
            yield path


def sources() -> Iterator[Path]:
    """Python files whose texts are read."""
    for folder in SOURCES:
        yield from (ROOT / folder).rglob("*.py")


def check(program: Path, files: Iterable[Path], root: Path = ROOT, shown: Path = SHOWN) -> list[Finding]:
    """What Vale finds in Markdown pages and Python sources below `root`; `shown` is replaced."""
    shutil.rmtree(shown, ignore_errors=True)
    for path in files:
        target = shown / f"{path.relative_to(root)}{'' if path.suffix == '.md' else '.md'}"
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        target.write_text(as_markdown(text) if path.suffix == ".py" else text)
    config = ROOT / "tools" / "vale" / "vale.ini"
    done = subprocess.run(
        [program, f"--config={config}", "--output=JSON", "--no-global", shown],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"Vale ended with status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    findings = []
    for name, alerts in json.loads(done.stdout).items():
        page = Path(name).relative_to(shown).as_posix()
        source = page.removesuffix(".md") if page.endswith(".py.md") else None
        for alert in alerts:
            line = alert["Line"] if source is None else (alert["Line"] + 1) // 2
            findings.append(Finding(source or page, line, f"{alert['Message']} [{alert['Check']}]"))
    return sorted(findings, key=lambda each: (each.path, each.line))


def main() -> int:
    """Build Vale, check everything, print findings. Without Go nothing is checked; CI must have it."""
    built = subprocess.run([ROOT / "tools" / "build.sh", "vale"], stdout=subprocess.PIPE, text=True, check=False)
    if built.returncode == NO_COMPILER and not os.environ.get("CI"):
        print("prose: not checked, as this machine cannot build Vale")
        return 0
    if built.returncode != 0:
        return 1
    findings = check(Path(built.stdout.strip()), [*pages(), *sources()])
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
