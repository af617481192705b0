"""A run whose deltas are large: which versions go out in full, and which of these have a delta beside them. By the publisher's own code."""

import random
from pathlib import Path

import pytest
from broadcast_client import Published
from broadcast_run import SHARD, Keys, cut_into

from shoal.contracts.signed import Signed
from shoal.contracts.weights import VersionOpen

SHARDS = 10


def _learns_fast(version: int, changed: int) -> dict[str, bytes]:
    """Of ten shards, `changed` are other bytes in each version."""
    same = random.Random("same").randbytes((SHARDS - changed) * SHARD)
    return {"model.safetensors": random.Random(version).randbytes(changed * SHARD) + same}


@pytest.mark.parametrize(
    ("changed", "ways"),
    [(6, ["full", "delta", "full", "delta"]), (4, ["full", "delta", "delta", "beside"])],
    ids=["more than half", "less than half"],
)
def test_an_anchor_after_deltas_of_more_than_half_a_version_has_none_beside_it(
    tmp_path: Path, run_keys: Keys, changed: int, ways: list[str]
) -> None:
    made = Published(tmp_path, run_keys, broadcast=cut_into(SHARD, 8))
    found = []
    for version in range(len(ways)):
        made.publish(version, _learns_fast(version, changed), based=version > 0)
        record = Signed[VersionOpen].from_json(made.tree.read(version, "open.json") or b"").document
        lies_beside = list(made.tree.path(version, "open.json").parent.glob("beside*"))
        assert bool(lies_beside) == (record.beside is not None)
        found.append("beside" if lies_beside else record.encoding)
    assert found == ways
