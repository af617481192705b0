"""Policies: a Hugging Face causal language model, made ready to be trained or only asked, sharded over the trainer's processes.

In: a checkpoint folder, the trainer's settings, the ranks. Out: a `Policy`, the one module whose forward pass runs decoder,
head and loss; so the head's weight is whole where it is needed and nowhere else. Weights are float32 whatever they are served in, and their shards
stay so when forward and backward run in bfloat16. A model is built and sharded without weights; then all ranks read their rows at once. Of 32B on
16 ranks each reads 4.1 GB and has 8.2 GB in float32; the host never holds more than that and some pieces. Called by `loop`; `update` runs it.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from shoal.contracts.routes import NoRoutes, RouteShape
from shoal.contracts.trainer import TrainerSettings
from shoal.models.head import logits_divisor
from shoal.models.places import ADAPTERS, Place, places
from shoal.planner.memory import RECOMPUTE_FROM_PARAMETERS
from shoal.storage.parallel import in_parallel
from shoal.training.attention import LAYER_TYPES, NAME, NEEDED_BY
from shoal.training.batches import MicroBatch
from shoal.training.context_parallel import PackPart, part_of, undividable
from shoal.training.experts import NAME as EXPERTS
from shoal.training.experts import RecordedRoutes, RoutedTokens, keep_experts, uncomputable
from shoal.training.host_copy import local, own_rows
from shoal.training.logprobs import ACCELERATOR_TILE_ELEMENTS, TILE_ELEMENTS, Look, TileLoss, head_logprobs, head_loss
from shoal.training.lora import Adapter, adapter_of, add_adapters, draw_adapters, merged_weight
from shoal.training.parallel import Ranks
from shoal.training.stored_weights import BadModel, StoredTensor, StoredWeights, weights_in_folder

PIECE_BYTES = 4 << 20
"""What is read of a weight at once, and by a thread."""
ROUTED_BY = {"deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}}
"""By model type, what config.json must say of routers. transformers computes this whatever it says, and vLLM what it says, by default a softmax."""
SERVED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Policy(torch.nn.Module):
    """A causal language model whose forward pass takes a `MicroBatch`. The root of what is sharded, where anything is."""

    def __init__(self, model: Any, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.model = model
        self.ranks = ranks
        on_cpu = ranks is None or ranks.device.type == "cpu"
        self.tile_elements = TILE_ELEMENTS if on_cpu else ACCELERATOR_TILE_ELEMENTS
        self.offloads_activations = False
        # Granite divides its logits by a number; a temperature is another such number.
        self.logits_divisor = logits_divisor(model.config)
        model.config.use_cache = False
        model.set_attn_implementation(NAME)
        self.routed = RoutedTokens(model)
        if self.routed.layers:
            model.set_experts_implementation(EXPERTS)
        self.recorded: RecordedRoutes | None = None

    def record_routes(self, shape: RouteShape, *, follows: bool) -> None:
        """From now on compare the routes that packs have with what the routers choose, and with `follows` use them. Raises BadModel."""
        try:
            self.recorded = RecordedRoutes(self.model, shape, follows=follows)
        except NoRoutes as error:
            raise BadModel(f"recipe.routerReplay: {error}") from error

    def forward(
        self, batch: MicroBatch, loss: TileLoss | None = None, look: Look | None = None
    ) -> tuple[Float[Tensor, ""] | None, Float[Tensor, " completion"], Float[Tensor, " completion"]]:
        """Loss (to be differentiated; None without `loss`), log-probability and entropy of every completion token of the pack.

        `look` is shown all log-probabilities before `loss` is asked for its first tile: a loss over whole completions is not a sum over tokens, but
        its gradient is known from them. That costs one more product with the head's weight at most (`head_loss`), and never the decoder's again.
        All ranks call this equally often: with nothing to do, on a filler. Ranks that share a pack are all given it whole: then the
        loss is that of this rank's part, gradients are summed over ranks anyway, and log-probabilities and entropies are the pack's.
        """
        head, group = self.model.get_output_embeddings(), None if self.ranks is None else self.ranks.context_group
        part, count = part_of(batch, group), len(batch.targets)
        counted = part.own if loss is not None and count > 0 else 0  # a filler's token is nobody's
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and loss is not None),
            self._kept_activations(),
            self.routed.counting(counted),
            self._recorded_routes(batch, part, counting=loss is not None),
        ):
            hidden = self.model.get_decoder()(
                input_ids=part.tokens[None],
                position_ids=part.positions[None],
                attention_mask=None,
                use_cache=False,
                segments=part.segments,
                context_group=group,
            ).last_hidden_state[0]
            states = hidden[part.predicted_from]
        mine = part.completions
        arguments = (states, head.weight, batch.targets[mine], batch.temperatures[mine] * self.logits_divisor)
        value = None
        if loss is None:
            found = head_logprobs(*arguments, tile_elements=self.tile_elements)
        else:
            whole = part.look(look, count)
            value, *found = head_loss(*arguments, part.loss(loss), whole, tile_elements=self.tile_elements)
        logprobs, entropy = part.gather(count, *found)
        return value, logprobs, entropy

    def _recorded_routes(self, batch: MicroBatch, part: PackPart, *, counting: bool) -> AbstractContextManager[object]:
        """The routes of this rank's part of a pack, at its routers."""
        if self.recorded is None:
            return nullcontext()
        routes = None if batch.routes is None else batch.routes[part.completions]
        return self.recorded.given(routes, part.predicted_from, counting=counting)

    def _kept_activations(self) -> AbstractContextManager[object]:
        """Where the decoder's forward pass leaves what its backward pass reads: the layers' inputs, where activations are computed again.

        In host memory they cost two copies of hidden size x tokens a layer: 0.7 GB for 32,768 tokens of 32B, about 15 ms at 50 GB/s,
        beside 300 ms of computing.
        """
        if not self.offloads_activations:
            return nullcontext()
        context: AbstractContextManager[object] = save_on_cpu(pin_memory=self.device.type == "cuda")
        return context

    @property
    def vocabulary(self) -> int:
        """Tokens that the model knows."""
        return int(self.model.config.vocab_size)

    @property
    def device(self) -> torch.device:
        """Where micro-batches must be: that of the computing, also when weights are offloaded."""
        return self.ranks.device if self.ranks is not None else next(self.parameters()).device

    def hidden_matrices(self) -> list[torch.nn.Parameter]:
        """What Muon updates, where it is asked for: every parameter with two dimensions in a layer of the decoder. Embeddings and head are in none,
        norms and biases have one dimension, and stacked experts three. Raises BadModel for adapters, whose product is the update, not themselves."""
        if any(isinstance(module, Adapter) for module in self.modules()):
            raise BadModel("muon updates whole matrices: it cannot train the adapters of trainer.settings.lora")
        return [each for layer in _layers(self.model) for each in layer.parameters() if each.dim() == 2]

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight once, by its name in a checkpoint, whole, float32, on the host, adapters merged in, names ascending.

        All ranks take part, one tensor after the other: each must consume the whole iterator. The stacks of one layer's experts are whole at a time.
        """
        modules, state = dict(self.model.named_modules()), self.model.state_dict()
        held: dict[str, Tensor] = {}

        def whole(name: str) -> Tensor:
            if name not in held:
                held[name] = self._whole(state[name])
            return held[name]

        for name, place in places(self.model).items():
            within = place.state.rpartition(".")[0] + "."
            for other in [other for other in held if not other.startswith(within)]:
                del held[other]
            found = place.within(whole(place.state))
            if (adapter := adapter_of(place, modules)) is not None:
                lora_a, lora_b = (whole(f"{adapter[0]}.{each}") for each in ADAPTERS)
                if place.expert is not None:
                    lora_a, lora_b = lora_a[place.expert], lora_b[place.expert]
                found = merged_weight(found, lora_a, lora_b, adapter[1].scale)
            yield name, found.to("cpu", torch.float32).contiguous()

    @torch.no_grad()
    def load_weights(
        self, weights: Iterable[tuple[str, Tensor | StoredTensor]], beat: Callable[[], None] = lambda: None
    ) -> None:
        """Take over weights by name, each rank its own rows; adapters are left alone. `beat` is called for each piece that was read.

        Raises BadModel on a name or shape not its own, and for one that is missing.
        """
        mine, known = self.model.state_dict(), places(self.model)
        missing = set(known)
        pieces: list[tuple[Tensor, Tensor | StoredTensor, int, int]] = []
        for name, given in weights:
            place = known.get(name)
            if place is None or place.shape != given.shape:
                raise BadModel(f"weight {name} of shape {tuple(given.shape)} is not one of this model")
            pieces += _pieces(place, mine[place.state], given)
            missing.discard(name)
        if missing:
            raise BadModel(f"weights are missing: {', '.join(sorted(missing)[:3])} and {max(0, len(missing) - 3)} more")
        device = self.device

        def put(piece: tuple[Tensor, Tensor | StoredTensor, int, int]) -> None:
            place, given, first, count = piece
            if device.type == "cuda":
                torch.cuda.set_device(device)  # a new thread begins on the first one, and would take memory there
            with torch.no_grad():
                place.copy_(_rows(given, first, count))
            beat()

        in_parallel(put, pieces)

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
    weights: StoredWeights | None = None,
) -> Policy:
    """The checkpoint as a policy to train: adapters, recomputation, compilation and sharding as `settings` say.

    `weights` are those of the folder's files where they are not given. Without `ranks` it stays on this process's CPU. `beat` is called while weights
    are read. Raises BadModel when this trainer would compute something else than the model.
    """
    return _loaded(folder, settings, ranks, beat, weights, policy_to_train)


def load_reference(
    folder: Path,
    settings: TrainerSettings | None = None,
    ranks: Ranks | None = None,
    beat: Callable[[], None] = no_beat,
    weights: StoredWeights | None = None,
) -> Policy:
    """The checkpoint as a policy that is only asked for log-probabilities: the base model of the KL penalty, an older version."""
    return _loaded(folder, settings, ranks, beat, weights, policy_to_ask)


def _loaded(
    folder: Path,
    settings: TrainerSettings | None,
    ranks: Ranks | None,
    beat: Callable[[], None],
    weights: StoredWeights | None,
    made: Callable[[Any, TrainerSettings, Ranks | None], Policy],
) -> Policy:
    stored = weights_in_folder(folder) if weights is None else weights
    model = without_weights(folder)
    _check_computed(folder, model, stored, ranks)
    policy = made(model, settings or TrainerSettings(), ranks)

    def read() -> None:
        policy.load_weights(_chosen(policy.model, stored).items(), beat)

    if ranks is None:
        read()
    else:
        ranks.each_does("the model to be loaded", read, beat)
    return policy


def without_weights(folder: Path) -> Any:
    """The model of a checkpoint's configuration, in float32. Its weights take no memory yet; what is computed and not stored is there.

    Raises BadModel where that would be whatever lies in memory.
    """
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    # As transformers does after it has read a checkpoint: rotary frequencies and scales are computed anew.
    for name, buffer in list(model.named_non_persistent_buffers()):
        module, _, last = name.rpartition(".")
        room = torch.empty_like(buffer, device="cpu")
        setattr(model.get_submodule(module), last, room.fill_(torch.nan) if room.is_floating_point() else room)
    for tensor in model.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    model.initialize_weights()
    for name, buffer in model.named_non_persistent_buffers():
        if buffer.is_floating_point() and bool(buffer.isnan().any()):
            raise BadModel(
                f"{folder}: {type(model).__name__} cannot be trained: nothing computes its {name}, which no file has"
            )
    return model


def _chosen(model: Any, stored: StoredWeights) -> StoredWeights:
    """The tensors that the model has, by its names. Tied ones are one tensor, under whichever name it is stored; both must then be alike."""
    mine, known = model.state_dict(), places(model)
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    found = {name: tensor for name, tensor in stored.items() if name in known}
    for target, source in tied.items():
        if source not in found and target in stored:
            found[source] = stored[target]
        elif target in stored:
            for _, given, first, count in _pieces(known[source], mine[source], stored[target]):
                if not torch.equal(_rows(given, first, count), _rows(found[source], first, count)):
                    raise BadModel(
                        f"config.json ties {target} to {source}, but the files have two different ones: set tie_word_embeddings to false"
                    )
    return found


def _pieces(
    place: Place, target: Tensor, given: Tensor | StoredTensor
) -> list[tuple[Tensor, Tensor | StoredTensor, int, int]]:
    """This rank's rows of a weight in pieces: where they go, what they are of, the first one there and how many. Experts are whole at one rank."""
    first, rows = own_rows(target)
    part = local(target)
    if place.expert is not None:
        if not first <= place.expert < first + rows:
            return []
        part, first, rows = place.within(part, first), 0, place.shape[0]
    if not given.shape:
        return [(part, given, 0, 1)]
    size = max(1, PIECE_BYTES * rows // max(1, part.nbytes))
    return [
        (part[at : at + size], given, first + at, min(size, rows - at))
        for at in range(0, rows, size)
    ]  # fmt: skip


def _rows(given: Tensor | StoredTensor, first: int, count: int) -> Tensor:
    if isinstance(given, StoredTensor):
        return given.rows(first, count)
    return given[first : first + count] if given.shape else given


def policy_to_ask(model: Any, settings: TrainerSettings, ranks: Ranks | None) -> Policy:
    """A loaded model that only gives log-probabilities. Its weights are kept in the type that they are computed in: FSDP2 would round them so."""
    model.requires_grad_(False).eval()
    if _in_halves(settings, ranks):
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    return _shard(Policy(model, ranks), settings, ranks, trained=False)


def policy_to_train(model: Any, settings: TrainerSettings, ranks: Ranks | None) -> Policy:
    """A loaded model with adapters, recomputation, compilation and sharding."""
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
    policy = Policy(model, ranks)
    policy.offloads_activations = settings.offloaded.activations
    policy = _shard(policy, settings, ranks, trained=True)
    draw_adapters(policy)
    return policy


def _check_computed(folder: Path, model: Any, stored: StoredWeights, ranks: Ranks | None) -> None:
    """Refuse a model whose attention, experts or logits would silently come out otherwise here than where rollouts are made, or on these ranks."""
    sharing = 1 if ranks is None or ranks.context_group is None else ranks.context_group.size
    config = model.config.get_text_config()
    problems = []
    if not getattr(model, "_supports_attention_backend", False):
        problems.append("packed attention cannot replace its attention")
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        problems.append("its attention has sinks, which the packed attention does not compute")
    if odd := set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES:
        needed = "".join(f"; needed: {NEEDED_BY[each]}" for each in sorted(odd & NEEDED_BY.keys()))
        problems.append(f"it has layers of type {sorted(odd)}; supported: {sorted(LAYER_TYPES)}{needed}")
    for name, neutral in (
        ("attn_logit_softcapping", None),
        ("final_logit_softcapping", None),
        ("logit_scale", 1.0),
        ("logits_scaling", logits_divisor(model.config)),
    ):
        if getattr(config, name, None) not in (None, neutral):
            problems.append(f"it sets {name}, which is not supported")
    if sharing > 1:
        problems += undividable(config, sharing)
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        problems.append("its head is not a matrix without a bias")
    for name, wanted in ROUTED_BY.get(config.model_type, {}).items():
        if (said := getattr(config, name, None)) != wanted:
            problems.append(
                f"its config.json has {name} {said!r}: the trainer routes by {wanted!r}, and vLLM would not; say {wanted!r} if it is such a model"
            )
    problems += uncomputable(model, 1 if ranks is None else ranks.world)
    if renamed := _renamed(stored, model):
        problems.append(f"its weights have other names once loaded ({renamed[0]}), so nobody could serve them")
    if problems:
        raise BadModel(f"{folder}: {type(model).__name__} cannot be trained: {'; '.join(problems)}")


def _renamed(stored: StoredWeights, model: Any) -> list[str]:
    """Weights that the checkpoint does not have by the name that would be published."""
    tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
    sources = {source for target, source in tied.items() if target in stored}
    return sorted(set(places(model)) - sources - set(stored))


def _recomputes(model: Any, settings: TrainerSettings) -> bool:
    if settings.activation_recomputation == "Auto":
        return bool(model.num_parameters() >= RECOMPUTE_FROM_PARAMETERS)
    return settings.activation_recomputation == "On"


def _layers(model: Any) -> list[torch.nn.Module]:
    """The decoder's layers: what is sharded and compiled as one. FSDP2 makes a subclass of the layer's for it, under another name."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if names & {kind.__name__ for kind in type(module).__mro__}]


def _in_halves(settings: TrainerSettings, ranks: Ranks | None) -> bool:
    """Whether forward and backward passes are in bfloat16."""
    if ranks is None or settings.data_type == "Float32":
        return False
    return settings.data_type == "BFloat16" or ranks.device.type != "cpu"


def _shard(policy: Policy, settings: TrainerSettings, ranks: Ranks | None, *, trained: bool) -> Policy:
    """FSDP2 over each decoder layer and the rest, where there is anything to shard, offload or compute in halves.

    One process on a CPU in float32 goes without: there, every weight would be copied for each forward and backward pass.
    """
    half = _in_halves(settings, ranks)
    on_host = settings.cpu_offload or (settings.offloaded.reference and not trained)
    if ranks is None or (ranks.world == 1 and ranks.device.type == "cpu" and not half and not on_host):
        _make_room(policy, torch.device("cpu"), torch.device("cpu"))
        return policy
    # A weight that is computed with in halves is still kept, reduced and updated in float32.
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if half else None,
        reduce_dtype=torch.float32 if half else None,
        cast_forward_inputs=False,
    )
    offload = CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if on_host else OffloadPolicy()
    options: dict[str, Any] = {"mesh": ranks.mesh, "mp_policy": precision, "offload_policy": offload}
    # Weights in host memory must come to the device anyway, a layer at a time: a reference that is kept there is gathered as before.
    if settings.expert_parallel == "Tokens" and ranks.world > 1 and not on_host:
        options["ignored_params"] = keep_experts(policy.model, ranks.mesh)
    for layer in _layers(policy.model):
        fully_shard(layer, **options)
    # The root's weights (embedding, norm, head) are needed again at once by the backward pass, if there is one.
    fully_shard(policy, reshard_after_forward=not trained, **options)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # Gradients are summed: the loss is divided by a count over all ranks already. PREMUL_SUM is NCCL's alone.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    _make_room(policy, ranks.device, torch.device("cpu") if on_host else ranks.device)
    if ranks.world > 1 and ranks.device.type == "cuda":
        prefetch_layers(policy)
    return policy


@torch.no_grad()
def _make_room(policy: Policy, computing: torch.device, keeping: torch.device) -> None:
    """Memory for the weights that have none yet, of a sharded one for this rank's rows; those that share one still do.

    Parameters lie where they are kept, and are moved for each pass. Buffers are moved by nobody: a router adds its balancing bias where it computes.
    """
    made: dict[int, torch.nn.Parameter] = {}
    for module in policy.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    room = torch.empty_like(parameter, device=keeping)
                    made[id(parameter)] = torch.nn.Parameter(room, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=computing)


def prefetch_layers(policy: Policy) -> None:
    """Let each decoder layer of a sharded policy ask for the next one's weights as it begins to compute, forward and backward alike.

    By itself FSDP2 asks when the layer before has been handed to the device, which a slow host does late. Backward it has the same lists, made from
    the order that it saw forward. One layer is enough where a pack is long: at 32B over 16 ranks a layer is gathered in about 20 ms at 50 GB/s, and
    computed in as much from 8,192 tokens on. A second one ahead would cost 1 GB, and the line is as busy. So two layers are whole at a time, which
    `planner.memory` counts.
    """
    layers = [module for module in _layers(policy.model) if isinstance(module, FSDPModule)]
    if not layers or not isinstance(policy, FSDPModule):
        return
    policy.set_modules_to_forward_prefetch(layers[:1])
    policy.set_modules_to_backward_prefetch(layers[-1:])
    for layer, after in pairwise(layers):
        layer.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([layer])


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
