"""How far the tags of an item are trusted: features and tags agree more than by chance if they are right.

An item's agreement is the cosine of its rows of Gv and Gt: what features foretell, and what tags ask. Tags
of another item agree no more than by chance, which a chunk shows itself: each item's features beside the tags
of some other items. So agreements are a mixture f = π f₀ + (1 − π) f₁ with f₀ known, and tags that agree
by c are wrong with probability π f₀(c) / f(c).

Features that are unlike all others foretell little, and agree with nothing, whatever the tags. π is therefore
counted where features foretell most: there right tags hardly ever agree as little as chance. Where they do,
the share of chance's lowest agreements falls with their depth, and the deepest are counted. Where features
are so weak that agreements do not tell wrong tags from right ones, all tags are trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .blocks import Rows

Matrix = NDArray[np.float64]

#: Other items whose tags show what chance gives.
OTHERS = 8
#: Shares of chance agreements below which right tags of well foretold items are hardly found.
TAILS = (0.4, 0.2, 0.1)
#: Standard errors by which a deeper tail must hold fewer to count instead.
ERRORS = 2.0
#: Most that the distributions of right tags' agreements and of chance's may have in common.
COMMON = 0.45
#: Least share of wrong tags that is believed.
LEAST = 0.02
#: Least number of well foretold items that show it.
FEW = 4
#: Bins of agreements, from -1 to 1.
BINS = 16
#: An item counts as this power of the probability that its tags are right.
POWER = 3
#: Least trust: what features ask counts its inverse.
FLOOR = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Of a block of items: how much features foretell, and how far tags are what they foretell.

    Attributes
    ----------
    foretold : (b,)
        Length of the row of Gv.
    own : (b,)
        Cosine with the row of Gt.
    chance : (at most OTHERS, b)
        Cosines with rows of Gt of others.
    """

    foretold: Matrix
    own: Matrix
    chance: Matrix


def trusts(Gv: Rows[Matrix], Gt: Rows[Matrix]) -> Rows[Matrix] | None:
    """How far each item's tags are trusted, 0 to 1, (b,) a block; None where all of them are.

    Parameters
    ----------
    Gv, Gt : Rows of (b, r)
        What features and tags ask of each bit. Gv must not have been learned from the same item's tags.
    """
    right = _right(Gv.map(_agreement, Gt).gathered())
    return None if right is None else Gv.map(_trust, Gt, right)


def _agreement(Gv: Matrix, Gt: Matrix) -> Agreement:
    n = len(Gv)  # far apart: neighbours may be of one kind
    shifts = sorted({place * n // (OTHERS + 1) for place in range(1, OTHERS + 1)} - {0})
    v, t = _lengths(Gv), _lengths(Gt)
    chance = [_cosines(Gv, np.roll(Gt, shift, axis=0), v, np.roll(t, shift)) for shift in shifts]
    return Agreement(v, _cosines(Gv, Gt, v, t), np.reshape(chance, (len(shifts), n)))


def _right(blocks: Sequence[Agreement]) -> Matrix | None:
    """Probability that tags are right, by bin of agreements; None where none seem wrong."""
    foretold = np.concatenate([block.foretold for block in blocks])
    own = np.concatenate([block.own for block in blocks])
    chance = np.concatenate([block.chance.ravel() for block in blocks])
    well = [block.foretold >= np.median(foretold) for block in blocks]
    by_chance = np.concatenate(
        [block.chance[:, rows].ravel() for block, rows in zip(blocks, well, strict=True)]
    )
    if not len(by_chance):
        return None
    own_well = own[np.concatenate(well)]
    share = _share_wrong(own_well, by_chance)
    if share < LEAST or _in_common(own_well, by_chance, share) > COMMON:
        return None
    wrong = np.minimum(share * _density(chance) / _density(own), 1.0)
    return 1.0 - np.maximum.accumulate(wrong[::-1])[::-1]  # never less where tags agree more


def _share_wrong(own: Matrix, chance: Matrix) -> float:
    """π, of agreements of well foretold items; 0 where FEW show none."""
    share, n_low = 1.0, 0
    for place, tail in enumerate(TAILS):
        low = own < np.quantile(chance, tail)
        deeper = float(low.mean()) / tail
        if place == 0 or share - deeper > ERRORS * np.sqrt(share / (tail * len(own))):
            share, n_low = deeper, int(low.sum())
    return share if n_low >= FEW else 0.0


def _in_common(own: Matrix, chance: Matrix, share: float) -> float:
    """What f₁ and f₀ have in common: min(f, f₀) = π f₀ + (1 − π) min(f₁, f₀)."""
    both = float(np.minimum(_density(own), _density(chance)).sum())
    return (both - share) / max(1.0 - share, 1e-300)


def _density(agreements: Matrix) -> Matrix:
    """Share of agreements in each bin, each spread a little over the bins beside."""
    counts = np.pad(np.histogram(np.clip(agreements, -1.0, 1.0), BINS, (-1.0, 1.0))[0] + 0.1, 1, mode="edge")
    spread = counts[:-2] + 2 * counts[1:-1] + counts[2:]
    return np.asarray(spread / spread.sum())


def _trust(Gv: Matrix, Gt: Matrix, right: Matrix) -> Matrix:
    agreements = _cosines(Gv, Gt, _lengths(Gv), _lengths(Gt))
    middles = (np.arange(BINS) + 0.5) * 2 / BINS - 1
    return np.maximum(np.interp(agreements, middles, right) ** POWER, FLOOR)


def _cosines(G: Matrix, H: Matrix, g: Matrix, h: Matrix) -> Matrix:
    """Of the rows, whose lengths are g and h; 0 where one is zero."""
    return np.asarray(np.einsum("ij,ij->i", G, H) / np.maximum(g * h, 1e-300))


def _lengths(G: Matrix) -> Matrix:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", G, G)))
