"""A tiny random Qwen3, a run around it, and a real vLLM in a process of its own, for the tests of worker and validator.

vLLM changes the process that it runs in (threads, environment), so that tests never import it: `run_engine` starts
`engine_process.py` for each list of commands.
"""

import base64
import functools
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from forked_python import WORKER, start_python
from shoal.contracts.completions import LengthReward, Sampling
from shoal.contracts.evaluation import Truncation
from shoal.contracts.pools import SAMPLER
from shoal.contracts.proof_profile import CalibrationSize, ErrorRate, HonestErrors, ProofProfile
from shoal.contracts.protocol import Lease, StepInfo
from shoal.contracts.run import PublicRun
from shoal.contracts.thresholds import ProofThresholds
from shoal.contracts.vine import VineSettings
from shoal.contracts.weights import WeightsManifest
from shoal.environments import digest
from shoal.environments.arithmetic import Arithmetic
from shoal.environments.prompts import prompt_tokens
from shoal.inference.batch import PlannedLease, Row
from shoal.inference.completions import Completion, Request
from shoal.inference.generation import Wish
from shoal.inference.rollouts import PlannedRow, plan_submission
from shoal.inference.weights import VersionOnDisk
from shoal.sampling import draw

EOS = 1
NODE = hashlib.sha256(b"node").hexdigest()
ENVIRONMENT = Arithmetic()
TASKS = ENVIRONMENT.tasks(64, seed=3)
MAX_LENGTH = 128
PUBLIC = PublicRun(
    run="tiny",
    steps=10,
    async_level=2,
    model_id="tiny-model",
    environment="arithmetic",
    environment_digest=digest(ENVIRONMENT),
    tasks_digest="ab" * 32,
    task_count=len(TASKS),
    group_size=8,
    max_sequence_length=MAX_LENGTH,
    sampling=Sampling(temperature=0.8, max_completion_tokens=40, groups_per_submission=3),
    length_reward=LengthReward(targets=[16, 24, 32], alpha=0.003),
    sampler=SAMPLER,
)
PUBLIC_VINE = PUBLIC.model_copy(update={"vine": VineSettings(segments=3, continuations=2)})
"""The same run with Monte-Carlo values: two continuations from a third and from two thirds of each completion."""
BEACON = draw.beacon(b"secret", "tiny", 4)
STEP = StepInfo(
    run="tiny",
    step=4,
    beacon=BEACON.hex(),
    commitment=draw.beacon_commitment(BEACON),
    min_version=2,
    max_version=4,
    latest_version=4,
    needed_groups=8,
    accepted_groups=0,
    pending_groups=0,
)
WORK = PUBLIC.codec.decode(STEP.step)
LEASE = Lease(lease="0f" * 16, node=NODE, step=4, submission=2, expires_unix=0.0)


def make_policy(folder: Path, seed: int, *, tied: bool = False, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    """Write a random byte-level Qwen3 checkpoint of 0.5M parameters to `folder`; returns the model."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=258,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=0,
        initializer_range=0.08,
    )
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model


def save_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer of 258 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<eos>": EOS} | {character: 2 + index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)


def proof_profile(masked: Sequence[int]) -> ProofProfile:
    """A profile of such a policy that masks these dimensions and measured nothing."""
    rate = ErrorRate(events=0, trials=1, low=0.0, high=1.0)
    return ProofProfile(
        hidden_size=128,
        dtype="bfloat16",
        masked_dimensions=list(masked),
        thresholds=ProofThresholds(),
        size=CalibrationSize(prover="none", sequences=1, tokens=1, chunks=1, file_sequences=1),
        honest=HonestErrors(
            max_mismatches=0,
            max_mantissa_error_mean=0.0,
            max_mantissa_error_median=0.0,
            rejected_chunks=rate,
            rejected_files=rate,
        ),
    )


def plan(tokenizer: Any) -> list[PlannedRow]:
    """What the worker must make for LEASE."""
    return plan_submission(
        WORK,
        STEP,
        LEASE,
        PUBLIC,
        TASKS,
        lambda task, target: prompt_tokens(tokenizer, ENVIRONMENT, task, target, None),
    )


def run_engine(commands: Sequence[dict[str, Any]]) -> "EngineRun":
    """Start a real engine and have it do the commands of `engine_process.py`."""
    return EngineRun(commands)


class EngineRun:
    """A process at work on commands; `results()` waits for it."""

    def __init__(self, commands: Sequence[dict[str, Any]]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "commands.json").write_text(json.dumps(list(commands)))
        script = Path(__file__).with_name("engine_process.py")
        with (folder / "log").open("ab") as log:
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # it imports this module
            self._process = start_python([str(script), str(folder)], WORKER, env=environment, stdout=log.fileno())

    @functools.cached_property
    def results(self) -> list[Any]:
        """One answer a command; completions as `Completion`."""
        folder = Path(self._folder.name)
        try:
            code = self._process.wait(400)
        finally:
            self._process.kill()
        assert code == 0, (folder / "log").read_text(errors="replace")[-6000:]
        answers = json.loads((folder / "results.json").read_text())
        self._folder.cleanup()
        return [[_completion(item) for item in answer] if isinstance(answer, list) else answer for answer in answers]


def on_disk(version: int, folder: Path) -> VersionOnDisk:
    """A version whose weights lie in `folder`; its digest is its number."""
    manifest = WeightsManifest(
        run="tiny", version=version, model="m", sha256=f"{version:064x}", open_digest="0" * 64, shards=["0" * 64]
    )
    return VersionOnDisk(version, folder, manifest)


class OneLease:
    """A desk that has one lease, and the newest version that the test says; none of its rows asks a tool."""

    info = None
    most, shortage = 1, "no-lease"

    def __init__(self, planned: Sequence[PlannedRow], policy: VersionOnDisk) -> None:
        self.newest: VersionOnDisk | None = None
        self._ready: PlannedLease | None = PlannedLease(
            LEASE, WORK, PUBLIC, policy, planned, None, given=0.0, ends=1e9, life=1e9
        )

    def want(self, wish: Wish | None) -> None:
        pass

    def take(self) -> PlannedLease | None:
        ready, self._ready = self._ready, None
        return ready

    def ask(self, row: Row) -> None:
        raise AssertionError("no row has tools")

    def answers(self) -> list[tuple[Row, bool | Exception]]:
        return []


def request_json(request: Request) -> dict[str, Any]:
    left_out = request.truncation.model_dump() if request.truncation is not None else None
    return asdict(request) | {"prompt_tokens": list(request.prompt_tokens), "truncation": left_out}


def request_of(written: dict[str, Any]) -> Request:
    """The request that `request_json` wrote."""
    left_out = written["truncation"]
    return Request(**(written | {"truncation": Truncation(**left_out) if left_out is not None else None}))


def _completion(item: dict[str, Any]) -> Completion:
    segments = tuple(tuple(each) for each in item["segments"])
    routes = bytes.fromhex(item["routes"]) if item["routes"] is not None else None
    return Completion(**(item | {"proofs": base64.b64decode(item["proofs"]), "segments": segments, "routes": routes}))


class Scenario:
    """Three policies on disk, one planned submission, and what real engines made of it. Made once for all tests."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        self.folder = {"old": root / "old", "new": root / "new", "tied": root / "tied", "tied-new": root / "tied-new"}
        self.model = {
            name: make_policy(folder, seed, tied=name.startswith("tied"))
            for seed, (name, folder) in enumerate(self.folder.items())
        }
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder["old"])
        self.planned = plan(self.tokenizer)
        generate: dict[str, Any] = {"do": "generate", "requests": [request_json(row.request) for row in self.planned]}
        folders = {name: str(folder) for name, folder in self.folder.items()}
        swapped: list[dict[str, Any]] = [
            {"do": "start", "folder": folders["old"]},
            generate,
            generate | {"stop_after": 5},
            generate,
            {"do": "continue", "folder": folders["old"]},
            {"do": "swap", "folder": folders["tied"]},
            {"do": "swap", "folder": folders["new"]},
            generate,
            generate | {"do": "join"},
        ]
        self._main = run_engine(swapped)
        self._commands = generate
        self._folders = folders

    @property
    def old(self) -> list[Completion]:
        """What the old policy's engine made."""
        return self._main.results[1]

    @property
    def joined(self) -> list[Completion]:
        """What the new policy's engine made of requests that joined one by one."""
        return self._main.results[8]

    @property
    def stopped(self) -> str:
        """What `generate` raised when it was asked to stop."""
        return self._main.results[2]

    @property
    def after_stop(self) -> list[Completion]:
        return self._main.results[3]

    @property
    def continuations(self) -> list[Completion]:
        """What the old policy's engine made of the continuations of `old`, as `PUBLIC_VINE` has them."""
        return self._main.results[4]

    @property
    def refused_swap(self) -> str:
        """What a swap to another architecture raised."""
        return self._main.results[5]

    @property
    def swapped(self) -> list[Completion]:
        """What the same engine made after the swap to the new policy."""
        return self._main.results[7]

    @functools.cached_property
    def fresh(self) -> list[Completion]:
        """What another engine, started on the new policy, made."""
        return run_engine([{"do": "start", "folder": self._folders["new"]}, self._commands]).results[1]

    @functools.cached_property
    def tied_swapped(self) -> list[Completion]:
        """What an engine with tied embeddings made after a swap."""
        commands: list[dict[str, Any]] = [
            {"do": "start", "folder": self._folders["tied"]},
            {"do": "swap", "folder": self._folders["tied-new"]},
            self._commands,
        ]
        return run_engine(commands).results[2]


@functools.cache
def scenario() -> Scenario:
    return Scenario()
