"""A vLLM engine in this process: start it on a checkpoint, generate with seeds and proofs, swap to another version.

In: a checkpoint folder and `Request`s, which may join while others run. Out: `Completion`s as they end. Called by `worker`
through `generation`. The engine is synchronous and a swap happens while nothing runs, so that every completion is of exactly
one policy version. Whoever would have rows go on under the next takes them out first (`cut`), and starts them again behind the swap.
"""

import gc
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from typing import Any

from shoal.inference.process_settings import DYNAMO, compiles, set_engine_variables

set_engine_variables()

import torch
import vllm
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from shoal.contracts.pools import EngineSettings, Quantization
from shoal.contracts.routes import RouteShape
from shoal.contracts.weights import WeightsManifest
from shoal.inference import metrics, vllm_hooks
from shoal.inference.checkpoint import Checkpoint, check_stages, check_tensor_parallel
from shoal.inference.completions import Completion, EngineTerms, HostSpan, Pauses, Request
from shoal.inference.engine_memory import kv_cache_bytes
from shoal.inference.routes import joined
from shoal.storage.checkpoint_files import NOT_THERE, VersionGone, WrongWeights
from shoal.toploc.codec import CHUNK_TOKENS, PROOF_BYTES

MAX_SEQUENCES = 128
"""Sequences decoded together on a CPU; past this a step grows as fast as the batch."""
PROOFS_EVERY = 8
"""Decoding steps between questions for proofs that are still being made: a question goes to every rank, and nobody waits for the answer."""
NO_ROTARY_KERNEL = {"custom_ops": ["-rotary_embedding"]}
"""vLLM rotates queries and keys in PyTorch, not by its kernel. The CPU kernel of 0.32 is wrong for latent attention with plain positions
(Moonlight's): it takes slices [tokens, heads, size] for rows of one head each, as far apart as heads are. So it leaves keys as they were and
rotates queries by the angles of other tokens."""
FLOAT32_HEAD = {"head_dtype": "float32"}
"""A GPU sums and keeps logits in float32 whatever the model's type is, as validators and the trainer do (ADR 0141). On a CPU vLLM would widen the
head's weights at each step: there `vllm_hooks` keeps wide ones."""

DEFAULT_SETTINGS = EngineSettings()

CHECK_PIECES = 10
"""Questions in which ranks are asked to check a version. From a slow disk each takes a minute, which the process is given ten for."""
LOOK_SECONDS = 1.0  # between looks of a host that follows at whether to go on


class GenerationStoppedError(RuntimeError):
    """The caller asked to stop; every running sequence was aborted."""


class Engine:
    """One model in memory; `version_folder` is where its weights came from."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_sequence_length: int,
        batch: int,
        settings: EngineSettings = DEFAULT_SETTINGS,
        cuts: bool = False,
        quantization: Quantization | None = None,
        routes: RouteShape | None = None,
        span: HostSpan | None = None,
    ) -> None:
        """Start on `checkpoint`, for sequences of up to `max_sequence_length` tokens, `batch` of which are wanted
        together. `settings` are the pool's. With `cuts` sequences can be cut: vLLM gives their tokens one by one.
        With `quantization` its weights are rounded as they are read, now and at each swap. With `routes` completions say
        which experts their tokens were given to. With `span` other hosts have ranks of it (`serve_ranks`), and this one has the first.

        Takes a few seconds (a CPU and a tiny model) to minutes.
        """
        terms = EngineTerms(max_sequence_length, batch, quantization, routes)
        arguments = _arguments_here(checkpoint, settings, terms, span)
        self._layout = checkpoint.layout
        self._eos = sorted(checkpoint.eos_token_ids)
        self._several_hosts = span is not None
        # What is imported stays. vLLM collects garbage seven times as it starts and ends, and each time would look at all of it: half a second.
        gc.freeze()
        self._engine = LLMEngine.from_engine_args(arguments)
        # Rank by rank: those of the first stage are first. A stage's first rank answers for it, and the last stage samples.
        self._stages = slice(None, None, settings.tensor_parallel_size)
        recorded = routes.model_dump() if routes is not None else None
        installed = self._engine.collective_rpc("shoal_install", args=(list(checkpoint.masked_dimensions), recorded))
        self._layers: list[int] = installed[self._stages]
        if routes is not None and sum(self._layers) != routes.layers:
            raise vllm_hooks.UnsupportedVllmError(
                f"routes are of {routes.layers} layers with experts, the engine's stages have {self._layers}"
            )
        self._proofs = True
        self._cuts = cuts
        self._routes = routes
        self.sequences: int = self._engine.vllm_config.scheduler_config.max_num_seqs  # decoded together
        self._count = self._steps = 0
        self._running: dict[str, _Sequence] = {}
        self._unproved: dict[str, tuple[str, _Sequence]] = {}  # by vLLM's inner name
        metrics.ENGINE.labels(type(self._engine).__module__.partition(".")[0], vllm.__version__).set(1)

    def check(self, folder: Path, sealed: WeightsManifest, beat: Callable[[], None] = lambda: None) -> None:
        """Hold the bytes in `folder` to the signed manifest on every rank, each its share; WrongWeights names host, rank, shard and file, VersionGone
        says that `folder` was removed.

        A host that finds a mismatch removes its folder, so that the version is fetched again. Nothing is decoded meanwhile. Of 65.5 GB in the
        machine's memory that is 3 s with four ranks and 12 s with one, at 1.4 GB/s a core. From a disk of 125 MB/s it is nine minutes, with a `beat`
        in each.
        """
        name = self._as_ranks_name(folder)
        for piece in range(CHECK_PIECES):
            asked = (name, sealed.open_digest, sealed.sha256, piece, CHECK_PIECES)
            found = self._engine.collective_rpc("shoal_check", args=asked)
            beat()
            wrong = [each for each in found if each]
            if wrong:
                # Of a folder that is being removed some files are gone first.
                still = [each for each in self._engine.collective_rpc("shoal_check", args=asked) if each]
                if still and all(each.endswith(NOT_THERE) for each in still):
                    raise VersionGone("; ".join(still))
                finders = [bool(each) for each in found]
                kept = [each for each in self._engine.collective_rpc("shoal_bury", args=(name, finders)) if each]
                after = f"It could not be removed: {'; '.join(kept)}" if kept else "It is removed, and fetched again"
                raise WrongWeights(
                    f"{folder} is not loaded, its bytes changed since they were assembled: {'; '.join(wrong)}. {after}"
                )

    def _as_ranks_name(self, folder: Path) -> str:
        """The folder as each rank finds it: by its name where every host has a copy of its own."""
        return folder.name if self._several_hosts else str(folder)

    def swap(
        self, checkpoint: Checkpoint, sealed: WeightsManifest | None = None, beat: Callable[[], None] = lambda: None
    ) -> None:
        """Continue with the weights of `checkpoint`; ValueError when its tensors are not those of the running model. With `sealed`, its manifest, its
        bytes are checked before (`check`); where that refuses them the engine still has the weights that it had.

        vLLM only logs a tensor that a checkpoint lacks and keeps the old one, hence the check.
        """
        if checkpoint.layout != self._layout:
            names = sorted(set(checkpoint.layout.items()) ^ set(self._layout.items()))
            raise ValueError(
                f"{checkpoint.folder}: tensors differ from those of the running model, first {names[0][0]}: "
                "a swap needs the same names, shapes and dtypes"
            )
        if self._running or self._unproved:
            raise RuntimeError("weights can only be swapped while no request is running")
        list(vllm_hooks.settled(self._engine))  # a step may have begun before the last rows were known to have ended
        if sealed is not None:
            self.check(checkpoint.folder, sealed, beat)
        folder = self._as_ranks_name(checkpoint.folder)
        ranks = self._engine.collective_rpc("shoal_swap", args=(folder, list(checkpoint.masked_dimensions)))
        if ranks != [folder] * len(ranks):
            raise RuntimeError(f"a rank of the engine does not have the weights of {folder}: {ranks}")
        # Keys and values of prompts were computed by the old weights.
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM could not reset its prefix cache after the swap")

    def start(self, request: Request, pauses: Pauses | None = None) -> str:
        """Let a request join the sequences that are decoded; returns its name here. Past `sequences` of them vLLM lets it wait.

        With `pauses` it also ends, as "unanswered", at the first token at which this says so of its sampled tokens; what would have been sampled next
        never is.
        """
        self._count += 1
        name = str(self._count)
        inner = self._add(name, request, streamed=self._cuts or pauses is not None)
        self._running[name] = _Sequence(inner, pauses)
        return name

    @property
    def running(self) -> int:
        """Requests that were started and have not ended."""
        return len(self._running)

    def step(self) -> list[tuple[str, Completion]]:
        """One decoding step of all that run; returns by name what has ended and has its proofs by now. Once nothing runs it waits for the last
        proofs."""
        metrics.RUNNING.set(min(self.running, self.sequences))
        ended = self._told(self._engine.step()) if self._running else {}
        metrics.RUNNING.set(min(self.running, self.sequences))
        return self._proved(ended)

    def _told(self, outputs: Iterable[Any]) -> dict[str, int]:
        """Take in what vLLM says of requests; returns the tokens of those that have ended, by their inner names."""
        ended: dict[str, int] = {}
        for output in outputs:
            sequence = self._running[output.request_id]
            sequence.add(output.outputs[0])
            if sequence.pauses is not None and sequence.finish_reason != "stop" and sequence.pauses(sequence.tokens):
                sequence.finish_reason = "unanswered"
                if not output.finished:
                    self._engine.abort_request([output.request_id])
            if sequence.finish_reason is not None:
                ended[sequence.inner] = len(sequence.tokens)
                self._unproved[sequence.inner] = output.request_id, self._running.pop(output.request_id)
        return ended

    def abort(self, names: Collection[str]) -> None:
        """End these requests without a completion; nothing happens to those that have ended."""
        found = {name: self._running.pop(name) for name in names if name in self._running}
        self._engine.abort_request(list(found))
        late = [inner for inner, (name, _) in self._unproved.items() if name in names]
        for inner in late:
            del self._unproved[inner]
        self._engine.collective_rpc("shoal_forget", args=([*(each.inner for each in found.values()), *late],))
        metrics.RUNNING.set(min(self.running, self.sequences))

    def cut(self) -> list[tuple[str, Completion]]:
        """Take out all requests, each with what it has so far and a proof of it; `cut` are those that have not ended. Waits for the proofs."""
        ended: dict[str, int] = {}
        for outputs in vllm_hooks.settled(self._engine):
            ended |= self._told(outputs)
        ended |= {sequence.inner: len(sequence.tokens) for sequence in self._running.values()}
        for name, sequence in self._running.items():
            sequence.finish_reason, sequence.ended = "cut", time.monotonic()
            self._unproved[sequence.inner] = name, sequence
        self._engine.abort_request(list(self._running))
        self._running.clear()
        metrics.RUNNING.set(0)
        return self._proved(ended)

    def grown(self) -> list[tuple[str, Completion]]:
        """What running requests have sampled since this was asked last, by name, up to whole proofs that are made by now. Waits for none."""
        longer = {name: each for name, each in self._running.items() if len(each.tokens) - each.told >= CHUNK_TOKENS}
        if not (longer and self._proofs):
            return []
        had = {each.inner: each.told // CHUNK_TOKENS for each in longer.values()}
        proofs = self._engine.collective_rpc("shoal_so_far", args=(had,))[self._stages][-1]
        return [(name, new) for name, each in longer.items() if (new := each.since(proofs[each.inner])).tokens]

    def generate(
        self, requests: Sequence[Request], over: Callable[[], str | None], pauses: Pauses | None = None
    ) -> list[Completion]:
        """Complete all requests, in their order; GenerationStoppedError once `over()`, asked before each decoding step, gives a reason."""
        names = [self.start(request, pauses) for request in requests]
        made: dict[str, Completion] = {}
        while len(made) < len(names):
            reason = over()
            if reason is not None:
                self.abort(names)
                raise GenerationStoppedError(f"stopped with {len(names) - len(made)} sequences unfinished: {reason}")
            made.update(self.step())
        return [made[name] for name in names]

    def record_proofs(self, on: bool) -> None:
        """Whether completions from now on have proofs; without, their `proofs` are empty. For measuring what proofs cost."""
        self._proofs = on
        self._engine.collective_rpc("shoal_record", args=(on,))

    def close(self) -> None:
        """End the engine; the processes of a tensor-parallel one with it."""
        self._engine.engine_core.shutdown()

    def _proved(self, ended: dict[str, int]) -> list[tuple[str, Completion]]:
        """Hand the ends of sequences to the recorder; returns those whose proofs are there."""
        if self._routes is not None and ended:
            stages = self._engine.collective_rpc("shoal_take_routes", args=(ended,))[self._stages]
            for inner, tokens in ended.items():
                parts = [found.get(inner, b"") for found in stages]
                self._unproved[inner][1].routes = joined(parts, self._layers, tokens, self._routes)
        if not self._proofs:
            done = [self._unproved.pop(inner) for inner in ended]
            return [(name, sequence.completion(b"")) for name, sequence in done]
        self._steps += 1
        wait = not self._running
        if not self._unproved or not (ended or wait or self._steps % PROOFS_EVERY == 0):
            return []
        proofs = self._engine.collective_rpc("shoal_finish", args=(ended, wait))[self._stages][-1]
        made = []
        for inner, proof in proofs.items():
            name, sequence = self._unproved.pop(inner)
            metrics.PROOF_WAIT_SECONDS.observe(time.monotonic() - sequence.ended)
            made.append((name, sequence.completion(proof)))
        return made

    def _add(self, name: str, request: Request, *, streamed: bool) -> str:
        """Queue a request, whose tokens come one by one if `streamed`; returns vLLM's inner name of it."""
        left_out = request.truncation.model_dump() if request.truncation is not None else {}
        parameters = SamplingParams(
            temperature=request.temperature,
            extra_args={vllm_hooks.SEED: request.seed},
            max_tokens=request.max_tokens,
            logprobs=0,  # of the sampled token only
            stop_token_ids=self._eos,
            ignore_eos=True,  # vLLM's own end, the tokenizer's, may be none of the model's stop tokens
            **left_out,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY,
        )
        inner: str = self._engine.add_request(name, {"prompt_token_ids": list(request.prompt_tokens)}, parameters)
        return inner


@dataclass
class _Sequence:
    """The output of one request so far; `inner` is vLLM's own name of it."""

    inner: str
    pauses: Pauses | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: Any = None
    ended: float = 0.0
    routes: bytes | None = None
    told: int = 0
    """Tokens that `since` gave."""

    def add(self, output: Any) -> None:
        """The tokens that are new since the last output, all of them if there was none."""
        tokens = list(output.token_ids)
        self.tokens += tokens
        self.logprobs += [entry[token].logprob for token, entry in zip(tokens, output.logprobs or (), strict=True)]
        self.finish_reason = output.finish_reason
        self.ended = time.monotonic()

    def since(self, proofs: bytes) -> Completion:
        """The tokens of these proofs, which are the next ones. A rank may be ahead of the tokens that its stage has told."""
        chunks = min(len(proofs) // PROOF_BYTES, (len(self.tokens) - self.told) // CHUNK_TOKENS)
        first, self.told = self.told, self.told + chunks * CHUNK_TOKENS
        return Completion(
            self.tokens[first : self.told], self.logprobs[first : self.told], "cut", proofs[: chunks * PROOF_BYTES]
        )

    def completion(self, proofs: bytes) -> Completion:
        return Completion(self.tokens, self.logprobs, self.finish_reason, proofs, routes=self.routes)


def serve_ranks(
    checkpoint: Checkpoint, settings: EngineSettings, terms: EngineTerms, span: HostSpan, goes_on: Callable[[], bool]
) -> str:
    """Run this host's ranks of an engine that another host leads; returns why they ended: a rank died, or `goes_on` said no.

    As vLLM's own `serve --headless` does. The ranks end with this process, however it ends.
    """
    config = _arguments_here(checkpoint, settings, terms, span).create_engine_config(headless=True)
    executor = MultiprocExecutor(config, monitor_workers=False)
    ranks: dict[Any, Any] = {worker.proc.sentinel: worker for worker in executor.workers}
    try:
        while goes_on():
            if ended := wait_for_any(list(ranks), timeout=LOOK_SECONDS):
                rank = ranks[ended[0]]
                return f"rank {rank.rank} ended with exit code {rank.proc.exitcode}"
        return "asked to end"
    finally:
        executor.shutdown()


def _arguments_here(
    checkpoint: Checkpoint, settings: EngineSettings, terms: EngineTerms, span: HostSpan | None
) -> EngineArgs:
    """vLLM's arguments, once this process fits them; raises RuntimeError or BadCheckpointError."""
    # Whoever loaded torch before us may have left it with a thread for every core.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if compiles(settings.compiled) and os.environ[DYNAMO] == "1":
        raise RuntimeError(f"engine.compiled is set, but {DYNAMO}=1 was set when vLLM was loaded: leave it unset")
    check_tensor_parallel(checkpoint, settings.tensor_parallel_size)
    check_stages(checkpoint, settings.pipeline_parallel_size)
    length = min(terms.max_sequence_length, checkpoint.max_positions)
    if current_platform.is_cpu():
        vllm_hooks.inspect_in_process(checkpoint.config["architectures"][0])
    arguments = _engine_arguments(checkpoint, length, terms.batch, settings, terms.quantization, terms.routes)
    if span is not None:
        arguments |= {
            "distributed_executor_backend": "mp",
            "nnodes": span.hosts,
            "node_rank": span.number,
            "master_addr": span.address,
            "master_port": span.port,
        }
    return EngineArgs(**arguments)


def _engine_arguments(
    checkpoint: Checkpoint,
    length: int,
    batch: int,
    settings: EngineSettings,
    quantization: Quantization | None = None,
    routes: RouteShape | None = None,
) -> dict[str, Any]:
    """vLLM's arguments: what the proofs need on every device, what a CPU needs, and what the pool chose.

    With `routes` nothing is compiled: vLLM captures CUDA graphs before `shoal_install` can tell its routers to whom they say what they choose, and
    replays only what it captured.
    """
    arguments: dict[str, Any] = {
        "model": str(checkpoint.folder),
        "dtype": checkpoint.dtype,  # "auto" would serve a float32 checkpoint in half precision
        "max_model_len": length,
        "enforce_eager": routes is not None or not compiles(settings.compiled),
        "worker_extension_cls": vllm_hooks.EXTENSION,
        # On a CPU the step is in this thread, and vLLM's platform turns it off itself. Its first model runner, which the hooks read, lacks it for
        # stages, which have several batches under way anyway (ADR 0143).
        "async_scheduling": settings.async_scheduling
        and settings.pipeline_parallel_size == 1
        and not current_platform.is_cpu(),
        "logprobs_mode": "processed_logprobs",  # at the sampling temperature, as the trainer's are
        "generation_config": "vllm",  # a checkpoint's own top-k or top-p would bias the ratio
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
    }
    if quantization is not None:
        arguments["load_format"] = vllm_hooks.load_format(quantization)
    if current_platform.is_cpu():
        sequences = min(batch, settings.max_sequences or MAX_SEQUENCES)
        arguments |= {
            "max_num_seqs": sequences,
            "enable_chunked_prefill": False,  # crashed on a CPU with a seed in a request; not tried since requests have none
            "max_num_batched_tokens": max(2048, length),
            "kv_cache_memory_bytes": kv_cache_bytes(checkpoint.config, checkpoint.dtype, length * sequences),
        }
        if checkpoint.config.get("kv_lora_rank"):
            arguments["compilation_config"] = NO_ROTARY_KERNEL
            # Where a CPU has AMX the default is another: it wants bfloat16, and a validator may have none.
            arguments["attention_backend"] = "CPU_MLA"
    else:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
        arguments["hf_overrides"] = FLOAT32_HEAD
    chosen = {
        "max_num_seqs": settings.max_sequences if not current_platform.is_cpu() else None,
        # Without chunked prefill a step must take the longest prompt.
        "max_num_batched_tokens": max(settings.max_batched_tokens, length) if settings.max_batched_tokens else None,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
    }
    return arguments | {name: value for name, value in chosen.items() if value is not None}
