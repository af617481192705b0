"""The one module that knows vLLM's internals: it draws tokens by the run's rule, reads the hidden states they are drawn from, and swaps weights.

vLLM mixes `HiddenStateExtension` into its worker class (`worker_extension_cls`) and calls its methods by name through
`collective_rpc`, on every rank; `engine` is the only caller. Everything that is not vLLM's public interface is checked
by `shoal_install` at start. So an upgrade of vLLM fails with a message instead of writing wrong proofs.

The hook sits on `sample_tokens` of vLLM's first model runner (`GPUModelRunner` of `v1/worker/gpu_model_runner.py`).
The CPU's runner is a subclass that leaves this method as it is, so what tests run on a CPU is what a GPU runs;
`process_settings` keeps vLLM from choosing its second runner, whose outputs carry tokens that are still on the device.
The states that tokens are drawn from are a gather of their own (`hidden_states[logits_indices]`). That holds behind a
CUDA graph too, so a later step does not change them.

Tokens are drawn by `sampling.gumbel`, all sequences of a step at once. vLLM's own seeded sampler has a generator for each sequence and asks them one
after the other in Python. On a GPU the second runner's kernel draws, which is the same rule in one pass over the logits
(`benchmarks.trust.triton_rule` compares them); elsewhere ours does.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import vllm
from vllm import ModelRegistry
from vllm.config.load import LoadConfig
from vllm.model_executor.layers.fused_moe.layer import MoERunner
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

from shoal.contracts.pools import Quantization
from shoal.contracts.routes import RouteShape
from shoal.inference.proofs import ProofRecorder
from shoal.inference.routes import RouteRecorder
from shoal.models import rounded
from shoal.sampling import gumbel

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

    def shoal_install(self, masked: Sequence[int], routes: Mapping[str, int] | None = None) -> None:
        """Draw by the run's rule and start recording. `masked` are the dimensions of the model's proof profile; `routes`: the fields of
        the `RouteShape` that is recorded too.

        Raises UnsupportedVllmError when vLLM does not have the parts that are read here. Behind the last layer every rank of a tensor-parallel engine
        has the same states, so rank 0 alone records them.
        """
        _check_version(vllm.__version__)
        runner = self.model_runner
        _check_runner(runner)
        runner.sampler.topk_topp_sampler = SeedSampler(runner)
        self.shoal_recorder = None
        self.shoal_routes = None
        if self.rank != 0:
            return
        recorder = self.shoal_recorder = ProofRecorder(_mask(masked, runner))
        router = self.shoal_routes = None if routes is None else _record_routes(runner, RouteShape(**routes))
        sample_tokens = runner.sample_tokens

        def recording_sample_tokens(*args: Any, **kwargs: Any) -> Any:
            state = runner.execute_model_state  # cleared by the call below
            chosen = None
            if state is not None and router is not None:
                chosen = router.chosen(runner.query_start_loc.gpu[1 : len(state.sample_hidden_states) + 1] - 1)
            output = sample_tokens(*args, **kwargs)
            if state is not None and recorder.on:
                _record(recorder.add, state.sample_hidden_states, output)
            if router is not None and chosen is not None:
                _record(router.add, chosen, output)
            return output

        runner.sample_tokens = recording_sample_tokens

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

    def shoal_take_routes(self, requests: Collection[str]) -> dict[str, bytes]:
        """The routes of requests that have ended, from the rank that records them."""
        return {} if self.shoal_routes is None else self.shoal_routes.take(requests)

    def shoal_forget(self, requests: Collection[str]) -> None:
        """Drop the states, proofs and routes of aborted requests."""
        if self.shoal_recorder is not None:
            self.shoal_recorder.forget(requests)
        self.shoal_take_routes(requests)

    def shoal_swap(self, folder: str, masked: Sequence[int]) -> str:
        """Load the weights in `folder` in place; returns the folder that this rank's weights are now from. No request may be running.

        vLLM 0.32 on a CPU packs weights at load, and a reload misses two of the packed copies, so that logits are silently wrong. A head that
        shares the embedding (tied) stays that of the old policy: it is packed again here. Experts come as the checkpoint has them, where the
        kernel reads packed ones: they are packed by whoever makes a layer's kernel, which is thus made again.
        """
        model = self.model_runner.get_model()
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if (
                isinstance(method, UnquantizedFusedMoEMethod)
                and method.unquantized_backend is UnquantizedMoeBackend.CPU
            ):
                method.moe_kernel = None
        self.model_runner.reload_weights(weights_path=folder)
        head = getattr(model, "lm_head", None)
        if getattr(model.config, "tie_word_embeddings", False) and head is not None:
            head.quant_method.process_weights_after_loading(head)
        if self.shoal_recorder is not None:
            self.shoal_recorder.mask(_mask(masked, self.model_runner))
        return str(self.model_runner.model_config.model)


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
            self._seeds = torch.tensor(seeds, dtype=torch.int64).to(logits.device)
        last = batch.num_tokens_no_spec[: len(self._requests)].astype(np.int64) - 1
        tokens = _draw(logits, self._seeds, torch.from_numpy(last).to(logits.device))
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
    if runner.use_async_scheduling:
        raise UnsupportedVllmError("asynchronous scheduling pairs states with tokens later: set async_scheduling=False")
    if runner.speculative_config is not None:
        raise UnsupportedVllmError("with speculative decoding several tokens are sampled in a step: turn it off")
    if runner.parallel_config.pipeline_parallel_size != 1:
        raise UnsupportedVllmError(
            "rank 0 has the last hidden states only without pipeline parallelism: use tensor parallelism"
        )


def _record(add: Callable[[Sequence[str], torch.Tensor], None], rows: torch.Tensor, output: Any) -> None:
    """Pair row i of `rows`, one a request, with request i of the output; a partial prefill has no token."""
    counts = list(map(len, output.sampled_token_ids))
    if counts == [1] * len(rows):
        add(output.req_ids, rows)
        return
    if max(counts) > 1:
        raise UnsupportedVllmError("more than one token was sampled in a step: turn speculative decoding off")
    sampled = [index for index, count in enumerate(counts) if count]
    if sampled:
        add([output.req_ids[index] for index in sampled], rows[sampled])


def _record_routes(runner: Any, shape: RouteShape) -> RouteRecorder:
    """Let every router of the model tell a recorder what it chooses. vLLM's own way is in its second runner only, which is not used here.

    Raises UnsupportedVllmError where some router cannot tell, or there are not as many as `shape` says.
    """
    layers = [module for module in runner.get_model().modules() if isinstance(module, MoERunner)]
    if len(layers) != shape.layers:
        raise UnsupportedVllmError(f"routes are of {shape.layers} layers with experts, the engine has {len(layers)}")
    recorder = RouteRecorder(shape, runner.max_num_tokens, runner.device)
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
