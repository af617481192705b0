"""What a machine lacks of what a pool requires: the machine's owner and the orchestrator are told by the same words. Pure."""

from shoal.contracts.pools import Requirements
from shoal.contracts.protocol import Hardware

GIB = 1 << 30


def missing(hardware: Hardware, wanted: Requirements) -> list[str]:
    """Requirements of a pool that a machine does not meet, in words; empty when it meets all. `gflops`, which only a challenge shows, is not
    checked."""
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
    if wanted.gpu_memory_gib:
        memory = hardware.gpu_memory_bytes
        have = -(-memory // GIB) if memory is not None else 0
        if have < wanted.gpu_memory_gib:
            seen = f"the machine's smallest has {have}" if memory is not None else "what the machine has is not known"
            lacks.append(f"{wanted.gpu_memory_gib} GiB of memory of each GPU, {seen}")
    return lacks
