"""Python source that files hold: headers of .npy, escapes in lists that were written as text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def evaluated(read: Callable[[], T]) -> T:
    """What `read` gives, which evaluates such source and may be called twice.

    What Python warns of in it is not shown: the value, or the error, says enough.
    """
    with warnings.catch_warnings(action="ignore"):
        try:
            return read()
        except SystemError:  # Python 3.11's parser may fail where other threads use it: cpython issue 106905
            return read()
