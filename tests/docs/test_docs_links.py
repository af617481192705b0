"""Links of every Markdown file lead to what is there, headings included; generated pages and prose are laid out as both readers need."""

import re

import pytest
from doc_pages import as_path, headings, page_names, text_of
from tools.docs.links import is_external, links, prose, resolved, rewritten, site_path

PAGES = page_names()
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|home/\w+|root)/")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_something(page: str) -> None:
    wrong = []
    for line, target in links(text_of(page)):
        if is_external(target):
            continue
        path, fragment = resolved(page, target)
        if path.startswith("..") or not as_path(path).exists():
            wrong.append(f"{page}:{line}: {target} does not exist")
        elif fragment and path.endswith(".md") and fragment not in headings(path):
            wrong.append(f"{page}:{line}: {path} has no heading #{fragment}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", [page for page in PAGES if page == "README.md" or page.startswith("docs/")])
def test_pictures_are_the_repositorys_own_and_have_a_text(page: str) -> None:
    for line in text_of(page).splitlines():
        for text, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", line):
            assert not is_external(target), f"{page}: {target} is on another host"
            assert text.strip(), f"{page}: {target} has no text for who cannot see it"


@pytest.mark.parametrize("page", PAGES)
def test_tables_and_lists_have_an_empty_line_before_them_or_the_site_shows_none(page: str) -> None:
    lines = dict(prose(text_of(page)))
    for number, line in lines.items():
        before, above = lines.get(number - 1, ""), lines.get(number - 2, "")
        if "-" in line and re.fullmatch(r"\|[-:| ]+\|", line):  # the row of dashes, below the head of a table
            ends = not above.strip() or above.lstrip().startswith("<!--")
            assert ends, f"{page}:{number - 1}: a table needs an empty line before it"
        if re.match(r"([-*] |1\. )", line) and before.strip():
            goes_on = re.match(r"\s*([-*] |\d+\. |<!--)|\s{2,}\S", before)
            assert goes_on, f"{page}:{number}: a list needs an empty line before it"


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_no_path_of_the_machine_that_wrote_them(page: str) -> None:
    found = [line for line in text_of(page).splitlines() if MACHINE_PATHS.search(line)]
    assert not found


@pytest.mark.parametrize(
    ("text", "file", "expected"),
    [
        ("[x](docs/a.md#b)", "README.md", "[x](a.md#b)"),
        ("[x](../README.md)", "docs/a.md", "[x](index.md)"),
        ("[x](../examples/y.yaml)", "docs/a.md", "[x](source/examples/y.yaml.md)"),
        ("[x](../a.md)", "docs/runbooks/b.md", "[x](../a.md)"),
        ("`[x](../examples/y.yaml)`", "docs/a.md", "`[x](../examples/y.yaml)`"),
        ("[`x`](../crds)", "docs/a.md", "[`x`](source/crds.md)"),
        ("[x](https://example.org/a.md)", "docs/a.md", "[x](https://example.org/a.md)"),
        ("[x](#y)", "docs/a.md", "[x](#y)"),
    ],
)
def test_links_are_rewritten_for_the_site(text: str, file: str, expected: str) -> None:
    assert rewritten(text, file).strip() == expected


def test_code_blocks_are_not_rewritten() -> None:
    text = "```\n[x](../README.md)\n```\n"
    assert rewritten(text, "docs/a.md") == text


def test_files_outside_of_docs_get_pages_below_source() -> None:
    assert site_path("examples/warm-start/README.md") == "source/examples/warm-start/README.md.md"
