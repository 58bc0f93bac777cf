"""The folder of `Documents`: made, or opened if it is one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from woh_faiss.errors import InputError, StoreError
from woh_faiss.index.index import WOHIndex
from woh_faiss.learner.config import merged

#: Its files.
INDEX, DOCUMENTS = "codes.woh", "documents.sqlite"


def opened(folder: Path, hyper: dict[str, Any]) -> WOHIndex:
    """The index of a folder, made if there is none; it must have the hyper-parameters that are given."""
    merged(None, hyper)
    if not os.path.lexists(folder / INDEX):
        if os.path.lexists(folder / DOCUMENTS):
            raise StoreError(f"{folder} has {DOCUMENTS} but no {INDEX}; restore both from a backup")
        try:
            if folder.exists() and any(folder.iterdir()):
                raise StoreError(f"{folder} holds something else; give a new folder, or an empty one")
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error.strerror}; choose another folder") from error
        return WOHIndex.create(folder / INDEX, **hyper)
    try:
        index = WOHIndex.open(folder / INDEX)
    except StoreError:
        if os.path.lexists(folder / DOCUMENTS):
            raise
        return WOHIndex.create(folder / INDEX, **hyper)  # what died in the making is replaced
    has = index.config.to_dict()
    if other := [
        f"{name} is {value!r}, not {has[name]!r}" for name, value in hyper.items() if has[name] != value
    ]:
        index.close()
        raise InputError(f"{other[0]} as {folder} was made with; leave it out, or choose another folder")
    return index
