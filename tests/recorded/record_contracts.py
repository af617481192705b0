"""Record what has no file yet: `PYTHONPATH=tests:workloads python tests/recorded/record_contracts.py`. No existing file is written again."""

from pathlib import Path

from recorded_documents import DOCUMENTS
from recorded_texts import TEXTS

CONTRACTS = Path(__file__).parent / "contracts"
WRITTEN = {f"{name}.json": document.to_json() for name, document in DOCUMENTS.items()} | {
    f"{name}.txt": text.encode() for name, text in TEXTS.items()
}
"""File names and what the code writes today."""


def main() -> None:
    """Write the missing files; raises SystemExit where a recorded file differs from what the code writes now."""
    CONTRACTS.mkdir(exist_ok=True)
    for name, data in WRITTEN.items():
        if not (CONTRACTS / name).exists():
            (CONTRACTS / name).write_bytes(data)
            print(f"recorded {name}")
    differing = [name for name, data in WRITTEN.items() if (CONTRACTS / name).read_bytes() != data]
    if differing:
        raise SystemExit(
            f"the code writes other bytes than these files, which stay as they are: {', '.join(differing)}"
        )


if __name__ == "__main__":
    main()
