"""Foreign text is made harmless, and figures read the same everywhere."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.text import count, duration, number, percent, plain, secret_values, size, sparkline, without_secrets


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b[31mowned", "\\x1b[2J\\x1b[31mowned"),
        ("a\rb\nc\td\x07", "a\\x0db\\x0ac\\x09d\\x07"),
        ("\x9b31m", "\\x9b31m"),  # a control sequence introducer in one C1 character
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),  # right-to-left override
        ("pass\u200bword", "pass\\u200bword"),
        ("line\u2028separator", "line\\u2028separator"),
    ],
)
def test_control_and_format_characters_are_escaped(hostile: str, shown: str) -> None:
    assert plain(hostile) == shown


def test_ordinary_words_of_any_language_stay() -> None:
    assert plain("Grüße, 你好") == "Grüße, 你好"


@given(st.text(max_size=300), st.integers(10, 100))
def test_plain_text_is_bounded_and_has_no_control_character(text: str, limit: int) -> None:
    shown = plain(text, limit)
    assert len(shown) <= limit
    assert not any(unicodedata.category(character)[0] == "C" for character in shown)


@pytest.mark.parametrize(
    ("given", "shown"), [(0.4567, "0.457"), (3e-7, "3.0e-07"), (0.0, "0.000"), (None, "-"), (float("nan"), "-")]
)
def test_numbers(given: float | None, shown: str) -> None:
    assert number(given) == shown


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7620, "2 h 07 min"),
        (-1, "-"),
        (None, "-"),
    ],
)
def test_durations(given: float | None, shown: str) -> None:
    assert duration(given) == shown


def test_counts_shares_and_sizes() -> None:
    assert count(12480) == "12,480"
    assert percent(0.008) == "0.8 %"
    assert (size(999), size(3_400_000), size(62e9)) == ("999 B", "3.4 MB", "62.0 GB")


def test_a_sparkline_spans_what_it_shows() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([5.0, 0.0, 1.0], width=2) == "▁█"
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert sparkline([float("nan")]) == ""


def test_secrets_are_the_values_of_variables_whose_names_say_so() -> None:
    variables = {
        "HF_TOKEN": "hf_abcdef",
        "WANDB_API_KEY": "0123456789",
        "AWS_SECRET_ACCESS_KEY": "aws-secret",
        "DB_PASSWORD": "hunter22",
        "HF_TOKEN_SHORT": "abc",
        "MONKEY_HOUSE": "public-word",
        "HF_ENDPOINT": "https://hub.example",
    }
    assert sorted(secret_values(variables)) == ["0123456789", "aws-secret", "hf_abcdef", "hunter22"]


def test_a_text_loses_secrets_and_logins_of_urls() -> None:
    said = "hf_abcdef was refused by https://me:pw@hub.example/x; ask me@hub.example"
    assert without_secrets(said, ["hf_abcdef"]) == "*** was refused by https://***@hub.example/x; ask me@hub.example"
