"""Rows of a data set for the tests of supervised fine-tuning, and a store that holds them as prepare leaves them."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from tiny_run import MAX_LENGTH, VOCABULARY, config, make_store
from tiny_run import prepare as prepare_base

from samples import RUN
from shoal.contracts import keys
from shoal.contracts.run import RunConfig
from shoal.contracts.sft import SftDataset, SftManifest, SftSettings, SftShard
from shoal.contracts.sft_data import SftRow, write_sft_rows
from shoal.storage import Store
from shoal.training.rollouts import Sample


def sft_settings(**changes: Any) -> SftSettings:
    """Four rows an update, a learning rate that moves a tiny model visibly."""
    fields: dict[str, Any] = {
        "dataset": SftDataset(path="/data"),
        "epochs": 2,
        "batch_rows": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "max_sequence_length": MAX_LENGTH,
        "pack_length": 64,
    }
    return SftSettings(**(fields | changes))


def sft_config(orchestrator: str = "http://127.12.0.1:9", steps: int = 3, **changes: Any) -> RunConfig:
    return config(orchestrator, steps, mode="SFT", sft=sft_settings(**changes))


def sft_rows(count: int = 14, seed: int = 3) -> list[SftRow]:
    """Of varied lengths; each completion repeats its prompt's last token, so that there is something to learn."""
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        prompt = chance.integers(2, VOCABULARY, chance.integers(2, 9)).tolist()
        completion = [prompt[-1]] * int(chance.integers(1, 20)) + [1]
        rows.append(SftRow(f"row-{number}", prompt, completion))
    return rows


def sample(row: SftRow) -> Sample:
    """A row as packing takes it."""
    count = len(row.completion_tokens)
    return Sample(
        row.row_id, np.array(row.prompt_tokens + row.completion_tokens), len(row.prompt_tokens), np.ones(count, bool),
        np.zeros(count, np.float32), 1.0, 0, 0.0, 0.0, 0.0,
    )  # fmt: skip


def put_rows(store: Store, learnt: list[SftRow], held_out: list[SftRow] | None = None, run: str = RUN) -> SftManifest:
    """What prepare leaves: shards of at most five rows, then the manifest."""
    shards = []
    for which, rows in ((False, learnt), (True, held_out or [])):
        for start in range(0, len(rows), 5):
            part = rows[start : start + 5]
            data = write_sft_rows(part)
            name = f"{'held-out' if which else 'learnt'}-{start // 5:05d}.parquet"
            store.put(keys.sft_shard(name), data)
            tokens = sum(len(row.prompt_tokens) + len(row.completion_tokens) for row in part)
            sha = hashlib.sha256(data).hexdigest()
            shards.append(SftShard(name=name, sha256=sha, rows=len(part), tokens=tokens, held_out=which))
    manifest = SftManifest(
        run=run, source="/data", shards=shards, completion_tokens=sum(len(row.completion_tokens) for row in learnt)
    )
    store.put(keys.SFT_MANIFEST, manifest.to_json())
    return manifest


def sft_store(root: Path, base: Path | None = None) -> Store:
    """A prepared store: twelve rows to learn and two held out."""
    store = make_store(root)
    if base is not None:
        prepare_base(store, base)
    rows = sft_rows()
    put_rows(store, rows[:12], rows[12:])
    return store
