"""Opens one uploaded file for the page: its rows, with the text of their tokens.

A file is a stranger's: its bytes must have the digest that the verdict names. It is parsed as validators do, in a child process with limits on
memory and time. Only one is parsed at a time, and the last few are kept. Tokens become text by the base model's own tokenizer, which prepare made;
where that is not available the page shows numbers.
"""

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError
from tokenizers import Tokenizer

from shoal.contracts import keys
from shoal.contracts.answers import MOST_SAMPLES
from shoal.contracts.rollouts import BadRollouts, Rollout, RolloutMetadata
from shoal.contracts.run import Prepared
from shoal.contracts.verdicts import Verdict
from shoal.contracts.vine import VineSettings
from shoal.files import file_sha256
from shoal.report.continuations import completions_of, parents_of
from shoal.storage import NotFound, Store
from shoal.text import plain
from shoal.validation.parsing import parse_file

LARGEST_FILE_BYTES = 64 << 20
"""A page shows no more; a submission of the paper's size is some tens of megabytes."""
MOST_TOKENS = 2_000_000
"""Fewer than a file of the default recipes may have (2,097,152, with continuations 3,407,872); more than a file has whose answers are not all as long
as allowed. Rows of this many take about 250 MB here."""
MOST_ROWS = 65_536
LONGEST_ROW_TOKENS = 131_072
"""Longest row, from which the reader's memory limit is computed."""
KEPT_FILES = 2
SHOWN_TOKENS = 4096
"""Of a completion, and of a prompt, in one answer; the rest is counted."""
LONGEST_CHARACTER_TOKENS = 8
"""Tokens that may together make one character: UTF-8 has four bytes, and a tokenizer may split each."""
TOKENIZER_FILE = keys.BASE_MODEL + "tokenizer.json"
DEADLINE_SECONDS = 60.0
SAMPLE_TOKENS = 200
"""Of a prompt and of an answer, the last: where templates end, and where a final answer stands."""

Parsed = tuple[list[Rollout], RolloutMetadata]


class NotShown(Exception):
    """The file cannot be shown; the message says why."""


class TokenText:
    """Text of token ids; numbers in brackets where there is no tokenizer or no such token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._size = tokenizer.get_vocab_size(with_added_tokens=True) if tokenizer is not None else 0

    def pieces(self, tokens: Sequence[int]) -> list[tuple[int, str]]:
        """(number of tokens, text) one after the other: tokens that are one character only together are one piece."""
        found: list[tuple[int, str]] = []
        at = 0
        while at < len(tokens):
            if self._tokenizer is None or not 0 <= tokens[at] < self._size:
                found.append((1, f"[{tokens[at]}]"))
                at += 1
                continue
            for width in range(1, LONGEST_CHARACTER_TOKENS + 1):
                some = [token for token in tokens[at : at + width] if 0 <= token < self._size]
                text = self._tokenizer.decode(some, skip_special_tokens=False)
                if len(some) < width or "\N{REPLACEMENT CHARACTER}" not in text:
                    break
            if "\N{REPLACEMENT CHARACTER}" in text or len(some) < width:
                width, text = 1, self._tokenizer.decode([tokens[at]], skip_special_tokens=False)
            found.append((width, text))
            at += width
        return found

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(text for _, text in self.pieces(tokens))


class RolloutFiles:
    """Files of one run's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Parsed] = OrderedDict()
        self._text: TokenText | None = None

    def open(self, verdict: Verdict, *, keep: bool = True) -> Parsed:
        """Rows and metadata; raises `NotShown`, or `storage.StoreUnavailable`. `keep`: a person reads it, and will ask for it again."""
        key = keys.upload(verdict.node, verdict.sha256)
        with self._lock:
            if not keep:
                return self._kept.get(key) or self._parse(key, verdict.sha256)
            if key not in self._kept:
                self._kept[key] = self._parse(key, verdict.sha256)
                while len(self._kept) > KEPT_FILES:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]

    def _parse(self, key: str, sha256: str) -> Parsed:
        size = self._store.size(key)
        if size is None:
            raise NotShown("the file is no longer in the store")
        if size > LARGEST_FILE_BYTES:
            raise NotShown(f"the file has {size} bytes; this page opens up to {LARGEST_FILE_BYTES}")
        with tempfile.TemporaryDirectory(prefix="shoal-ui-") as folder:
            path = Path(folder) / "file.parquet"
            try:
                self._store.get_to_file(key, path)
            except NotFound:
                raise NotShown("the file is no longer in the store") from None
            if file_sha256(path) != sha256:
                raise NotShown("the store's bytes differ from the judged ones: their SHA-256 is different")
            try:
                limits = MOST_TOKENS, LONGEST_ROW_TOKENS, MOST_ROWS
                return parse_file(path, *limits, route_bytes=self._route_bytes(), deadline_seconds=DEADLINE_SECONDS)
            except BadRollouts as error:
                raise NotShown(f"the file is not readable as rollouts: {plain(error, 500)}") from None

    def _route_bytes(self) -> int:
        """Of the routes of a token in the run's files, as prepare wrote it."""
        try:
            routes = Prepared.from_json(self._store.get(keys.PREPARED)).routes
        except (NotFound, ValidationError):
            return 0
        return routes.bytes_a_token if routes is not None else 0

    def text(self) -> TokenText:
        """The tokenizer of the base model, read once it is there."""
        if self._text is None:
            try:
                found = Tokenizer.from_str(self._store.get(TOKENIZER_FILE).decode())
            except NotFound:
                return TokenText(None)
            except Exception as error:  # the library raises plain Exception for what it cannot read
                structlog.get_logger().warning("cannot read the tokenizer", error=str(error)[:300])
                found = None
            self._text = TokenText(found)
        return self._text


def file_document(parsed: Parsed, verdict: Verdict, vine: VineSettings | None = None) -> dict[str, Any]:
    """The file's own words about itself, and its rows in short, each continuation with the row and the token that it continues from."""
    rows, metadata = parsed
    parents = parents_of(len(rows), verdict.step, vine)
    return {
        "metadata": {name: plain(value, 200) for name, value in vars(metadata).items()},
        "rows": [_row_summary(rows, number, parents.get(number), verdict) for number in range(len(rows))],
    }


def _row_summary(rows: Sequence[Rollout], number: int, parent: int | None, verdict: Verdict) -> dict[str, Any]:
    row = rows[number]
    given = verdict.rewards[number] if number < len(verdict.rewards) else None
    sampled = [value for value, own in zip(row.completion_logprobs, row.completion_mask, strict=True) if own]
    return {
        "row": number,
        "problem": plain(row.problem_id, 100),
        "prompt_index": row.prompt_index,
        "sample_index": row.sample_index,
        "task_type": plain(row.task_type, 60),
        "tokens": len(row.completion_tokens),
        "prompt_tokens": len(row.prompt_tokens),
        "continues": parent,
        "cut": len(row.prompt_tokens) - len(rows[parent].prompt_tokens) if parent is not None else None,
        "target_length": row.target_length,
        "finish_reason": plain(row.finish_reason, 20),
        "temperature": _finite(row.temperature),
        "logprob_mean": _finite(sum(sampled) / len(sampled)) if sampled else None,
        "claimed": _rewards(row.task_reward, row.length_penalty, row.reward),
        "given": _rewards(given.task_reward, given.length_penalty, given.reward) if given is not None else None,
    }


def _rewards(task: float | None, penalty: float | None, total: float | None) -> list[float | None]:
    return [_finite(value) for value in (task, penalty, total)]


def _finite(value: float | None) -> float | None:
    """JSON has no infinities, and a stranger may write them."""
    return None if value is None or value != value or abs(value) == float("inf") else value


def row_document(
    parsed: Parsed, verdict: Verdict, number: int, words: TokenText, vine: VineSettings | None = None
) -> dict[str, Any]:
    """One row with its text; raises `NotShown` for a row that is not there. Text is as it is: the page shows control characters as such."""
    rows, _ = parsed
    if not 0 <= number < len(rows):
        raise NotShown(f"the file has {len(rows)} rows, from 0")
    row = rows[number]
    shown = row.completion_tokens[:SHOWN_TOKENS]
    tokens: list[list[Any]] = []
    at = 0
    for width, text in words.pieces(shown):
        logprobs = [_finite(value) for value in row.completion_logprobs[at : at + width]]
        lowest = min((value for value in logprobs if value is not None), default=None)
        tokens.append(
            [list(shown[at : at + width]), _encodable(text), lowest, all(row.completion_mask[at : at + width])]
        )
        at += width
    return {
        **_row_summary(rows, number, parents_of(len(rows), verdict.step, vine).get(number), verdict),
        "prompt": _encodable(words.text(row.prompt_tokens[:SHOWN_TOKENS])),
        "prompt_left_out": max(0, len(row.prompt_tokens) - SHOWN_TOKENS),
        "completion": tokens,
        "completion_left_out": len(row.completion_tokens) - len(shown),
    }


def sample_documents(
    parsed: Parsed, verdict: Verdict, words: TokenText, vine: VineSettings | None = None
) -> list[dict[str, Any]]:
    """The first answers to different problems, with the ends of prompt and answer as text."""
    rows, _ = parsed
    completions = completions_of(len(rows), verdict.step, vine)
    first: dict[int, int] = {}
    for number in range(completions):
        first.setdefault(rows[number].prompt_index, number)
    return [
        {
            **_row_summary(rows, number, None, verdict),
            "prompt": _encodable(words.text(rows[number].prompt_tokens[-SAMPLE_TOKENS:])),
            "answer": _encodable(words.text(rows[number].completion_tokens[-SAMPLE_TOKENS:])),
        }
        for number in list(first.values())[:MOST_SAMPLES]
    ]


def _encodable(text: str) -> str:
    """Without lone surrogates, which UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()
