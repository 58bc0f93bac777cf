"""Rounds whose features live on Dask workers: what `WOH.partial_fit` and `WOHIndex.update` do, to the bit.

Rows are put into the blocks that a round in one process has, every step runs where its block is, and sums are
added in the same order. Hence neither partitions nor workers show in the result, as long as workers have the
processor, the NumPy and the number of BLAS threads of this process. Tags, codes, ids and matrices of the size
of the model pass through it; features never do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.sizeof import sizeof
from distributed import Client, Future, KilledWorker, default_client
from distributed.comm import CommClosedError
from numpy.typing import NDArray
from scipy.sparse import csr_array

from woh_faiss import validate
from woh_faiss.errors import ClusterError, InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.blocks import BLOCK, FAN_IN, Features, Rows, Sums, added, block_slices
from woh_faiss.learner.estimator import WOH
from woh_faiss.learner.training_round import Codes, Items
from woh_faiss.tags.tag_lists import TagLists, tag_lists
from woh_faiss.tags.vocabulary import NormalisedTags

if TYPE_CHECKING:
    from woh_faiss.index.index import WOHIndex
    from woh_faiss.index.item_ids import OnDuplicate
    from woh_faiss.store import Round
    from woh_faiss.tags.word_vectors import WordVectors

T = TypeVar("T")
U = TypeVar("U")

#: Rows that this process may hold: those of the first rounds of a semantic start, and anchors.
MOST_HERE = 10 * BLOCK


def partial_fit(
    woh: WOH,
    X: da.Array,
    tags: Any,
    *,
    word_vectors: WordVectors | None = None,
    client: Client | None = None,
) -> WOH:
    """Learn one chunk whose features are on the workers; on an error the estimator is as it was.

    Parameters
    ----------
    woh : WOH
        The estimator, which is changed and returned: its state is that after its own `partial_fit` of the
        same rows.
    X : (n, d) dask.array of a real dtype
        Features, in any partitions. Each block is made, used and dropped. During a round workers keep the
        kernel map of a row, 4 bytes an anchor, which Dask spills to disk if necessary.
    tags : as `Chunk.of` takes them, or a dask collection of that
    word_vectors : WordVectors, optional
    client : distributed.Client, optional
        The current one if it is not given.

    Raises
    ------
    InputError
        The chunk cannot be used; or the next round looks at all rows at once (`WOH.looks_at_all`) and there
        are more than `MOST_HERE`.
    ClusterError
        Workers were lost, and what they held could not be computed again.
    """
    with cluster_of(client) as cluster:
        X = distributed_features(X, cluster)
        lists = tag_lists(cluster.here(tags))
        if len(lists) != len(X):
            raise InputError(f"there are {len(lists)} tags for {len(X)} rows of features; give one a row")
        return _learn(woh, X, lists, word_vectors, cluster)


def _learn(
    woh: WOH,
    X: da.Array,
    tags: TagLists | NormalisedTags,
    word_vectors: WordVectors | None,
    cluster: Cluster,
) -> WOH:
    """`partial_fit` of what is known to fit each other."""
    return woh.learn(_features(woh, X, cluster), tags, word_vectors=word_vectors)


def _features(woh: WOH | None, X: da.Array, cluster: Cluster) -> Features:
    """The features where the next round of `woh` needs them: on the workers, or here."""
    if woh is None or not woh.looks_at_all:
        return Distributed(X, cluster)
    if len(X) > MOST_HERE:
        raise InputError(
            f"the chunk has {len(X)} items, and the first rounds of a semantic start look at all of "
            f"theirs at once, at most {MOST_HERE}; learn a chunk of a few thousand first"
        )
    return Features(validate.features(cluster.here(X)))


def update(
    index: WOHIndex,
    X: da.Array,
    tags: Any,
    *,
    ids: Any = None,
    keys: Any = None,
    metadata: Mapping[str, Any] | None = None,
    word_vectors: WordVectors | None = None,
    on_duplicate: OnDuplicate = "error",
    timeout: float = 10.0,
    client: Client | None = None,
) -> Round:
    """`WOHIndex.update` of a chunk whose features are on the workers: one round or nothing.

    The writers' lock is held while the cluster works.

    Parameters
    ----------
    index : WOHIndex
        The index that learns.
    X, tags, word_vectors, client
        As `partial_fit`.
    ids, keys : optional
        As `WOHIndex.update`, or dask collections of them.
    metadata : dict, optional
        Columns by name, each as `WOHIndex.update` takes it, or a dask collection of that.
    on_duplicate, timeout
        As `WOHIndex.update`.

    Raises
    ------
    InputError, ClusterError
        As `partial_fit`.
    InputError, LockedError, StoreError
        As `WOHIndex.update`.
    """
    with cluster_of(client) as cluster:
        X = distributed_features(X, cluster)
        tags, ids, keys = (cluster.here(given) for given in (tags, ids, keys))
        metadata = cluster.columns_here(metadata)
    # What is checked is all but the features, which are checked where they are.
    features: Any = X
    known = Chunk.of(np.zeros((len(X), 1), np.int8), tags, ids=ids, keys=keys, metadata=metadata)
    chunk = replace(known, features=features)

    def with_features(woh: WOH | None, chunk: Chunk, use: Callable[[Features], None]) -> None:
        with cluster_of(client) as cluster:
            use(_features(woh, distributed_features(chunk.features, cluster), cluster))

    return index._writer.learned(chunk, with_features, word_vectors, timeout, on_duplicate)


class Cluster:
    """One round's dealings with a client."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sent: dict[int, tuple[Any, Future]] = {}

    def here(self, value: Any) -> Any:
        """A dask collection computed; anything else as it is."""
        return self.client.compute(value, sync=True) if dask.is_dask_collection(value) else value

    def columns_here(self, columns: Any) -> Any:
        """The columns of a dict as `here`."""
        if not isinstance(columns, Mapping):
            return columns
        return {name: self.here(column) for name, column in columns.items()}

    def everywhere(self, value: Any) -> Any:
        """What all blocks are given, sent once; workers pass it on. Numbers go along with the steps."""
        if not isinstance(value, np.ndarray | csr_array) and not is_dataclass(value):
            return value
        if id(value) not in self._sent:
            # Not scattered: Dask drops all copies but one, and cannot compute that again if a worker dies.
            self._sent[id(value)] = value, self.client.submit(_same, value, pure=False)
        return self._sent[id(value)][1]

    def each(self, step: Callable[..., Any], values: Sequence[Any], args: Sequence[Any]) -> list[Future]:
        """step(value, *args) of each block, on its worker."""
        given = [
            arg._values if isinstance(arg, Rows) else [self.everywhere(arg)] * len(values) for arg in args
        ]
        if values and isinstance(values[0], Future):
            return list(self.client.map(_run, [step] * len(values), values, *given, pure=False))
        run = dask.delayed(_run, pure=False)
        futures = self.client.compute([run(step, *each) for each in zip(values, *given, strict=True)])
        return list(futures)


class _Remote(Rows[T]):
    """Blocks on the workers; as long as nobody has asked for them, how to make them."""

    def __init__(self, cluster: Cluster, values: Sequence[Any]) -> None:
        super().__init__(values)
        self._cluster = cluster

    def map(self, step: Callable[..., U], *args: Any) -> Rows[U]:
        return _Remote(self._cluster, self._cluster.each(step, self._values, args))

    def map_if_small(self, size: int, step: Callable[..., U], *args: Any) -> Rows[U]:
        return self.map(step, *args)  # workers have memory of their own, and Dask spills

    def sum(self, step: Callable[..., Sums], *args: Any) -> Sums:
        level, client = self._cluster.each(step, self._values, args), self._cluster.client
        while len(level) > 1:
            groups = [level[first : first + FAN_IN] for first in range(0, len(level), FAN_IN)]
            level = client.map(_sum, groups, pure=False)
        sums: Sums = level[0].result()
        return sums

    def gathered(self) -> Sequence[T]:
        values: Sequence[T] = self._cluster.client.gather(self._values)
        return values


class Distributed(Features):
    """The features of a chunk, on the workers; messages number the rows from `first`."""

    def __init__(self, X: da.Array, cluster: Cluster, first: int = 0) -> None:
        self._X: Any = X
        self._cluster, self._first = cluster, first
        self.shape = X.shape

    def rows(self, wanted: NDArray[np.bool_] | None = None) -> Rows[NDArray[Any]]:
        """The rows that are wanted, computed again for every step on them."""
        n = self.shape[0]
        every = wanted is None or bool(wanted.all())
        places = np.arange(n) if wanted is None or every else np.flatnonzero(wanted)
        X = self._X if every else self._X[places]
        check = dask.delayed(_checked, pure=False)
        cuts = list(block_slices(len(places)))
        # Not by "p2p", which cannot compute again what a worker had.
        X = X.rechunk((tuple(rows.stop - rows.start for rows in cuts), X.shape[1]), method="tasks")
        parts = X.to_delayed().ravel()
        return _Remote(
            self._cluster,
            [check(part, places[rows] + self._first) for part, rows in zip(parts, cuts, strict=True)],
        )

    def take(self, places: NDArray[Any]) -> NDArray[Any]:
        """A few rows, here."""
        return _checked(self._cluster.here(self._X[places]), places)

    def beside(self, rows: Rows[T]) -> Rows[T]:
        """Local values, on the workers; a lost one is computed again from what the scheduler keeps."""
        return _Remote(self._cluster, self._cluster.client.map(_same, rows.gathered(), pure=False))


@contextmanager
def cluster_of(client: Client | None) -> Iterator[Cluster]:
    """The client's cluster; inside, what a lost worker means is one error."""
    try:
        client = default_client() if client is None else client
    except ValueError as error:
        raise InputError("there is no Dask client; make one with distributed.Client(...)") from error
    # What is sent is a large graph, and so it should be: it must not be lost with a worker.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "10 GB"}):
        try:
            yield Cluster(client)
        except (KilledWorker, CancelledError, CommClosedError, TimeoutError) as error:
            raise ClusterError(
                f"the cluster lost what the round needs ({type(error).__name__}); nothing was changed; "
                "see that workers stay up and have memory for a partition, then run it again"
            ) from error


def distributed_features(X: Any, cluster: Cluster) -> da.Array:
    """X as an (n, d) dask array of a real dtype that knows the sizes of its chunks."""
    if not isinstance(X, da.Array):
        raise InputError(
            f"features are a {type(X).__name__}, expected a dask.array; see dask.array.from_array"
        )
    if X.ndim != 2 or X.dtype.kind not in "fiub":
        raise InputError(
            f"features have {X.ndim} dimensions and dtype {X.dtype}, expected (n, d) real numbers"
        )
    if np.isnan(X.shape).any():
        sizes = cluster.here(X.map_blocks(_size, chunks=((1,) * X.numblocks[0], (1,)), dtype=np.int64))
        X = X.copy()
        X._chunks = (tuple(sizes.ravel().tolist()), X.chunks[1])
    if not all(X.shape):
        raise InputError(f"features have shape {X.shape}, expected at least one row and one column")
    return X


def _size(X: NDArray[Any]) -> NDArray[np.int64]:
    return np.array([[len(X)]])


def _checked(X: Any, places: NDArray[Any]) -> NDArray[Any]:
    """A block of features, finite and as a plain array; `places` are the numbers of its rows."""
    X = np.ascontiguousarray(X)
    if X.dtype.kind == "f" and not (finite := np.isfinite(X).all(axis=1)).all():
        raise InputError(
            f"features of row {places[~finite][0]} are not finite (NaN or infinite); repair or leave it out"
        )
    block: NDArray[Any] = X
    return block


def _run(step: Callable[..., T], *args: Any) -> T:
    return step(*map(_aligned, args))


def _sum(terms: Sequence[Sums]) -> Sums:
    return added(terms)


def _same(value: T) -> T:
    return value


def _aligned(value: Any) -> Any:
    """The value with arrays as NumPy makes them: those that came by wire may begin at any byte."""
    if isinstance(value, np.ndarray):
        return value if value.flags.aligned else value.copy(order="K")
    if isinstance(value, csr_array):
        parts = (_aligned(part) for part in (value.data, value.indices, value.indptr))
        return csr_array(tuple(parts), shape=value.shape)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _aligned(part) for name, part in named.items()})
    return value


def _bytes(block: Items | Codes) -> int:
    """What a block takes, so that Dask leaves it where it is and spills in time."""
    return sum(sizeof(getattr(block, field.name)) for field in fields(block))


for kind in (Items, Codes):
    sizeof.register(kind, _bytes)
