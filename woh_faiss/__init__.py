"""Learned, tag-aware, online binary codes for Faiss.

`WOHIndex` is an index folder that learns; `WOH` is the learner alone. Names are loaded when first used:
a process that only searches never pays for scipy or gensim.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from woh_faiss.index.index import WOHIndex
    from woh_faiss.index.refine import Refine
    from woh_faiss.inputs.chunk import Chunk, read_chunk
    from woh_faiss.learner.config import WOHConfig
    from woh_faiss.learner.estimator import WOH
    from woh_faiss.tags.word_vectors import WordVectors

    from .budget import set_max_memory
    from .errors import WOHError

_HOMES = {
    "Chunk": "inputs.chunk",
    "Refine": "index.refine",
    "WOH": "learner.estimator",
    "WOHConfig": "learner.config",
    "WOHError": "errors",
    "WOHIndex": "index.index",
    "WordVectors": "tags.word_vectors",
    "read_chunk": "inputs.chunk",
    "set_max_memory": "budget",
}

__all__ = [
    "__version__",
    "Chunk",
    "Refine",
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
