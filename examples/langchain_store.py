"""A LangChain vector store that learns codes from texts and their tags; offline, with a toy model.

    python examples/langchain_store.py

Put your own Embeddings object in the place of `WordDirections`, and your own folder in that of the
temporary one.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from woh_faiss.integrations.langchain import WOHVectorStore

TOPICS = {
    "sea": ["wave", "salt", "boat", "gull", "harbour", "tide", "net", "storm"],
    "mountain": ["snow", "peak", "rope", "goat", "ridge", "valley", "hut", "storm"],
    "city": ["tram", "neon", "crowd", "tower", "market", "bridge", "night", "harbour"],
}


class WordDirections(Embeddings):
    """Each word a random direction of its own; a text is their mean."""

    def embed_query(self, text: str) -> list[float]:
        words = [np.random.default_rng(zlib.crc32(word.encode())).normal(size=64) for word in text.split()]
        mean: list[float] = np.mean(words, axis=0).tolist()
        return mean

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


def made_up(n: int) -> list[Document]:
    rng = np.random.default_rng(0)
    topics = rng.choice(list(TOPICS), n)
    return [
        Document(
            id=f"text-{number}",
            page_content=" ".join(rng.choice(TOPICS[topic], 5)),
            metadata={
                "tags": [str(topic), str(rng.choice(TOPICS[topic]))],
                "year": int(rng.integers(2000, 2026)),
            },
        )
        for number, topic in enumerate(topics)
    ]


def show(store: WOHVectorStore, query: str, **options: object) -> None:
    print(f"\n{query!r}", *(f"{name}={value}" for name, value in options.items()))
    for document, score in store.similarity_search_with_score(query, k=3, **options):
        print(f"  {score:.2f}  {document.id}  {document.page_content}  {document.metadata['tags']}")


def main() -> None:
    documents = made_up(600)
    with tempfile.TemporaryDirectory() as folder:
        store = WOHVectorStore(Path(folder) / "texts", WordDirections())
        store.add_documents(documents[:100])  # too few to learn from: kept and searched as they are
        print(f"{len(store.documents)} documents; learned: {store.documents.index.is_trained}")
        show(store, "boat in the harbour")
        store.add_documents(documents[100:])
        index = store.documents.index
        print(f"\n{index.ntotal} documents, {index.config.bits} bits each; learned: {index.is_trained}")
        show(store, "boat in the harbour")
        show(store, "boat in the harbour", filter={"year": 2020})
        store.delete(["text-0"])
        store.close()


if __name__ == "__main__":
    main()
