"""How far the tags of an item are trusted: features and tags agree more than by chance if they are right.

An item's agreement is the cosine of its rows of Gv and Gt: what features foretell, and what tags ask. Tags
of another item agree no more than by chance, which a chunk shows itself: each item's features beside the tags
of some other items. So agreements are a mixture f = π f₀ + (1 − π) f₁ with f₀ known, and tags that agree
by c are wrong with probability π f₀(c) / f(c).

Features that are unlike all others foretell little, and agree with nothing, whatever the tags. π is therefore
counted where features foretell most: there right tags hardly ever agree as little as chance. Where they do,
the share of chance's lowest agreements falls with their depth, and the deepest are counted. Where features
are so weak that agreements do not tell wrong tags from right ones, all tags are trusted.

Tags vary far more in some directions than in others, and a cosine is decided there. For the trust of one item
each direction counts with the root of its variance instead, and f₀ and f are those of items whose features
foretell as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .blocks import Rows, Sums

Matrix = NDArray[np.float64]

#: Least share of the largest variance that a direction is taken to have.
SLIGHT = 1e-3
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
#: Parts of the items, by how much features foretell; each has distributions of its own.
PARTS = 3
#: An item counts as this power of the probability that its tags are right.
POWER = 3
#: Least trust: what features ask is divided by a power of it.
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
    share = _share_wrong(Gv.map(_agreement, Gt).gathered())
    if share is None:
        return None
    metric = _metric(Gt.sum(_of_tags)["C"])
    agreements = Gv.map(_agreement, Gt, metric)
    return agreements.map(_trust, *_right(agreements.gathered(), share))


def _of_tags(Gt: Matrix) -> Sums:
    return {"C": Gt.T @ Gt}


def _metric(C: Matrix) -> Matrix:
    """C^-¼ (r, r), which makes roots of variances; C a covariance, or a multiple of one."""
    variance, Q = np.linalg.eigh(C)
    variance = np.maximum(variance, max(SLIGHT * variance[-1], 1e-300))
    return np.asarray((Q * variance**-0.25) @ Q.T)


def _agreement(Gv: Matrix, Gt: Matrix, metric: Matrix | None = None) -> Agreement:
    foretold = _lengths(Gv)
    if metric is not None:
        Gv, Gt = Gv @ metric, Gt @ metric
    n = len(Gv)  # far apart: neighbours may be of one kind
    shifts = sorted({place * n // (OTHERS + 1) for place in range(1, OTHERS + 1)} - {0})
    v, t = _lengths(Gv), _lengths(Gt)
    chance = [_cosines(Gv, np.roll(Gt, shift, axis=0), v, np.roll(t, shift)) for shift in shifts]
    return Agreement(foretold, _cosines(Gv, Gt, v, t), np.reshape(chance, (len(shifts), n)))


def _share_wrong(blocks: Sequence[Agreement]) -> float | None:
    """π; None where no tags seem wrong, or right ones can't be told from them."""
    median = np.median(_foretold(blocks))
    own, chance = _of(blocks, [block.foretold >= median for block in blocks])
    if not len(chance):
        return None
    share = _share_by_tails(own, chance)
    return None if share < LEAST or _in_common(own, chance, share) > COMMON else share


def _right(blocks: Sequence[Agreement], share: float) -> tuple[Matrix, Matrix]:
    """Probability that tags are right, by part and bin of agreements (PARTS, BINS); and the parts' edges."""
    edges, right = np.quantile(_foretold(blocks), np.arange(1, PARTS) / PARTS), np.empty((PARTS, BINS))
    for part in range(PARTS):
        own, chance = _of(blocks, [_part(block.foretold, edges) == part for block in blocks])
        wrong = np.minimum(share * _density(chance) / _density(own), 1.0)
        right[part] = 1.0 - np.maximum.accumulate(wrong[::-1])[::-1]  # never less where tags agree more
    return edges, right


def _foretold(blocks: Sequence[Agreement]) -> Matrix:
    return np.concatenate([block.foretold for block in blocks])


def _of(blocks: Sequence[Agreement], wanted: Sequence[NDArray[np.bool_]]) -> tuple[Matrix, Matrix]:
    """Own agreements of wanted items, and those by chance."""
    pairs = list(zip(blocks, wanted, strict=True))
    own = np.concatenate([block.own[rows] for block, rows in pairs])
    return own, np.concatenate([block.chance[:, rows].ravel() for block, rows in pairs])


def _part(foretold: Matrix, edges: Matrix) -> NDArray[np.intp]:
    return np.asarray(np.searchsorted(edges, foretold, side="right"))


def _share_by_tails(own: Matrix, chance: Matrix) -> float:
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


def _trust(block: Agreement, edges: Matrix, right: Matrix) -> Matrix:
    middles = (np.arange(BINS) + 0.5) * 2 / BINS - 1
    certain = np.choose(_part(block.foretold, edges), [np.interp(block.own, middles, one) for one in right])
    return np.asarray(np.maximum(certain**POWER, FLOOR))


def _cosines(G: Matrix, H: Matrix, g: Matrix, h: Matrix) -> Matrix:
    """Of the rows, whose lengths are g and h; 0 where one is zero."""
    return np.asarray(np.einsum("ij,ij->i", G, H) / np.maximum(g * h, 1e-300))


def _lengths(G: Matrix) -> Matrix:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", G, G)))
