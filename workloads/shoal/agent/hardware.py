"""This machine's hardware, for the node's registration: CPUs, memory, free disk, GPUs. Reads /proc and asks NVIDIA's driver.
`uplink` has discovery's measurement of the network.

A number that is not available is 0.
"""

import os
import shutil
from pathlib import Path

from shoal import accelerators
from shoal.contracts.base import LARGEST_INTEGER
from shoal.contracts.protocol import Hardware

NVIDIA = Path("/proc/driver/nvidia/gpus")


def detect(folder: Path) -> Hardware:
    """Hardware of this machine, as far as this process may use it; free disk is that of the file system of `folder`."""
    machine = accelerators.read_machine()
    cards = accelerators.visible(machine, os.environ).cards
    # A driver without its management library still lists its GPUs.
    gpus = sorted(NVIDIA.iterdir()) if not machine.cards and NVIDIA.is_dir() else []
    kind = cards[0].name if cards else gpu_model(gpus[0] / "information") if gpus else ""
    return Hardware(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_free_bytes=min(shutil.disk_usage(folder).free, LARGEST_INTEGER),
        gpus=len(cards) or len(gpus),
        gpu_type=kind,
        gpu_memory_bytes=min((card.memory_bytes for card in cards if card.memory_bytes is not None), default=None),
    )


def gpu_model(information: Path) -> str:
    """The line `Model:` of the NVIDIA driver's description of a GPU, printable characters only."""
    try:
        lines = information.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")), "")
    return "".join(character for character in model if " " <= character <= "~")[:200]
