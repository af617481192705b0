"""Resident memory of this process, from Linux: now, and its peak since it was last set back."""

from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SET_PEAK_BACK = "5"
"""proc(5): writing 5 sets VmHWM to the present VmRSS."""


def resident_bytes(field: str = "VmRSS") -> int:
    """`VmRSS` (now) or `VmHWM` (peak)."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no line {field}")


def set_peak_back() -> int:
    """Begin a new peak here, and return the present resident size (bytes)."""
    CLEAR.write_text(SET_PEAK_BACK)
    return resident_bytes()


def peak_bytes() -> int:
    return resident_bytes("VmHWM")
