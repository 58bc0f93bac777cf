"""What a filter of LangChain's or Haystack's store costs: searches of 10^5 documents, beside one of all.

Documents have 300 letters of text, 9 values of metadata and a code. Processor time of one thread, the least
of several; the files are in the system's memory.

    python examples/benchmarks/document_filters.py [--documents 100000]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import setting

REPEATS, BATCH, K, D = 3, 10_000, 10, 32
#: What is asked, as LangChain has it and as Haystack has it, with what share of the documents may answer.
FILTERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "price < 1",
        {"price": {"$lt": 1}},
        {"field": "meta.price", "operator": "<", "value": 1},
    ),
    (
        "price < 50",
        {"price": {"$lt": 50}},
        {"field": "meta.price", "operator": "<", "value": 50},
    ),
    (
        "topic = 'topic 7' and year >= 2020",
        {"topic": "topic 7", "year": {"$gte": 2020}},
        {
            "operator": "AND",
            "conditions": [
                {"field": "meta.topic", "operator": "==", "value": "topic 7"},
                {"field": "meta.year", "operator": ">=", "value": 2020},
            ],
        },
    ),
    (
        "topic in 20 of them, or not public",
        {"$or": [{"topic": {"$in": [f"topic {i}" for i in range(20)]}}, {"public": {"$ne": True}}]},
        {
            "operator": "OR",
            "conditions": [
                {"field": "meta.topic", "operator": "in", "value": [f"topic {i}" for i in range(20)]},
                {"field": "meta.public", "operator": "!=", "value": True},
            ],
        },
    ),
    (
        "an element of a list (LangChain); taken < 2000-06-01 (Haystack)",
        {"tags": "word 7"},
        {"field": "meta.taken", "operator": "<", "value": "2000-06-01"},
    ),
    (
        "author = {...}, decided in Python",
        {"author": {"name": "author 7", "of": ["a", "b"]}},
        {"field": "meta.author", "operator": "==", "value": {"name": "author 7", "of": ["a", "b"]}},
    ),
]


def fill(documents: Any, n: int) -> None:
    """Write n documents with random embeddings."""
    import numpy as np

    from woh_faiss.integrations.documents import Entry

    rng = np.random.default_rng(0)
    day = np.datetime64("2000-01-01")
    for start in range(0, n, BATCH):
        rows = range(start, min(start + BATCH, n))
        documents.write(
            [
                Entry(
                    f"document {row}",
                    f"text of document {row}, " * 12,
                    {
                        "source": f"folder/{row}.pdf",
                        "page": int(rng.integers(1, 500)),
                        "price": float(np.round(rng.random() * 100, 2)),
                        "year": int(rng.integers(1990, 2030)),
                        "topic": f"topic {rng.integers(100)}",
                        "public": bool(rng.random() < 0.9),
                        "tags": [f"word {i}" for i in rng.integers(100, size=3)],
                        "taken": f"{day + rng.integers(9000)}T10:00:00",
                        "author": {"name": f"author {rng.integers(100)}", "of": ["a", "b"]},
                    },
                    [f"word {rng.integers(20)}"] if row < 2000 else [],
                    embedding=rng.normal(size=D),
                )
                for row in rows
            ]
        )


def ms(work: Callable[[], object]) -> float:
    """Processor time in milliseconds."""
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1e3 * min(times)


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    n = parser.parse_args().documents
    setting.threads(1)
    import numpy as np
    from langchain_core.embeddings import DeterministicFakeEmbedding

    from woh_faiss.integrations.haystack import WOHDocumentStore
    from woh_faiss.integrations.langchain import WOHVectorStore

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts")
        chain = WOHVectorStore(path, DeterministicFakeEmbedding(size=D), anchors=100, vector_size=16)
        fill(chain.documents, n)
        stack = WOHDocumentStore(path)
        query = np.random.default_rng(1).normal(size=D).tolist()
        of_all = ms(lambda: chain.similarity_search_by_vector(query, K))
        print(f"{n:,} documents; a search without a filter: {of_all:.1f} ms")
        print("| filter | may answer | LangChain | Haystack |\n|---|---|---|---|")
        for name, first, second in FILTERS:
            shares = [
                len(chain.documents.search(query, n, keep_of_chain(first))) / n,
                stack.count_documents_by_filter(second) / n,
            ]
            times = [
                ms(lambda first=first: chain.similarity_search_by_vector(query, K, filter=first)),
                ms(lambda second=second: stack.search(query, second, K)),
            ]
            said = " and ".join(f"{share:.2%}" for share in dict.fromkeys(shares))
            print(f"| {name} | {said} | {times[0]:.0f} ms | {times[1]:.0f} ms |", flush=True)


def keep_of_chain(filter_: dict[str, Any]) -> Any:
    """What LangChain's store makes of a filter."""
    from woh_faiss.integrations import langchain

    return langchain._keep(filter_)


if __name__ == "__main__":
    main()
