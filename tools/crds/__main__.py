"""`python -m tools.crds`: writes crds/ and docs/reference.md again (`make crds`). A test fails when the files drift."""

from pathlib import Path

from tools.crds.crd import crd_yaml, file_name
from tools.crds.reference import reference_page

from shoal_operator.api import KINDS

ROOT = Path(__file__).resolve().parents[2]


def files() -> dict[str, str]:
    """What is generated: path below the root -> text."""
    return {f"crds/{file_name(kind)}": crd_yaml(kind) for kind in KINDS} | {"docs/reference.md": reference_page()}


def main() -> None:
    for name, text in files().items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
