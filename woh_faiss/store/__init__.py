"""A folder on disk: SQLite catalogue, Faiss codes file, ids, model files. Knows no trainer.

The catalogue's COMMIT is the only commit point; every other file is written behind the committed end
or under a new name, so a process may die anywhere and readers never see half an update.
"""

from __future__ import annotations

from .exporting import Exported
from .files import publish
from .model import Model
from .records import Item, Round, Snapshot
from .scan import NO_DISTANCE, NO_ID
from .store import Store
from .view import View
from .writing import Writing

__all__ = [
    "Store",
    "View",
    "Writing",
    "Snapshot",
    "Round",
    "Item",
    "Model",
    "Exported",
    "publish",
    "NO_DISTANCE",
    "NO_ID",
]
