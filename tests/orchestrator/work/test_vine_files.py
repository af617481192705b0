"""A run with Monte-Carlo values, as the orchestrator sees it: files with continuations, groups judged by their completions, time for two rounds."""

from pathlib import Path

import pytest

from protocol_stack import GROUP_SIZE, GROUPS, NEEDED, RUN, verdict_on
from run_states import Orchestrator
from servers import Redis
from shoal.contracts import keys
from shoal.contracts.algorithm import Algorithm, VinePpo
from shoal.contracts.problems import Refusal
from shoal.contracts.recipe import INTELLECT_2, Recipe
from shoal.contracts.steps import StepBatch
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.contracts.vine import VineSettings
from shoal.contracts.work import TOGETHER, lease_seconds
from shoal.orchestrator.http.service import public_run
from shoal.orchestrator.work.load import accepted_groups
from shoal.orchestrator.work.uploads import largest_file
from shoal.sampling.draw import draw_submission

VINE = VineSettings(segments=3, continuations=2)
COMPLETIONS = GROUPS * GROUP_SIZE
ROWS = COMPLETIONS * 5
TASKS = 50


@pytest.fixture
def run(tmp_path: Path, redis_server: Redis) -> Orchestrator:
    recipe = Recipe(
        prompts_per_step=NEEDED,
        group_size=GROUP_SIZE,
        max_sequence_length=128,
        algorithm=Algorithm(vineppo=VinePpo(segments=3, continuations=2)),
    )
    return Orchestrator(tmp_path, redis_server.url, recipe=recipe)


def found(run: Orchestrator, completions: list[float], continued: list[float]) -> Verdict:
    """An accept of a file whose rows have these task rewards."""
    rewards = [
        RowReward(task_reward=reward, length_penalty=0.0, reward=reward) for reward in (*completions, *continued)
    ]
    return verdict_on(run.claimed()).model_copy(update={"rewards": rewards, "rows": len(rewards)})


def accepted(run: Orchestrator) -> int:
    return accepted_groups(run.state, 0)


def test_groups_carry_signal_by_their_completions_whatever_continuations_say(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    run.hand_in(node)
    run.judge(found(run, [1.0, 0.0, 1.0, 1.0], [0.0, 1.0] * ((ROWS - COMPLETIONS) // 2)))
    assert accepted(run) == 1
    run.hand_in(node)
    run.judge(found(run, [1.0, 1.0, 0.0, 0.0], [0.0, 1.0] * ((ROWS - COMPLETIONS) // 2)))
    assert accepted(run) == 1
    run.hand_in(node)
    run.judge(found(run, [1.0, 0.0, 0.0, 1.0], [1.0] * (ROWS - COMPLETIONS)))
    assert accepted(run) == 3


@pytest.mark.parametrize("rows", [COMPLETIONS, ROWS - 1, ROWS + 1])
def test_an_accept_of_more_or_fewer_rows_is_not_taken(run: Orchestrator, rows: int) -> None:
    node = run.join()
    run.announce(0)
    run.hand_in(node)
    verdict = found(run, [1.0, 0.0, 1.0, 0.0], [0.0] * (rows - COMPLETIONS))
    with pytest.raises(Refusal, match=f"verdict accepts {rows} rows, a submission of this run has {ROWS}"):
        run.judge(verdict)
    assert accepted(run) == 0


def test_the_batch_counts_all_rows_of_a_file_and_its_groups_by_prompt(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    for _ in range(NEEDED // GROUPS):
        run.hand_in(node)
        run.judge(found(run, [1.0, 0.0, 1.0, 0.0], [0.5] * (ROWS - COMPLETIONS)))
    assert 0 in run.state.view.sealed, "the last verdict seals the step"
    batch = StepBatch.from_json(run.store.get(keys.step_batch(0)))
    assert (batch.groups, [file.rows for file in batch.files]) == (NEEDED, [ROWS] * (NEEDED // GROUPS))
    for file in batch.files:
        drawn = draw_submission(
            beacon=bytes.fromhex(batch.beacon), run=batch.run, step=0, node=file.node, submission=file.submission,
            task_count=TASKS, groups=GROUPS, group_size=GROUP_SIZE, targets=None,
        )  # fmt: skip
        assert file.prompt_indices == [group.prompt_index for group in drawn]


def test_nodes_are_told_which_continuations_to_make(run: Orchestrator) -> None:
    told = public_run(run.state)
    assert (told.run, told.vine, told.rows_each) == (RUN, VINE, 5)


def test_a_lease_has_time_for_completions_and_then_for_continuations(run: Orchestrator) -> None:
    node = run.join()
    run.announce(0)
    now = run.clock()
    assert run.lease(node).expires_unix == now + lease_seconds(64, ROWS - COMPLETIONS)
    decoding = lease_seconds(64) - lease_seconds(0)
    assert lease_seconds(64, 1) == lease_seconds(64, TOGETHER) == pytest.approx(lease_seconds(64) + decoding)
    assert lease_seconds(64, TOGETHER + 1) == pytest.approx(lease_seconds(64) + decoding * (1.5 + 0.5 / TOGETHER))


def test_the_largest_file_has_room_for_continuations(run: Orchestrator) -> None:
    recipe = run.config.recipe
    plain = recipe.model_copy(update={"algorithm": INTELLECT_2})
    five_times = plain.model_copy(update={"group_size": 5 * recipe.group_size})
    sizes = [largest_file(run.config.model_copy(update={"recipe": each})) for each in (recipe, five_times, plain)]
    assert sizes[0] == sizes[1] > sizes[2]
