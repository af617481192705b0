"""The table "At the paper's size" of docs/broadcast.md, computed from the measured figures.

In: `benchmarks/results/broadcast.json` as a dict. Out: the lines between two marks of the page, each with its arithmetic. Called by `__main__` when
it writes the results, and by a test, which holds the page against them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured: written by benchmarks/broadcast -->", "<!-- /measured -->"
GIGABYTES, PAPER_MBIT, PAPER_SECONDS = 62.0, 590.0, 14 * 60.0
"""INTELLECT-2, section 4.2: 62 GB in 14 minutes."""
ENCODE_THREADS, DECODE_THREADS = 2, 4
HASH_GBPS = 1.5
"""SHA-256 of one core with SHA instructions, as `openssl speed` says on the machine of the table."""
NEEDED = (
    "total_over_one_link",
    "delta_ratio_1b",
    "delta_encode_gbps",
    "delta_decode_gbps",
    "client_cpu_seconds_per_gb",
)


def table(found: Mapping[str, Any]) -> str:
    """The page's lines; one that says so where figures are missing."""
    missing = [name for name in NEEDED if name not in found]
    if missing:
        return f"Not measured yet: {', '.join(missing)}."
    times, ratio = float(found["total_over_one_link"]), float(found["delta_ratio_1b"])
    encode, decode = float(found["delta_encode_gbps"]), float(found["delta_decode_gbps"])
    cpu = float(found["client_cpu_seconds_per_gb"])
    one_link = GIGABYTES * 8000 / PAPER_MBIT
    full, small = times * one_link, times * one_link / ratio
    encoding, decoding = GIGABYTES / (ENCODE_THREADS * encode), GIGABYTES / (DECODE_THREADS * decode)
    rows = [
        ("one copy over one link", f"{GIGABYTES:g} GB x 8 / {PAPER_MBIT / 1000:g} Gb/s", one_link),
        ("the paper", "62 GB in 14 min", PAPER_SECONDS),
        ("a version in full, for who holds none", f"{times:g} x {one_link:.0f} s", full),
        ("a version as a delta, sending", f"{times:g} x {one_link:.0f} s / {ratio:g}", small),
        (
            "its encoding, two threads, while it is sent",
            f"{GIGABYTES:g} GB / ({ENCODE_THREADS} x {encode:g} GB/s)",
            encoding,
        ),
        (
            "its decoding, four threads, while it comes",
            f"{GIGABYTES:g} GB / ({DECODE_THREADS} x {decode:g} GB/s)",
            decoding,
        ),
        (
            "digest of the whole, one core, while it comes",
            f"{GIGABYTES:g} GB / {HASH_GBPS:g} GB/s",
            GIGABYTES / HASH_GBPS,
        ),
        ("CPU of a client, a version in full", f"{GIGABYTES:g} GB x {cpu:g} s/GB", GIGABYTES * cpu),
    ]
    lines = ["| what | arithmetic | seconds |", "|---|---|---|"]
    lines += [f"| {what} | {how} | {seconds:.0f} |" for what, how, seconds in rows]
    lines += [
        "",
        "Sending, encoding and decoding of a delta go on at the same time: the longest of them counts, "
        f"{max(small, encoding, decoding):.0f} s, where the paper's broadcast took {PAPER_SECONDS:.0f} s. "
        f"Cores as those of the machine that was measured: {_machine(found)}.",
    ]
    return "\n".join(lines)


def _machine(found: Mapping[str, Any]) -> str:
    return str(found.get("measured_on", {}).get("machine", "unknown"))


def rewrite(path: Path, found: Mapping[str, Any]) -> None:
    """Put the table between the marks of the page."""
    partial = path.with_suffix(".partial")
    partial.write_text(replaced(path.read_text(), table(found)))
    os.replace(partial, path)


def replaced(text: str, lines: str) -> str:
    """`text` with `lines` between the marks; raises ValueError where a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs a line {BEGIN!r} and after it {END!r}")
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"
