"""The exceptions a caller may want to catch. Nothing else in the package defines one.

Every message is one line: what was given, what was expected, what to do.
"""

from __future__ import annotations

from typing import Any


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
        text = super().__str__()
        if text.isprintable():
            return text
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConfigError(WOHError, ValueError):
    """A hyper-parameter is unknown or outside its range."""


class InputError(WOHError, ValueError):
    """An array, a chunk file, a tag list or a word-vector file cannot be used as it is."""


class NotFittedError(WOHError):
    """A hash function was asked for before the first round was learned."""


class StoreError(WOHError):
    """An index folder is missing, damaged, newer than this package, or cannot be written."""


class LockedError(StoreError):
    """Another writer holds the index."""


class ClusterError(WOHError):
    """A cluster lost what a round needed; nothing was changed."""


class EngineError(WOHError):
    """A database that codes are pushed to is missing, refuses, or holds something else."""
