"""Files that are nearly right: an honest file with damage, some of it blind and some of it aimed at a value.

Blind damage is done to bytes (bits turned, ranges cut, doubled, swapped, zeroed), often in the footer, where a reader believes what it
reads. Aimed damage is done to one value of one row, and the file is written anew, so that nothing but the value is wrong.
"""

import io
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FOOTER_BYTES = 4000
LONGEST_RANGE = 300
EXTREMES: dict[str, list[Any]] = {
    "int32": [-1, 0, 1, 42, 2**31 - 1, -(2**31)],
    "int64": [-1, 0, 1, 2**63 - 1, -(2**63)],
    "float": [0.0, -0.0, 1.0, -3.5, 1e30, -1e30, float("nan"), float("inf"), float("-inf")],
    "string": ["", "a", "../../etc/passwd", "x" * 70_000, "\x00", "\U0001f41f"],
    "binary": [b"", b"\x00" * 258, b"\xff" * 258, b"\xff" * 257],
    "bool": [True, False],
}

Damage = Callable[[bytearray, random.Random], bytes]


def place(data: bytearray, chance: random.Random) -> int:
    """Somewhere in the file; half of the time in its footer."""
    start = max(0, len(data) - FOOTER_BYTES) if chance.random() < 0.5 else 0
    return chance.randrange(start, len(data))


def bits(data: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice([1, 1, 2, 8])):
        data[place(data, chance)] ^= 1 << chance.randrange(8)
    return bytes(data)


def random_bytes(data: bytearray, chance: random.Random) -> bytes:
    start = place(data, chance)
    end = min(len(data), start + chance.randint(1, LONGEST_RANGE))
    data[start:end] = chance.randbytes(end - start)
    return bytes(data)


def zeros(data: bytearray, chance: random.Random) -> bytes:
    start = place(data, chance)
    end = min(len(data), start + chance.randint(1, LONGEST_RANGE))
    data[start:end] = bytes(end - start)
    return bytes(data)


def without_a_range(data: bytearray, chance: random.Random) -> bytes:
    start = place(data, chance)
    del data[start : start + chance.randint(1, LONGEST_RANGE)]
    return bytes(data)


def a_range_twice(data: bytearray, chance: random.Random) -> bytes:
    start = place(data, chance)
    data[start:start] = data[start : start + chance.randint(1, LONGEST_RANGE)]
    return bytes(data)


def two_ranges_swapped(data: bytearray, chance: random.Random) -> bytes:
    length = chance.randint(1, LONGEST_RANGE)
    first, second = sorted(chance.sample(range(len(data) - length), 2))
    data[first : first + length], data[second : second + length] = (
        data[second : second + length],
        data[first : first + length],
    )
    return bytes(data)


def cut_off(data: bytearray, chance: random.Random) -> bytes:
    return bytes(data[: chance.randrange(len(data))])


def one_value(data: bytearray, chance: random.Random) -> bytes:
    """One value of one row, or one item of one list, made extreme; the file written anew."""
    table = pq.read_table(pa.BufferReader(bytes(data)))
    field = chance.choice(list(table.schema))
    values = table[field.name].to_pylist()
    row = chance.randrange(len(values))
    if pa.types.is_list(field.type):
        values[row] = changed_list(list(values[row]), EXTREMES[str(field.type.value_type)], chance)
    else:
        values[row] = chance.choice(EXTREMES[str(field.type)])
    column = pa.array(values, field.type)
    return written(table.set_column(table.schema.get_field_index(field.name), field, column))


def changed_list(values: list[Any], extremes: list[Any], chance: random.Random) -> list[Any]:
    """An item more, an item less, another item, or none at all."""
    at = chance.randrange(len(values))
    return chance.choice(
        [
            [*values[:at], chance.choice(extremes), *values[at:]],
            [*values[:at], *values[at + 1 :]],
            [*values[:at], chance.choice(extremes), *values[at + 1 :]],
            [],
        ]
    )


def two_rows_swapped(data: bytearray, chance: random.Random) -> bytes:
    table = pq.read_table(pa.BufferReader(bytes(data)))
    order = list(range(table.num_rows))
    first, second = chance.sample(order, 2)
    order[first], order[second] = second, first
    return written(table.take(order))


def written(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=table.num_rows)
    return sink.getvalue()


DAMAGES: list[Damage] = [
    bits, random_bytes, zeros, without_a_range, a_range_twice, two_ranges_swapped, cut_off, one_value, one_value,
    two_rows_swapped,
]  # fmt: skip


def damaged(honest: bytes, seed: int) -> bytes:
    """Mutation number `seed` of a file; never the file itself."""
    chance = random.Random(seed)
    while True:
        found = chance.choice(DAMAGES)(bytearray(honest), chance)
        if found != honest:
            return found
