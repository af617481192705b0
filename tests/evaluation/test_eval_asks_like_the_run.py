"""What `shoal eval` asks where the user leaves it open: as the model's run asked, within what the model has room for."""

from pathlib import Path

import pytest

from shoal.contracts.final_model import ORIGIN_FILE, ModelOrigin, read_origin
from shoal.inference.evaluation.sampling import EvaluationRequest, Settings, asked_targets, chosen, how_asked

ORIGIN = ModelOrigin(run="arithmetic", version=70, targets=[20, 30], max_completion_tokens=48)


def settled(
    wanted: EvaluationRequest, origin: ModelOrigin | None = ORIGIN, prompt: int = 7, positions: int = 64
) -> Settings:
    return chosen(wanted, origin, asked_targets(wanted, origin), prompt, positions)


def test_the_lengths_that_the_run_asked_for_are_asked_for_in_turn_and_told() -> None:
    wanted = EvaluationRequest(4, 1.0)
    settings = settled(wanted)
    assert [settings.target(index) for index in range(3)] == [20, 30, 20]
    assert settings.max_tokens == 48
    (lengths, limit) = how_asked(wanted, ORIGIN, settings)
    assert "ask for 20, 30 tokens, as those of its run did" in lengths
    assert "at most 48 tokens" in limit


@pytest.mark.parametrize(("length", "asked"), [(0, "no length"), (12, "12 tokens")])
def test_another_length_than_the_run_s_is_used_with_a_warning(length: int, asked: str) -> None:
    wanted = EvaluationRequest(4, 1.0, max_tokens=24, target_length=length)
    settings = settled(wanted)
    assert settings.target(1) == (length or None)
    assert how_asked(wanted, ORIGIN, settings) == [
        f"prompts ask for {asked}; those of its run asked for 20, 30 tokens, so scores may be lower"
    ]


def test_without_a_run_a_completion_has_what_the_model_has_room_for() -> None:
    assert settled(EvaluationRequest(4, 1.0), None).max_tokens == 57
    assert settled(EvaluationRequest(4, 1.0), None, positions=40_960).max_tokens == 1024
    assert settled(EvaluationRequest(4, 1.0), None).targets == ()
    assert (
        settled(EvaluationRequest(4, 1.0, max_tokens=99), None).max_tokens == 99
    )  # the user's own is refused, not changed


def test_a_file_that_says_nothing_readable_is_no_origin(tmp_path: Path) -> None:
    assert read_origin(tmp_path) is None
    (tmp_path / ORIGIN_FILE).write_bytes(b'{"run": "x", "targets": [-1]}')
    assert read_origin(tmp_path) is None
    (tmp_path / ORIGIN_FILE).write_bytes(ORIGIN.to_json())
    assert read_origin(tmp_path) == ORIGIN
