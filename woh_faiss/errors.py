"""The exceptions a caller may want to catch. Nothing else in the package defines one.

Every message is one line: what was given, what was expected, what to do.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from .display import display_text


def short(value: Any) -> str:
    """repr on one line, cut: a value in a message must not fill the screen."""
    try:
        text = ascii(value)
    except Exception:  # an integer of too many digits, or a repr of somebody's own
        text = type(value).__name__
    text = text if text.isprintable() else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


class WOHError(Exception):
    """Base class: the command line prints these as one line; anything else is a bug."""

    def __str__(self) -> str:
        """The message on one line: a path, a key or a library's words in it may hold anything."""
        return display_text(super().__str__())


class ConfigError(WOHError, ValueError):
    """A hyper-parameter is unknown or outside its range."""


class InputError(WOHError, ValueError):
    """An array, a chunk file, a tag list or a word-vector file cannot be used as it is."""


class MemoryBudgetError(InputError):
    """A file needs more memory than `set_max_memory` allows."""


class NotFittedError(WOHError, ValueError, AttributeError):
    """A hash function was requested before the first round was learned.

    Like scikit-learn's error of this name, it is a ValueError and an AttributeError. Where scikit-learn is
    loaded, it is also that error.
    """

    def __new__(cls, *args: Any) -> NotFittedError:  # noqa: D102
        theirs = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
        return super().__new__(_both(theirs) if theirs and cls is NotFittedError else cls, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        """By its public name: the class that is both has none."""
        return NotFittedError, self.args


@cache
def _both(theirs: type[Exception]) -> type[NotFittedError]:
    return type("NotFittedError", (NotFittedError, theirs), {"__module__": __name__})


class StoreError(WOHError):
    """An index folder is missing, damaged, newer than this package, or cannot be written."""


class MissingItemError(StoreError):
    """No item has an id or key that was asked for."""


class LockedError(StoreError):
    """Another writer holds the index."""


class ClusterError(WOHError):
    """A cluster lost what a round needed; nothing was changed."""


class EngineError(WOHError):
    """A database that codes are pushed to is missing, refuses, or holds something else."""
