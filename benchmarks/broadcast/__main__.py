"""`make bench-broadcast`: ours and its peers over shaped links, deltas, CPU time; benchmarks/results/broadcast.json and a table.

The parts https (ours and its peers over TLS), updates (deltas of real RL updates) and anchors (who fetches what, over two of them) write
benchmarks/results/size.json.

    python -m benchmarks.broadcast                      a checkpoint of 1 GB; some ten minutes, 2 cores that are otherwise idle
    python -m benchmarks.broadcast --megabytes 100      smaller; start-up times weigh more
    python -m benchmarks.broadcast --only deltas        a part, or several: see --help
    python -m benchmarks.broadcast --out DIR            write there and not to the checkout's results

Parts that this machine cannot measure (no root, no namespaces, no aria2) are left out with a line; one that fails says so and the others go on. Parts
that are not run keep the figures of the file that is there. Writing the checkout's results also writes the table of docs/broadcast.md.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shoal.installed import installed

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "broadcast.json"
PAGE = ROOT / "docs" / "broadcast.md"
PARTS = ("links", "slow-links", "uneven", "holders", "cpu", "deltas", "end-to-end", "https", "updates", "anchors")
OF_SIZE = ("https", "updates", "anchors")
CACHE = ROOT / ".cache" / "reproduce"
SLOW_SHARE = 0.4
"""Of size and rates: the same times, with this share of the work for the processors that thirteen hosts have in common."""
UNEVEN_SHARE = 0.2  # of the checkpoint: at 20 Mb/s a gigabyte would take seven minutes
HOLDERS_SHARE, CPU_SHARE, END_TO_END_SHARE, HTTPS_SHARE = 0.2, 0.4, 0.25, 0.5  # ratios, which need no gigabyte
ANCHORS_SHARE, ANCHOR_EVERY, ANCHOR_CLIENTS = 0.032, 4, 2
DELTA_STEPS = 4
PEER_SECONDS, PEER_FACTOR = 60.0, 5.0
"""A peer that has not finished after so long, and so many times our time, is not waited for; its figures then are bounds from below."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the checkpoint")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--no-peers", action="store_true", help="ours only")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that links and processes are taken away
    from benchmarks.broadcast import network, page

    size = asked.megabytes * 1_000_000
    target = asked.out / "broadcast.json" if asked.out else RESULT
    found = _read(target)
    why = network.usable()
    failed = []
    for part in asked.only:
        if part not in ("deltas", "updates") and why is not None:
            print(f"skipped {part}: {why}")
            continue
        print(f"measuring {part}", flush=True)
        started = time.monotonic()
        try:
            if part in OF_SIZE:
                _to_size(target.with_name("size.json"), part, size)
                continue
            found |= _part(part, size, peers=not asked.no_peers)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # TimeoutError is an OSError
            failed.append(part)
            print(f"  {part} did not finish: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"  {part} took {time.monotonic() - started:.0f} s", flush=True)
        found["measured_on"] = _measured_on()
        _write(target, found)
        if target == RESULT:
            page.rewrite(PAGE, found)
    _table(found)
    if failed:
        sys.exit(f"did not finish: {', '.join(failed)}; run them again with --only")


def _part(part: str, size: int, *, peers: bool) -> dict[str, Any]:
    match part:
        case "links":
            return _links(size, peers=peers)
        case "slow-links":
            return _slow_links(int(size * SLOW_SHARE))
        case "uneven":
            return _uneven(int(size * UNEVEN_SHARE))
        case "holders":
            return _holders(int(size * HOLDERS_SHARE))
        case "cpu":
            return _cpu(int(size * CPU_SHARE))
        case "deltas":
            return _deltas()
    return _end_to_end(int(size * END_TO_END_SHARE))


def _links(size: int, *, peers: bool) -> dict[str, Any]:
    """Ours, then each peer, on the same links; times in units of one copy over one client's link."""
    from benchmarks.broadcast import links
    from benchmarks.broadcast import peers as others

    made = links.stage(size)
    try:
        source = made.folder / "source"
        source.mkdir()
        file = links.random_file(source / "model.safetensors", size)
        one = links.one_link_seconds(made, file)
        print(f"  one copy over one link: {one:.1f} s", flush=True)
        ours = _ours(made, file)
        total = max(ours.clients)
        gigabytes = size / 1e9
        found: dict[str, Any] = {
            "megabytes": size // 1_000_000,
            "one_link_seconds": round(one, 2),
            "ours_seconds": round(total, 2),
            "announced_seconds": round(ours.announced, 2),
            "total_over_one_link": round(total / one, 3),
            "client_cpu_seconds_per_gb": round(ours.client_cpu / gigabytes / len(made.clients), 3),
            "relay_cpu_seconds_per_gb": round(ours.relay_cpu / gigabytes / len(made.clients), 3),
            "in_memory": made.in_memory,
        }
        print(f"  ours: {total:.1f} s", flush=True)
        bounds: list[str] = []
        candidates: list[tuple[str, Callable[[Any, Path, float], float], str]] = [
            ("single_file", others.single_file, "curl"),
            ("aria2", others.aria2, "aria2c"),
            ("shardcast", others.shardcast, "wget"),
        ]
        for name, measure, program in candidates if peers else []:
            if shutil.which(program) is None:
                print(f"  skipped {name}: {program} is not installed")
                continue
            limit = max(PEER_SECONDS, PEER_FACTOR * total)
            try:
                with links.roomy(made, size) if name == "shardcast" else nullcontext(made) as place:
                    found[f"{name}_in_memory"] = place.in_memory
                    seconds = measure(place, file, limit)
            except (TimeoutError, subprocess.TimeoutExpired):
                # Known is only that it takes longer: the figures are bounds from below.
                seconds = limit
                bounds.append(name)
            except RuntimeError as error:
                print(f"  {name} failed: {error}", flush=True)
                continue
            found |= {f"{name}_seconds": round(seconds, 2), f"speedup_vs_{name}": round(seconds / total, 3)}
            print(f"  {name}: {'over ' if name in bounds else ''}{seconds:.1f} s", flush=True)
        found["peers_not_finished"] = bounds
        return found
    finally:
        made.close()


def _slow_links(size: int) -> dict[str, Any]:
    """Ours once more, size and rates smaller by the same share: what is left above one link's time is the protocol's, not the processors'."""
    from benchmarks.broadcast import links

    made = links.stage(size, (links.CLIENT_MBIT * SLOW_SHARE,) * links.CLIENTS, origin_and_relay_share=SLOW_SHARE)
    try:
        source = made.folder / "source"
        source.mkdir()
        file = links.random_file(source / "model.safetensors", size)
        one = links.one_link_seconds(made, file)
        total = max(_ours(made, file).clients)
    finally:
        made.close()
    return {
        "slow_links_share": SLOW_SHARE,
        "slow_links_seconds": round(total, 2),
        "total_over_one_slow_link": round(total / one, 3),
    }


def _ours(made: Any, file: Path) -> Any:
    from benchmarks.broadcast.ours import Ours

    running = Ours(made)
    try:
        running.start()
        folder = made.folder / "checkpoint"
        folder.mkdir()
        os.link(file, folder / file.name)
        return running.broadcast(0, folder)
    finally:
        running.close()


def _uneven(size: int) -> dict[str, Any]:
    """The last hop only: relays have the version, clients of 20 to 400 Mb/s fetch it at once."""
    from benchmarks.broadcast import links
    from benchmarks.broadcast.ours import Ours

    made = links.stage(size, links.UNEVEN_MBIT)
    try:
        file = links.random_file(made.folder / "model.safetensors", size)
        source = made.folder / "source"
        source.mkdir()
        os.link(file, source / file.name)
        # What a link of a nominal rate carries of a file: headers take their part. Measured on the sixth client's.
        carried = size / links.one_link_seconds(made, source / file.name, 5) / (links.UNEVEN_MBIT[5] * 1e6 / 8)
        shutil.rmtree(source)
        running = Ours(made, shard_size=1 << 20)
        try:
            running.start()
            folder = made.folder / "checkpoint"
            folder.mkdir()
            os.rename(file, folder / file.name)
            ours = running.broadcast(0, folder, filled_first=True)
        finally:
            running.close()
        taken = sum(size / seconds for seconds in ours.clients)
        could = sum(rate * 1e6 / 8 * carried for rate in links.UNEVEN_MBIT)
        return {
            "uneven_megabytes": size // 1_000_000,
            "uneven_efficiency": round(taken / could, 3),
            "uneven_seconds": [round(seconds, 2) for seconds in ours.clients],
            "link_carries": round(carried, 3),
        }
    finally:
        made.close()


def _holders(size: int) -> dict[str, Any]:
    """The same broadcast twice over one relay: by itself, and beside a connection that never asks and a reader of a few bytes a second."""
    from benchmarks.broadcast import links
    from benchmarks.broadcast.ours import Ours

    made = links.stage(size, (links.CLIENT_MBIT,) * 2, 1)
    try:
        holder = made.network.host("holder", links.CLIENT_MBIT, links.CLIENT_MBIT)
        running = Ours(made, anchor_every=1)
        try:
            running.start()
            seconds = []
            for number in range(3):  # the first one finds everything cold and does not count
                folder = made.folder / "checkpoint"
                folder.mkdir()
                links.random_file(folder / "model.safetensors", size)
                if number == 2:
                    relay = made.relays[0]
                    path = f"/versions/v{number - 1:06d}/00000.bin"
                    command = [sys.executable, "-m", "benchmarks.broadcast.holders", relay.address, "8090", path]
                    holder.start(
                        [*command, running.token(0)],
                        made.folder / "holder.log",
                        {"PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT}"},
                    )
                    time.sleep(2)
                seconds.append(max(running.broadcast(number, folder, filled_first=True).clients))
        finally:
            running.close()
        return {
            "alone_seconds": round(seconds[1], 2),
            "beside_holders_seconds": round(seconds[2], 2),
            "holders_cost": round(seconds[2] / seconds[1] - 1, 3),
        }
    finally:
        made.close()


def _cpu(size: int) -> dict[str, Any]:
    """One relay and one client: what a gigabyte costs when nobody else is at work on this machine's cores."""
    from benchmarks.broadcast import links

    made = links.stage(size, (links.CLIENT_MBIT,), 1)
    try:
        file = links.random_file(made.folder / "model.safetensors", size)
        ours = _ours(made, file)
        return {
            "client_cpu_seconds_per_gb_alone": round(ours.client_cpu / (size / 1e9), 3),
            "relay_cpu_seconds_per_gb_alone": round(ours.relay_cpu / (size / 1e9), 3),
        }
    finally:
        made.close()


def _deltas() -> dict[str, Any]:
    from benchmarks.broadcast import deltas

    demo = deltas.demo(CACHE, DELTA_STEPS)
    billion = deltas.one_billion(DELTA_STEPS)
    return {
        "delta_ratio_demo": demo["fp32"]["ratio"],
        "delta_ratio_demo_bf16": demo["bf16"]["ratio"],
        "delta_ratio_1b": billion["ratio"],
        "delta_encode_gbps": billion["encode_gbps"],
        "delta_decode_gbps": billion["decode_gbps"],
        "deltas": {"demo": demo, "one_billion": billion},
    }


def _end_to_end(size: int) -> dict[str, Any]:
    """A version in full and then its successor as a delta, over the same links."""
    from benchmarks.broadcast import links
    from benchmarks.broadcast.ours import Ours

    made = links.stage(size)
    try:
        running = Ours(made)
        versions = _versions(size)
        try:
            running.start()
            seconds = []
            for number in range(2):
                folder = made.folder / "checkpoint"
                folder.mkdir()
                (folder / "model.safetensors").write_bytes(next(versions))
                seconds.append(max(running.broadcast(number, folder).clients))
            wire = running.wire_bytes(1)
        finally:
            running.close()
        return {
            "full_end_to_end_seconds": round(seconds[0], 2),
            "delta_end_to_end_seconds": round(seconds[1], 2),
            "delta_end_to_end_ratio": round(size / wire, 2),
        }
    finally:
        made.close()


def _to_size(target: Path, part: str, size: int) -> None:
    """The figures go to a file that other benchmarks write to as well."""
    from benchmarks.broadcast import deltas, https, updates

    if part == "https":
        found = https.measure(int(size * HTTPS_SHARE))
        found["https_conditions"] |= _measured_on()
    elif part == "updates":
        found = deltas.speeds() | updates.measure()
    else:
        found = _anchors(int(size * ANCHORS_SHARE))
    _write(target, _read(target) | found)
    _table(found)


def _anchors(size: int) -> dict[str, Any]:
    """Who fetches what, over two anchors, with clients that hold every version when the next one comes."""
    from benchmarks.broadcast import links
    from benchmarks.broadcast.ours import Ours

    made = links.stage(size, (links.CLIENT_MBIT,) * ANCHOR_CLIENTS, 1)
    try:
        running = Ours(made, anchor_every=ANCHOR_EVERY)
        versions = _versions(size)
        try:
            running.start()
            for number in range(2 * ANCHOR_EVERY + 1):
                folder = made.folder / "checkpoint"
                folder.mkdir()
                (folder / "model.safetensors").write_bytes(next(versions))
                running.broadcast(number, folder)
            ways = [way for number, way in running.ways() if number > 0]
        finally:
            running.close()
    finally:
        made.close()
    return {
        "full_downloads_by_holders": ways.count("full"),
        "full_downloads_conditions": {
            "megabytes": size // 1_000_000, "clients": ANCHOR_CLIENTS, "relays": 1, "anchor_every": ANCHOR_EVERY,
            "downloads_after_the_first_version": len(ways), "of_deltas": ways.count("delta"), "of_deltas_beside_anchors": ways.count("delta beside"),
            "run": "publisher, relay's nginx and agent, clients, in network namespaces; made-up weights of which one in twenty changes",
        },
    }  # fmt: skip


def _versions(size: int) -> Iterator[bytes]:
    """Safetensors files of one tensor of bfloat16, of which one value in twenty changes each time."""
    import numpy as np

    rng = np.random.default_rng(0)
    header = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    weights = ((rng.standard_normal(size // 2, dtype=np.float32) * 0.02).view(np.uint32) >> 16).astype(np.uint16)
    while True:
        yield len(header).to_bytes(8, "little") + header + weights.tobytes()
        weights ^= (rng.random(weights.size, dtype=np.float32) < 0.05).astype(np.uint16)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _measured_on() -> dict[str, str]:
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "python": sys.version.split()[0],
        "shoal": installed().version,
        "zstandard": version("zstandard"),
        "shaping": "network namespaces, tc tbf on both ends of every link; no delay, no loss",
    }


def _write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=2) + "\n")
    os.replace(partial, path)


def _table(found: dict[str, Any]) -> None:
    for name, value in found.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
