"""Learned, tag-aware, online binary codes for Faiss.

`WOHIndex` is an index folder that learns; `WOH` is the learner alone. Names are loaded when first used:
a process that only searches never pays for scipy or gensim.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .budget import set_max_memory
    from .chunks import Chunk, read_chunk
    from .config import WOHConfig
    from .errors import WOHError
    from .index import WOHIndex
    from .trainer import WOH
    from .vectors import WordVectors

_HOMES = {
    "Chunk": "chunks",
    "WOH": "trainer",
    "WOHConfig": "config",
    "WOHError": "errors",
    "WOHIndex": "index",
    "WordVectors": "vectors",
    "read_chunk": "chunks",
    "set_max_memory": "budget",
}

__all__ = [
    "__version__",
    "Chunk",
    "WOH",
    "WOHConfig",
    "WOHError",
    "WOHIndex",
    "WordVectors",
    "read_chunk",
    "set_max_memory",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
