"""Policies: a Hugging Face causal language model, made ready to be trained or only asked, sharded over the trainer's processes.

In: a checkpoint folder, the trainer's settings, the ranks. Out: a `Policy`, the one module whose forward pass runs decoder,
head and loss; so the head's weight is whole where it is needed and nowhere else. Weights are float32 whatever they are served in, and their shards
stay so when forward and backward run in bfloat16. Called by `loop`; `update` runs it.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoModelForCausalLM

from shoal.contracts.recipe import TrainerSettings
from shoal.training.attention import LAYER_TYPES, NAME
from shoal.training.batches import MicroBatch
from shoal.training.logprobs import TILE_ELEMENTS, Look, TileLoss, head_logprobs, head_loss
from shoal.training.lora import ADAPTERS, LoraLinear, add_adapters, merged_weight
from shoal.training.parallel import Ranks, waiting_for

RECOMPUTE_FROM_PARAMETERS = 50_000_000
"""From this size on activations are computed again in the backward pass (paper section 3.1.1): memory is what is short. Below,
they are a few megabytes, and a third more computing buys nothing.
"""
SERVED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class BadModel(ValueError):
    """The base checkpoint cannot be trained; the message says which file and why."""


class Policy(torch.nn.Module):
    """A causal language model whose forward pass takes a `MicroBatch`. The root of what is sharded, where anything is."""

    def __init__(self, model: Any, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.model = model
        self.ranks = ranks
        self.tile_elements = TILE_ELEMENTS
        model.config.use_cache = False
        model.set_attn_implementation(NAME)

    def forward(
        self, batch: MicroBatch, loss: TileLoss | None = None, look: Look | None = None
    ) -> tuple[Float[Tensor, ""] | None, Float[Tensor, " completion"], Float[Tensor, " completion"]]:
        """Loss (to be differentiated; None without `loss`), log-probability and entropy of every completion token of the pack.

        `look` is shown all log-probabilities before `loss` is asked for its first tile: a loss over whole completions is not a sum over tokens, but
        its gradient is known from them. That costs one more product with the head's weight at most (`head_loss`), and never the decoder's again.
        All ranks call this equally often: with nothing to do, on a filler.
        """
        head = self.model.get_output_embeddings()
        with torch.set_grad_enabled(torch.is_grad_enabled() and loss is not None):
            hidden = self.model.get_decoder()(
                input_ids=batch.tokens[None],
                position_ids=batch.positions[None],
                attention_mask=None,
                use_cache=False,
                segments=batch.segments,
            ).last_hidden_state[0]
            states = hidden[batch.predicted_from]
        arguments = (states, head.weight, batch.targets, batch.temperatures)
        if loss is None:
            return None, *head_logprobs(*arguments, tile_elements=self.tile_elements)
        return head_loss(*arguments, loss, look, tile_elements=self.tile_elements)

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return int(self.model.config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Where micro-batches must be: that of the computing, also when weights are offloaded."""
        return self.ranks.device if self.ranks is not None else next(self.parameters()).device

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight once, by its name in a checkpoint, whole, float32, on the host, adapters merged in, names ascending.

        All ranks take part, one tensor after the other: each must consume the whole iterator.
        """
        owners = dict(self.model.named_modules())
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        for name, tensor in sorted(self.model.state_dict().items()):
            module, _, last = name.rpartition(".")
            if name in tied or last in ADAPTERS:
                continue
            whole = self._whole(tensor)
            owner = owners[module]
            if isinstance(owner, LoraLinear) and last == "weight":
                whole = merged_weight(whole, self._whole(owner.lora_a), self._whole(owner.lora_b), owner.scale)
            yield name, whole.to("cpu", torch.float32).contiguous()

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over whole weights by name, each rank its own part; adapters are left alone. Raises BadModel on a name or shape not its own."""
        mine = self.model.state_dict()
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        missing = {name for name in mine if name.rpartition(".")[2] not in ADAPTERS} - tied
        for name, tensor in weights:
            if name not in mine or mine[name].shape != tensor.shape:
                raise BadModel(f"weight {name} of shape {tuple(tensor.shape)} is not one of this model")
            target = mine[name]
            if isinstance(target, DTensor):
                tensor = distribute_tensor(
                    tensor.to(target.device_mesh.device_type, target.dtype),
                    target.device_mesh,
                    target.placements,
                    src_data_rank=None,  # every rank has the whole tensor: cut, do not send
                )
            target.copy_(tensor)
            missing.discard(name)
        if missing:
            raise BadModel(f"weights are missing: {', '.join(sorted(missing)[:3])} and {max(0, len(missing) - 3)} more")

    def _whole(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        # An offloaded shard lies in host memory; what gathers it works on the device.
        return tensor.to(self.device).full_tensor() if isinstance(tensor, DTensor) else tensor


def no_beat() -> None:
    """For callers whom nobody watches for signs of life."""


def load_policy(
    folder: Path,
    settings: TrainerSettings | None = None,
    ranks: Ranks | None = None,
    beat: Callable[[], None] = no_beat,
) -> Policy:
    """The checkpoint as a policy to train: adapters, recomputation, compilation and sharding as `settings` say.

    Without `ranks` it stays on this process's CPU. `beat` is called whenever a rank has loaded. Raises BadModel when this trainer would compute
    something else than the model.
    """
    settings = settings or TrainerSettings()

    def load() -> Policy:
        return _shard(Policy(_to_train(folder, settings), ranks), settings, ranks, trained=True)

    return _in_turn(ranks, load, beat)


def load_reference(
    folder: Path,
    settings: TrainerSettings | None = None,
    ranks: Ranks | None = None,
    beat: Callable[[], None] = no_beat,
) -> Policy:
    """The checkpoint as a policy that is only asked for log-probabilities: the base model of the KL penalty, an older version."""
    settings = settings or TrainerSettings()

    def load() -> Policy:
        model = _load(folder).requires_grad_(False).eval()
        return _shard(Policy(model, ranks), settings, ranks, trained=False)

    return _in_turn(ranks, load, beat)


def _in_turn(ranks: Ranks | None, load: Callable[[], Policy], beat: Callable[[], None]) -> Policy:
    """Ranks of a machine load one after the other: each needs the whole model in memory until it has cut out its own part."""
    if ranks is None or ranks.world == 1:
        policy = load()
        beat()
        return policy
    last = torch.tensor([ranks.local_rank])
    with waiting_for("how many load the model on one machine", ranks.rank):
        dist.all_reduce(last, dist.ReduceOp.MAX)
    found: list[Policy] = []
    for turn in range(int(last) + 1):
        if turn == ranks.local_rank:
            found.append(load())
        ranks.all(True, "whose turn it is to load the model")
        beat()  # eight turns for a large model last longer than a process may be silent
    return found[0]


def _to_train(folder: Path, settings: TrainerSettings) -> Any:
    """The checkpoint with adapters, recomputation and compilation, not yet sharded."""
    model = _load(folder)
    if settings.lora is not None:
        add_adapters(model, settings.lora)
    if _recomputes(model, settings):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()  # recomputation is only active in training mode
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    else:
        model.eval()
    if settings.compile:
        for layer in _layers(model):
            layer.compile()
    return model


def _load(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    _check_computed(folder, model)
    return model


def _check_computed(folder: Path, model: Any) -> None:
    """Refuse a model whose attention or logits would silently come out otherwise here than where rollouts are made."""
    config = model.config.get_text_config()
    problems = []
    if not getattr(model, "_supports_attention_backend", False):
        problems.append("packed attention cannot replace its attention")
    if odd := set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES:
        problems.append(f"it has layers of type {sorted(odd)}; supported: {sorted(LAYER_TYPES)}")
    for name, neutral in (
        ("attn_logit_softcapping", None),
        ("final_logit_softcapping", None),
        ("logit_scale", 1.0),
        ("logits_scaling", 1.0),
    ):
        if getattr(config, name, None) not in (None, neutral):
            problems.append(f"it sets {name}, which is not supported")
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        problems.append("its head is not a matrix without a bias")
    if renamed := _renamed(folder, model):
        problems.append(f"its weights have other names once loaded ({renamed[0]}), so nobody could serve them")
    if problems:
        raise BadModel(f"{folder}: {type(model).__name__} cannot be trained: {'; '.join(problems)}")


def _renamed(folder: Path, model: Any) -> list[str]:
    """Weights that the checkpoint does not have by this name: transformers stacks experts, for one, and would publish the stack."""
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return sorted(set(model.state_dict()) - tied - names) if names else []


def _recomputes(model: Any, settings: TrainerSettings) -> bool:
    if settings.activation_recomputation == "Auto":
        return bool(model.num_parameters() >= RECOMPUTE_FROM_PARAMETERS)
    return settings.activation_recomputation == "On"


def _layers(model: Any) -> list[torch.nn.Module]:
    """The decoder's layers: what is sharded and compiled as one."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _shard(policy: Policy, settings: TrainerSettings, ranks: Ranks | None, *, trained: bool) -> Policy:
    """FSDP2 over each decoder layer and the rest, where there is anything to shard, offload or compute in halves.

    One process on a CPU in float32 goes without: there, every weight would be copied for each forward and backward pass.
    """
    half = settings.data_type == "BFloat16" or (
        settings.data_type == "Auto" and ranks is not None and ranks.device.type != "cpu"
    )
    if ranks is None or (ranks.world == 1 and ranks.device.type == "cpu" and not half and not settings.cpu_offload):
        return policy
    # A weight that is computed with in halves is still kept, reduced and updated in float32.
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    offload = CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if settings.cpu_offload else OffloadPolicy()
    options: dict[str, Any] = {"mesh": ranks.mesh, "mp_policy": precision, "offload_policy": offload}
    for layer in _layers(policy.model):
        fully_shard(layer, **options)
    # The root's weights (embedding, norm, head) are needed again at once by the backward pass, if there is one.
    fully_shard(policy, reshard_after_forward=not trained, **options)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # Gradients are summed: the loss is divided by a count over all ranks already. PREMUL_SUM is NCCL's alone.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return policy


def served_dtype(base: Path) -> torch.dtype:
    """The dtype in `config.json` of the base checkpoint."""
    path = base / "config.json"
    try:
        config = json.loads(path.read_bytes())
        name = config.get("dtype", config.get("torch_dtype"))
    except (OSError, ValueError, AttributeError) as error:
        raise BadModel(f"{path}: {error}") from error
    if name not in SERVED_DTYPES:
        raise BadModel(f"{path}: dtype is {name!r}; allowed: {', '.join(SERVED_DTYPES)}")
    return SERVED_DTYPES[name]
