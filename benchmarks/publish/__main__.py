"""From the end of a step to the announcement of a version, and what saving states takes of a step: `python -m benchmarks.publish`.

In: gigabytes to measure with. Out: keys of benchmarks/results/size.json. Rates are measured here, with the product's code, on this machine's disk.
First each part alone: gathering (a part to another process, over gloo and loopback), rounding and writing, cutting with one SHA-256 a byte,
copying into a folder store, copying a state aside. Then all together, as in a run: one process rounds and writes a version, another follows it,
cuts, stores and seals. Seconds of a version of 65.5 GB are computed from the parts, which run beside each other: the slowest one counts, and
after it a tail. Four pods at 25 Gb/s, of which the leader's receives three quarters; its eight ranks write, eight threads cut.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.publish.trainer import TENSOR_BYTES, gather, write_growing
from shoal.broadcast.encoding import copiers
from shoal.broadcast.publishing import StoreCopy, copy_to_store, cut_into
from shoal.broadcast.tree import Tree
from shoal.contracts.signed import sign
from shoal.planner.memory import state_every
from shoal.storage.growing import Growing, growing_versions
from shoal.storage.store import open_folder

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the tests' helper modules are imported by their bare names

from samples import ROLE_KEYS, RUN, run_config

RESULT = ROOT / "benchmarks" / "results" / "size.json"
VERSION_BYTES, PARAMETERS, RANKS, WRITERS, CUTTERS = 65.5e9, 32.76e9, 32, 8, 8
DISK_BYTES_A_SECOND = 5e9
"""Of a local NVMe drive or two, assumed: a version is written to it twice, to the outbox and to `www/`."""
TAIL_SECONDS = 1.0
"""The last shard's cut and copy, the seal, one request: looks at the outbox each 0.02 s."""
PODS, POD_BYTES_A_SECOND, STEP_SECONDS = 4, 25e9 / 8, 22 * 60.0


def seconds(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def measured(gigabytes: float, root: Path) -> dict[str, float]:
    """Bytes a second of each part, of a version in bfloat16 and of a float32 copy; and seconds of all together, as `streamed` and `tail`."""
    several = multiprocessing.get_context("spawn")
    answers = several.Queue()
    size = max(1, int(gigabytes * 1e9 / TENSOR_BYTES)) * TENSOR_BYTES
    pair = [several.Process(target=gather, args=(rank, str(root / "meeting"), answers)) for rank in range(2)]
    for each in pair:
        each.start()
    rates = {"gather": answers.get(timeout=300)}
    for each in pair:
        each.join(60)
    outbox, config, key = root / "outbox", run_config(), ROLE_KEYS["trainer"]
    outbox.mkdir()
    write_growing(outbox, 0, size, answers)
    started, ended = answers.get(timeout=60), answers.get(timeout=60)
    rates["export"] = size / (ended - started)
    tree, store = Tree(root / "www"), open_folder(root / "store", "bench")
    made = []
    cut = seconds(lambda: made.append(cut_into(tree, outbox / "v000000", config, 0, key, lambda: None)))
    rates["cut"] = size / cut
    rates["store"] = size / seconds(lambda: copy_to_store(store, tree, made[0], sign(made[0], key), lambda: None))
    live, aside = torch.ones(size // 4), torch.zeros(size // 4)
    rates["copy"] = size / seconds(lambda: aside.copy_(live))
    for used in (root / "www", root / "store", outbox / "v000000"):
        shutil.rmtree(used)
    return rates | streamed(size, root)


def streamed(size: int, root: Path) -> dict[str, float]:
    """Seconds from the first tensor to the seal, and from the rename to the seal, with the trainer in a process of its own."""
    several = multiprocessing.get_context("spawn")
    answers = several.Queue()
    outbox, config, key = root / "outbox", run_config(), ROLE_KEYS["trainer"]
    (root / "store").mkdir()
    tree, store = Tree(root / "www"), open_folder(root / "store", "bench")
    writer = several.Process(target=write_growing, args=(outbox, 1, size, answers))
    writer.start()
    while not growing_versions(outbox):
        time.sleep(0.005)
    copy = StoreCopy(store, tree, 1, lambda: None)
    with Growing(outbox, 1, lambda: None, lambda: False) as version:
        manifest = cut_into(tree, version.folder, config, 1, key, lambda: None, ready=version.ready, visible=copy.begin)
        version.handed_over()
        copy.seal(manifest, sign(manifest, key))
    ended = time.monotonic()
    copy.close()
    started, renamed = answers.get(timeout=60), answers.get(timeout=60)
    writer.join(60)
    return {"streamed": ended - started, "tail": ended - renamed}


def figures(found: dict[str, float], gigabytes: float) -> dict[str, object]:
    """The keys of size.json."""
    rates = {name: found[name] for name in ("gather", "export", "cut", "store", "copy")}
    parts = {
        "network": VERSION_BYTES * (PODS - 1) / PODS / POD_BYTES_A_SECOND,
        "gathering": VERSION_BYTES / WRITERS / rates["gather"],
        "writing": VERSION_BYTES / WRITERS / rates["export"],
        "cutting": VERSION_BYTES / CUTTERS / (rates["cut"] / copiers()),
        # A folder store on this disk is no faster than the disk; an object store takes what the card gives, beside what it receives.
        "storing": VERSION_BYTES / POD_BYTES_A_SECOND,
        "disk": 2 * VERSION_BYTES / DISK_BYTES_A_SECOND,
    }
    every = state_every(None, int(PARAMETERS))
    # What the trainer waits for: two moments more of each parameter are copied aside, every so many steps.
    copied = 8 * PARAMETERS / RANKS / rates["copy"] / every
    slowest = max(parts, key=lambda part: parts[part])
    return {
        "publish_to_announce_seconds_65gb": round(parts[slowest] + TAIL_SECONDS, 1),
        "state_share_of_step": round(copied / STEP_SECONDS, 6),
        "publish_conditions": {
            "gigabytes": gigabytes,
            "run": RUN,
            "gb_a_second": {name: round(rate / 1e9, 3) for name, rate in rates.items()},
            "here_streamed_seconds": round(found["streamed"], 2),
            "here_seconds_from_rename_to_seal": round(found["tail"], 2),
            "here_one_after_the_other_seconds": round(
                gigabytes * 1e9 * sum(1 / rates[part] for part in ("export", "cut", "store")), 2
            ),
            "seconds_65gb": {name: round(part, 1) for name, part in parts.items()},
            "bound_by": slowest,
            "assumed": f"{PODS} pods at 25 Gb/s, each way; {RANKS} ranks; {WRITERS} writers and {CUTTERS} cutting threads at the measured"
            f" rate of one each; a disk of {DISK_BYTES_A_SECOND / 1e9:.0f} GB/s; an object store that takes 25 Gb/s; a step of 22 minutes",
            "state_every": every,
            "parts": "all beside each other; the slowest counts, and a tail of 1 s",
            "cores": os.cpu_count(),
            "load_1_min": round(os.getloadavg()[0], 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="publish-"))
    (root / "store").mkdir()
    try:
        found = figures(measured(asked.gigabytes, root), asked.gigabytes)
    finally:
        shutil.rmtree(root)
    there = json.loads(asked.result.read_text()) if asked.result.exists() else {}
    asked.result.write_text(json.dumps(there | found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
