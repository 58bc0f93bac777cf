"""What people's data have and benchmarks have not: an order, wrong tags, items without tags."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import TagLists

Rows = NDArray[np.intp]
#: At random, as the data come, one class after another, or first the items of half of the classes.
Order = Literal["random", "given", "by-label", "new-labels-late"]


def ordered(rest: Rows, labels: NDArray[np.bool_], order: Order, seed: int) -> Rows:
    """Rows of a stream, which are in random order, in another one.

    Parameters
    ----------
    rest : (n,) int
        Rows of the data set.
    labels : (rows of the data set, L) bool
        An item of several classes counts for the rarest.
    order : str
        One of `Order`; classes are in random order, and items of a class.
    seed : int
        Decides every random draw.
    """
    if order == "random":
        return rest
    if order == "given":
        return np.sort(rest)
    here = labels[rest]
    count = here.sum(axis=0)
    rarest = np.where(here, count, len(rest) + 1).argmin(axis=1)
    place = np.random.default_rng((seed, len(rest))).permutation(here.shape[1])[rarest]
    if order == "new-labels-late":
        place = 2 * place >= here.shape[1]
    return rest[np.argsort(place, kind="stable")]


def sampled_first(rest: Rows, m: int, seed: int) -> tuple[Rows, Rows]:
    """A random sample of m rows of a stream, and the others, each in the order of the stream."""
    drawn = np.random.default_rng((seed, len(rest), m)).choice(len(rest), m, replace=False)
    taken = np.zeros(len(rest), np.bool_)
    taken[drawn] = True
    return rest[taken], rest[~taken]


def spoiled(tags: TagLists, rows: Rows, wrong: float, untagged: float, seed: int) -> TagLists:
    """Tags of which a share are other items' and a share is missing.

    Parameters
    ----------
    tags : TagLists
        Of all items.
    rows : (n,) int
        Items whose tags are spoiled.
    wrong : float
        Share of them that exchange their tags with each other.
    untagged : float
        Share of them, then, that have none.
    seed : int
        Decides every random draw.

    Raises
    ------
    InputError
        A share is not between 0 and 1.
    """
    for name, share in (("wrong_tags", wrong), ("untagged", untagged)):
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InputError(f"{name} is {validate.short(share)}, expected a share between 0 and 1")
    if not wrong and not untagged:
        return tags
    of = np.arange(len(tags))
    rng = np.random.default_rng((seed, len(rows)))
    exchanged, bare = (rng.permutation(rows)[: round(share * len(rows))] for share in (wrong, untagged))
    of[exchanged] = np.roll(exchanged, 1)  # each has another item's
    lists = [tags.of_row(row) for row in of.tolist()]
    for row in bare.tolist():
        lists[row] = []
    return TagLists.from_lists(lists)
