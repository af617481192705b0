"""How many bytes of weights a validator may hold. Called by `service`."""

import os
from pathlib import Path

import torch

GPU_SHARE = 0.85
"""Of a GPU's memory. The rest is for a row of 10,000 tokens in flight (about 4 GB at 32B), tiles of logits and the CUDA context. Of 80 GiB it is
73 GB: one version of 65.5 GB fits, two do not."""
HOST_SHARE = 0.6
"""Of a pod's memory without a GPU: one reader of files, this process and the page cache have the rest."""
CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files of cgroup v2 and v1, in bytes; `max`, or a number above the machine's, where nothing limits the pod."""


def weights_bytes(setting: int | None, device: torch.device, processes: int = 1) -> int:
    """Bytes of weights for all processes of a validator together: the run's setting, else a share of its GPUs or of its pod's memory."""
    if setting is not None:
        return setting
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.get_device_properties(device).total_memory) * processes
    return int(HOST_SHARE * host_bytes())


def host_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory of this pod: its limit, or the machine's."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in CGROUP_LIMITS:
        try:
            limit = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            found = min(found, int(limit))
    return found
