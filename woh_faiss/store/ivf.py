"""Inverted lists (IVF): rows in clusters of their codes, of which a search scans the nearest few.

There are lists by learned bits and lists by instance bits, since an answer may be near in one half alone.
Each list is packed as in packed_codes and scanned by Faiss. The lists by learned bits hold whole codes: many
rows share their learned bits, and a little of the instance term tells them apart. What is written down are
the clusters; the codes are those of the index, packed when the file is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from woh_faiss import codes as binary
from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.io import npz

from .packed_codes import WIDEST, Bytes, Single, sign_quantiser
from .scan import Rows, threads

#: Faiss's own stubs leave out most of what SWIG generates.
_swig: Any = faiss
#: Rows a list that centroids are learned from, and rounds of k-means.
_TRAINED_FROM, _ROUNDS = 40, 10
#: Rows that are assigned to clusters at once.
_BLOCK = 1 << 14
#: What the instance bits count in a list by learned bits.
_INSTANCE_WEIGHT = np.float32(0.1)
#: Lists looked into, unless another number is given: at least so many, and one in so many.
_LEAST_PROBED, _SHARE_PROBED = 16, 32
_SEED = 0


def complete(given: Mapping[str, Any], n: int, r: int, s: int) -> dict[str, int]:
    """`nlist` and `nprobe` for n rows: those given, or their defaults.

    Raises
    ------
    InputError
        One is unknown or out of range, there are no rows, or a half has more than WIDEST bits.
    """
    for name in given:
        if name not in ("nlist", "nprobe"):
            raise InputError(f"ivf takes no {validate.short(name)}; expected nlist, nprobe")
    if not n:
        raise InputError("there are no items to make ivf of; append some with 'woh-index update'")
    if max(r, s) > WIDEST:
        raise InputError(
            f"ivf takes at most {WIDEST} learned and {WIDEST} instance bits, the codes have {r} and {s}; "
            "search without it"
        )
    asked = {name: validate.whole_number(value, name, 1) for name, value in given.items()}
    nlist = asked.get("nlist", max(1, math.isqrt(n)))
    nprobe = asked.get("nprobe", min(nlist, max(_LEAST_PROBED, nlist // _SHARE_PROBED)))
    for name, value, most, why in (
        ("nlist", nlist, n, "the number of rows"),
        ("nprobe", nprobe, nlist, "nlist"),
    ):
        if value > most:
            raise InputError(f"{name} is {validate.short(value)}, expected at most {most}, {why}")
    return {"nlist": nlist, "nprobe": nprobe}


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Rows by the cluster of one half of their codes.

    Attributes
    ----------
    centroids : (nlist, bits) float32
    order : (rows,) int32 or int64
        Rows, those of one cluster together and ascending.
    sizes : (nlist,) int64
        Rows of each cluster.
    """

    centroids: Single
    order: NDArray[np.signedinteger]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, codes: Bytes, nlist: int) -> Clusters:
        """K-means of packed codes (n, n_bytes), by some of them."""
        n, bits = len(codes), 8 * codes.shape[1]
        few = min(n, _TRAINED_FROM * nlist)
        some = np.sort(np.random.default_rng(_SEED).choice(n, few, replace=False))
        means = _swig.Clustering(bits, nlist)
        means.niter, means.seed = _ROUNDS, _SEED
        means.min_points_per_centroid = 1  # else it warns on stderr
        means.max_points_per_centroid = _TRAINED_FROM
        nearest: Any = faiss.IndexFlatL2(bits)
        assigned = np.empty(n, np.int32)
        with threads(few=False):
            means.train(binary.unpack(codes[some]).astype(np.float32), nearest)
            for start in range(0, n, _BLOCK):
                part = binary.unpack(codes[start : start + _BLOCK]).astype(np.float32)
                assigned[start : start + _BLOCK] = nearest.search(part, 1)[1][:, 0]
        order = np.argsort(assigned, kind="stable")
        centroids = faiss.vector_to_array(means.centroids).reshape(nlist, bits)
        sizes = np.bincount(assigned, minlength=nlist)
        return cls(centroids, order.astype(np.int32 if n < 2**31 else np.int64), sizes)

    def valid(self, rows: int, nlist: int) -> bool:
        """Whether they are `nlist` clusters that hold each of so many rows once."""
        return (
            self.centroids.ndim == 2
            and len(self.centroids) == nlist
            and (self.order.shape, self.sizes.shape) == ((rows,), (nlist,))
            and self.centroids.dtype == np.float32
            and self.sizes.dtype == np.int64
            and self.order.dtype in (np.int32, np.int64)
            and bool((self.sizes >= 0).all())
            and int(self.sizes.sum()) == rows
            and bool(((self.order >= 0) & (self.order < rows)).all())
            and bool((np.bincount(self.order, minlength=rows) == 1).all())
        )


@dataclass(frozen=True, slots=True, eq=False)
class InvertedLists:
    """Clusters, and packed codes of their rows.

    Attributes
    ----------
    centroids : (nlist, bits) float32
    squares : (nlist,) float32
        Their squared lengths.
    index : faiss.IndexIVFPQFastScan
        Without a coarse quantiser.
    """

    centroids: Single
    squares: Single
    index: Any

    @classmethod
    def of(cls, clusters: Clusters, codes: Bytes, nprobe: int) -> InvertedLists:
        """Pack codes (n, n_bytes) of all rows; a search looks into `nprobe` lists."""
        bits, nlist = 8 * codes.shape[1], len(clusters.sizes)
        lists = _swig.IndexIVFPQ(
            faiss.IndexFlatIP(bits), bits, nlist, bits // 4, 4, faiss.METRIC_INNER_PRODUCT
        )
        lists.by_residual, lists.is_trained, lists.ntotal = False, True, len(codes)
        lists.pq = sign_quantiser(bits).pq
        ends = np.cumsum(clusters.sizes).tolist()
        for number, (size, end) in enumerate(zip(clusters.sizes.tolist(), ends, strict=True)):
            if size:
                rows = clusters.order[end - size : end].astype(np.int64)
                held = codes[rows]
                lists.invlists.add_entries(number, size, faiss.swig_ptr(rows), faiss.swig_ptr(held))
        index = _swig.IndexIVFPQFastScan(lists)
        index.orig_invlists = None  # they end with `lists`
        index.nprobe = nprobe
        squares = np.einsum("ij,ij->i", clusters.centroids, clusters.centroids)
        return cls(clusters.centroids, squares, index)

    def best(self, X: Single, H: Single, K: int) -> Rows:
        """Rows of about the K largest sums Σ_j H_ij b_j in the lists nearest to X, NO_ID for none: (n, K)."""
        # One product a query: its answers do not depend on the others.
        distances = self.squares - 2 * (X[:, None] @ self.centroids.T)[:, 0]
        nprobe = self.index.nprobe
        near = np.argpartition(distances, nprobe - 1, axis=1)[:, :nprobe].astype(np.int64)
        with threads(few=True):
            rows: Rows = self.index.search_preassigned(
                np.ascontiguousarray(H), K, near, np.zeros(near.shape, np.float32)
            )[1]
        return rows


#: Clusters by learned bits and by instance bits, None for a half without bits; their names in a file.
Halves = tuple[Clusters | None, Clusters | None]
_NAMES = "learned", "instance"


@dataclass(frozen=True, slots=True, eq=False)
class Ivf:
    """Lists by r learned bits, which hold whole codes, and lists by s instance bits; None for no bits."""

    learned: InvertedLists | None
    instance: InvertedLists | None
    r: int
    s: int

    @classmethod
    def of(cls, clusters: Halves, codes: Bytes, nprobe: int) -> Ivf:
        """From the clusters of `halves`, and the codes of the same rows."""
        learned, instance = clusters
        r, s = widths(clusters)
        # Beyond WIDEST no whole code can be scanned, and hardly two rows share so many bits.
        end = r + s if r + s <= WIDEST else r
        return cls(
            None if learned is None else InvertedLists.of(learned, codes[:, : end // 8], nprobe),
            None if instance is None else InvertedLists.of(instance, codes[:, r // 8 : (r + s) // 8], nprobe),
            r,
            s,
        )

    def by_kind(self, h: Single, a: Single | None, K: int) -> Rows:
        """About the K best rows of each query by h·b and a little of a·c, in lists by learned bits: (n, K).

        NO_ID where these hold fewer.

        Parameters
        ----------
        h : (n, r) float32
            `score.normalised`.
        a : (n, s) float32, or None
            As h; None where a·c does not count.
        K : int
        """
        assert self.learned is not None  # noqa: S101 - for mypy
        H = np.zeros((len(h), self.learned.index.d), np.float32)
        H[:, : self.r] = h
        if a is not None and H.shape[1] > self.r:
            H[:, self.r :] = _INSTANCE_WEIGHT * a
        # Numbers of mean size 1, as those of the codes that the centroids are means of.
        return self.learned.best(h * np.float32(self.r), H, K)

    def by_instance(self, a: Single, K: int) -> Rows:
        """As `by_kind`, by a·c, in lists by instance bits."""
        assert self.instance is not None  # noqa: S101 - for mypy
        # The signs are the code of an item that is asked by its own features: its list is the first.
        return self.instance.best(np.where(a >= 0, np.float32(1), np.float32(-1)), a, K)


def halves(codes: Bytes, r: int, s: int, nlist: int) -> Halves:
    """Clusters of both halves of packed codes; None for one without bits."""
    learned, instance = codes[:, : r // 8], codes[:, r // 8 : (r + s) // 8]
    return Clusters.of(learned, nlist) if r else None, Clusters.of(instance, nlist) if s else None


def widths(clusters: Halves) -> tuple[int, int]:
    """Learned and instance bits."""
    r, s = (0 if half is None else half.centroids.shape[1] for half in clusters)
    return r, s


def valid(clusters: Halves, rows: int, parameters: Mapping[str, int]) -> bool:
    """Whether each half has the clusters that `parameters` say, and each of so many rows once in them."""
    nlist, nprobe = parameters.get("nlist", 0), parameters.get("nprobe", 0)
    return 1 <= nprobe <= nlist and all(half is None or half.valid(rows, nlist) for half in clusters)


def write(file: IO[bytes], clusters: Halves) -> None:
    """An .npz of the arrays of both halves: the same clusters, the same bytes."""
    arrays = {
        f"{half}_{name}": getattr(held, name)
        for half, held in zip(_NAMES, clusters, strict=True)
        if held is not None
        for name in Clusters.__slots__
    }
    npz.write_npz(file, arrays)


def read(file: IO[bytes], where: str) -> Halves:
    """What `write` wrote; InputError where it did not."""
    held = npz.Npz(file, where)
    found: list[Clusters | None] = []
    for half in _NAMES:
        names = [f"{half}_{name}" for name in Clusters.__slots__]
        missing = [name for name in names if name not in held.names]
        if missing and len(missing) < len(names):
            raise InputError(f"{where} has no {missing[0]}")
        found.append(None if missing else Clusters(*map(held.read, names)))
    learned, instance = found
    return learned, instance
