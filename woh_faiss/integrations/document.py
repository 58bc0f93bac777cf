"""The stored form of a document, and its checks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import validate
from woh_faiss.errors import InputError
from woh_faiss.tags.tag_lists import TagLists


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One document.

    Attributes
    ----------
    id : str
    text : str or None
    metadata : dict
        JSON values.
    tags : list of str
        What the learner learns from.
    more : dict
        What else a system keeps of a document, as JSON values.
    embedding : (d,) array_like, optional
        Comes back as float64, and only until the document has a code.
    number : int
        The id of its code; 0 before it is stored.
    """

    id: str
    text: str | None
    metadata: dict[str, Any]
    tags: list[str]
    more: dict[str, Any] = field(default_factory=dict)
    embedding: Any = None
    number: int = 0


def tag_lists_of(values: Sequence[Any]) -> list[list[str]]:
    """Tags of documents from a value each: a list of str, a string as in chunk files, or None for none.

    Raises
    ------
    InputError
        A value is anything else; the message names the document's place.
    """
    texts = TagLists.from_strings([value if isinstance(value, str) else "" for value in values])
    lists = [
        [] if value is None else texts.of_row(row) if isinstance(value, str) else value
        for row, value in enumerate(values)
    ]
    tags = TagLists.from_lists(lists)
    return [tags.of_row(row) for row in range(len(tags))]


def valid_metadata(entries: Sequence[Entry]) -> list[Entry]:
    """The entries as they can be stored, or InputError."""
    ids = validate.texts([entry.id for entry in entries], "ids")
    if "" in ids:
        raise InputError(f"ids: row {ids.index('')} is empty; give every document an id")
    tags = tag_lists_of([entry.tags for entry in entries])
    for entry in entries:
        name = validate.short(entry.id)
        try:
            (entry.text or "").encode()
        except (AttributeError, UnicodeEncodeError):
            raise InputError(f"the text of {name} is not text that UTF-8 can hold; repair it first") from None
        check_json(entry.metadata, f"metadata of {name}")
        check_json(entry.more, f"document {name}")
    having = [row for row, entry in enumerate(entries) if entry.embedding is not None]
    embeddings: dict[int, NDArray[np.float64]] = {}
    if having:
        given = validate.array([entries[row].embedding for row in having], "embeddings")
        X = np.asarray(validate.features(given, name="embeddings"), np.float64)
        embeddings = dict(zip(having, X, strict=True))
    return [
        Entry(ids[row], entry.text, entry.metadata, tags[row], entry.more, embeddings.get(row))
        for row, entry in enumerate(entries)
    ]


#: How deep values may be nested: far less than what JSON's reader takes wherever it is called.
_DEEPEST = 100


def _check_nested(values: Any) -> None:
    """TypeError for keys that JSON would make text of, ValueError where values are nested too deep."""
    level = [values]
    for _ in range(_DEEPEST):
        for value in level:
            if isinstance(value, dict) and (odd := [key for key in value if not isinstance(key, str)]):
                raise TypeError(f"key {validate.short(odd[0])}, expected text")
        parents = [value for value in level if isinstance(value, dict | list | tuple)]
        level = [
            child for parent in parents for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} levels deep")


def check_json(values: Any, name: str) -> None:
    """InputError unless it is a dict that JSON can hold."""
    try:
        if not isinstance(values, dict):
            raise TypeError(f"{type(values).__name__}, expected a dict")
        _check_nested(values)
        json.dumps(values, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:160]
        raise InputError(
            f"{name} cannot be kept as JSON ({said}); use text, numbers, lists and dicts"
        ) from None
