"""The one module that knows vLLM's internals: it draws tokens by the run's rule, reads the hidden states they are drawn from, and swaps weights.

vLLM mixes `HiddenStateExtension` into its worker class (`worker_extension_cls`) and calls its methods by name through
`collective_rpc`, on every rank; `engine` is the only caller. Everything that is not vLLM's public interface is checked
by `shoal_install` at start. So an upgrade of vLLM fails with a message instead of writing wrong proofs.

The hook sits on `sample_tokens` of vLLM's first model runner (`GPUModelRunner` of `v1/worker/gpu_model_runner.py`).
The CPU's runner is a subclass that leaves this method as it is, so what tests run on a CPU is what a GPU runs;
`process_settings` keeps vLLM from choosing its second runner. The states that tokens are drawn from are a gather of their
own (`hidden_states[logits_indices]`). That holds behind a CUDA graph too, so a later step does not change them.

With asynchronous scheduling the next step begins before the tokens of this one are on the host. So nothing here looks at tokens: a state belongs to
the request and position that the runner computed, and positions are read on the device. The engine learns of a sequence's end one step late.
`ProofRecorder` and `RouteRecorder` drop what is of that.

Tokens are drawn by `sampling.gumbel`, all sequences of a step at once. vLLM's own seeded sampler has a generator for each sequence and asks them one
after the other in Python. On a GPU the second runner's kernel draws, which is the same rule in one pass over the logits
(`benchmarks.trust.triton_rule` compares them); elsewhere ours does.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np
import torch
import vllm
from vllm import LLMEngine, ModelRegistry
from vllm.config.load import LoadConfig
from vllm.distributed import get_pp_group, get_tp_group
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms import current_platform
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

from shoal.contracts.pools import Quantization
from shoal.contracts.routes import RouteShape
from shoal.inference.process_settings import end_with_parent
from shoal.inference.proofs import ProofRecorder, on_device
from shoal.inference.routes import RouteRecorder
from shoal.models import rounded
from shoal.models.head import widened
from shoal.sampling import gumbel
from shoal.storage.checkpoint_files import wrong_shard

TESTED_VLLM = ("0.32.",)
"""Release series that these hooks were tested with. Another one may pair states with tokens differently, silently."""

EXTENSION = f"{__name__}.HiddenStateExtension"
SEED = "shoal_seed"
"""A request's seed in its `extra_args`: vLLM makes a generator of one in `seed`."""


class UnsupportedVllmError(RuntimeError):
    """This vLLM is not one that the hooks were written for."""


class HiddenStateExtension:
    """Methods added to vLLM's worker, one on each rank. Their prefix keeps them apart from vLLM's own, which vLLM checks."""

    model_runner: Any
    rank: int
    local_rank: int

    def shoal_install(self, masked: Sequence[int], routes: Mapping[str, int] | None = None) -> int:
        """Draw by the run's rule and start recording. `masked` are the dimensions of the model's proof profile; `routes`: the fields of
        the `RouteShape` that is recorded too. Returns the number of layers whose routes this rank records.

        Raises UnsupportedVllmError when vLLM does not have the parts that are read here. Every rank of a stage has the same states behind it, so
        the stage's first rank alone records: in the last stage the states that tokens are drawn from, in each the routes of its layers.
        """
        end_with_parent()
        _check_version(vllm.__version__)
        runner = self.model_runner
        _check_runner(runner)
        runner.sampler.topk_topp_sampler = SeedSampler(runner)
        _widen_head(runner)
        _make_buffers(runner)
        self.shoal_recorder = None
        self.shoal_routes = None
        if not get_tp_group().is_first_rank:
            return 0
        recorder = ProofRecorder(_mask(masked, runner)) if get_pp_group().is_last_rank else None
        router = None if routes is None else _record_routes(runner, RouteShape(**routes))
        self.shoal_recorder, self.shoal_routes = recorder, router
        sample_tokens = runner.sample_tokens

        def recording_sample_tokens(*args: Any, **kwargs: Any) -> Any:
            """vLLM calls it behind each batch that has tokens, on every rank; only the last stage has a state, and samples."""
            state = runner.execute_model_state  # cleared by the call below
            if router is not None:
                _note_routes(runner, router)
            if recorder is not None and recorder.on and state is not None:
                _record(runner, recorder, state.sample_hidden_states)
            return sample_tokens(*args, **kwargs)

        runner.sample_tokens = recording_sample_tokens
        return 0 if router is None else router.shape.layers

    def shoal_record(self, on: bool) -> None:
        """Whether states are recorded; sequences that run while they are not have no proofs."""
        if self.shoal_recorder is not None:
            self.shoal_recorder.on = on

    def shoal_finish(self, tokens: Mapping[str, int], wait: bool) -> dict[str, bytes]:
        """These requests have ended with this many sampled tokens each. Returns proofs that are made by now, also of earlier ones; with `wait` all.

        None come from ranks that do not record.
        """
        if self.shoal_recorder is None:
            return {}
        self.shoal_recorder.finish(tokens)
        made: dict[str, bytes] = self.shoal_recorder.take_made(wait=wait)
        return made

    def shoal_so_far(self, had: Mapping[str, int]) -> dict[str, bytes]:
        """Whole proofs of running requests, behind those that the caller had; none from ranks that do not record."""
        return {} if self.shoal_recorder is None else self.shoal_recorder.so_far(had)

    def shoal_take_routes(self, tokens: Mapping[str, int]) -> dict[str, bytes]:
        """The routes of requests that have ended with this many sampled tokens, in the layers of this rank's stage; none from ranks that do not
        record."""
        return {} if self.shoal_routes is None else self.shoal_routes.take(tokens)

    def shoal_forget(self, requests: Collection[str]) -> None:
        """Drop the states, proofs and routes of aborted requests."""
        if self.shoal_recorder is not None:
            self.shoal_recorder.forget(requests)
        self.shoal_take_routes(dict.fromkeys(requests, 0))

    def shoal_check(self, folder: str, open_digest: str, sha256: str, piece: int, pieces: int) -> str:
        """What is wrong with the bytes in `folder` that this rank answers for (`checkpoint_files.wrong_shard`); empty: nothing. It looks at one of
        `pieces` pieces, which are counted from 0.

        All ranks of a machine load from the same pages of its memory. Each hashes its share of them, so that a version is looked at once a machine.
        """
        parallel = self.model_runner.parallel_config
        parts = max(1, parallel.world_size // parallel.nnodes_within_dp)
        part = self.local_rank % parts + parts * piece
        wrong = wrong_shard(self._shoal_folder(folder), open_digest, sha256, part, parts * pieces)
        return wrong and f"rank {self.rank} on {gethostname()}: {wrong}"

    def shoal_bury(self, folder: str, finders: Sequence[bool]) -> str:
        """Take `folder` out of sight where this rank is one of those that found it wrong; returns why it could not, or nothing.

        Whoever fetches weights removes what has such a name (`broadcast.weights_folder`), and fetches the version again.
        """
        there = self._shoal_folder(folder)
        if finders[self.rank] and there.is_dir():
            try:
                there.rename(there.with_name(f".old-{there.name}"))
            except FileNotFoundError:
                return ""  # another rank of this machine was first
            except OSError as error:
                return f"rank {self.rank} on {gethostname()}: {error}"
        return ""

    def _shoal_folder(self, folder: str) -> Path:
        """A name alone is beside what this rank has loaded."""
        return Path(self.model_runner.model_config.model).parent / folder

    def shoal_swap(self, folder: str, masked: Sequence[int]) -> str:
        """Load the weights in `folder` in place; returns it as it was given, if this rank's weights are now from it. No request may be running.

        In an engine over several hosts it is a name: each rank has its folders beside the one that it has loaded.

        vLLM 0.32 on a CPU packs weights at load, and a reload misses two of the packed copies, so that logits are silently wrong. A head that
        shares the embedding (tied) stays that of the old policy: it is packed again here. Experts come as the checkpoint has them, where the
        kernel reads packed ones: they are packed by whoever makes a layer's kernel, which is thus made again.
        """
        runner = self.model_runner
        path = str(Path(runner.model_config.model).parent / folder)
        model = runner.get_model()
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if (
                isinstance(method, UnquantizedFusedMoEMethod)
                and method.unquantized_backend is UnquantizedMoeBackend.CPU
            ):
                method.moe_kernel = None
        runner.reload_weights(weights_path=path)
        head = getattr(model, "lm_head", None)
        if getattr(model.config, "tie_word_embeddings", False) and get_pp_group().is_last_rank and head is not None:
            head.quant_method.process_weights_after_loading(head)
        _widen_head(runner)
        if self.shoal_recorder is not None:
            self.shoal_recorder.mask(_mask(masked, runner))
        return folder if str(runner.model_config.model) == path else str(runner.model_config.model)


class RoundingLoader(DefaultModelLoader):
    """Reads a checkpoint's safetensors files as vLLM does, at the start and at each swap, and rounds what the run's rule rounds.

    It sees whole tensors under their checkpoint's names, before vLLM fuses them or gives a rank its share. So every engine has equal weights.
    """

    quantization: str

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(
            replace(load_config, load_format="safetensors")
        )  # vLLM refuses formats that it does not know here

    def get_all_weights(self, model_config: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors, each of its own type."""
        for name, weight in super().get_all_weights(model_config, model):
            yield name, rounded.rounded(name, weight, self.quantization)


@register_model_loader("shoal-fp8")
class RoundingLoaderFp8(RoundingLoader):
    """Of a run with `rollouts.quantization` fp8."""

    quantization = "fp8"


def load_format(quantization: Quantization) -> str:
    """The name under which vLLM finds the loader of a rule, in every process of an engine: each imports this module."""
    return f"shoal-{quantization}"


class SeedSampler(torch.nn.Module):
    """Replaces the last part of vLLM's sampler, which is given logits at the temperature, float32 [requests, vocabulary]."""

    def __init__(self, runner: Any) -> None:
        super().__init__()
        self._runner = runner
        self._requests: list[str] = []
        self._seeds = torch.empty(0, dtype=torch.int64)  # of `_requests`, on the device

    def forward(
        self, logits: torch.Tensor, generators: object, k: torch.Tensor | None, p: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens drawn, int64 [requests], and log-probabilities, of what top-k and top-p leave of the logits. vLLM has applied min-p before."""
        logits = apply_top_k_top_p(logits, k, p)
        batch = self._runner.input_batch
        if batch.req_ids != self._requests:
            self._requests = list(batch.req_ids)
            known = self._runner.requests
            seeds = [known[request].sampling_params.extra_args[SEED] for request in self._requests]
            self._seeds = on_device(np.array(seeds, np.int64), logits.device)
        tokens = _draw(logits, self._seeds, self._runner.positions[_last_tokens(self._runner)])
        return tokens, logits.log_softmax(dim=-1, dtype=torch.float32)


def _draw(logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    if not logits.is_cuda:
        return gumbel.draw(logits, seeds, positions)
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample  # needs Triton

    rows = torch.arange(len(logits), dtype=torch.int32, device=logits.device)
    at_one = torch.ones(len(logits), device=logits.device)
    tokens: torch.Tensor = gumbel_sample(
        logits, rows, at_one, seeds, positions, apply_temperature=False, is_drafting=False
    )
    return tokens


def inspect_in_process(architecture: str) -> None:
    """Let vLLM look at the model's class in this process.

    By default it starts another Python for this (about 20 s on a busy core) and
    caches the answer in the home folder; a container may not have one. It does so to keep CUDA uninitialised in the parent, which is not a concern
    on a CPU.
    """
    known = ModelRegistry.models.get(architecture)
    if known is not None:
        ModelRegistry.register_model(architecture, known.load_model_cls())


def _check_version(found: str) -> None:
    """Raises UnsupportedVllmError for a release of vLLM that the hooks were not tested with."""
    if not found.startswith(TESTED_VLLM):
        raise UnsupportedVllmError(
            f"vLLM {found} is installed, but the proof hooks are tested with {', '.join(TESTED_VLLM)}x: "
            f"install that release, or test the hooks (tests/inference) and add the series to TESTED_VLLM"
        )


def _check_runner(runner: Any) -> None:
    """Raises UnsupportedVllmError for a model runner whose steps are not those that the hook reads."""
    name = f"{type(runner).__module__}.{type(runner).__qualname__}"
    fits = "sample_hidden_states" in ExecuteModelState._fields and hasattr(runner.sampler, "topk_topp_sampler")
    if not isinstance(runner, GPUModelRunner) or not fits:
        raise UnsupportedVllmError(
            f"model runner {name} of vLLM {vllm.__version__} is not the one that the proof hooks read: set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if runner.use_async_scheduling and runner.parallel_config.pipeline_parallel_size > 1:
        raise UnsupportedVllmError(
            "asynchronous scheduling of several stages has more than one batch of a sequence under way, and vLLM's first model runner does not "
            "support it: set async_scheduling=False"
        )
    if runner.speculative_config is not None:
        raise UnsupportedVllmError("with speculative decoding several tokens are sampled in a step: turn it off")


def _widen_head(runner: Any) -> None:
    """On a CPU, let a head in halves give float32 logits, with a float32 copy of this rank's weights: 4 bytes each.
    A quantised head is refused, as vLLM refuses it on a GPU.

    Called once the weights are there, and behind each swap. vLLM's own float32 head widens the weights at each step: 24 % more CPU time a token with
    SmolLM2-135M. On a GPU it needs no copy (`engine.FLOAT32_HEAD`).
    """
    head = getattr(runner.get_model(), "lm_head", None)
    if not current_platform.is_cpu() or runner.model_config.dtype == torch.float32 or not get_pp_group().is_last_rank:
        return
    if head is None or not hasattr(head, "cpu_linear"):
        raise UnsupportedVllmError(
            f"{type(runner.get_model()).__name__} has no head that vLLM multiplies by `lm_head.cpu_linear`"
        )
    weight = head.weight.detach().float()
    head.cpu_linear = lambda states, _, bias: widened(states, weight, bias)


def _make_buffers(runner: Any) -> None:
    """Make what a stage behind the first copies its input into, where vLLM has not: its dummy run does, which a CPU's worker leaves out when it is
    told the size of the cache. Of 8,192 tokens at 32B these are 168 MB."""
    if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
        runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )


def settled(engine: LLMEngine) -> Iterator[Sequence[Any]]:
    """Outputs of the batches that are under way, in stages or because the next begins early, until there are none; no other begins. So what was
    sampled is what was told."""
    core = engine.engine_core.engine_core
    core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    try:
        while core.batch_queue:
            yield engine.step()
    finally:
        core.scheduler.set_pause_state(PauseState.UNPAUSED)


def _record(runner: Any, recorder: ProofRecorder, states: torch.Tensor) -> None:
    """Note row i of `states` as request i's, of the token that is drawn from its position; a partial prefill draws none."""
    batch = runner.input_batch
    count = batch.num_reqs
    numbers, partial = _numbers(runner), runner.discard_request_mask.np[:count]
    if not partial.any():
        recorder.add(batch.req_ids.copy(), states, numbers)
        return
    drawn = np.flatnonzero(~partial)
    if len(drawn):
        rows = states.index_select(0, on_device(drawn, states.device))
        recorder.add([batch.req_ids[row] for row in drawn], rows, numbers[drawn])


def _numbers(runner: Any) -> Any:
    """int64 [requests]: which of its sampled tokens, from 0, each request of the batch draws now: how long it is behind its prompt."""
    count = runner.input_batch.num_reqs
    lengths = runner.optimistic_seq_lens_cpu[:count].numpy().astype(np.int64)
    return lengths - runner.input_batch.num_prompt_tokens[:count]


def _last_tokens(runner: Any) -> torch.Tensor:
    """int [requests], on the device: which token of the forward pass is the last one of each request, from which the next is drawn."""
    last: torch.Tensor = runner.query_start_loc.gpu[1 : runner.input_batch.num_reqs + 1] - 1
    return last


def _note_routes(runner: Any, router: RouteRecorder) -> None:
    """Have `router` keep the choices at the positions that tokens are drawn from, of the batch that this rank has just passed on.

    A prompt that goes on in the next batch has none. Stages before the last hear of a token late, and may see the position twice of a sequence that
    is computed again: its number among the sequence's tokens tells.
    """
    batch = runner.input_batch
    count = batch.num_reqs
    numbers = _numbers(runner)
    partial = runner.discard_request_mask.np[:count]
    rows = [
        row for row, request in enumerate(batch.req_ids) if not partial[row] and numbers[row] == router.tokens(request)
    ]
    if rows:
        last = _last_tokens(runner).index_select(0, on_device(np.array(rows), runner.device))
        router.add([batch.req_ids[row] for row in rows], router.chosen(last))


def _record_routes(runner: Any, shape: RouteShape) -> RouteRecorder | None:
    """Let every router of this rank's stage tell a recorder what it chooses; None for a stage without routers. vLLM's own way is in its second runner
    only, which is not used here.

    Raises UnsupportedVllmError where some router cannot tell.
    """
    layers = [module for module in runner.get_model().modules() if isinstance(module, MoERunner)]
    if not layers:
        return None
    recorder = RouteRecorder(shape.model_copy(update={"layers": len(layers)}), runner.max_num_tokens, runner.device)
    for number, layer in enumerate(sorted(layers, key=lambda each: each.layer_id)):
        if layer._quant_method.is_monolithic or not isinstance(layer.router, BaseRouter):
            raise UnsupportedVllmError(
                f"layer {layer.layer_id} routes within its kernel, so that nobody sees the routes: run without recipe.routerReplay"
            )
        layer.router.set_capture_fn(recorder.capture(number))
    return recorder


def _mask(dimensions: Sequence[int], runner: Any) -> Any:
    """bool [hidden size], true for these dimensions; None for none. Raises ValueError for one that the model does not have."""
    size = runner.model_config.get_hidden_size()
    if any(not 0 <= dimension < size for dimension in dimensions):
        raise ValueError(f"the proof profile masks dimension {max(dimensions)}, the model has {size}")
    mask = np.zeros(size, bool)
    mask[list(dimensions)] = True
    return mask if mask.any() else None
