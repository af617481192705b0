"""What the parts of `python -m benchmarks.gpu` have in common: their arguments, their time, and a result that survives a kill.

python -m benchmarks.gpu.PART --device cuda --seconds 60 [--tiny] --result FILE.json
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def write_json(target: Path, found: dict[str, Any]) -> None:
    """The whole file or none of it. Raises ValueError for a figure that is no number."""
    text = json.dumps(found, indent=2, allow_nan=False) + "\n"
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.chmod(name, 0o644)
    os.replace(name, target)


@dataclass
class Asked:
    """What one part is asked for. `figures` is what it found so far; `note` writes it."""

    device: str
    seconds: float
    tiny: bool
    result: Path
    figures: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds of its share that are left."""
        return self.seconds - (time.monotonic() - self.started)

    def note(self, **figures: Any) -> None:
        """More figures; all so far are in the file, so that a kill loses only what is measured at that moment."""
        self.figures |= figures
        write_json(self.result, self.figures)


def run_part(measure: Callable[[Asked], None]) -> None:
    """Read the arguments, and measure. Without a CUDA device where one is asked for: one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--result", type=Path, required=True)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device is visible here (torch.cuda.is_available() is False)")
    measure(Asked(given.device, given.seconds, given.tiny, given.result))
