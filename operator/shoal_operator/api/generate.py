"""Writes the CRDs and the reference page of the four kinds: `python -m shoal_operator.api.generate crds/ docs/reference.md` (`make crds`).

A test fails when the files drift.
"""

import sys
from pathlib import Path

from shoal_operator.api import KINDS
from shoal_operator.api.crd import crd_yaml, file_name
from shoal_operator.api.reference import reference_page


def main(folder: Path, reference: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (folder / file_name(kind)).write_text(crd_yaml(kind), encoding="utf-8")
    reference.write_text(reference_page(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m shoal_operator.api.generate FOLDER REFERENCE.md")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
