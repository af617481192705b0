"""How a pseudo-gradient travels: float32, or float16 or int8 with one scale a block, as bytes.

In: a float32 vector. Out: a uint8 vector of a length that follows from count and kind alone, and back, a part at a time. The scales (float32,
little endian) come first, then the values. What is decoded is finite, or `BadPayload` is raised: the bytes are a stranger's until then. The sum of
several is made by the caller, in float32. Pure; called by `contributions`.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from shoal.contracts.islands import ExchangeType

BLOCK = 256
"""Values that share a scale: 4 bytes of scale to 256 of int8 are 1.6 %, and a block spans a row or less of most matrices."""
LOWEST_EXPONENT = -120
"""A block whose largest value is smaller than 2^-120 is scaled as if it were that: 2^120 times it is still a float32."""
INT8_LIMIT = 127.0
BYTES = {"float32": 4, "float16": 2, "int8": 1}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


class BadPayload(ValueError):
    """Bytes that no honest sender makes; the message says why."""


def encoded_size(count: int, kind: ExchangeType) -> int:
    """Bytes that `count` values take."""
    scales = 0 if kind == "float32" else 4 * blocks_of(count)
    return scales + BYTES[kind] * count


def blocks_of(count: int) -> int:
    return -(-count // BLOCK)


def encode(values: Float[Tensor, " values"], kind: ExchangeType) -> UInt8[Tensor, " bytes"]:
    """The bytes of a finite vector on the host. Rounding is to nearest, ties to even. Raises ValueError for what is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the vector has values that are not finite; there is nothing to exchange")
    values = values.contiguous()
    if kind == "float32":
        return values.view(torch.uint8).clone()
    blocks = _in_blocks(values)
    largest = blocks.abs().amax(dim=1)
    if kind == "float16":
        exponents = torch.frexp(largest).exponent.clamp(min=LOWEST_EXPONENT)
        scales = torch.ldexp(torch.ones_like(largest), exponents)  # a power of two: scaling itself loses nothing
        scales = scales.clamp(max=torch.finfo(torch.float32).max / 2)  # 2^128 is no float32
        coded = (blocks / scales[:, None]).to(torch.float16)
    else:
        # 127 times the scale must stay a float32, also where the division rounded up.
        bound = torch.tensor(torch.finfo(torch.float32).max) / INT8_LIMIT
        scales = (largest / INT8_LIMIT).clamp(max=float(torch.nextafter(bound, torch.zeros(()))))
        safe = torch.where(scales > 0, scales, torch.ones_like(scales))
        coded = (blocks / safe[:, None]).round().clamp(-INT8_LIMIT, INT8_LIMIT).to(torch.int8)
    flat = coded.reshape(-1)[: len(values)].contiguous()
    return torch.cat([scales.view(torch.uint8), flat.view(torch.uint8)])


def decode(
    payload: UInt8[Tensor, " bytes"], count: int, kind: ExchangeType, start: int = 0, stop: int | None = None
) -> Float[Tensor, " part"]:
    """Values `start` to `stop` of a payload of `count`; `start` is a multiple of `BLOCK`. Raises BadPayload."""
    if len(payload) != encoded_size(count, kind):
        raise BadPayload(f"{len(payload)} bytes; {count} values as {kind} are {encoded_size(count, kind)}")
    stop = count if stop is None else min(stop, count)
    if start % BLOCK or not 0 <= start <= stop:
        raise ValueError(f"part {start} to {stop}; it begins at a multiple of {BLOCK} and ends after that")
    head = 0 if kind == "float32" else 4 * blocks_of(count)
    size = BYTES[kind]
    raw = payload[head + size * start : head + size * stop].clone()  # a view of another type wants aligned memory
    values = raw.view(DTYPES[kind]).to(torch.float32)
    if kind != "float32":
        scales = payload[4 * (start // BLOCK) : 4 * blocks_of(stop)].clone().view(torch.float32)
        if not bool((torch.isfinite(scales) & (scales >= 0)).all()):
            raise BadPayload("a scale is negative or not finite")
        values = (_in_blocks(values) * scales[:, None]).reshape(-1)[: stop - start]
    if not bool(torch.isfinite(values).all()):
        raise BadPayload("a value is not finite")
    return values


def _in_blocks(values: Float[Tensor, " values"]) -> Float[Tensor, "blocks block"]:
    missing = -len(values) % BLOCK
    return torch.nn.functional.pad(values, (0, missing)).view(-1, BLOCK)
