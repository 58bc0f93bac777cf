"""An encoder that a Python module makes: ``module:factory``."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from woh_faiss.display import display_text
from woh_faiss.errors import InputError, short

from .encoder import IMAGES, TEXTS, Features, embedded, lacks
from .picture import picture

#: Letters of a fingerprint.
_LONGEST = 1000
_METHODS = {IMAGES: "embed_images", TEXTS: "embed_texts"}


class PythonEncoder:
    """An `Encoder` around an object of a user's own, whose answers are checked.

    Parameters
    ----------
    spec : str
        ``module:factory``: called without arguments, it gives an object with `dimension`, `fingerprint`
        (text) and `embed_images`, which gets a list of upright RGB Pillow images, `embed_texts`, or both.
    name : str
        What it is called.

    Raises
    ------
    InputError
        There is no such module or factory, it fails, or what it gives is something else.
    """

    def __init__(self, spec: str, name: str) -> None:
        module, _, factory = spec.partition(":")
        self.name = name
        here = str(Path.cwd())
        sys.path.insert(0, here)  # as `python -m` does; a command's own path begins with the environment's
        try:
            made = getattr(import_module(module), factory)()
            self.dimension, fingerprint = made.dimension, made.fingerprint
        except Exception as error:
            why = display_text(f"{type(error).__name__}: {error}")[:200]
            raise InputError(f"{name} gives no encoder ({why}); expected module:factory") from error
        finally:
            sys.path.remove(here)
        if not isinstance(fingerprint, str) or not 0 < len(fingerprint) <= _LONGEST:
            raise InputError(
                f"{name} has the fingerprint {short(fingerprint)}, expected up to {_LONGEST} letters"
            )
        if type(self.dimension) is not int or self.dimension < 1:
            raise InputError(
                f"{name} has the dimension {short(self.dimension)}, expected a whole number above 0"
            )
        self.fingerprint = hashlib.sha256(fingerprint.encode()).hexdigest()
        self._made: Any = made
        self.sides = frozenset(side for side, method in _METHODS.items() if hasattr(made, method))

    def embed_images(self, images: Sequence[Any]) -> Features:
        """See `Encoder`."""
        return self._embedded(IMAGES, [picture(image) for image in images])

    def embed_texts(self, texts: Sequence[str]) -> Features:
        """See `Encoder`."""
        return self._embedded(TEXTS, [*texts])

    def _embedded(self, side: str, items: list[Any]) -> Features:
        if side not in self.sides:
            raise lacks(self.name, side)
        return embedded(items, getattr(self._made, _METHODS[side]), self.name, self.dimension)
