"""The documentation stays short and true to the tree: a bound on hand-written words, and every path that a page names exists.

Generated pages and tables are taken out of the count by asking their generators what they write.
"""

import re
from collections.abc import Iterator

import pytest
from benchmarks.broadcast import page as broadcast
from benchmarks.reproduce import page as reproduction
from benchmarks.trust import page as trust
from doc_pages import as_path, page_names, text_of
from tools.crds.__main__ import files as files_of_crds
from tools.docs.__main__ import files as pages_of_docs
from tools.docs.links import prose
from tools.observability.__main__ import files as files_of_metrics

from servers import ROOT

MOST_WORDS = 40_000
NOTES = ("tests/", "benchmarks/")
"""Pages beside tests and benchmarks are notes about these, not documentation."""
RECORDS = ("docs/adr/", "CHANGELOG.md")
"""Decisions and releases are written once, not rewritten."""
TRUST_TABLES = [*trust.BLOCKS, trust.CURVES, "mutated"]
MARKS = {
    "docs/adversaries.md": [(f"<!-- {block} -->", f"<!-- end of {block} -->") for block in TRUST_TABLES],
    "docs/broadcast.md": [(broadcast.BEGIN, broadcast.END)],
    "docs/reproduction.md": [(reproduction.BEGIN, reproduction.END)],
}
"""Begin and end of the tables that benchmarks write, by page."""
FOLDERS = (
    "charts",
    "crds",
    "docs",
    "e2e",
    "examples",
    "images",
    "operator",
    "requirements",
    "tests",
    "tools",
    "workloads",
)
PACKAGES = ("workloads/shoal", "operator/shoal_operator", "e2e", "")
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+/?)`")
MODULE = re.compile(r"[a-z_]+(/[a-z_]+)*/[a-z_]+\.py")


def generated_pages() -> set[str]:
    """Whole pages that programs write: those of `make docs`, `make observability` and `make crds`."""
    return {name for name in {*pages_of_docs(), *files_of_metrics(), *files_of_crds()} if name.endswith(".md")}


def documentation() -> list[str]:
    """Hand-written pages, the root's included."""
    roots = [path.name for path in ROOT.glob("*.md")]
    pages = {*roots, *page_names()} - generated_pages()
    return sorted(page for page in pages if not page.startswith((*NOTES, *RECORDS)))


def by_hand(page: str) -> str:
    """A page without the tables that benchmarks write into it."""
    text = (ROOT / page).read_text()
    for begin, end in MARKS.get(page, []):
        assert begin in text, f"{page} lacks the mark {begin}"
        assert end in text, f"{page} lacks the mark {end}"
        before, _, rest = text.partition(begin)
        text = before + rest.partition(end)[2]
    return text


def test_the_documentation_has_at_most_forty_thousand_hand_written_words() -> None:
    words = {page: len(by_hand(page).split()) for page in documentation()}
    longest = sorted(words.items(), key=lambda item: -item[1])[:10]
    assert sum(words.values()) <= MOST_WORDS, f"{sum(words.values())} words; cut some of {longest}"


def test_generated_pages_say_so_at_their_head() -> None:
    assert len(generated_pages()) >= 6
    for page in generated_pages():
        assert re.search(r"^Made (from the code )?by `make \w+`", (ROOT / page).read_text(), re.M), page


def paths(page: str) -> Iterator[tuple[int, str]]:
    """Paths in backticks that look like files or folders of this repository, with their lines."""
    for line, text in prose(text_of(page)):
        for path in PATH.findall(text):
            if path.split("/")[0] in FOLDERS or MODULE.fullmatch(path):
                yield line, path


@pytest.mark.parametrize("page", [page for page in page_names() if not page.startswith(RECORDS)])
def test_every_path_that_a_page_names_exists(page: str) -> None:
    folder = as_path(page).parent
    wrong = [
        f"{page}:{line}: {path}"
        for line, path in paths(page)
        if not (folder / path).exists() and not any((ROOT / root / path).exists() for root in PACKAGES)
    ]
    assert not wrong, "\n".join(wrong)
