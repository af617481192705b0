"""`python -m tools.docs`: writes the pages of `files` again, docs/cli.md and docs/http.md among them (`make docs`)."""

from pathlib import Path

from tools.docs.cli import cli_page
from tools.docs.gpu import gpu_page
from tools.docs.http import http_page
from tools.docs.model_types import model_types_page
from tools.docs.parquet import parquet_page
from tools.docs.ports import ports_page

ROOT = Path(__file__).resolve().parents[2]


def files() -> dict[str, str]:
    """What is generated: path below the root -> text."""
    return {
        "docs/benchmarks/gpu.md": gpu_page(),
        "docs/cli.md": cli_page(),
        "docs/http.md": http_page(),
        "docs/model-types.md": model_types_page(),
        "docs/parquet.md": parquet_page(),
        "docs/ports.md": ports_page(),
    }


def main() -> None:
    for name, text in files().items():
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
