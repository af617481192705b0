"""The choice of 128 values: numpy's and torch's agree to the bit with a plain sort, whatever ties, masks and widths."""

import numpy as np
import pytest
import torch

from shoal.proofs import reduction
from shoal.proofs.reduction import points, reduce_chunks, reduce_on_device
from shoal.toploc import codec
from shoal.toploc.top_points import Bool, top_points


def by_sorting(chunk: np.ndarray, masked: Bool | None) -> list[int]:
    """Masked values last, then by size, then by index: straight from the rule."""
    last = np.zeros(len(chunk), dtype=bool) if masked is None else np.tile(masked, len(chunk) // len(masked))
    order = sorted(range(len(chunk)), key=lambda i: (last[i], -abs(float(chunk[i])), i))
    return sorted(order[:128])


def cases() -> list[tuple[np.ndarray, Bool | None]]:
    random, made = np.random.default_rng(0), []
    for hidden, tokens in ((128, 1), (128, 32), (200, 3), (1024, 32), (1025, 17), (4096, 5)):
        for grain in (None, 1, 8):  # rounded to whole numbers or eighths, most values tie
            for share in (None, 0.3):
                chunks = random.normal(size=(3, tokens * hidden)).astype(np.float32)
                if grain is not None:
                    chunks = np.round(chunks * grain) / np.float32(grain)
                made.append((chunks, None if share is None else random.random(hidden) < share))
    return made


@pytest.mark.parametrize(("chunks", "masked"), cases())
def test_numpy_and_torch_choose_what_a_sort_chooses(chunks: np.ndarray, masked: Bool | None) -> None:
    indices, bits = top_points(chunks, masked)
    assert indices[0].tolist() == by_sorting(chunks[0], masked)
    on_device = reduce_on_device(torch.from_numpy(chunks), masked)
    assert on_device[0].tolist() == indices.tolist()
    assert on_device[1].tolist() == bits.tolist()


@pytest.mark.parametrize(("chunks", "masked"), cases())
def test_bfloat16_states_are_chosen_from_as_if_they_were_float32(chunks: np.ndarray, masked: Bool | None) -> None:
    short = torch.from_numpy(chunks).bfloat16()
    wanted = top_points(short.float().numpy(), masked)
    for indices, bits in (reduce_chunks(short, masked), reduce_on_device(short, masked)):
        assert indices.tolist() == wanted[0].tolist()
        assert bits.tolist() == wanted[1].tolist()


def test_a_mask_that_leaves_too_few_values_takes_the_largest_masked_ones() -> None:
    chunk = np.arange(1, 131, dtype=np.float32)[None]
    masked = np.zeros(130, dtype=bool)
    masked[100:] = True  # 100 remain; 28 are missing: the largest of the masked ones
    for indices in (top_points(chunk, masked)[0], reduce_on_device(torch.from_numpy(chunk), masked)[0]):
        assert indices.tolist() == [[*range(100), *range(102, 130)]]


@pytest.mark.parametrize("way", [reduce_chunks, reduce_on_device])
@pytest.mark.parametrize("tokens", [1, 32, 45, 300])
@pytest.mark.parametrize("share", [None, 0.3])
def test_a_completion_s_points_prove_what_its_states_do(
    monkeypatch: pytest.MonkeyPatch, way: object, tokens: int, share: float | None
) -> None:
    """As on a CPU and as on a GPU, in several parts, with a short last chunk."""
    monkeypatch.setattr(reduction, "reduce_chunks", way)
    monkeypatch.setattr(reduction, "TOGETHER", 4)
    random = np.random.default_rng(tokens)
    masked = None if share is None else random.random(256) < share
    states = torch.from_numpy(random.normal(size=(tokens, 256)).astype(np.float32)).bfloat16()
    theirs = states.float().numpy() * random.normal(1.0, 0.02, (tokens, 256)).astype(np.float32)
    proofs = codec.parse(codec.encode(theirs, masked), tokens, 256)
    found = codec.compare_points(proofs, *points(states, masked)).rows()
    assert found == codec.compare(proofs, states.float().numpy(), masked)
    assert any(each.mantissa_error_mean > 0 for each in found)


def test_points_of_no_tokens_and_of_a_wrong_mask() -> None:
    indices, bits = points(torch.zeros(0, 256))
    assert (indices.shape, bits.shape) == ((0, 128), (0, 128))
    with pytest.raises(ValueError, match="a mask of shape"):
        points(torch.zeros(3, 256), np.zeros(128, dtype=bool))


def test_half_precision_states_are_reduced_like_the_same_numbers_in_float32() -> None:
    half = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)).half()
    assert reduce_chunks(half)[0].tolist() == top_points(half.float().numpy())[0].tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_states_that_are_not_finite_are_refused_wherever_they_are_found(value: float) -> None:
    chunk = torch.ones(1, 256)
    chunk[0, 7] = value
    with pytest.raises(ValueError, match="last hidden states are not finite"):
        reduce_chunks(chunk)
    indices, bits = reduce_on_device(chunk)  # a device is not waited for ...
    with pytest.raises(ValueError, match="last hidden states are not finite"):
        codec.prove(indices.numpy(), bits.numpy().astype(np.uint16))  # ... and proving refuses


def test_a_model_too_narrow_for_a_proof_is_named_on_the_device_too() -> None:
    with pytest.raises(ValueError, match="a chunk of 64 values has no proof: the hidden size must be at least 128"):
        reduce_on_device(torch.ones(1, 64))
