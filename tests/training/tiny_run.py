"""A tiny run for the trainer's tests: a random Qwen3 in a store, and full steps of accepted rollouts with signed verdicts."""

import contextlib
import functools
import hashlib
import json
import os
import signal
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from forked_python import TRAINER, ForkedProcess, start_python
from samples import METADATA, NODE, ROLE_KEYS, RUN, rollout, run_config
from shoal import telemetry
from shoal.broadcast.publishing import copy_to_store, cut_into
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.completions import LengthReward
from shoal.contracts.protocol import RunProgress, TrainerProgress
from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import Rollout, write_rollouts
from shoal.contracts.run import Addresses, Prepared, RunConfig
from shoal.contracts.signed import sign
from shoal.contracts.steps import BatchFile, StepBatch
from shoal.contracts.trust import KeysNotice
from shoal.contracts.verdicts import RowReward, Verdict
from shoal.crypto.http_signatures import verify_request
from shoal.storage import Store
from shoal.storage.store import open_folder
from shoal.training.context import TrainerContext
from shoal.training.extensions.base import Extensions
from shoal.training.extensions.enabled import enabled_extensions
from shoal.training.loop import Trainer
from shoal.training.parallel import Ranks, start_ranks
from shoal.training.progress import ProgressReporter
from shoal.transport import SignedClient

VOCABULARY = 64
MAX_LENGTH = 40
LENGTHS = LengthReward(targets=[8, 16], alpha=0.01)
VALIDATOR = ROLE_KEYS["validator"]


@functools.cache
def ranks() -> Ranks:
    """This process as a group of one; torch allows one such group a process.

    On one thread, as the entry point sets it: sums over another number of threads differ in the last bit.
    """
    torch.set_num_threads(1)
    return start_ranks("cpu", environment={})


def recipe(**changes: Any) -> Recipe:
    """Four groups of four, two optimizer steps, a learning rate that moves a tiny model visibly."""
    fields = {
        "prompts_per_step": 4,
        "group_size": 4,
        "optimizer_steps": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "max_sequence_length": MAX_LENGTH,
        "pack_length": 64,
    }
    return Recipe(**(fields | changes))


def config(orchestrator: str = "http://127.12.0.1:9", steps: int = 3, **changes: Any) -> RunConfig:
    addresses = Addresses(
        discovery="http://127.12.0.1:8081",
        orchestrator=orchestrator,
        origin="http://127.12.0.1:8090",
        relays=[],
        redis="redis://127.12.0.1:6379/0",
    )
    return run_config(
        **({"recipe": recipe(), "steps": steps, "length_reward": LENGTHS, "addresses": addresses} | changes)
    )


def make_model(seed: int = 0, **changes: Any) -> Qwen3ForCausalLM:
    """Random weights, untied, float32, 30 thousand parameters."""
    torch.manual_seed(seed)
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "bos_token_id": None,
        "pad_token_id": 0,
        "initializer_range": 0.2,
        "dtype": "float32",
    }
    return Qwen3ForCausalLM(Qwen3Config(**(fields | changes))).eval()


def write_base(folder: Path, **changes: Any) -> Path:
    """A base checkpoint with a file beside the weights, as a tokenizer would be."""
    make_model(**changes).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    return folder


def make_store(root: Path) -> Store:
    root.mkdir(parents=True, exist_ok=True)
    return open_folder(root, f"shoal/{RUN}", deadline_seconds=5.0)


def prepare(store: Store, base: Path) -> None:
    """What prepare leaves."""
    for path in base.iterdir():
        store.put_file(keys.BASE_MODEL + path.name, path)
    done = Prepared(
        run=RUN, model_id="tiny", environment="arithmetic", environment_digest="1" * 64, tasks_digest="2" * 64, task_count=9
    )  # fmt: skip
    store.put(keys.PREPARED, done.to_json())


def rows_of(step: int, groups: int = 4, size: int = 4, version: int | None = None) -> list[Rollout]:
    """Random completions of varied lengths; the same for the same step."""
    chance = np.random.default_rng([7, step])
    rows = []
    for group in range(groups):
        prompt = chance.integers(2, VOCABULARY, chance.integers(3, 9)).tolist()
        for index in range(size):
            count = int(chance.integers(2, 24))
            rows.append(
                rollout(
                    step=step,
                    policy_version=max(0, step - 1) if version is None else version,
                    prompt_index=10 + group,
                    sample_index=index,
                    prompt_tokens=prompt,
                    completion_tokens=chance.integers(1, VOCABULARY, count).tolist(),
                    completion_logprobs=(-chance.random(count) * 4).tolist(),
                    completion_mask=[True] * count,
                    temperature=0.9,
                    target_length=16,
                )
            )
    return rows


def rewards_of(rows: list[Rollout]) -> list[RowReward]:
    """Every other row is right."""
    found = []
    for number, row in enumerate(rows):
        penalty = 0.01 * abs(16 - len(row.completion_tokens))
        right = float(number % 2 == 0)
        found.append(RowReward(task_reward=right, length_penalty=penalty, reward=right - penalty))
    return found


def accept(store: Store, rows: list[Rollout], rewards: list[RowReward] | None = None, **verdict: Any) -> BatchFile:
    """Put a file and its verdict into the store, as the orchestrator does."""
    return accept_bytes(store, write_rollouts(rows, METADATA), rows, rewards, **verdict)


def accept_bytes(
    store: Store, data: bytes, rows: list[Rollout], rewards: list[RowReward] | None = None, **verdict: Any
) -> BatchFile:
    """As `accept`, with the file's bytes given: they need not be a good file."""
    sha = hashlib.sha256(data).hexdigest()
    first = rows[0]
    given = rewards if rewards is not None else rewards_of(rows)
    fields: dict[str, Any] = {
        "run": RUN, "node": NODE, "lease": "ab" * 16, "step": first.step, "submission": first.submission, "sha256": sha,
        "policy_version": first.policy_version, "outcome": "accept", "rewards": given, "rows": len(given),
    }  # fmt: skip
    store.put(keys.upload(NODE, sha), data)
    store.put(keys.verdict(NODE, sha), sign(Verdict(**(fields | verdict)), VALIDATOR).to_json())
    return BatchFile(
        node=NODE,
        submission=first.submission,
        sha256=sha,
        policy_version=first.policy_version,
        rows=len(rows),
        prompt_indices=sorted({row.prompt_index for row in rows}),
    )


def batch_of(step: int, files: list[BatchFile]) -> StepBatch:
    groups = sum(len(file.prompt_indices) for file in files)
    return StepBatch(run=RUN, step=step, beacon="0" * 64, groups=groups, groups_dropped=0, files=files)


def fill_step(store: Store, step: int, like: int | None = None) -> StepBatch:
    """A full step: two files of two groups each. With `like` the rollouts are those that another step would have."""
    rows = (
        rows_of(step)
        if like is None
        else [replace(row, step=step, policy_version=max(0, step - 1)) for row in rows_of(like)]
    )
    files = [
        accept(store, rows[:8]),
        accept(store, [replace(row, submission=3) for row in rows[8:]]),
    ]
    batch = batch_of(step, files)
    store.put(keys.step_batch(step), batch.to_json())
    return batch


def make_trainer(
    folder: Path,
    base: Path,
    store: Any,
    orchestrator: "Orchestrator",
    run: RunConfig,
    extensions: Extensions | None = None,
) -> Trainer:
    """A trainer in this process, by default with the extensions of the run; `folder` is its pod's."""
    client = SignedClient(orchestrator.url, ROLE_KEYS["trainer"])
    context = TrainerContext(
        run, store, store, base, folder / "outbox", folder / "tmp", "arithmetic-trainer-0",
        ProgressReporter(RUN, client, store), telemetry.Liveness(60.0), ranks(),
    )  # fmt: skip
    return Trainer(context, enabled_extensions(run, store, 5.0) if extensions is None else extensions)


def publish(store: Store, outbox: Path, www: Path, run: RunConfig, version: int) -> None:
    """What the publisher does: cut the version in the outbox, copy it to the store, seal it there."""
    tree = Tree(www)
    manifest = cut_into(
        tree, outbox / keys.version_name(version), run, version, ROLE_KEYS["trainer"], lambda: None
    )  # fmt: skip
    copy_to_store(store, tree, manifest, sign(manifest, ROLE_KEYS["trainer"]), lambda: None)


class Home:
    """A trainer's pod on this machine: the folders that its real processes are started with."""

    def __init__(
        self,
        root: Path,
        base: Path,
        address: str,
        orchestrator: str,
        steps: int,
        store: Store | None = None,
        **changes: Any,
    ) -> None:
        """`store`: where `changes` says that it lies; None: a folder of the home."""
        self.root = root
        self.outbox = root / "outbox"
        self.log = root / "log"
        self.store = store or make_store(root / "store")
        self._address = address
        prepare(self.store, base)
        (root / "secrets").mkdir()
        (root / "secrets" / "role.pem").write_bytes(ROLE_KEYS["trainer"].to_pem())
        (root / "config").mkdir()
        self.configure(config(orchestrator, steps, **changes))

    def configure(self, config: RunConfig) -> None:
        (self.root / "config" / "run.json").write_bytes(config.to_json())

    def start(self, processes: int = 1, first: str = "") -> ForkedProcess:
        """The trainer's entry point, alone or under torchrun; its output goes to `log`. Alone it may run a line of Python `first`."""
        environment = os.environ | {
            "SHOAL_HOME": str(self.root), "SHOAL_BIND": self._address, "SHOAL_POD": "arithmetic-trainer-0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
        command = [*(torchrun if processes > 1 else []), "-m", "shoal.training"]
        imported: tuple[str, ...] = TRAINER
        if first:  # it sets what modules take as they are imported
            imported, command = (), ["-c", f"{first}; from shoal.training.__main__ import main; main()"]
        with self.log.open("ab") as log:
            return start_python(command, imported, env=environment, stdout=log.fileno(), start_new_session=True)

    def weights(self, version: int) -> bytes:
        return (self.outbox / keys.version_name(version) / "model.safetensors").read_bytes()

    def has_state(self, version: int) -> bool:
        return self.store.exists(keys.trainer_state(version) + "state.json")


def kill_all(process: ForkedProcess) -> None:
    """kill -9 for the process and its children, whose port the next process takes. torchrun's have sessions of their own and die with it."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    psutil.wait_procs(children, timeout=10)


class Orchestrator:
    """Takes progress over HTTP as the orchestrator does, signatures checked, and knows the newest version and the newest keys (None: no change)."""

    def __init__(self, address: str) -> None:
        self.told: list[TrainerProgress] = []
        self.latest_version: int | None = None
        self.notice: KeysNotice | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signed = verify_request(
                    method="POST",
                    url=outer.url + self.path,
                    headers=dict(self.headers),
                    body=body,
                    now_unix=time.time(),
                )
                assert signed.key == ROLE_KEYS["trainer"].public
                outer.told.append(TrainerProgress.from_json(body))
                self.send_response(204)
                self.end_headers()

            def do_GET(self) -> None:
                progress = RunProgress(run=RUN, steps_total=3, open_step=None, latest_version=outer.latest_version)
                answer = outer.notice if self.path.startswith("/v1/keys") else progress
                body = answer.to_json() if answer is not None else b""
                self.send_response(200 if body else 204)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
