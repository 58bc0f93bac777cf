"""A folder on disk: SQLite catalogue, Faiss codes file, ids, model files. Knows no trainer.

The catalogue's COMMIT is the only commit point; every other file is written behind the committed end
or under a new name, so a process may die anywhere and readers never see half an update.
"""

from __future__ import annotations

from .files import publish
from .model import Model
from .records import AnnIndex, Item, NewRound, Round, Snapshot
from .scan import NO_DISTANCE, NO_ID
from .store import Store
from .view import View

__all__ = [
    "Store",
    "View",
    "Snapshot",
    "Round",
    "NewRound",
    "Item",
    "Model",
    "AnnIndex",
    "publish",
    "NO_DISTANCE",
    "NO_ID",
]
