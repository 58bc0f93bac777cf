"""Binary codes: signs <-> packed bytes. The only place that knows the bit order and the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(B: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes Faiss stores for signs or projections.

    Parameters
    ----------
    B : (n, r) array of real
        Bit j is 1 where ``B[:, j] >= 0``: sign(0) = +1. r is a multiple of 8.

    Returns
    -------
    (n, r // 8) uint8
        Bit j of a code is bit ``j % 8``, least significant first, of byte ``j // 8``.
    """
    return np.packbits(B >= 0, axis=1, bitorder="little")


def unpack(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """The inverse of `pack`: (n, r // 8) bytes to (n, r) signs in {-1, +1}."""
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    return np.where(bits, np.int8(1), np.int8(-1))


def stored_bits(bits: int) -> int:
    """Bits a code of `bits` takes in the store: 32, 64 or a multiple of 64.

    Faiss scans those widths with whole words; others cost three to four times as much a row.
    """
    return 32 if bits <= 32 else -(-bits // 64) * 64


def pad(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Packed codes with zero bits up to `stored_bits`; Hamming distances stay what they are."""
    n_bytes = packed.shape[1]
    return np.pad(packed, ((0, 0), (0, stored_bits(8 * n_bytes) // 8 - n_bytes)))


def unpad(stored: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The inverse of `pad` for codes of `bits` bits."""
    return np.ascontiguousarray(stored[:, : bits // 8])


def health(packed: NDArray[np.uint8]) -> dict[str, float]:
    """How well the codes (n, r // 8) use their bits; nothing in WOH's objective sees to it.

    Returns
    -------
    dict
        ``balance``: mean over the bits of the rarer value's share, 0.5 at best. ``entropy``: mean entropy
        of a bit, 1 at best. ``distinct``: share of codes that are distinct. ``constant``: bits that are
        the same in all of the codes. ``correlation``: the largest absolute one of two bits.
    """
    bits = np.unpackbits(packed, axis=1, bitorder="little")
    ones = bits.mean(axis=0)
    p = np.stack([ones, 1 - ones])
    rarer = p.min(axis=0)
    moving = bits[:, rarer > 0]
    correlation = np.zeros((1, 1))
    if moving.shape[1] > 1:
        correlation = np.triu(np.corrcoef(moving, rowvar=False, dtype=np.float32), 1)
    entropy = -(p * np.log2(np.where(p > 0, p, 1))).sum(axis=0)
    return {
        "balance": float(rarer.mean()),
        "entropy": float(entropy.mean()),
        "distinct": len(np.unique(packed, axis=0)) / len(packed),
        "constant": float((rarer == 0).sum()),
        "correlation": float(np.abs(correlation).max()),
    }
