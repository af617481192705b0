"""Foreign text is made harmless, and figures read the same everywhere."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.text import (
    count,
    duration,
    number,
    percent,
    plain,
    secret_values,
    size,
    sparkline,
    without_cut_secrets,
    without_secrets,
)


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
        "PROXY_AUTH": "proxy-word",
        "SSH_PASSPHRASE": "pass-phrase",
        "GITHUB_PAT": "ghp_abcdef",
        "ORACLE_PWD": "oracle-word",
        "HF_TOKEN_SHORT": "abc",
        "PWD": "/srv/somebody",
        "OLDPWD": "/srv/somebody",
        "GIT_AUTHOR_NAME": "Some Body",
        "PATH": "/usr/bin:/bin",
        "MONKEY_HOUSE": "public-word",
        "HF_ENDPOINT": "https://hub.example",
    }
    assert sorted(secret_values(variables)) == [
        "0123456789", "aws-secret", "ghp_abcdef", "hf_abcdef", "hunter22", "oracle-word", "pass-phrase", "proxy-word",
    ]  # fmt: skip


def test_a_text_loses_secrets_and_logins_of_urls() -> None:
    said = "hf_abcdef was refused by https://me:pw@hub.example/x; ask me@hub.example"
    assert without_secrets(said, ["hf_abcdef"]) == "*** was refused by https://***@hub.example/x; ask me@hub.example"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("https://me:p/w@hub.example/x", "https://***@hub.example/x"),
        ("https://me:p@w@hub.example/x", "https://***@hub.example/x"),
        ("https://me@corp.example:pw@hub.example", "https://***@hub.example"),
        ("https://hf_abcdef@hub.example/x and s3://b/@scope", "https://***@hub.example/x and s3://b/@scope"),
        ("https://hf_abcdef@hub.example/npm/@scope", "https://***@hub.example/npm/@scope"),
        ("https://hub.example/npm/@scope", "https://hub.example/npm/@scope"),
        ("http://a:b@one,http://c:d@two", "http://***@one,http://***@two"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1"),
    ],
)
def test_a_login_goes_whatever_its_password_holds_and_a_path_stays(said: str, shown: str) -> None:
    assert without_secrets(said, []) == shown


TOKEN = "hf_hf_hf_0123456789"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        *((f"no access with {TOKEN[:length]}", "no access with ***") for length in range(8, len(TOKEN) + 1)),
        *((f"{TOKEN[-length:]} has none", "*** has none") for length in range(8, len(TOKEN) + 1)),
        (f"no access with {TOKEN[:12]}...", "no access with ***..."),
        (TOKEN[:9], "***"),
        (TOKEN[-9:], "***"),
        (f"hf_hf_{TOKEN[:10]}", "hf_hf_***"),
        (f"no access with {TOKEN[:7]}", f"no access with {TOKEN[:7]}"),
        ("", ""),
    ],
)
def test_a_secret_that_was_cut_is_hidden_at_either_end_from_eight_characters_on(said: str, shown: str) -> None:
    assert without_cut_secrets(said, [TOKEN]) == shown
