"""IFEval: every instruction has an answer that follows it and one that does not; unknown ones are nobody's zero."""

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.contracts.tasks import Task
from shoal.environments import Score, Unscorable
from shoal.environments.datasets import BadDataset, import_files
from shoal.environments.ifeval import IfEval
from shoal.environments.instruction_checks import CHECKS
from shoal.environments.languages import SCRIPTS, WORDS, is_written_in

AT_LEAST, LESS = "at least", "less than"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["river", "mill"]}, "A mill by the River.", "A mill by the sea."),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": AT_LEAST}, "Sun and sunlight.", "One sun."),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": LESS}, "One sun.", "Sun and sun."),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}, "A train.", "The Rain."),
    (
        "keywords:letter_frequency",
        {"letter": "q", "let_frequency": 2, "let_relation": AT_LEAST},
        "Quite quick",
        "Quick",
    ),
    (
        "language:response_language",
        {"language": "de"},
        "Das ist nicht die Antwort auf alles.",
        "This is not the answer.",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": LESS},
        "One. Dr. Who? ",
        "One. Two! Three?",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "*** One *** Two ***", "One *** *** Two"),
    ("length_constraints:number_words", {"num_words": 3, "relation": AT_LEAST}, "It is so.", "It is."),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        'First this.\n\n"Then," that.',
        "Then this.\n\nFirst that.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] of [town]", "[name] of town"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP. S. Write!", "Bye.\nPS Write!"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S Write!", "Bye.\nP.S. Write!"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n- two\n**bold**", "* one\n* two\n* three"),
    ("detectable_format:constrained_response", {}, "So: My answer is maybe.", "My answer is perhaps."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and **two**", "*one* and ** **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Part", "num_sections": 2},
        "Part 1 a Part 2 b",
        "Part 1 a",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<Rivers>>\nThey flow.", "<< >>\nThey flow."),
    ("combination:two_responses", {}, "One\n******\nTwo", "One\n******\nOne"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a line."}, "write a line.\n\nA line.", "A line."),
    (
        "startend:end_checker",
        {"end_phrase": "Any other questions?"},
        "So. Any other questions?",
        "Any other questions? No.",
    ),
    ("startend:quotation", {}, '"Quoted."', '"Quoted'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": AT_LEAST},
        "VERY, VERY good",
        "VERY good",
    ),
    ("change_case:english_capital", {}, "THIS IS THE END OF IT.", "THIS IS the END OF IT."),
    ("change_case:english_lowercase", {}, "this is the end of it.", "das ist nicht das ende."),
    ("punctuation:no_comma", {}, "One and two.", "One, two."),
]


def task_of(*instructions: tuple[str, dict[str, Any]]) -> Task:
    listed = [{"id": name, "kwargs": arguments} for name, arguments in instructions]
    return Task(problem_id="t", task_type="ifeval", prompt="Do so.", verification_info={"instructions": listed})


def reward(task: Task, answer: str) -> float:
    found = IfEval().score(task, answer)
    assert isinstance(found, Score), found
    return found.task_reward


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_an_instruction_tells_answers_that_follow_it(name: str, arguments: dict[str, Any], good: str, bad: str) -> None:
    task = task_of((name, arguments))
    assert reward(task, good) == 1.0
    assert reward(task, bad) == 0.0
    assert reward(task, f"<think>{bad}</think>{good}") == 1.0, "thoughts are no part of the answer"


@pytest.mark.parametrize(
    "answer", ["[" * 200_000, "<<" * 100_000, "." * 200_000 + "x", "*" * 200_000, "p." * 100_000, "{" * 200_000]
)
def test_no_answer_takes_long_to_check(answer: str) -> None:
    began = time.process_time()
    for name, arguments, _, _ in CASES:
        IfEval().score(task_of((name, arguments)), answer)
    assert time.process_time() - began < 20.0  # quadratic time would be minutes


def test_every_instruction_of_the_data_set_is_tried() -> None:
    assert len(CHECKS) == 25
    assert {case[0] for case in CASES} == set(CHECKS)


def test_all_instructions_of_a_prompt_must_be_followed() -> None:
    task = task_of(("punctuation:no_comma", {}), ("startend:quotation", {}))
    assert reward(task, '"One and two."') == 1.0
    found = IfEval().score(task, '"One, two."')
    assert found == Score(0.0, "not followed: punctuation:no_comma")
    assert reward(task, "") == 0.0


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (task_of(("format:haiku", {})), "'format:haiku' is not one of 25 known"),
        (task_of(("keywords:existence", {"keywords": []})), "keywords must be a list of words"),
        (task_of(("detectable_format:number_bullet_lists", {"num_bullets": "2"})), "num_bullets is '2'; allowed: int"),
        (task_of(("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "about"})), "'about'; allowed"),
        (task_of(("language:response_language", {"language": "tlh"})), "'tlh', which this release cannot detect"),
        (task_of(), "verification_info.instructions is missing"),
    ],
)
def test_what_cannot_be_checked_is_unscorable_with_the_reason(task: Task, words: str) -> None:
    found = IfEval().score(task, "An answer.")
    assert isinstance(found, Unscorable)
    assert words in found.reason


def test_the_published_layout_is_read_without_the_nulls_that_parquet_adds(tmp_path: Path) -> None:
    row = {
        "key": 1000,
        "prompt": "Write a line without a comma, with two bullets.",
        "instruction_id_list": ["punctuation:no_comma", "detectable_format:number_bullet_lists"],
        "kwargs": [{"num_bullets": None, "relation": None}, {"num_bullets": 2.0, "relation": None}],
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "train.parquet")
    [task] = import_files([tmp_path / "train.parquet"], "ifeval").tasks
    assert (task.problem_id, task.task_type) == ("ifeval-1000", "ifeval")
    assert task.verification_info["instructions"][0] == {"id": "punctuation:no_comma", "kwargs": {}}
    assert reward(task, "* one\n* two") == 1.0
    assert reward(task, "* one\n* two\n* three") == 0.0
    pq.write_table(pa.Table.from_pylist([row | {"instruction_id_list": ["a:b", "c:d"]}]), tmp_path / "odd.parquet")
    with pytest.raises(BadDataset, match="instruction_id_list has a:b, c:d, which this release cannot check"):
        import_files([tmp_path / "odd.parquet"], "ifeval")


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "This is the end of it, and not the beginning."),
        ("es", "El perro y los gatos que viven en la casa son más grandes."),
        ("fr", "Le chien est dans une maison qui est sur la colline."),
        ("it", "Il cane è nella casa che non è della nonna, anche di sera."),
        ("pt", "O cão não está em casa, mas os gatos estão com uma senhora."),
        ("ru", "Это не то, что мы хотели, но как он это сделал для всех?"),
        ("uk", "Це не те, що ми хотіли, але як він це зробив для всіх?"),
        ("hi", "यह एक घर है और इस में लोग हैं।"),
        ("ar", "هذا هو البيت الذي كان على التل من هذه المدينة."),
        ("fa", "این خانه را که در شهر است برای شما می خرم."),
        ("ja", "これは日本語の文章です。"),
        ("ko", "이것은 한국어 문장입니다."),
        ("th", "นี่คือประโยคภาษาไทย"),
    ],
)
def test_a_text_is_in_its_own_language_and_in_no_other(language: str, text: str) -> None:
    known = {*SCRIPTS, *(name for languages in WORDS.values() for name in languages)}
    assert [each for each in sorted(known) if is_written_in(each, text)] == [language]
