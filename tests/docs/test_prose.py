"""Hand-written pages are plain English: a sentence has at most 25 words, and words that the field does not use have a replacement."""

import re
from collections.abc import Iterator

import pytest
from doc_pages import text_of
from test_page_size import by_hand, documentation
from tools.docs.links import prose

MOST_WORDS = 25
"""Of one sentence; a colon or semicolon ends one, since what follows can be read by itself."""
OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "NOTICE.md", "SECURITY.md")
"""Pages with conventions of their own."""
WORDS = {
    r"mends?|mended|mending": "fix",
    r"dear": "expensive",
    r"wants?": "need, must have",
    r"hears": "learns",
    r"so (many|long)(?! as\b)": "a number, with its unit",
    r"companion": "reward model",
}
"""Pattern -> what to write instead. `you want to` is how tasks are introduced."""
PAGES = [page for page in documentation() if page not in OTHERS]
STARTS = re.compile(r"\s*([-*]|\d+\.) ")


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and items of lists; tables, headings, pictures and code are left out."""
    lines: list[str] = []
    for _, line in prose(text):
        outside = not line.strip() or line.startswith(("|", "#", "![", "<!--"))
        if (outside or STARTS.match(line)) and lines:
            yield " ".join(lines)
            lines = []
        if not outside and (lines or STARTS.match(line) or not line.startswith("    ")):
            lines.append(line.strip())
    if lines:
        yield " ".join(lines)


def sentences(paragraph: str) -> list[str]:
    """Sentences of a paragraph; code counts as one word, a link as its text."""
    plain = re.sub(r"`[^`]*`", "X", paragraph)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    return re.split(r"(?<=[.!?:;])\s+", plain)


@pytest.mark.parametrize("page", PAGES)
def test_a_sentence_has_at_most_twenty_five_words(page: str) -> None:
    long = [
        f"{page}: {len(each.split())} words: {each}"
        for paragraph in paragraphs(by_hand(page))
        for each in sentences(paragraph)
        if len(each.split()) > MOST_WORDS
    ]
    assert not long, "\n".join(long)


def odd_words(line: str) -> list[str]:
    """What to write instead, for each word of the line that the vocabulary replaces."""
    plain = re.sub(r"`[^`]*`|\byou want\b", "X", line)
    return [
        f"{found.group()!r}; write: {better}"
        for pattern, better in WORDS.items()
        for found in re.finditer(rf"\b({pattern})\b", plain, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_words_are_those_of_the_field(page: str) -> None:
    wrong = [f"{page}:{number}: {odd}" for number, line in prose(text_of(page)) for odd in odd_words(line)]
    assert not wrong, "\n".join(wrong)


def test_a_long_sentence_and_an_odd_word_would_be_found() -> None:
    assert [len(each.split()) for each in sentences("One two: `a b c` and [three four](x.md). Five.")] == [2, 4, 1]
    assert list(paragraphs("# Head\n\nOne\ntwo.\n\n- three\n- four\n\n| no |\n")) == ["One two.", "- three", "- four"]
    assert odd_words("A node wants `wants` mending.") == ["'mending'; write: fix", "'wants'; write: need, must have"]
    assert odd_words("If you want more, as long as it lasts.") == []
