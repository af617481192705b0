"""Polynomials over GF(65497), many at once: through their points, and their values at points.

In and out: integers mod 65497. Called by `toploc` alone. Inside, residues are float64 between -p/2 and p/2: a product of two and a sum of 128 such
products are integers below 2**38, which float64 holds exactly. So matrix products and FFTs (error below 2**-12 at this size) do the work, and
one rounded division brings results back into the field.

Both directions rest on the powers of the points, in two short runs (baby steps x**0 .. x**15, giant steps x**16, x**32, ...), after Paterson and
Stockmeyer (SIAM J. Comput. 2, 1973). For interpolation let m(x) = prod (x - x_i); Lagrange's formula is f = sum a_i m(x) / (x - x_i) with
a_i = y_i / m'(x_i). Dividing m by x - x_i gives the coefficients q_k = sum_{j>k} m_j x_i**(j-k-1). So the f_k are a correlation of m with the
power sums s_r = sum a_i x_i**r. No loop here runs over points.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

PRIME = 65497  # of the published format; only patterns of negative NaNs, which no state has, lie above it
MOST_POINTS = 128  # of a proof, and so of a polynomial here
BABY_STEPS = 16  # about the square root of that
GIANT_STEPS = MOST_POINTS // BABY_STEPS
BLOCK = 32  # polynomials worked on together: what is between steps stays in a core's cache
DIRECT = 64  # products of this many polynomials times their degree are summed up directly, larger ones by FFT: measured

Int16 = npt.NDArray[np.int16]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


def interpolate(x: Int64, y: Int64) -> Int64:
    """Coefficients of the polynomials over GF(65497) through (x, y), lowest degree first.

    `x`, `y`: int64 [polynomials, points], at most 128 points, x distinct within a row and below the prime. Returns int64 of the same shape.
    """
    parts = [_interpolate(x[i : i + BLOCK], y[i : i + BLOCK]) for i in range(0, len(x), BLOCK)]
    return np.concatenate(parts) if parts else np.zeros_like(x)


def evaluate(coefficients: Int64, x: Int64) -> Int64:
    """Values over GF(65497): int64 [polynomials, points], of polynomials [polynomials, degree + 1], lowest degree first, of a
    degree below 128, at x [polynomials, points].
    """
    parts = [
        _natural(_values(_residues(coefficients[i : i + BLOCK]), *_powers(x[i : i + BLOCK])))
        for i in range(0, len(x), BLOCK)
    ]
    return np.concatenate(parts) if parts else np.zeros_like(x)


def _interpolate(x: Int64, y: Int64) -> Int64:
    polynomials, count = x.shape
    baby, giant = _powers(x)
    monic = np.concatenate([_product(_residues(x)), np.ones((polynomials, 1))], axis=1)  # m, of degree `count`
    derivative = _reduce(monic[:, 1:] * np.arange(1, count + 1))
    inverses = _tables().inverses[_natural(_values(derivative, baby, giant))]
    weights = _reduce(_residues(y) * inverses)  # the a_i
    weighted = _reduce(giant * weights[:, :, None])
    sums = _reduce(np.matmul(weighted.transpose(0, 2, 1), baby)).reshape(polynomials, MOST_POINTS)[:, :count]
    length = 2 * _power_of_two(count)
    spectrum = np.fft.rfft(monic[:, 1:], length) * np.conj(np.fft.rfft(sums, length))
    return _natural(_reduce(np.rint(np.fft.irfft(spectrum, length)[:, :count])))


def _powers(x: Int64) -> tuple[Float64, Float64]:
    """Baby steps [polynomials, points, 16] and giant steps [polynomials, points, 8] of the points."""
    tables = _tables()
    return tables.baby[x].astype(np.float64), tables.giant[x].astype(np.float64)


def _values(coefficients: Float64, baby: Float64, giant: Float64) -> Float64:
    """Residues [polynomials, points] of the polynomials at the points whose powers are given."""
    polynomials, count = coefficients.shape
    if count < MOST_POINTS:
        coefficients = np.pad(coefficients, ((0, 0), (0, MOST_POINTS - count)))
    rows = coefficients.reshape(polynomials, GIANT_STEPS, BABY_STEPS)
    # Sums of 16 products, below 2**34, times giant steps, summed over 8 rows: below 2**52, so that one reduction at the end will do.
    within = np.matmul(baby, rows.transpose(0, 2, 1))
    return _reduce(np.einsum("pkr,pkr->pk", within, giant))


def _product(roots: Float64) -> Float64:
    """prod (x - root) without its leading 1: [polynomials, points], lowest degree first. A tree of products of monic polynomials."""
    count = roots.shape[1]
    # Roots at zero fill up to a power of two; each multiplies by x, which is taken back at the end.
    filled = np.pad(roots, ((0, 0), (0, _power_of_two(count) - count)))
    factors, degree = -filled[:, :, None], 1  # [polynomials, factors, degree]: x**degree + the coefficients held here
    while degree < filled.shape[1]:
        left, right = factors[:, 0::2], factors[:, 1::2]
        if len(roots) * degree <= DIRECT:
            product = _convolution(left, right)
        else:
            spectra = np.fft.rfft(factors, 2 * degree)
            product = np.rint(np.fft.irfft(spectra[:, 0::2] * spectra[:, 1::2], 2 * degree))
        product[:, :, degree:] += left
        product[:, :, degree:] += right
        factors, degree = _reduce(product), 2 * degree
    return factors[:, 0, degree - count :]


def _convolution(left: Float64, right: Float64) -> Float64:
    """Products [..., 2 * degree] of polynomials [..., degree]: all pairs of terms, each row one place further right, summed down."""
    degree = left.shape[-1]
    pairs = np.zeros((*left.shape, 2 * degree))
    np.multiply(left[..., :, None], right[..., None, :], out=pairs[..., :degree])
    flat = pairs.reshape(*left.shape[:-1], -1)
    # Read in rows one shorter than they were written, each begins one place later than the one above.
    shifted = flat[..., : degree * (2 * degree - 1)].reshape(*left.shape, 2 * degree - 1)
    product = np.zeros((*left.shape[:-1], 2 * degree))
    shifted.sum(axis=-2, out=product[..., :-1])
    return product


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _residues(values: Int64) -> Float64:
    return _reduce(values.astype(np.float64))


def _reduce(values: Float64) -> Float64:
    """Bring integers below 2**52 in size between -p/2 and p/2, in place. A quotient that lies on the border may round either way."""
    quotient = values * (1.0 / PRIME)
    np.rint(quotient, out=quotient)
    quotient *= PRIME
    values -= quotient
    return values


def _natural(residues: Float64) -> Int64:
    """Residues as integers from 0 to p-1."""
    values = residues.astype(np.int64)
    values += PRIME * (values < 0)
    return values


@dataclass(frozen=True)
class _Tables:
    """Of all residues x: powers x**0 .. x**15 int16 [65497, 16], powers of x**16 int16 [65497, 8], inverses float64 [65497] (that of 0 reads 0)."""

    baby: Int16
    giant: Int16
    inverses: Float64


@cache
def _tables() -> _Tables:
    """3.7 MB, made once a process in some tens of milliseconds: looking powers up costs a third of working them out."""
    base = _residues(np.arange(PRIME, dtype=np.int64))
    baby = _run(base, BABY_STEPS)
    giant = _run(_reduce(baby[:, -1] * base), GIANT_STEPS)
    power, rest, inverses = base.copy(), PRIME - 2, np.ones(PRIME)  # Fermat: 1 / x = x**(p-2)
    while rest:
        if rest & 1:
            inverses = _reduce(inverses * power)
        power, rest = _reduce(power * power), rest >> 1
    return _Tables(baby.astype(np.int16), giant.astype(np.int16), inverses)


def _run(base: Float64, count: int) -> Float64:
    """Powers 0 .. count-1 of `base` [residues], as [residues, count]."""
    powers = np.ones((len(base), count))
    for exponent in range(1, count):
        powers[:, exponent] = _reduce(powers[:, exponent - 1] * base)
    return powers
