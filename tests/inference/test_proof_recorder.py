"""Proofs from states recorded step by step: the same bytes as from each sequence's states in one piece, whatever came between."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from shoal.inference.proofs import FIRST_SLOTS, LostStatesError, ProofRecorder
from shoal.toploc import codec

HIDDEN = 128


def states_of(lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    return {
        f"request-{number}": torch.randn((length, HIDDEN), generator=generator).to(dtype)
        for number, length in enumerate(lengths)
    }


def encoded(whole: dict[str, torch.Tensor], masked: np.ndarray | None = None) -> dict[str, bytes]:
    return {name: codec.encode(states.float().numpy(), masked) for name, states in whole.items()}


@torch.inference_mode()
def decode(recorder: ProofRecorder, whole: dict[str, torch.Tensor], batch: int, seed: int = 0) -> None:
    """Decode as a scheduler does: at most `batch` at a time, in changing order, some preempted for a while, each finished when it ends."""
    choose = random.Random(seed)
    done = dict.fromkeys(whole, 0)
    while left := [name for name in whole if done[name] < len(whole[name])]:
        running = choose.sample(left, min(batch, len(left)))
        for _ in range(choose.randint(1, 45)):  # until the scheduler changes its mind, or a sequence ends
            recorder.add(running, torch.stack([whole[name][done[name]] for name in running]))
            for name in running:
                done[name] += 1
            ended = [name for name in running if done[name] == len(whole[name])]
            if ended:
                with torch.inference_mode(mode=False):  # asked for from outside the engine
                    recorder.finish({name: done[name] for name in ended})
                break


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_proofs_are_those_of_each_sequence_whole_whatever_ran_beside_it(dtype: torch.dtype) -> None:
    whole = states_of([1, 2, 31, 32, 33, 63, 64, 65, 70, 96, 100, 128, 129, 7, 7, 200], dtype)
    recorder = ProofRecorder()
    for seed in range(5):
        decode(recorder, whole, batch=5, seed=seed)
        assert recorder.take(list(reversed(whole))) == encoded(whole)


def test_sequences_in_step_have_the_proofs_of_sequences_alone() -> None:
    whole = states_of([96] * (2 * FIRST_SLOTS + 3))  # more than the first slots
    recorder = ProofRecorder()
    decode(recorder, whole, batch=len(whole))
    assert recorder.take(whole) == encoded(whole)


def test_masked_dimensions_are_those_of_the_version_in_memory() -> None:
    masks = [np.zeros(HIDDEN, bool) for _ in range(2)]
    masks[0][:5] = masks[1][100:] = True
    whole = states_of([40, 64])
    recorder = ProofRecorder(masks[0])
    made = []
    for mask in [*masks, None]:
        recorder.mask(mask)
        decode(recorder, whole, batch=2)
        made.append(recorder.take(whole))
        assert made[-1] == encoded(whole, mask)
    assert len({proofs["request-0"] for proofs in made}) == 3


def test_a_mask_never_changes_under_a_running_sequence() -> None:
    recorder = ProofRecorder()
    recorder.add(["a"], torch.ones((1, HIDDEN)))
    with pytest.raises(RuntimeError, match="only change while no sequence is running"):
        recorder.mask(None)


def test_aborted_sequences_are_forgotten_and_their_names_and_slots_used_again() -> None:
    recorder = ProofRecorder()
    whole = states_of([50, 70])
    for _ in range(FIRST_SLOTS):
        recorder.add(["request-0", "request-1"], torch.ones((2, HIDDEN)))
        recorder.add(["request-1"], torch.ones((1, HIDDEN)))
        recorder.forget(["request-0", "request-1", "never started"])
    decode(recorder, whole, batch=2)
    assert recorder.take(whole) == encoded(whole)


def test_of_sequences_that_run_together_only_the_aborted_ones_are_forgotten() -> None:
    recorder, whole = ProofRecorder(), states_of([70])["request-0"]
    for row in whole:
        recorder.add(["kept", "aborted"], torch.stack([row, row]))
    recorder.forget(["aborted"])
    recorder.finish({"kept": 70})
    assert recorder.take_made(wait=True) == {"kept": encoded({"request-0": whole})["request-0"]}
    with pytest.raises(LostStatesError, match="request aborted: 0 rows"):
        recorder.finish({"aborted": 70})


def test_proofs_are_given_once_when_they_are_made_while_other_sequences_run(deadline: Callable[..., object]) -> None:
    recorder, whole = ProofRecorder(), states_of([40])["request-0"]
    for row in whole:
        recorder.add(["ended", "runs"], torch.stack([row, row]))
    recorder.finish({"ended": 40})
    found: dict[str, bytes] = {}

    def taken() -> bool:
        found.update(recorder.take_made(wait=False))
        return bool(found)

    deadline("the proofs", taken)
    assert found == {"ended": encoded({"request-0": whole})["request-0"]}
    assert recorder.take_made(wait=True) == {}


def test_taken_proofs_are_gone() -> None:
    recorder = ProofRecorder()
    decode(recorder, states_of([3]), batch=1)
    assert len(recorder.take(["request-0"])["request-0"]) == codec.PROOF_BYTES
    assert recorder.take(["request-0"]) == {"request-0": b""}


def test_states_without_a_request_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 rows of hidden states for 1 sampled tokens"):
        ProofRecorder().add(["a"], torch.ones((2, HIDDEN)))


def test_a_sequence_with_more_tokens_than_rows_is_an_error() -> None:
    recorder = ProofRecorder()
    recorder.add(["a"], torch.ones((1, HIDDEN)))
    with pytest.raises(LostStatesError, match="request a: 1 rows of hidden states for 2 sampled tokens"):
        recorder.finish({"a": 2})
    with pytest.raises(LostStatesError, match="request b: 0 rows of hidden states for 1 sampled tokens"):
        recorder.finish({"b": 1})


def test_states_that_are_not_finite_are_an_error_when_proofs_are_taken() -> None:
    recorder = ProofRecorder()
    recorder.add(["a"], torch.full((1, HIDDEN), torch.nan))
    recorder.finish({"a": 1})
    with pytest.raises(ValueError, match="not finite"):
        recorder.take(["a"])


@torch.inference_mode()
def test_whole_proofs_of_running_sequences_are_told_and_stay() -> None:
    whole = states_of([100, 70])
    proofs, recorder, told = encoded(whole), ProofRecorder(), dict.fromkeys(whole, b"")
    for step in range(70):
        recorder.add(list(whole), torch.stack([states[step] for states in whole.values()]))
        had = {name: len(bytes_told) // codec.PROOF_BYTES for name, bytes_told in told.items()}
        for name, new in recorder.so_far(had).items():
            told[name] += new
    for work in recorder._working:
        work.result()
    had = {name: len(bytes_told) // codec.PROOF_BYTES for name, bytes_told in told.items()}
    for name, new in recorder.so_far(had).items():
        told[name] += new
    assert told == {name: each[: 2 * codec.PROOF_BYTES] for name, each in proofs.items()}, "those of 64 tokens"
    assert recorder.so_far({"unknown": 0}) == {"unknown": b""}
    recorder.finish({"request-1": 70})
    assert recorder.take(["request-1"]) == {"request-1": proofs["request-1"]}
