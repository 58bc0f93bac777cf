"""A Haystack document store and its embedding retriever: learned codes in place of embeddings."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.document_stores.types.filter_policy import apply_filter_policy
from haystack.utils.filters import document_matches_filter

from woh_faiss.errors import InputError
from woh_faiss.index.item_ids import OnDuplicate
from woh_faiss.validate import positive_int, short

from .document import check_json
from .document_filter import DocumentFilter
from .documents import LEARN_FROM, Documents, Entry, tag_lists_of
from .haystack_filter import document_filter

_POLICIES: dict[DuplicatePolicy, OnDuplicate] = {
    DuplicatePolicy.NONE: "error",
    DuplicatePolicy.FAIL: "error",
    DuplicatePolicy.SKIP: "skip",
    DuplicatePolicy.OVERWRITE: "replace",
}


class WOHDocumentStore:
    """Documents in a folder, found by codes that are learned from their embeddings and tags.

    Parameters
    ----------
    folder : path
        Made if it is missing; one that is there is opened.
    tags : str
        The key of `meta` that has a document's tags: a list of str, or a string as in chunk files.
    learn_from, timeout, **hyper
        As `Documents`.

    Notes
    -----
    A document that has a code has no embedding any more: `filter_documents` returns it with None. To change
    metadata use `update_by_filter`; a document that is written over without an embedding loses its code.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        tags: str = "tags",
        learn_from: int = LEARN_FROM,
        timeout: float = 10.0,
        **hyper: Any,
    ) -> None:
        self._made_with = {"folder": os.fsdecode(folder), "tags": tags, "learn_from": learn_from}
        self._made_with |= {"timeout": timeout, **hyper}
        self._tags = tags
        self.documents = Documents(folder, learn_from=learn_from, timeout=timeout, **hyper)

    def to_dict(self) -> dict[str, Any]:
        """What the store was made with, for a pipeline's file."""
        return default_to_dict(self, **self._made_with)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WOHDocumentStore:
        """The inverse of `to_dict`: opens the folder."""
        store: WOHDocumentStore = default_from_dict(cls, data)
        return store

    def close(self) -> None:
        """Close the folder's files."""
        self.documents.close()

    def count_documents(self) -> int:
        """Documents there are."""
        return len(self.documents)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Documents that match."""
        keep = _keep(filters)
        return len(self.documents) if keep is None else self.documents.count(keep)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """The documents that match Haystack's filters, or all, the first written first."""
        return [_document(entry) for entry in self.documents.matching(_keep(filters))]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Store documents; returns how many were written. NONE is FAIL.

        Raises
        ------
        DuplicateDocumentError
            An id is in the store, or comes twice, and the policy is FAIL or NONE; nothing was written.
        InputError
            Something is no Document or cannot be stored; nothing was written. It is a ValueError.
        """
        if not isinstance(documents, list) or not all(isinstance(given, Document) for given in documents):
            raise InputError(f"documents are {short(documents)}, expected a list of haystack.Document")
        if policy is DuplicatePolicy.FAIL or policy is DuplicatePolicy.NONE:
            names = [document.id for document in documents]
            known = {entry.id for entry in self.documents.get(names)}
            for name in names:
                if name in known:
                    raise DuplicateDocumentError(f"id {short(name)} is in the store already, or comes twice")
                known.add(name)
        tags = tag_lists_of([document.meta.get(self._tags) for document in documents])
        entries = [_entry(document, own) for document, own in zip(documents, tags, strict=True)]
        written = self.documents.write(entries, _POLICIES[policy])
        return written if policy is DuplicatePolicy.SKIP else len(documents)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Remove documents and their codes; ids that are not there are ignored."""
        self.documents.delete(document_ids)

    def delete_all_documents(self) -> None:
        """Remove every document; what was learned stays learned."""
        self.documents.delete(None)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Remove what matches; returns how many."""
        return self.documents.delete([entry.id for entry in self.documents.matching(_matching(filters))])

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set values of `meta` for what matches, codes stay as they are; returns how many."""
        check_json(meta, "meta")
        found = list(self.documents.matching(_matching(filters)))
        self.documents.describe({entry.id: {**entry.metadata, **meta} for entry in found})
        return len(found)

    def learn(self) -> int:
        """Learn from the documents that wait now: see `Documents.learn`."""
        return self.documents.learn()

    def search(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int = 10
    ) -> list[Document]:
        """The `top_k` documents most similar to an embedding, with the scores of `Documents.search`.

        Parameters
        ----------
        query_embedding : list of float
            Of the store's width.
        filters : dict, optional
            Haystack's.
        top_k : int
            Documents wanted.
        """
        found = self.documents.search(query_embedding, top_k, _keep(filters))
        return [_document(entry, score) for entry, score in found]


@component
class WOHEmbeddingRetriever:
    """Retrieves the documents of a `WOHDocumentStore` that are most similar to a query's embedding.

    Parameters
    ----------
    document_store : WOHDocumentStore
    filters : dict, optional
        Haystack's; `filter_policy` says what those of a run do to them.
    top_k : int
    filter_policy : FilterPolicy
    """

    def __init__(
        self,
        document_store: WOHDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, WOHDocumentStore):
            raise InputError(f"document_store is {short(document_store)}, expected a WOHDocumentStore")
        self.document_store, self.filters = document_store, filters
        self.top_k, self.filter_policy = positive_int(top_k, "top_k"), filter_policy

    def to_dict(self) -> dict[str, Any]:
        """What the retriever was made with, its store included."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> WOHEmbeddingRetriever:
        """The inverse of `to_dict`."""
        given = dict(data["init_parameters"])
        if isinstance(given["document_store"], dict):
            given["document_store"] = WOHDocumentStore.from_dict(given["document_store"])
        if "filter_policy" in given:
            given["filter_policy"] = FilterPolicy.from_str(given["filter_policy"])
        retriever: WOHEmbeddingRetriever = default_from_dict(cls, {**data, "init_parameters": given})
        return retriever

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The documents most similar to an embedding, as ``{"documents": [...]}``, the best first.

        Parameters
        ----------
        query_embedding : list of float
            Of the store's width.
        filters, top_k : optional
            In place of the component's own.
        """
        filters = apply_filter_policy(self.filter_policy, self.filters, filters)
        most = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search(query_embedding, filters, most)}


def _entry(document: Document, tags: list[str]) -> Entry:
    held = {"blob": document.blob, "sparse_embedding": document.sparse_embedding}
    more = {name: value.to_dict() for name, value in held.items() if value is not None}
    return Entry(document.id, document.content, document.meta, tags, more, document.embedding)


def _document(entry: Entry, score: float | None = None) -> Document:
    return Document.from_dict(
        {
            "id": entry.id,
            "content": entry.text,
            "meta": entry.metadata,
            "embedding": None if entry.embedding is None else entry.embedding.tolist(),
            "score": score,
            **entry.more,
        }
    )


def _keep(filters: dict[str, Any] | None) -> DocumentFilter | None:
    return _matching(filters) if filters else None


def _matching(filters: dict[str, Any]) -> DocumentFilter:
    names = {field.name for field in fields(Document)}
    return document_filter(filters, names, lambda entry: document_matches_filter(filters, _document(entry)))
