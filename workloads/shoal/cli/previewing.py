"""What `shoal env preview` prints, as lines. Pure. Texts are a data set's, so nothing in them may move a cursor."""

from collections.abc import Iterator, Sequence

from shoal.environments.preview import MOST_PROOFS, Preview, ScoredText, ShownTask, SourcePreview
from shoal.text import count, number, percent, plain

SHOWN_TOKENS = 200
"""Tokens shown of a prompt: its beginning and its end, which are what templates change."""
SHOWN_TEXT = 4000
SHOWN_ANSWER = 200


def preview_lines(found: Preview) -> Iterator[str]:
    """The lines, without problems."""
    yield f"an answer may have {found.longest_completion} tokens, prompt and answer together {found.longest_sequence}"
    for source in found.sources:
        if source.name:
            yield ""
        yield from _source_lines(source)


def _source_lines(found: SourcePreview) -> Iterator[str]:
    lengths = [len(each.tokens) for each in found.shown]
    source = f"source {found.name}, {percent(found.share)} of the prompts: " if found.name else ""
    yield f"{source}{count(found.tasks)} tasks; prompts of {min(lengths)} to {max(lengths)} tokens among those shown"
    for reason, rows in sorted(found.left_out.items()):
        yield f"{count(rows)} rows are left out: {plain(reason, 200)}"
    if found.proven:
        yield f"{found.proven} gold answers can be judged of the first {MOST_PROOFS}; prepare looks at all"
    for each in found.shown:
        yield ""
        yield from _task_lines(each)


def _task_lines(task: ShownTask) -> Iterator[str]:
    asked = f", asks for {task.target_length} tokens" if task.target_length is not None else ""
    yield f"task {plain(task.problem_id, 100)}: {len(task.tokens)} tokens{asked}"
    for line in _shortened(task.text).split("\n"):
        yield f"  | {plain(line, SHOWN_TEXT)}"
    yield f"  tokens: {' '.join(_token_words(task))}"
    yield (
        f"  right:  {_answer(task.right)}"
        if task.right is not None
        else "  right:  this environment knows no right answer"
    )
    yield f"  wrong:  {_answer(task.wrong)}"


def _token_words(task: ShownTask) -> Sequence[str]:
    words = [f"{token}:{plain(piece, 40)!r}" for token, piece in zip(task.tokens, task.pieces, strict=True)]
    if len(words) <= SHOWN_TOKENS:
        return words
    half = SHOWN_TOKENS // 2
    return [*words[:half], f"... {len(words) - 2 * half} more ...", *words[-half:]]


def _shortened(text: str) -> str:
    if len(text) <= SHOWN_TEXT:
        return text
    half = SHOWN_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters more ...\n{text[-half:]}"


def _answer(scored: ScoredText) -> str:
    reward = "cannot be scored" if scored.task_reward is None else f"scores {number(scored.task_reward, 2)}"
    why = f" ({plain(scored.detail, 200)})" if scored.detail else ""
    return f"{plain(scored.text, SHOWN_ANSWER)!r} {reward}{why}"
