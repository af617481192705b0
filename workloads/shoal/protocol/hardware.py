"""What this machine has, for the node's registration: CPUs, memory, free disk, GPUs; this software. Reads /proc. What only discovery can see, the way
out to it, is `uplink`'s.

A number that cannot be had is 0. `missing` compares with what a pool wants; the machine's owner and the orchestrator are told by the same words.
"""

import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shoal.contracts.base import LARGEST_INTEGER
from shoal.contracts.pools import Requirements
from shoal.contracts.protocol import Hardware

NVIDIA = Path("/proc/driver/nvidia/gpus")
GIB = 1 << 30


def detect(folder: Path) -> Hardware:
    """Hardware of this machine; free disk is that of the file system of `folder`."""
    gpus = sorted(NVIDIA.iterdir()) if NVIDIA.is_dir() else []
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_free_bytes=min(shutil.disk_usage(folder).free, LARGEST_INTEGER),
        gpus=len(gpus),
        gpu_type=gpu_model(gpus[0] / "information") if gpus else "",
    )


def missing(hardware: Hardware, wanted: Requirements) -> list[str]:
    """What a machine lacks of what a pool wants, in words; empty when it has all. What only a challenge shows (`gflops`) is not looked at."""
    lacks = [
        f"{want} {what}, the machine has {have}"
        for what, have, want in (
            ("GPUs", hardware.gpus, wanted.gpus),
            ("cores", hardware.cpus, wanted.cpus),
            ("GiB of memory", hardware.memory_bytes // GIB, wanted.memory_gib),
            ("GiB of free disk", hardware.disk_free_bytes // GIB, wanted.disk_gib),
        )
        if have < want
    ]
    if (hardware.uplink_mbps or 0.0) < wanted.uplink_mbps:
        seen = f"it has {hardware.uplink_mbps:g}" if hardware.uplink_mbps is not None else "it could not be measured"
        lacks.append(f"an uplink of {wanted.uplink_mbps} Mbit/s, {seen}")
    if wanted.gpu_types and not any(kind.lower() in hardware.gpu_type.lower() for kind in wanted.gpu_types):
        lacks.append(f"a GPU of {', '.join(wanted.gpu_types)}, the machine has {hardware.gpu_type or 'none'}")
    return lacks


def gpu_model(information: Path) -> str:
    """The line `Model:` of the NVIDIA driver's description of a GPU, printable characters only."""
    try:
        lines = information.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")), "")
    return "".join(character for character in model if " " <= character <= "~")[:200]


def software_version() -> str:
    """Version of the installed distribution, for the registration."""
    try:
        return f"shoal {version('shoal')}"
    except PackageNotFoundError:  # run from a source tree
        return "shoal source"
