"""A run whose rows went on under newer weights, recomputed after its store let the versions go: each segment is held to its own weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tampering import Copy
from tiny_world import STEPS, SwappingWorld, World

from servers import Redis
from shoal.contracts import keys
from shoal.contracts.rollouts import SEGMENT_TOKENS, Rollout, read_rollouts
from shoal.ledger.entries import Accepted


@pytest.fixture(scope="module")
def swapping(tmp_path_factory: pytest.TempPathFactory, redis_server: Redis) -> SwappingWorld:
    made = SwappingWorld(tmp_path_factory.mktemp("swapping") / "run", redis_server.url)
    made.play()
    return made


def without_weights(copy: Copy) -> Copy:
    """What retention leaves of old versions: their seals."""
    for info in copy.store.list(keys.VERSIONS):
        if info.key.endswith(".bin"):
            copy.store.delete(info.key)
    return copy


def of_two_versions(copy: Copy, step: int) -> list[Accepted]:
    """The files of a step that have a row of two versions."""
    return [
        fact
        for fact in copy.accepted(step)
        if any(len(row.versions) > 1 for row in read_rollouts(copy.store.get(keys.upload(fact.node, fact.file)))[0])
    ]


def test_files_of_several_versions_are_checked_when_all_their_versions_were_made_again(
    swapping: SwappingWorld, tmp_path: Path
) -> None:
    copy = without_weights(Copy(swapping, tmp_path))
    assert all(of_two_versions(copy, step) for step in range(1, STEPS))
    result = copy.audit("draws", "rewards", "proofs", "steps")
    assert result.findings == []
    assert result.steps_equal == STEPS
    assert not result.stages["proofs"].unchecked
    assert result.stages["proofs"].done == result.stages["proofs"].of > 0
    assert not (tmp_path / "audit" / "made").exists()


def old_weights_named_new(copy: Copy, row: Rollout) -> Rollout:
    """Its second segment was sampled and proven under the old weights."""
    old = row.versions[0]
    end = copy.world.facts.eos_token_ids
    tokens, _ = World.answers(copy.world, [row.prompt_tokens], [row.seed], sorted(end), old)[0]
    lone = replace(
        row,
        completion_tokens=tokens,
        completion_mask=[True] * len(tokens),
        segment_versions=(),
        segment_starts=(),
        policy_version=old,
    )
    return replace(
        copy.world.proven(lone),
        policy_version=row.policy_version,
        segment_versions=row.segment_versions,
        segment_starts=row.segment_starts,
    )


def another_token(copy: Copy, row: Rollout) -> Rollout:
    """A token of its second segment is another, with proofs and log-probabilities of the weights that it names."""
    tokens = list(row.completion_tokens)
    tokens[SEGMENT_TOKENS] = 5 if tokens[SEGMENT_TOKENS] != 5 else 6
    return copy.world.proven(replace(row, completion_tokens=tokens))


@pytest.mark.parametrize(("lie", "words"), [(old_weights_named_new, "computation: "), (another_token, "redraw: ")])
def test_a_lie_about_a_later_segment_is_found_in_a_finished_run(
    swapping: SwappingWorld, tmp_path: Path, lie: Callable[[Copy, Rollout], Rollout], words: str
) -> None:
    copy = Copy(swapping, tmp_path)
    fact = of_two_versions(copy, STEPS - 1)[0]
    copy.replace_file(fact, lambda rows: [lie(copy, row) if len(row.versions) > 1 else row for row in rows])
    found = without_weights(copy).audit("proofs", "steps").findings
    assert any(each.stage == "proofs" and f"it was accepted although: {words}" in each.what for each in found), found
