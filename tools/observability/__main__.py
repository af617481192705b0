"""`python -m tools.observability`: writes docs/metrics.md and charts/shoal/dashboards/*.json again (`make observability`)."""

import json
from pathlib import Path

from tools.observability.catalogue import declared
from tools.observability.dashboards import BOARDS
from tools.observability.page import page
from tools.observability.panels import built

ROOT = Path(__file__).resolve().parents[2]


def files() -> dict[str, str]:
    """What is generated: path below the root -> text."""
    made = {"docs/metrics.md": page(declared())}
    for board in BOARDS:
        made[f"charts/shoal/dashboards/{board.uid}.json"] = (
            json.dumps(built(board), indent=1, ensure_ascii=False) + "\n"
        )
    return made


def main() -> None:
    for name, text in files().items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
