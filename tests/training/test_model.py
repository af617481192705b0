"""Policies of every family: packed as exact as alone, weights in and out by name, adapters, and what cannot be trained refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_logprobs import PACK, SAMPLES, plain, wavy
from tiny_run import VOCABULARY, make_model, ranks, write_base
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils.logging import disable_progress_bar

from shoal.contracts.trainer import Lora, TrainerSettings
from shoal.training.attention import packed_attention
from shoal.training.batches import Segments
from shoal.training.lora import NoSuchLayer
from shoal.training.model import Policy, load_policy, load_reference, served_dtype, without_weights
from shoal.training.stored_weights import BadModel

disable_progress_bar()
TINY = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0, "dtype": "float32",
}  # fmt: skip
FAMILIES = {
    "Qwen2, tied": Qwen2Config(**TINY, tie_word_embeddings=True),
    "Qwen2 with a sliding window in its later layers": Qwen2Config(
        **TINY, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "Qwen3": Qwen3Config(**TINY, head_dim=8, tie_word_embeddings=False),
    "Qwen3, tied": Qwen3Config(**TINY, head_dim=8, tie_word_embeddings=True),
    "Llama": LlamaConfig(**TINY, tie_word_embeddings=False),
    "Mistral": MistralConfig(**TINY, sliding_window=None),
    "Mistral with a sliding window": MistralConfig(**TINY, sliding_window=7),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(request.param).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_a_pack_gives_what_transformers_gives_for_each_sample_alone(folder: Path) -> None:
    """Families differ in attention, window, ties and norms. Recomputation changes nothing either."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    alone = [torch.cat(part) for part in zip(*(plain(model, one) for one in SAMPLES), strict=True)]
    wavy(*alone, slice(None)).backward()
    wanted = gradients(model)
    policy = load_policy(folder, TrainerSettings(activation_recomputation="On"))
    loss, *found = policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))
    loss.backward()
    for ours, theirs in zip(found, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients(policy.model).items():
        assert (gradient - wanted[name]).norm() <= 1e-4 * wanted[name].norm() + 1e-6, name


def test_whole_weights_are_those_of_the_checkpoint_each_once(folder: Path) -> None:
    policy = load_policy(folder)
    weights = dict(policy.full_weights())
    assert list(weights) == sorted(weights)
    stored = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(tensor.numel() for tensor in weights.values()) == stored.num_parameters()  # a tied one is counted once
    assert all(torch.equal(tensor, stored.state_dict()[name]) for name, tensor in weights.items())


def test_another_versions_weights_are_taken_over_by_name(folder: Path) -> None:
    policy, other = load_policy(folder), load_reference(folder)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    other.load_weights(policy.full_weights())
    assert torch.equal(other(PACK)[1], policy(PACK)[1])
    weights = dict(policy.full_weights())
    norm = weights.pop("model.norm.weight")
    with pytest.raises(BadModel, match=r"weights are missing: model.norm.weight and 0 more"):
        other.load_weights(weights.items())
    with pytest.raises(BadModel, match=r"weight model.norm.weight of shape \(2, 16\) is not one of this model"):
        other.load_weights([("model.norm.weight", norm.reshape(2, 16))])


def set_config(base: Path, **values: Any) -> None:
    path = base / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_weights_are_trained_in_float32_and_served_in_the_bases_dtype(base: Path) -> None:
    set_config(base, dtype="bfloat16")
    assert {parameter.dtype for parameter in load_policy(base).parameters()} == {torch.float32}
    assert served_dtype(base) == torch.bfloat16
    set_config(base, dtype="float64")
    with pytest.raises(BadModel, match=r"config.json: dtype is 'float64'; allowed: float32, bfloat16, float16"):
        served_dtype(base)


def test_a_model_that_is_filled_by_rows_is_the_one_that_transformers_loads(folder: Path) -> None:
    wanted, found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), load_policy(folder).model
    buffers = [dict(model.named_buffers()) for model in (wanted, found)]
    assert buffers[0].keys() == buffers[1].keys()
    assert all(torch.equal(buffers[1][name], buffer) for name, buffer in buffers[0].items())
    assert wanted.state_dict().keys() == found.state_dict().keys()
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in wanted.state_dict().items())
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == wanted.config.tie_word_embeddings


def test_a_model_without_weights_takes_no_memory_for_them(base: Path) -> None:
    assert all(parameter.is_meta for parameter in without_weights(base).parameters())


def test_a_model_that_does_not_compute_what_no_file_has_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PreTrainedModel, "_init_weights", lambda self, module: None)
    with pytest.raises(BadModel, match=r"nothing computes its model\.rotary_emb\.\w*inv_freq, which no file has"):
        load_policy(base)


def test_a_tied_weight_may_be_stored_under_its_other_name_but_not_twice_otherwise(base: Path) -> None:
    make_model(tie_word_embeddings=True).save_pretrained(base)
    path = base / "model.safetensors"
    weights = load_file(path)
    embedding = weights.pop("model.embed_tokens.weight")
    save_file(weights | {"lm_head.weight": embedding}, path)
    assert torch.equal(load_policy(base).model.model.embed_tokens.weight, embedding)
    save_file(weights | {"lm_head.weight": embedding, "model.embed_tokens.weight": embedding + 1}, path)
    with pytest.raises(BadModel, match=r"ties lm_head.weight to model.embed_tokens.weight, but the files have two"):
        load_policy(base)


def headed(header: str) -> bytes:
    """A safetensors file with this header and four bytes."""
    return len(header).to_bytes(8, "little") + header.encode() + bytes(4)


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (lambda data: data[:-1], r"model.safetensors is cut short: it has \d+ bytes, and .* would end at \d+"),
        (lambda data: data[:5], "is no safetensors file: of its 5 bytes a header would take"),
        (lambda data: b"\xff" * 8 + data[8:], "is no safetensors file: of its"),
        (lambda data: data[:8] + b"[" + data[9:], "is no safetensors file: "),
        (lambda data: data.replace(b'"F32"', b'"I32"', 1), "is of type I32; allowed: F64, F32, BF16, F16"),
        (lambda data: data.replace(b'"shape":[32]', b'"shape":[33]', 1), "cannot lie in bytes"),
        (lambda data: headed('{"a":{"dtype":"F32","shape":[1e400],"data_offsets":[0,4]}}'), "is no safetensors file"),
        (
            lambda data: headed('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,Infinity]}}'),
            "is no safetensors file",
        ),
        (lambda data: headed("[" * 100_000), "is no safetensors file"),
    ],
)
def test_files_of_weights_that_are_not_whole_are_refused_before_anything_is_read(
    base: Path, spoilt: Callable[[bytes], bytes], message: str
) -> None:
    path = base / "model.safetensors"
    path.write_bytes(spoilt(path.read_bytes()))
    with pytest.raises(BadModel, match=message) as caught:
        load_policy(base)
    assert "\n" not in str(caught.value)


def test_a_reference_has_nothing_to_train(base: Path) -> None:
    assert not any(parameter.requires_grad for parameter in load_reference(base).parameters())


def test_a_reference_in_halves_is_kept_in_halves_and_gives_the_same_bits(base: Path) -> None:
    settings = TrainerSettings(data_type="BFloat16")
    trained, asked = load_policy(base, settings, ranks()), load_reference(base, settings, ranks())
    assert {parameter.dtype for parameter in asked.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in trained.parameters()} == {torch.float32}
    with torch.no_grad():
        wanted = trained(PACK)[1]
    assert torch.equal(asked(PACK)[1], wanted)
    whole = load_reference(base, TrainerSettings(data_type="Float32"), ranks())
    assert not torch.equal(whole(PACK)[1], wanted)


@pytest.mark.parametrize("load", [load_policy, load_reference])
def test_a_sign_of_life_is_given_when_a_model_is_loaded(base: Path, load: Any) -> None:
    beats: list[None] = []
    load(base, None, ranks(), lambda: beats.append(None))
    assert beats


def test_adapters_begin_as_the_base_model_and_are_merged_when_weights_are_asked_for(folder: Path) -> None:
    policy = load_policy(folder, TrainerSettings(lora=Lora(rank=3, alpha=6.0)))
    untouched = load_reference(folder)
    torch.testing.assert_close(policy(PACK)[1], untouched(PACK)[1], rtol=0, atol=0)
    trained = {name.rpartition(".")[2] for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained == {"lora_a", "lora_b"}
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_(std=0.1)
    merged = dict(policy.full_weights())
    assert set(merged) == {name for name, _ in untouched.full_weights()}
    untouched.load_weights(merged.items())
    torch.testing.assert_close(untouched(PACK)[1], policy(PACK)[1], rtol=1e-5, atol=1e-5)
    down = "model.layers.1.mlp.down_proj"
    layer = policy.model.get_submodule(down)
    change = merged[f"{down}.weight"] - layer.weight
    torch.testing.assert_close(change, 6.0 / 3 * layer.lora_b @ layer.lora_a, rtol=1e-4, atol=1e-6)


def test_adapters_are_drawn_alike_each_time_and_leave_the_random_state_alone(base: Path) -> None:
    settings = TrainerSettings(lora=Lora(rank=2))
    torch.manual_seed(5)
    first = load_policy(base, settings).state_dict()
    drawn = torch.rand(1)
    second = load_policy(base, settings).state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)


def test_only_adapters_get_gradients(base: Path) -> None:
    policy = load_policy(base, TrainerSettings(lora=Lora(rank=2), activation_recomputation="On"))
    policy(PACK, lambda here, logprobs, entropy: wavy(logprobs, entropy, here))[0].backward()
    with_gradient = {name.rpartition(".")[2] for name, one in policy.named_parameters() if one.grad is not None}
    assert with_gradient == {"lora_a", "lora_b"}


def test_an_adapter_for_a_layer_that_is_not_there_is_refused(base: Path) -> None:
    settings = TrainerSettings(lora=Lora(target_modules=["q_proj", "query"]))
    with pytest.raises(NoSuchLayer, match=r"names \['query'\].*allowed: \['down_proj', 'gate_proj', .*'v_proj'\]"):
        load_policy(base, settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final_logit_softcapping": 30.0}, "it sets final_logit_softcapping, which is not supported"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, r"layers of type \['chunked_attention'\]"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(base: Path, changes: dict[str, Any], message: str) -> None:
    model = make_model()
    for name, value in changes.items():
        setattr(model.config, name, value)
    model.save_pretrained(base)
    with pytest.raises(BadModel, match=rf"Qwen3ForCausalLM cannot be trained: .*{message}"):
        load_policy(base)


def test_a_model_whose_weights_could_not_be_published_under_their_own_names_is_refused(tmp_path: Path) -> None:
    experts = MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2)
    AutoModelForCausalLM.from_config(experts).save_pretrained(tmp_path / "base")
    with pytest.raises(BadModel, match=r"other names once loaded \(model.layers.0.mlp.experts.0.down_proj.weight\)"):
        load_policy(tmp_path / "base")


def test_attention_without_bounds_is_an_error_and_never_one_long_sequence() -> None:
    policy = Policy(make_model())
    with pytest.raises(ValueError, match="packed attention needs segment bounds and no mask"):
        policy.model(input_ids=PACK.tokens[None], position_ids=PACK.positions[None])


def test_bounds_of_another_pack_are_an_error() -> None:
    query = torch.zeros(1, 2, 10, 4)
    with pytest.raises(ValueError, match=r"segments end at 9, but the pack has \(1, 10\)"):
        packed_attention(torch.nn.Identity(), query, query, query, None, segments=Segments((0, 4, 9)))


@pytest.mark.parametrize("bounds", [(1, 5), (0, 5, 5), (0, 5, 3)])
def test_bounds_that_do_not_ascend_from_zero_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="allowed: ascending from 0, no sample empty"):
        Segments(bounds)


def test_attention_with_what_is_not_computed_here_is_an_error() -> None:
    query = torch.zeros(1, 2, 9, 4)
    with pytest.raises(ValueError, match=r"attention has \['s_aux'\], which the packed attention cannot compute"):
        packed_attention(
            torch.nn.Identity(), query, query, query, None, segments=Segments((0, 4, 9)), s_aux=torch.zeros(2)
        )
