"""Tags as queries, and the tags that a code predicts: the model read from its tag side.

A code b explains an item's word vectors z ≈ b⁺V (Eq. 9) and tags y ≈ b⁺W (Eq. 13). Read backwards, tags
alone give bits as real numbers: the h that explains them best (`tag_targets.decoded`). docs/adaptive.md has
what y, z and b⁺ are in either preset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.codes import unpack
from woh_faiss.errors import InputError
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.kernel import unit_rows
from woh_faiss.learner.solver import V_of
from woh_faiss.learner.statistics import Statistics
from woh_faiss.learner.tag_targets import TagTargets, decoded
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.tags.vocabulary import Vocabulary, normalised
from woh_faiss.tags.word_vectors import WordVectors
from woh_faiss.validate import stored

Matrix = NDArray[np.float64]

#: Share of the items from which a tag is in every query. At 90 % the mean of right items among 10 fell from
#: 10 to 7.0 without (adaptive, 100 classes); at 50 % the class alone asks better.
COMMON = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class TagQueries:
    """What codes say about tags after some round.

    Attributes
    ----------
    vocabulary : Vocabulary
        Known tags and their vectors.
    side : TagTargets or None
        How a semantic start weighs tags and vectors; None where they are taken raw.
    n : int
        Items seen.
    V, W : (r + 1, f), (r + 1, c)
        Codes to word vectors and to tags, the constant column's row last (zeros where there is none).
    """

    vocabulary: Vocabulary
    side: TagTargets | None
    n: int
    V: Matrix
    W: Matrix

    @classmethod
    def of(cls, config: WOHConfig, arrays: Mapping[str, NDArray[Any]], vocabulary: Vocabulary) -> TagQueries:
        """From a model file's arrays; InputError where they do not fit each other or the vocabulary."""
        stats, W = Statistics.from_arrays(arrays), stored(arrays, "W", 2)
        V = V_of(stats, config)
        if config.start == "semantic":
            side = TagTargets.from_arrays(arrays)
        else:
            side = None
            V, W = _with_constant(V), _with_constant(W)
        rows, (c, f) = config.bits + 1, vocabulary.E.shape
        if W.shape != (rows, c) or V.shape != (rows, f):
            raise InputError(f"W {W.shape} and V {V.shape} do not fit {c} tags and vectors of {f} numbers")
        return cls(vocabulary, side, stats.n, V, W)

    def bits(self, tags: Sequence[Sequence[str]], vectors: WordVectors | None = None) -> Matrix:
        """What each tag list asks of every bit, as real numbers: (q, r).

        Known tags are answered by V and W. Others are looked up in `vectors` and answered by V. Tags that
        nearly every item carries are in every query, so that asking for them changes nothing: without them it
        would look unlike all items, and mostly for that.

        Raises
        ------
        InputError
            Nothing is known of any tag of a list.
        """
        lists = TagLists.from_lists(tags)
        given_lists = normalised(lists).lists()
        common = [self.vocabulary.tags[j] for j in np.flatnonzero(self.vocabulary.df >= COMMON * self.n)]
        Y, Z, _ = self.vocabulary.matrices(TagLists.from_lists([[*given, *common] for given in given_lists]))
        known = np.ones(len(Z), np.bool_)
        for row, given in enumerate(given_lists):
            strange = self.strange(given)
            found = [vector for tag in strange if vectors and (vector := vectors.lookup(tag)) is not None]
            known[row] = len(strange) < len(given)
            if not known[row] and not found:
                raise InputError(
                    f"nothing is known of the tags {', '.join(map(repr, given)) or '(none given)'}; "
                    "'woh-index info' lists known ones, --word-vectors answers others"
                )
            if found:  # the mean over known and found tags
                if len(found[0]) != Z.shape[1]:
                    raise InputError(
                        f"word vectors have {len(found[0])} numbers, the model's have {Z.shape[1]}"
                    )
                count = Y.indptr[row + 1] - Y.indptr[row]
                Z[row] = (count * Z[row] + np.sum(found, axis=0)) / (count + len(found))
        y, z = (Y, Z) if self.side is None else (self.side.y(Y, self.vocabulary.df, self.n), self.side.z(Z))
        H = decoded(y, z, self.V, self.W)
        if not known.all():  # no tag to hold against W
            H[~known] = decoded(y[~known], z[~known], self.V, np.zeros_like(self.W))
        return H

    def strange(self, tags: Sequence[str], vectors: WordVectors | None = None) -> list[str]:
        """Those of the tags of which nothing is known, also not to `vectors`."""
        return [
            tag
            for tag in tags
            if tag not in self.vocabulary and (vectors is None or vectors.lookup(tag) is None)
        ]

    def predicted(self, packed: NDArray[np.uint8], most: int = 5) -> list[list[tuple[str, float]]]:
        """The tags that each code (n, r // 8) predicts, best first, with scores.

        A score is the mean of two: the tag's part of b⁺W, in units of the row's length, and the cosine of b⁺V
        with the tag's own vector. Where one side says nothing the other counts alone.
        """
        B = unpack(packed).astype(np.float64)
        Bp = np.column_stack([B, np.ones(len(B))])
        E = self.vocabulary.E
        vectors = E if self.side is None else self.side.z(E)
        parts = [
            M for M in (unit_rows(Bp @ self.W), unit_rows(Bp @ self.V) @ unit_rows(vectors).T) if M.any()
        ]
        scores = np.mean(parts, axis=0) if parts else np.zeros((len(B), len(self.vocabulary.tags)))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        return [
            [(self.vocabulary.shown(self.vocabulary.tags[j]), round(float(row[j]), 4)) for j in places]
            for row, places in zip(scores, best, strict=True)
        ]


def _with_constant(M: Matrix) -> Matrix:
    """M with a row of zeros for the constant column that the paper's codes do not have."""
    return np.vstack([M, np.zeros((1, M.shape[1]))])
