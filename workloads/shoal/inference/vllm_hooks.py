"""The one module that knows vLLM's internals: it reads last hidden states as tokens are sampled, and swaps weights.

vLLM mixes `HiddenStateExtension` into its worker class (`worker_extension_cls`) and calls its methods by name through
`collective_rpc`; `engine` is the only caller. Everything that is not vLLM's public interface is checked by
`shoal_install` at start, so that an upgrade of vLLM fails with a message instead of writing wrong proofs.
"""

from typing import Any

import torch
import vllm
from vllm import ModelRegistry

from shoal.inference.proofs import ProofRecorder

TESTED_VLLM = ("0.32.",)
"""Release series that these hooks were tested with. Another one may pair states with tokens differently, silently."""

EXTENSION = f"{__name__}.HiddenStateExtension"


class UnsupportedVllmError(RuntimeError):
    """This vLLM is not one that the hooks were written for."""


class HiddenStateExtension:
    """Methods added to vLLM's worker. Their prefix keeps them apart from vLLM's own, which vLLM checks."""

    model_runner: Any

    def shoal_install(self) -> None:
        """Start recording. Raises UnsupportedVllmError when vLLM does not have the parts that are read here."""
        _check_version()
        runner = self.model_runner
        if not hasattr(runner, "sample_tokens") or not hasattr(runner, "execute_model_state"):
            raise UnsupportedVllmError(f"{type(runner).__name__} of vLLM {vllm.__version__} has no sample_tokens step")
        if getattr(runner, "use_async_scheduling", False):
            raise UnsupportedVllmError(
                "asynchronous scheduling pairs states with tokens later: set async_scheduling=False"
            )
        recorder = ProofRecorder()
        sample_tokens = runner.sample_tokens

        def recording_sample_tokens(*args: Any, **kwargs: Any) -> Any:
            state = runner.execute_model_state  # cleared by the call below
            output = sample_tokens(*args, **kwargs)
            if state is not None:
                _record(recorder, state.sample_hidden_states, output)
            return output

        runner.sample_tokens = recording_sample_tokens
        self.shoal_recorder = recorder

    def shoal_take_proofs(self, requests: list[str]) -> dict[str, bytes]:
        """Proofs of finished requests."""
        return self.shoal_recorder.take(requests)

    def shoal_forget(self) -> None:
        """Drop the states of aborted requests."""
        self.shoal_recorder.forget()

    def shoal_swap(self, folder: str) -> None:
        """Load the weights in `folder` in place. No request may be running.

        vLLM 0.32 on a CPU packs the weights of a head at load; when the head shares the embedding (tied), a reload
        renews the embedding and leaves the packed copy, so that logits silently come from the old policy. It is
        packed again here.
        """
        self.model_runner.reload_weights(weights_path=folder)
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        if getattr(model.config, "tie_word_embeddings", False) and head is not None:
            head.quant_method.process_weights_after_loading(head)


def inspect_in_process(architecture: str) -> None:
    """Let vLLM look at the model's class in this process.

    By default it starts another Python for this (some 20 s on a busy core) and caches the answer in the home folder,
    which a container may not have. It does so to keep CUDA uninitialised in the parent, which is no concern on a CPU.
    """
    known = ModelRegistry.models.get(architecture)
    if known is not None:
        ModelRegistry.register_model(architecture, known.load_model_cls())


def _record(recorder: ProofRecorder, states: torch.Tensor, output: Any) -> None:
    """Pair row i of `states` [requests, hidden size] with request i of the output; a partial prefill has no token."""
    sampled = [index for index, tokens in enumerate(output.sampled_token_ids) if len(tokens)]
    if any(len(output.sampled_token_ids[index]) != 1 for index in sampled):
        raise UnsupportedVllmError("more than one token was sampled in a step: turn speculative decoding off")
    if not sampled:
        return
    rows = states.detach()[sampled].to(device="cpu", dtype=torch.float32).numpy()
    recorder.add([output.req_ids[index] for index in sampled], rows)


def _check_version() -> None:
    if not vllm.__version__.startswith(TESTED_VLLM):
        raise UnsupportedVllmError(
            f"vLLM {vllm.__version__} is installed, the proof hooks are tested with {', '.join(TESTED_VLLM)}x: "
            f"install that release, or test the hooks (tests/inference) and add the series to TESTED_VLLM"
        )
