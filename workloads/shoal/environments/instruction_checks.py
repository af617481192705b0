"""The verifiable instructions of IFEval (arXiv:2311.07911, table 1), each a small pure function: arguments of the task, answer -> followed or not.

`CHECKS` has them by the ids of the data set. They follow the benchmark's published code, strict form, but where that asks nltk or
langdetect: sentences and words are told here by punctuation, and languages by `languages`. Each takes time in proportion to the
answer, which may be a stranger's: no pattern here looks far ahead from many places. Called by `ifeval`.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shoal.environments.languages import is_written_in

Arguments = Mapping[str, Any]

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_SENTENCE_END = re.compile(r"(?<![A-Z][a-z])(?<!\b[A-Za-z])(?<!\b(?:Mr|Dr|Ms|St))[.!?](?=[\s\"')\]]|$)")
_WORD = re.compile(r"\w+")


class BadArguments(ValueError):
    """The task's arguments are not those that its instruction has; the message names the argument."""


Kind = TypeVar("Kind")


def _given(arguments: Arguments, name: str, kind: type[Kind]) -> Kind:
    value: object = arguments.get(name)
    if isinstance(value, float) and kind is int and value.is_integer():
        value = int(value)  # Parquet's numbers of a column with nulls
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadArguments(f"{name} is {value!r:.60}; allowed: {kind.__name__}")
    return value


def _related(count: int, arguments: Arguments, relation: str, number: str) -> bool:
    wanted = _given(arguments, number, int)
    match _given(arguments, relation, str):
        case "less than":
            return count < wanted
        case "at least":
            return count >= wanted
        case other:
            raise BadArguments(f"{relation} is {other!r:.40}; allowed: 'less than', 'at least'")


def _words(arguments: Arguments, name: str) -> list[str]:
    found = _given(arguments, name, list)
    if not found or not all(isinstance(word, str) and word for word in found):
        raise BadArguments(f"{name} must be a list of words")
    return list(found)


def _occurrences(word: str, answer: str) -> int:
    return len(re.findall(re.escape(word), answer, re.IGNORECASE))


def keywords(arguments: Arguments, answer: str) -> bool:
    """Every keyword occurs."""
    return all(_occurrences(word, answer) for word in _words(arguments, "keywords"))


def keyword_frequency(arguments: Arguments, answer: str) -> bool:
    """A keyword occurs this many times."""
    return _related(_occurrences(_given(arguments, "keyword", str), answer), arguments, "relation", "frequency")


def forbidden_words(arguments: Arguments, answer: str) -> bool:
    """None of the words occurs."""
    words = _words(arguments, "forbidden_words")
    return not any(re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in words)


def letter_frequency(arguments: Arguments, answer: str) -> bool:
    """A letter, in either case, occurs this many times."""
    count = answer.lower().count(_given(arguments, "letter", str).lower())
    return _related(count, arguments, "let_relation", "let_frequency")


def response_language(arguments: Arguments, answer: str) -> bool:
    """The whole answer is in one language. BadArguments for one that cannot be told here."""
    try:
        return is_written_in(_given(arguments, "language", str), answer)
    except KeyError as error:
        raise BadArguments(f"language is {error}, which this release cannot detect") from None


def number_of_sentences(arguments: Arguments, answer: str) -> bool:
    """This many sentences, by their ends."""
    ends = [each.end() for each in _SENTENCE_END.finditer(answer)]
    rest = answer[ends[-1] :] if ends else answer
    return _related(len(ends) + bool(_WORD.search(rest)), arguments, "relation", "num_sentences")


def number_of_paragraphs(arguments: Arguments, answer: str) -> bool:
    """Exactly this many paragraphs, with `***` between them."""
    parts = re.split(r"\s?\*\*\*\s?", answer)
    if any(not part.strip() for part in parts[1:-1]):
        return False
    return sum(bool(part.strip()) for part in parts) == _given(arguments, "num_paragraphs", int)


def number_of_words(arguments: Arguments, answer: str) -> bool:
    """This many words."""
    return _related(len(_WORD.findall(answer)), arguments, "relation", "num_words")


def first_word_of_paragraph(arguments: Arguments, answer: str) -> bool:
    """Exactly this many paragraphs with an empty line between them, of which the n-th begins with a word."""
    parts = answer.split("\n\n")
    count, place = sum(bool(part.strip()) for part in parts), _given(arguments, "nth_paragraph", int)
    if not 1 <= place <= count or not parts[place - 1].strip():
        return False
    first = parts[place - 1].split()[0].lstrip("'\"")
    word = re.split(r"[.,?!'\"]", first, maxsplit=1)[0].lower()
    wanted = _given(arguments, "num_paragraphs", int), _given(arguments, "first_word", str).lower()
    return (count, word) == wanted


def placeholders(arguments: Arguments, answer: str) -> bool:
    """At least this many placeholders such as [address]."""
    return len(re.findall(r"\[[^\[\]\n]*\]", answer)) >= _given(arguments, "num_placeholders", int)


def postscript(arguments: Arguments, answer: str) -> bool:
    """A postscript that begins with the marker."""
    marker = _given(arguments, "postscript_marker", str)
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, re.escape(marker.lower())), answer.lower()) is not None


def bullet_lists(arguments: Arguments, answer: str) -> bool:
    """Exactly this many bullet points."""
    lines = [line.lstrip() for line in answer.splitlines()]
    points = sum(line.startswith("-") or bool(re.match(r"\*[^*]", line)) for line in lines)
    return points == _given(arguments, "num_bullets", int)


def constrained_response(arguments: Arguments, answer: str) -> bool:
    """One of the three answers that are allowed."""
    return any(option in answer for option in OPTIONS)


def highlighted_sections(arguments: Arguments, answer: str) -> bool:
    """At least this many sections in asterisks."""
    found = [each.strip("*") for each in re.findall(r"\*[^\n*]*\*", answer)]
    found += [each[2:-2] for each in re.findall(r"\*\*[^\n*]*\*\*", answer)]
    return sum(bool(each.strip()) for each in found) >= _given(arguments, "num_highlights", int)


def multiple_sections(arguments: Arguments, answer: str) -> bool:
    """At least this many sections, each after a word and its number."""
    word = re.escape(_given(arguments, "section_spliter", str).strip())
    return len(re.findall(rf"{word}\s?\d+", answer)) >= _given(arguments, "num_sections", int)


def json_format(arguments: Arguments, answer: str) -> bool:
    """The whole answer is JSON, in a fenced block or not."""
    text = answer.strip()
    for mark in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(mark)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(arguments: Arguments, answer: str) -> bool:
    """A title in double angular brackets."""
    for line in answer.splitlines():
        begin, end = line.find("<<"), line.rfind(">>")
        if 0 <= begin < end and line[begin:end].strip("<>").strip():
            return True
    return False


def two_responses(arguments: Arguments, answer: str) -> bool:
    """Two different answers with six asterisks between them."""
    parts = answer.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    found = [part.strip() for part in parts if part.strip()]
    return len(found) == 2 and found[0] != found[1]


def repeat_prompt(arguments: Arguments, answer: str) -> bool:
    """The request first, word for word, then the answer."""
    return answer.strip().lower().startswith(_given(arguments, "prompt_to_repeat", str).strip().lower())


def end_phrase(arguments: Arguments, answer: str) -> bool:
    """Nothing follows the phrase."""
    return answer.strip().strip('"').lower().endswith(_given(arguments, "end_phrase", str).strip().lower())


def quotation(arguments: Arguments, answer: str) -> bool:
    """The whole answer is in double quotation marks."""
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def capital_words(arguments: Arguments, answer: str) -> bool:
    """This many words in capital letters."""
    count = sum(word.isupper() for word in re.findall(r"[\w'-]+", answer))
    return _related(count, arguments, "capital_relation", "capital_frequency")


def english_capital(arguments: Arguments, answer: str) -> bool:
    """English, in capital letters alone."""
    return answer.isupper() and is_written_in("en", answer)


def english_lowercase(arguments: Arguments, answer: str) -> bool:
    """English, without a capital letter."""
    return answer.islower() and is_written_in("en", answer)


def no_comma(arguments: Arguments, answer: str) -> bool:
    """Not one comma."""
    return "," not in answer


CHECKS: dict[str, Callable[[Arguments, str], bool]] = {
    "keywords:existence": keywords,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_of_sentences,
    "length_constraints:number_paragraphs": number_of_paragraphs,
    "length_constraints:number_words": number_of_words,
    "length_constraints:nth_paragraph_first_word": first_word_of_paragraph,
    "detectable_content:number_placeholders": placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_phrase,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_words,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
