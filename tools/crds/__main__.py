"""`python -m tools.crds`: writes crds/ and docs/reference.md anew (`make crds`). A test fails when the files drift."""

from pathlib import Path

from tools.crds.crd import crd_yaml, file_name
from tools.crds.reference import reference_page

from shoal_operator.api import KINDS

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    (ROOT / "crds").mkdir(exist_ok=True)
    for kind in KINDS:
        (ROOT / "crds" / file_name(kind)).write_text(crd_yaml(kind), encoding="utf-8")
    (ROOT / "docs/reference.md").write_text(reference_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
