"""A vLLM engine in this process: start it on a checkpoint, generate with seeds and proofs, swap to another version.

In: a checkpoint folder and `Request`s. Out: `Completion`s in the order of the requests. Called by `worker`. The
engine is synchronous and a swap happens between batches, so that every completion is of exactly one policy version.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from shoal.inference.process_settings import set_engine_variables

set_engine_variables()

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm import EngineArgs, LLMEngine, SamplingParams  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402

from shoal.inference import metrics, vllm_hooks  # noqa: E402
from shoal.inference.checkpoint import Checkpoint  # noqa: E402
from shoal.inference.completions import Completion, Request  # noqa: E402
from shoal.inference.engine_memory import kv_cache_bytes  # noqa: E402

MAX_SEQUENCES = 128
"""Sequences decoded together on a CPU; past this a step grows as fast as the batch."""


class GenerationStoppedError(RuntimeError):
    """The caller asked to stop; every running sequence was aborted."""


class Engine:
    """One model in memory; `version_folder` is where its weights came from."""

    def __init__(self, checkpoint: Checkpoint, *, max_sequence_length: int, batch: int) -> None:
        """Start on `checkpoint`, for sequences of up to `max_sequence_length` tokens, `batch` of which are wanted
        together.

        Takes some seconds (a CPU and a tiny model) to minutes.
        """
        # Whoever loaded torch before us may have left it with a thread for every core.
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._layout = checkpoint.layout
        self._eos = sorted(checkpoint.eos_token_ids)
        length = min(max_sequence_length, checkpoint.max_positions)
        if current_platform.is_cpu():
            vllm_hooks.inspect_in_process(checkpoint.config["architectures"][0])
        self._engine = LLMEngine.from_engine_args(EngineArgs(**_engine_arguments(checkpoint, length, batch)))
        self._engine.collective_rpc("shoal_install")
        self._count = 0
        metrics.ENGINE.labels(type(self._engine).__module__.partition(".")[0], vllm.__version__).set(1)

    def swap(self, checkpoint: Checkpoint) -> None:
        """Continue with the weights of `checkpoint`; ValueError when its tensors are not those of the running model.

        vLLM only logs a tensor that a checkpoint lacks and keeps the old one, hence the check.
        """
        if checkpoint.layout != self._layout:
            names = sorted(set(checkpoint.layout.items()) ^ set(self._layout.items()))
            raise ValueError(
                f"{checkpoint.folder}: tensors differ from those of the running model, first {names[0][0]}: "
                "a swap needs the same names, shapes and dtypes"
            )
        if self._engine.has_unfinished_requests():
            raise RuntimeError("weights can only be swapped while no request is running")
        self._engine.collective_rpc("shoal_swap", args=(str(checkpoint.folder),))
        # Keys and values of prompts were computed by the old weights.
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM could not reset its prefix cache after the swap")

    def generate(self, requests: Sequence[Request], should_stop: Callable[[], bool]) -> list[Completion]:
        """Complete all requests, in their order; GenerationStoppedError soon after `should_stop()` is true."""
        order = [self._add(request) for request in requests]
        finished: dict[str, Any] = {}
        external = dict(order)
        while self._engine.has_unfinished_requests():
            if should_stop():
                self._engine.abort_request(list(external))
                self._engine.collective_rpc("shoal_forget")
                raise GenerationStoppedError(f"stopped with {len(requests) - len(finished)} sequences unfinished")
            for output in self._engine.step():
                if output.finished:
                    finished[output.request_id] = output.outputs[0]
        (proofs,) = self._engine.collective_rpc("shoal_take_proofs", args=(list(external.values()),))
        return [_completion(finished[name], proofs[internal]) for name, internal in order]

    def _add(self, request: Request) -> tuple[str, str]:
        """Queue a request; returns vLLM's outer and inner name of it."""
        self._count += 1
        name = str(self._count)
        parameters = SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=request.max_tokens,
            logprobs=0,  # of the sampled token only
            stop_token_ids=self._eos,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return name, self._engine.add_request(name, {"prompt_token_ids": list(request.prompt_tokens)}, parameters)


def _completion(output: Any, proofs: bytes) -> Completion:
    tokens = list(output.token_ids)
    logprobs = [entry[token].logprob for token, entry in zip(tokens, output.logprobs, strict=True)]
    return Completion(tokens=tokens, logprobs=logprobs, finish_reason=output.finish_reason, proofs=proofs)


def _engine_arguments(checkpoint: Checkpoint, length: int, batch: int) -> dict[str, Any]:
    """vLLM's arguments: what the proofs need on every device, and what a CPU needs."""
    arguments: dict[str, Any] = {
        "model": str(checkpoint.folder),
        "dtype": checkpoint.dtype,  # "auto" would serve a float32 checkpoint in half precision
        "max_model_len": length,
        "enforce_eager": True,
        "worker_extension_cls": vllm_hooks.EXTENSION,
        "async_scheduling": False,
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature, as the trainer's are
        "generation_config": "vllm",  # a checkpoint's own top-k or top-p would bias the ratio
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }
    if current_platform.is_cpu():
        sequences = min(batch, MAX_SEQUENCES)
        arguments |= {
            "max_num_seqs": sequences,
            "enable_chunked_prefill": False,  # crashes on a CPU with a seed in a request
            "max_num_batched_tokens": max(2048, length),
            "kv_cache_memory_bytes": kv_cache_bytes(checkpoint.config, checkpoint.dtype, length * sequences),
        }
    return arguments
