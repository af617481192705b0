"""What the owner of a machine lends of it: options of `shoal node join` as typed, checked, in words, and as the file that agent and fetch read.

In: `--upload-limit`, `--download-limit`, `--hours`, `--gpus`. Out: `Lending`, or `InputWrong` with one line for each mistake. Pure, except for
`use_gpus` and `read_lending`.
"""

import re
import time
from collections.abc import MutableMapping
from pathlib import Path

from shoal import accelerators
from shoal.agent import hours
from shoal.contracts.machine import LEAST_BITS, MOST_BITS, Lending
from shoal.contracts.newer import from_newer_json
from shoal.errors import InputWrong

RATE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(k|M|G)bit(?:/s)?", re.ASCII | re.IGNORECASE)
BITS = {"k": 10**3, "m": 10**6, "g": 10**9}


def lending_of(upload: str | None, download: str | None, of_day: str | None, gpus: str | None) -> Lending:
    """The options, checked except for the GPUs, which `use_gpus` looks for. Raises `InputWrong`."""
    wrong: list[str] = []
    bits: dict[str, int | None] = {}
    for option, text in (("--upload-limit", upload), ("--download-limit", download)):
        try:
            bits[option] = None if text is None else rate(text)
        except ValueError as error:
            wrong.append(f"{option} {error}")
    try:
        if of_day is not None:
            hours.parse(of_day)
    except hours.BadHours as error:
        wrong.append(f"--hours {error}")
    names = [word.strip() for word in gpus.split(",")] if gpus is not None else []
    if gpus is not None and not all(names):
        wrong.append(f"--gpus {gpus[:60]!r}: write indices or UUIDs with commas, such as 0,1")
    if len(names) > 64:
        wrong.append("--gpus names more than 64 GPUs")
    if wrong:
        raise InputWrong(*wrong)
    return Lending(upload_bits=bits["--upload-limit"], download_bits=bits["--download-limit"], hours=of_day, gpus=names)


def rate(text: str) -> int:
    """Bits a second of words like 20Mbit; raises ValueError saying what is allowed."""
    found = RATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text[:40]!r} does not name a rate: write a number and kbit, Mbit or Gbit (a second), such as 20Mbit"
        )
    bits = round(float(found[1]) * BITS[found[2].lower()])
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise ValueError(f"{text.strip()}: allowed are {rate_words(LEAST_BITS)} to {rate_words(MOST_BITS)}")
    return bits


def rate_words(bits: int) -> str:
    return f"{bits / 1e9:g} Gbit/s" if bits >= 10**9 else f"{bits / 1e6:g} Mbit/s"


def lending_lines(lending: Lending) -> list[str]:
    """What is lent, for `join`, `status` and the page."""
    lines = []
    limits = [("upload", lending.upload_bits), ("download", lending.download_bits)]
    if any(bits for _, bits in limits):
        lines.append("limits     " + ", ".join(f"{name} {rate_words(bits)}" for name, bits in limits if bits))
    if lending.hours:
        lines.append(f"hours      {lending.hours} ({time.strftime('%Z, %z')})")
    if lending.gpus:
        lines.append(f"GPUs       {', '.join(lending.gpus)}")
    return lines


def use_gpus(lending: Lending, environment: MutableMapping[str, str]) -> None:
    """Let this process, and those that it starts, see only the chosen GPUs. Raises `InputWrong` for one that is not here."""
    if not lending.gpus:
        return
    try:
        indices = accelerators.chosen(",".join(lending.gpus), accelerators.read_machine())
    except accelerators.NoGpu as error:
        raise InputWrong(f"--gpus: {error}") from None
    # Both names order devices as the driver does; CUDA alone would count the fastest first.
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, indices))


def lending_file(home: Path) -> Path:
    return home / "config" / "lending.json"


def read_lending(home: Path) -> Lending:
    """What the last `join` was given; everything where it left no file, or one of another release."""
    try:
        return from_newer_json(Lending, lending_file(home).read_bytes())
    except (OSError, ValueError):
        return Lending()
