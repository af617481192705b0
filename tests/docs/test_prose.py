"""The prose linter finds what it is for, in pages and in Python sources, and takes code and numbers for what they are.

`make check` and `make test` run it over the whole project (`python -m tools.prose`).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import prose

from servers import ROOT, lacking

LONG = " ".join(["word"] * 26) + "."
FITS = " ".join(["word"] * 25) + "."


@pytest.fixture(scope="module")
def vale() -> Path:
    """The pinned Vale that `make check` built."""
    built = subprocess.run([ROOT / "tools/build.sh", "--path", "vale"], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        lacking("Vale", built.stderr.strip() or "run `make tools`, it builds the pinned program")
    return Path(built.stdout.strip())


def findings(vale: Path, folder: Path, name: str, text: str) -> list[str]:
    file = folder / name
    file.write_text(text)
    return [f"{each.path}:{each.line} {each.message}" for each in prose.check(vale, [file], folder, folder / "shown")]


def test_a_long_sentence_of_a_page_is_found_with_its_line(vale: Path, tmp_path: Path) -> None:
    found = findings(vale, tmp_path, "page.md", f"# Title\n\n{FITS} {FITS}\n\n- {LONG}\n")
    assert [each.split(" More")[0] for each in found] == ["page.md:5"]


@pytest.mark.parametrize("end", [":", ";"])
def test_a_colon_or_semicolon_ends_a_sentence_as_a_full_stop_does(vale: Path, tmp_path: Path, end: str) -> None:
    assert not findings(vale, tmp_path, "page.md", f"{FITS.rstrip('.')}{end} {FITS}\n")


def test_code_counts_as_one_word_and_tables_have_no_sentences(vale: Path, tmp_path: Path) -> None:
    code = "`" + "word " * 30 + "`"
    table = f"| a |\n|---|\n| {LONG} |\n"
    fence = f"```\n{LONG}\n```\n"
    assert not findings(vale, tmp_path, "page.md", f"One {code} two.\n\n{table}\n{fence}")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("A node wants a lease.", "Shoal.Words"),
        ("It waits for so many seconds.", "Shoal.Words"),
        ("The run is made anew.", "Shoal.Words"),
        ("It takes some 10 minutes.", "Shoal.Words"),
        ("The ledger is told of them.", "Shoal.Order"),
        ("The answer is no integer.", "Shoal.Order"),
        ("It is simply done.", "Shoal.Weasel"),
    ],
)
def test_each_rule_finds_its_words(vale: Path, tmp_path: Path, text: str, rule: str) -> None:
    [found] = findings(vale, tmp_path, "page.md", text + "\n")
    assert found.startswith("page.md:1 ")
    assert found.endswith(f"[{rule}]")


@pytest.mark.parametrize(
    "text", ["If you want more, as long as it lasts.", "There is no integer.", "Run `a node wants`."]
)
def test_sound_words_pass(vale: Path, tmp_path: Path, text: str) -> None:
    assert not findings(vale, tmp_path, "page.md", text + "\n")


def test_docstrings_notes_and_messages_of_a_source_are_read(vale: Path, tmp_path: Path) -> None:
    source = f'''"""Opens well.

Then {LONG}
"""

LIMIT = 3
"""A limit wants a reason."""


def run(name: str) -> None:
    if not name:
        raise ValueError(f"{{name}} wants a name, and {{LIMIT}}"
                         " is simply too small")
'''
    found = findings(vale, tmp_path, "module.py", source)
    assert [each.split(" ")[0] for each in found] == ["module.py:3", "module.py:7", "module.py:12", "module.py:12"]


def test_keys_patterns_and_programs_are_not_prose() -> None:
    source = (
        'A = "a-key"\nB = r"^[a-z]+ (\\d+) [^ ]* \\w+ $"\nC = "import os\\nhe wants it all"\nD = "shoal logs sums -f"\n'
    )
    assert not list(prose.texts(source))


def test_texts_keep_their_lines_and_an_inserted_value_is_one_word() -> None:
    source = 'def f(x: int) -> str:\n    """One.\n\n    Two\n    lines.\n    """\n    return f"the value {x + 1} is {x} here"\n'
    assert list(prose.texts(source)) == [(2, "One."), (4, "Two lines."), (7, "the value X is X here")]


def test_generated_pages_and_decisions_are_left_out() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in prose.pages()}
    assert {"README.md", "docs/validation.md", "examples/intellect-2/README.md"} <= names
    assert not names & {"docs/cli.md", "docs/reference.md", "docs/metrics.md", "CHANGELOG.md"}
    assert not any(name.startswith("docs/adr/") for name in names)


def test_without_go_the_check_says_how_to_get_it_and_fails_in_ci_only(tmp_path: Path) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go1.2.3\n")
    (tmp_path / "go").chmod(0o755)
    for ci, status in (("", 0), ("true", 1)):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CI": ci}
        done = subprocess.run(
            [sys.executable, "-m", "tools.prose"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status
        assert "take it from https://go.dev/dl" in done.stderr
