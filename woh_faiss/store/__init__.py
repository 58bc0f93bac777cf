"""A folder on disk: SQLite catalogue, Faiss codes file, ids, model files. Knows no trainer.

The catalogue's COMMIT is the only commit point; every other file is written behind the committed end
or under a new name, so a process may die anywhere and readers never see half an update.
"""

from __future__ import annotations

from .derived import derive, drop
from .exporting import Exported
from .files import publish
from .model import Model
from .records import Derived, Item, Round, Snapshot
from .scan import NO_DISTANCE, NO_ID
from .store import Store
from .view import Searcher, View
from .writing import Writing

__all__ = [
    "Store",
    "View",
    "Searcher",
    "Writing",
    "Snapshot",
    "Round",
    "Item",
    "Model",
    "Derived",
    "derive",
    "drop",
    "Exported",
    "publish",
    "NO_DISTANCE",
    "NO_ID",
]
