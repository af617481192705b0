"""From the death of a rank to the next step, at 32B on 16 ranks of four pods: `python -m benchmarks.restart`.

In: gigabytes to measure with. Out: keys of benchmarks/results/size.json. Rates are measured here with the product's code, a process at a time, on a
folder store of this disk: a state that is written and read by rows with its digests, a base model whose rows are read from the store into a policy,
a published version that is made again from its shards, a delta that is unpacked, processes that start and meet. Built at full size: the 32B model
without weights. Seconds are computed from these for 25 Gb/s a pod; parts that use one card or one processor follow each other, and are added up.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen3Config

from shoal.broadcast.publishing import copy_to_store, cut_into
from shoal.broadcast.tree import Tree
from shoal.contracts import keys
from shoal.contracts.signed import sign
from shoal.storage import Store, delta
from shoal.storage.parallel import in_parallel
from shoal.storage.store import open_folder
from shoal.storage.versions import materialise
from shoal.training.export import Entry, header, write_at
from shoal.training.model import load_policy, without_weights
from shoal.training.state_files import BLOCK_BYTES, REQUEST_BLOCKS, StateParts, write_part
from shoal.training.stored_weights import weights_in_store

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the tests' helper modules are imported by their bare names

from samples import ROLE_KEYS, RUN, run_config

RESULT = ROOT / "benchmarks" / "results" / "size.json"
PARAMETERS, VERSION_BYTES, STATE_BYTES = 32.76e9, 65.5e9, 393.1e9
RANKS, PODS, POD_BYTES_A_SECOND = 16, 4, 25e9 / 8
CORES_A_RANK = 2
"""As many as this machine has: a pod makes a version with those of its four ranks."""
DELTAS, DELTA_RATIO = 7, 30.0
"""The longest chain with an anchor at each eighth version."""
NOTICED_SECONDS, PAUSE_SECONDS, POD_SECONDS = 10.0, 10.0, 20.0
"""The Job fails and the operator sees it; the first pause of ADR 0027; pods start on nodes that have the image."""
GROUP_SECONDS = 10.0
"""NCCL and three groups of gloo over 16 ranks of four pods, beyond what two here take."""
TENSOR_BYTES = 64 << 20
QWQ_32B = Qwen2Config(
    vocab_size=152064, hidden_size=5120, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8,
    tie_word_embeddings=False, dtype="bfloat16",
)  # fmt: skip


def seconds(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def state_rates(size: int, store: Store) -> dict[str, float]:
    """Bytes a second of a state of `size` bytes: written, read; and of what reading is made of, alone."""
    count, prefix = size // TENSOR_BYTES, keys.trainer_state(1)
    made = {f"weights/w{number:04d}": torch.randn(1024, TENSOR_BYTES // 4096) for number in range(count)}
    files: dict[str, str] = {}
    rates = {"state_write": size / seconds(lambda: files.update(write_part(store, prefix, made, RUN, 1, 0)))}
    there = {key: torch.empty_like(tensor) for key, tensor in made.items()}
    parts = StateParts(store, prefix, files, RUN, 1)
    rates["state_read"] = size / seconds(lambda: parts.read(there, 0, lambda: None))
    if not all(torch.equal(there[key], tensor) for key, tensor in made.items()):
        raise RuntimeError("what was read is not what was written")
    step, key = BLOCK_BYTES * REQUEST_BLOCKS, prefix + "rank-00000.tensors"

    def get(start: int) -> None:
        store.get_range(key, start, min(size, start + step))

    rates["range"] = size / seconds(lambda: in_parallel(get, range(0, size, step)))
    block = bytes(BLOCK_BYTES)
    rates["digest"] = 256 * BLOCK_BYTES / seconds(lambda: [hashlib.sha256(block).digest() for _ in range(256)])
    rates["copy"] = size / seconds(lambda: [there[key].copy_(tensor) for key, tensor in made.items()])
    for info in store.list(prefix):
        store.delete(info.key)
    return rates


def checkpoint(folder: Path, size: int) -> Path:
    """A model of about `size` bytes in bfloat16, laid out as a version is."""
    layers = max(1, int((size - 2 * 2 * 32768 * 2048) / 2 / (2048 * (2048 * 2 + 512 * 2 + 3 * 8192))))
    config = Qwen3Config(
        vocab_size=32768, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=4, head_dim=128, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    weights = without_weights(folder).state_dict()
    entries = [Entry(name, tuple(tensor.shape), name, None, None) for name, tensor in sorted(weights.items())]
    head = header(entries, torch.bfloat16)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(head)
        file.flush()
        start = len(head)
        for entry in entries:
            tensor = torch.randn(entry.shape, dtype=torch.bfloat16)
            write_at(file.fileno(), start, [tensor])
            start += tensor.nbytes
    return folder


def version_rates(size: int, root: Path, store: Store) -> dict[str, float]:
    """Bytes a second, in bfloat16, of a version that is made from its shards, and of a policy that is filled from files in the store."""
    folder, config, key = checkpoint(root / "v000001", size), run_config(), ROLE_KEYS["trainer"]
    size = (folder / "model.safetensors").stat().st_size
    tree = Tree(root / "www")
    manifest = cut_into(tree, folder, config, 1, key, lambda: None)
    copy_to_store(store, tree, manifest, sign(manifest, key), lambda: None)
    shutil.rmtree(root / "www")
    again = root / "again"
    taken = seconds(lambda: materialise(store, 1, again, config.run, key.public))
    shutil.rmtree(again)
    for info in store.list(keys.VERSIONS):
        store.delete(info.key)
    store.put_file(keys.BASE_MODEL + "model.safetensors", folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    filled = seconds(lambda: load_policy(folder, weights=weights_in_store(store, keys.BASE_MODEL)))
    return {"version": size / taken, "rows": size / filled}


def unpack_rate() -> float:
    """Bytes a second of a delta of a shard, one value of twenty changed, that is unpacked."""
    chance = np.random.default_rng(0)
    base = chance.integers(0, 1 << 16, 8 << 20, dtype=np.uint16)
    new = base ^ (chance.random(base.size) < 0.05).astype(np.uint16)
    packed = delta.encode(new.tobytes(), base.tobytes(), 2)
    if packed is None:
        raise RuntimeError("the delta is no smaller")
    before = base.tobytes()
    return 8 * base.nbytes / seconds(lambda: [delta.decode(*packed, before, 2) for _ in range(8)])


def start_seconds() -> float:
    """From the command to a group of two ranks."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-port=29561",
        "-m",
        "benchmarks.restart.rank",
    ]
    environment = os.environ | {"SHOAL_BIND": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    started = time.time()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("formed ")]
    return float(line.split()[1]) - started


def build_seconds(root: Path) -> float:
    """The 32B model without weights."""
    QWQ_32B.architectures = ["Qwen2ForCausalLM"]
    QWQ_32B.save_pretrained(root / "qwq")
    return seconds(lambda: without_weights(root / "qwq"))


def figures(rates: dict[str, float], start: float, build: float, gigabytes: float) -> dict[str, object]:
    """The keys of size.json."""
    cores = os.cpu_count() or 1
    share, per_pod = 1 / RANKS, 1 / PODS
    chain = VERSION_BYTES * (1 + DELTAS / DELTA_RATIO)
    index_bytes = RANKS // PODS * RANKS * 1.1e6
    bytes_a_pod = {
        "base_model_and_reference": 2 * VERSION_BYTES * per_pod,
        "state": STATE_BYTES * per_pod + index_bytes,
        "published_version_and_deltas": chain,
    }
    of_a_pod = RANKS / PODS * CORES_A_RANK / cores
    parts = {
        "noticed": NOTICED_SECONDS,
        "pause": PAUSE_SECONDS,
        "pods": POD_SECONDS,
        "start": start + GROUP_SECONDS,
        "models_built": 2 * build,
        "models_read": 2 * max(VERSION_BYTES * per_pod / POD_BYTES_A_SECOND, VERSION_BYTES * share / rates["rows"]),
        "state_read": max(bytes_a_pod["state"] / POD_BYTES_A_SECOND, STATE_BYTES * share / rates["state_read"]),
        "state_put": STATE_BYTES * share / rates["copy"],
        "version_made": max(
            chain / POD_BYTES_A_SECOND,
            VERSION_BYTES / (rates["version"] * of_a_pod)
            + DELTAS * VERSION_BYTES / (rates["unpack"] * RANKS / PODS * CORES_A_RANK),
        ),
        "version_read": VERSION_BYTES * share / rates["rows"],
    }
    return {
        "restart_seconds_32b_16_ranks": round(sum(parts.values()), 1),
        "restart_bytes_per_pod": round(sum(bytes_a_pod.values())),
        "restart_conditions": {
            "gigabytes": gigabytes,
            "gb_a_second": {name: round(rate / 1e9, 3) for name, rate in rates.items()},
            "here_start_and_group_seconds": round(start, 2),
            "here_build_32b_seconds": round(build, 2),
            "seconds_32b": {name: round(part, 1) for name, part in parts.items()},
            "gb_per_pod": {name: round(size / 1e9, 1) for name, size in bytes_a_pod.items()},
            "gb_per_pod_before": round((STATE_BYTES + VERSION_BYTES + chain) / 1e9, 1),
            "assumed": f"{PODS} pods at 25 Gb/s of {RANKS // PODS} ranks with {CORES_A_RANK} cores each at the rates measured here;"
            f" a store that gives each pod 25 Gb/s; a state that is older than the newest version, which is the last of a chain of {DELTAS} deltas"
            f" of 1/{DELTA_RATIO:.0f}; {NOTICED_SECONDS:.0f} s until the Job has failed, {PAUSE_SECONDS:.0f} s of pause, {POD_SECONDS:.0f} s for"
            f" pods, {GROUP_SECONDS:.0f} s for groups of 16 ranks; a device that takes what the host copies",
            "parts": "one after the other; within a part the slower of card and processor",
            "files": "just written, so in memory where that is large enough",
            "cores": cores,
            "load_1_min": round(os.getloadavg()[0], 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the state; a version has half as many")
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="restart-"))
    (root / "store").mkdir()
    store = open_folder(root / "store", "bench")
    torch.set_num_threads(1)
    try:
        size = -(-int(asked.gigabytes * 1e9) // TENSOR_BYTES) * TENSOR_BYTES
        rates = state_rates(size, store) | version_rates(size // 2, root, store) | {"unpack": unpack_rate()}
        found = figures(rates, start_seconds(), build_seconds(root), asked.gigabytes)
    finally:
        shutil.rmtree(root)
    there = json.loads(asked.result.read_text()) if asked.result.exists() else {}
    asked.result.write_text(json.dumps(there | found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
