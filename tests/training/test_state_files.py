"""A state's parts in a store: ranges that are checked, a store that is busy for a while, and bytes that are wrong within a range."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_run import make_store
from torch import Tensor

from proxies import Proxy
from samples import RUN
from servers import Loopback, Minio
from shoal.contracts.storage import S3Storage
from shoal.storage import Store, StoreUnavailable
from shoal.storage.store import open_s3
from shoal.training.state_files import (
    BLOCK_BYTES,
    REQUEST_BLOCKS,
    DamagedPart,
    StateIndex,
    StateParts,
    part_name,
    write_part,
)

PREFIX = "trainer/state/v000001/"
NAME = PREFIX + part_name(0)


def tensors(seed: int) -> dict[str, Tensor]:
    """Of several sizes: within a block, over some, over more than a request has, without dimensions, of halves, empty."""
    chance = torch.Generator().manual_seed(seed)
    return {
        "weights/large": torch.randn(3000, 1000, generator=chance),
        "weights/middle": torch.randn(1024, 1500, generator=chance),
        "weights/small": torch.randn(7, generator=chance),
        "weights/halves": torch.randn(333, 5, generator=chance).bfloat16(),
        "weights/none": torch.empty(0, 4),
        "step/large": torch.tensor(3.0),
        "random/cpu/00000": torch.arange(100, dtype=torch.uint8),
    }


def empty() -> dict[str, Tensor]:
    return {key: torch.zeros_like(tensor) for key, tensor in tensors(0).items() if tensor.numel()}


def saved(store: Store) -> dict[str, str]:
    return write_part(store, PREFIX, tensors(0), RUN, 1, 0)


def read(store: Store, files: dict[str, str]) -> dict[str, Tensor]:
    found = empty()
    StateParts(store, PREFIX, files, RUN, 1).read(found, 0, lambda: None)
    return found


def is_whole(found: dict[str, Tensor]) -> bool:
    wanted = tensors(0)
    return all(torch.equal(tensor, wanted[key]) for key, tensor in found.items())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def test_what_is_read_is_what_was_written(store: Store) -> None:
    files = saved(store)
    assert (store.size(NAME + ".tensors") or 0) > 2 * REQUEST_BLOCKS * BLOCK_BYTES
    assert is_whole(read(store, files))


class Counted(Store):
    """Counts ranges, and may spoil the answers to some."""

    def __init__(self, plain: Store, spoilt: int = 0) -> None:
        super().__init__(plain._backend, plain._prefix, root=plain._root, deadline_seconds=5.0)
        self.bytes = 0
        self.spoilt = spoilt

    def get_range(self, key: str, start: int, end: int) -> bytes:
        data = super().get_range(key, start, end)
        self.bytes += len(data)
        if self.spoilt:
            self.spoilt -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        return data


def test_of_one_tensor_its_blocks_are_read_alone(store: Store) -> None:
    counted = Counted(store)
    parts = StateParts(counted, PREFIX, saved(store), RUN, 1)
    found = torch.zeros(1024, 1500)
    parts.read({"weights/middle": found}, 0, lambda: None)
    assert torch.equal(found, tensors(0)["weights/middle"])
    assert counted.bytes <= found.nbytes + 2 * BLOCK_BYTES


def test_bytes_that_were_spoilt_on_their_way_are_read_again(store: Store) -> None:
    files = saved(store)
    assert is_whole(read(Counted(store, spoilt=1), files))


@pytest.mark.parametrize("at", [0, BLOCK_BYTES + 5, 3 * BLOCK_BYTES])
def test_a_wrong_byte_within_a_range_is_refused_with_its_block(store: Store, at: int) -> None:
    files = saved(store)
    data = bytearray(store.get(NAME + ".tensors"))
    data[at] ^= 1
    store.put(NAME + ".tensors", bytes(data))
    begin = at // BLOCK_BYTES * BLOCK_BYTES
    with pytest.raises(DamagedPart, match=rf"tensors: bytes {begin} to {begin + BLOCK_BYTES} do not have the SHA-256"):
        read(store, files)


def test_a_tensor_that_no_file_has_is_refused(store: Store) -> None:
    parts = StateParts(store, PREFIX, saved(store), RUN, 1)
    with pytest.raises(DamagedPart, match="no file has row 0 of weights/other"):
        parts.read({"weights/other": torch.zeros(2)}, 0, lambda: None)
    with pytest.raises(DamagedPart, match=r"weights/small is float32 of shape \[7\], expected torch.float32 of \[8\]"):
        parts.read({"weights/small": torch.zeros(8)}, 0, lambda: None)


def test_the_index_of_another_run_or_version_is_refused(store: Store) -> None:
    with pytest.raises(DamagedPart, match="is of rank 0, run 'arithmetic', version 1"):
        StateParts(store, PREFIX, saved(store), RUN, 2)


SMALL = {"key": "weights/small", "dtype": "float32", "shape": [7], "first": 0, "rows": 7, "start": 0}


def row(**changes: object) -> dict[str, object]:
    return {"tensors": [SMALL | changes]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": []}, "0 digests for"),
        ({"size": 5, "blocks": ["0" * 64]}, "ends behind the file's 5 bytes"),
        ({"size": 1, "block_bytes": 1 << 40, "blocks": ["0" * 64]}, "block_bytes"),
        (row(shape=[-7]), "shape"),
        (row(shape=[1 << 70]), "shape"),
        (row(shape=[7, 1 << 60]), "ends behind the file's"),
        (row(first=1), r"weights/small of shape \[7\] has no 7 rows from row 1 on"),
        (row(shape=[], rows=2), r"weights/small of shape \[\] has no 2 rows"),
        (row(start=-4), "start"),
        (
            {"tensors": [SMALL, SMALL | {"key": "weights/twin", "start": 24}]},
            "twin begins at byte 24, within another tensor",
        ),
    ],
)
def test_an_index_that_does_not_fit_its_file_is_refused(store: Store, change: dict[str, object], message: str) -> None:
    saved(store)
    index = StateIndex.from_json(store.get(NAME + ".json"))
    with pytest.raises(ValueError, match=message):
        StateIndex.model_validate(index.model_dump() | change)


@pytest.fixture
def busy(minio_server: Minio, loopback: Loopback) -> Iterator[tuple[Proxy, Store, Store]]:
    """A proxy before a store, the store through it with little patience, and with enough."""
    proxy = Proxy((loopback.address(), 0), (minio_server.address, minio_server.port))
    spec = S3Storage(endpoint=proxy.url, bucket=minio_server.bucket, credentials_secret="store")
    stores = (
        open_s3(spec, "busy/run", minio_server.access_key, minio_server.secret_key, deadline_seconds=seconds)
        for seconds in (0.5, 60.0)
    )
    yield proxy, *stores
    proxy.close()


def test_a_store_that_says_503_for_a_while_is_waited_for_and_given_up_at_the_deadline(
    busy: tuple[Proxy, Store, Store],
) -> None:
    proxy, hasty, patient = busy
    proxy.busy = 3
    files = saved(patient)
    assert proxy.busy == 0
    proxy.busy = 20
    assert is_whole(read(patient, files))
    proxy.busy = 100_000
    with pytest.raises(
        StoreUnavailable, match=r"cannot list .*: the s3 store did not answer for \d+ s; last error: .*Server returned"
    ) as caught:
        read(hasty, files)
    assert "\n" not in str(caught.value)
