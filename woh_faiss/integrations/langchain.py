"""A LangChain vector store: documents in a folder, learned codes in place of their embeddings."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from woh_faiss.display import display_text
from woh_faiss.errors import InputError

from .documents import LEARN_FROM, Documents, Entry, Keep, tag_lists_of
from .metadata_filter import document_filter

#: Which documents may be answers: a function of a Document, or a dict as `metadata_filter.compiled` has it.
Filter = Callable[[Document], bool] | Mapping[str, Any]


class WOHVectorStore(VectorStore):
    """Documents in a folder, found by codes that are learned from their embeddings and tags.

    Parameters
    ----------
    folder : path
        Made if it is missing; one that is there is opened.
    embedding : Embeddings
        Your own model; always the same one for a folder.
    tags : str or callable
        The key of the metadata that has a document's tags (a list of str, or a string as in chunk files),
        or a function of the document.
    learn_from, timeout, **hyper
        As `Documents`.

    Notes
    -----
    Until `learn_from` documents with tags are there, or `learn` is called, embeddings are kept and searched
    exactly. After that every document gets a code at once and its embedding goes; `add_documents` with tags
    learns on. Where nobody tags nothing is ever learned, and a search costs what exact search costs.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        embedding: Embeddings,
        *,
        tags: str | Callable[[Document], Any] = "tags",
        learn_from: int = LEARN_FROM,
        timeout: float = 10.0,
        **hyper: Any,
    ) -> None:
        self._embedding = embedding
        self._tags_of = tags if callable(tags) else lambda document: document.metadata.get(tags)
        self.documents = Documents(folder, learn_from=learn_from, timeout=timeout, **hyper)

    @property
    def embeddings(self) -> Embeddings:
        """The model that was given."""
        return self._embedding

    def close(self) -> None:
        """Close the folder's files."""
        self.documents.close()

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> WOHVectorStore:
        """A store at `folder` with these texts added.

        Parameters
        ----------
        texts : list of str
            One a document.
        embedding : Embeddings
            Your own model.
        metadatas : list of dict, optional
            One a text, of JSON values.
        ids : list of str, optional
            One a text; otherwise the store makes them up.
        folder : path
            Created if it is missing.
        **kwargs
            As the constructor takes them.

        Raises
        ------
        InputError
            No folder is given, or as `add_documents`.
        """
        if folder is None:
            raise InputError("folder is None, expected the folder of the store; give folder=")
        store = cls(folder, embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_documents(
        self,
        documents: list[Document],
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add documents, or put them in the place of those with the same ids; returns their ids.

        Parameters
        ----------
        documents : list of Document
            Metadata must be JSON values. Those without an id get one.
        ids : list of str, optional
            Instead of the documents' own.
        batch_size : int, optional
            Taken, for LangChain's indexing gives it, and of no effect: all go into one commit.
        **kwargs
            None are known: what other stores take is refused by name.

        Raises
        ------
        InputError
            Anything cannot be stored; nothing was written.
        LockedError, StoreError
            As `WOHIndex.update`.
        """
        _refuse("add_documents", kwargs)
        given = [document.id for document in documents] if ids is None else list(ids)
        if len(given) != len(documents):
            raise InputError(
                f"there are {len(given)} ids for {len(documents)} documents; give one a document"
            )
        if not documents:
            return []
        names = [id_ or str(uuid.uuid4()) for id_ in given]
        tags = tag_lists_of([self._tags_of(document) for document in documents])
        vectors = self._embedding.embed_documents([document.page_content for document in documents])
        if len(vectors) != len(documents):
            raise InputError(f"the embedding model gave {len(vectors)} rows for {len(documents)} documents")
        self.documents.write(
            [
                Entry(name, document.page_content, document.metadata, own, embedding=vector)
                for name, document, own, vector in zip(names, documents, tags, vectors, strict=True)
            ]
        )
        return names

    def learn(self) -> int:
        """Learn from the documents that wait now: see `Documents.learn`."""
        return self.documents.learn()

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Remove documents by id, or all; ids that are not there are ignored, and other arguments refused."""
        _refuse("delete", kwargs, "; give ids")
        self.documents.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in their order; those that are not there are left out."""
        return [_document(entry) for entry in self.documents.get(ids)]

    def similarity_search(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Filter | None = None,  # noqa: A002
        **kwargs: Any,
    ) -> list[Document]:
        """The k documents most similar to a text.

        Parameters
        ----------
        query : str
            The text, which is embedded.
        k : int
            Documents wanted.
        filter : callable or dict, optional
            As `similarity_search_with_score`.
        **kwargs
            None are known: what other stores take is refused by name.
        """
        _refuse("similarity_search", kwargs)
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter)]

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        *,
        filter: Filter | None = None,  # noqa: A002
        **kwargs: Any,
    ) -> list[Document]:
        """The k documents most similar to an embedding.

        Parameters
        ----------
        embedding : list of float
            Of the store's width.
        k : int
            Documents wanted.
        filter : callable or dict, optional
            As `similarity_search_with_score`.
        **kwargs
            None are known: what other stores take is refused by name.
        """
        _refuse("similarity_search_by_vector", kwargs)
        found = self.similarity_search_with_score_by_vector(embedding, k, filter=filter)
        return [document for document, _ in found]

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Filter | None = None,  # noqa: A002
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """The k documents most similar to a text, with scores in [-1, 1]; more is more similar.

        Parameters
        ----------
        query : str
            The text, which is embedded.
        k : int
            Documents wanted.
        filter : callable or dict, optional
            A function of a Document, true where it may be an answer; or a dict of values that its metadata
            must have, or of operators: see `metadata_filter.compiled`. A function is called for every
            document.
        **kwargs
            None are known: what other stores take is refused by name.

        Returns
        -------
        list of (Document, float)
            Scores as `Documents.search`: a cosine, of embeddings before the first round, of what the hash
            function makes of the query and of codes after it. The two cannot be compared.
        """
        _refuse("similarity_search_with_score", kwargs)
        return self.similarity_search_with_score_by_vector(
            self._embedding.embed_query(query), k, filter=filter
        )

    def similarity_search_with_score_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[tuple[Document, float]]:
        """As `similarity_search_with_score`, for an embedding.

        Parameters
        ----------
        embedding : list of float
            Of the store's width.
        k : int
            Documents wanted.
        filter : callable or dict, optional
            As `similarity_search_with_score`.
        """
        found = self.documents.search(embedding, k, _keep(filter))
        return [(_document(entry), score) for entry, score in found]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,  # noqa: A002
        **kwargs: Any,
    ) -> list[Document]:
        """k documents that are similar to a text and unlike each other: see LangChain.

        Parameters
        ----------
        query : str
            The text, which is embedded.
        k : int
            Documents wanted.
        fetch_k : int
            Most similar documents to choose from.
        lambda_mult : float
            0 for the greatest diversity, 1 for the least.
        filter : callable or dict, optional
            As `similarity_search_with_score`.
        **kwargs
            None are known: what other stores take is refused by name.
        """
        _refuse("max_marginal_relevance_search", kwargs)
        return self.max_marginal_relevance_search_by_vector(
            self._embedding.embed_query(query), k, fetch_k, lambda_mult, filter=filter
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        *,
        filter: Filter | None = None,  # noqa: A002
        **kwargs: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, for an embedding.

        Only codes are kept, so that `fetch_k` texts are embedded again.

        Parameters
        ----------
        embedding : list of float
            Of the store's width.
        k, fetch_k, lambda_mult
            As `max_marginal_relevance_search`.
        filter : callable or dict, optional
            As `similarity_search_with_score`.
        **kwargs
            None are known: what other stores take is refused by name.
        """
        _refuse("max_marginal_relevance_search_by_vector", kwargs)
        found = self.similarity_search_by_vector(embedding, fetch_k, filter=filter)
        if not found:
            return []
        vectors = self._embedding.embed_documents([document.page_content for document in found])
        return [found[i] for i in maximal_marginal_relevance(np.asarray(embedding), vectors, lambda_mult, k)]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(1.0, max(0.0, (score + 1) / 2))


def _document(entry: Entry) -> Document:
    return Document(id=entry.id, page_content=entry.text or "", metadata=entry.metadata)


def _keep(filter_: Filter | None) -> Keep | None:
    if filter_ is None:
        return None
    if callable(filter_):
        return lambda entry: bool(filter_(_document(entry)))
    return document_filter(filter_)


def _refuse(method: str, unknown: Mapping[str, Any], more: str = "") -> None:
    """InputError for arguments that other stores take and this one would ignore."""
    if unknown:
        name = sorted(unknown)[0]
        ways = {
            "where": "; give filter=",
            "score_threshold": "; give it to similarity_search_with_relevance_scores, or to a retriever of "
            'search_type="similarity_score_threshold"',
        }
        raise InputError(f"{method} takes no {display_text(name)}{more or ways.get(name, '; leave it out')}")
