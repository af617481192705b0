"""Writes files of bytecode of the whole product, and of what it imports, into `.venv` and beside the sources: `python -m tools.bytecode`.

uv writes none as it installs, and images of containers often forbid them (PYTHONDONTWRITEBYTECODE). Then each of hundreds of processes compiles
all that it imports: 9 of the 18 s of CPU time that importing a worker takes. Tests keep that variable. Some write a module again within a second,
which files of bytecode do not see. Called by tools/test.sh before the tests; prints the modules that this machine cannot import.
"""

import importlib
import pkgutil
import sys

PACKAGES = ("shoal.inference", "shoal", "shoal_operator")
"""The engine's is first: it sets variables that vLLM reads as it is imported."""
LATE = (
    "torch.distributed.fsdp",
    "transformers.models.qwen3.modeling_qwen3",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.worker.cpu_worker",
)
"""What engines and trainers import as they start."""


def names() -> list[str]:
    """Every module of the product, then what is imported late."""
    found = [
        module.name
        for package in map(importlib.import_module, PACKAGES)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None)
    ]
    return [*found, *LATE]


def main() -> None:
    """Import all modules. One that cannot be imported is told, and no reason to end: tests say what is wrong with it."""
    sys.dont_write_bytecode = False
    for name in names():
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"{name}: {error!r}")


if __name__ == "__main__":
    main()
