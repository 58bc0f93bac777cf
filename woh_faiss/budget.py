"""How much memory one input file may take; checked before allocation.

A few kilobytes can unpack to gigabytes. Code that reads a file does so inside `reading`, and calls `take`
before it allocates. Where libraries allocate unknown sizes and `set_max_memory` was called (the commands do
so), the system enforces the limit, too. Memory maps do not count.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path

from .errors import InputError, MemoryBudgetError

try:
    import resource
except ImportError:  # pragma: no cover - not POSIX
    resource = None  # type: ignore[assignment]

#: Bytes that may be made of one file, or of one chunk of a file that is read in chunks.
DEFAULT = 4 << 30
#: What the system allows besides: libraries are loaded, and start threads, when a file first needs them.
LIBRARIES = 512 << 20
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class _Account:
    """What was made of one file so far."""

    def __init__(self, where: str) -> None:
        self.where, self.taken = where, 0


_limit, _kernel = DEFAULT, False
_account: ContextVar[_Account | None] = ContextVar("account", default=None)


def set_max_memory(size: int | str) -> None:
    """Limit the memory that one input file may take, for the whole process.

    Where a file is read in chunks, the limit is that of a chunk. Memory-mapped features do not count. While
    a file is read the system enforces the limit (on Linux, by RLIMIT_DATA), for other threads too.

    Parameters
    ----------
    size : int or str
        Bytes, or text such as ``"500M"`` or ``"8 GiB"`` (powers of 1024).

    Raises
    ------
    InputError
        It is neither, or less than one megabyte.
    """
    global _limit, _kernel
    _limit, _kernel = parsed(size), True


def max_memory() -> int:
    """The limit of `set_max_memory` in bytes; 4 GiB unless it was called."""
    return _limit


def by_system() -> bool:
    """Whether the system enforces the limit, too."""
    return _kernel


def parsed(size: int | str) -> int:
    """Bytes of a size as `set_max_memory` takes it."""
    match = re.fullmatch(
        r"\s*(\d{1,15}(?:\.\d{1,3})?)\s*([kmgt]?)(?:i?b)?\s*", str(size), re.IGNORECASE | re.ASCII
    )
    found = 0 if match is None else int(float(match[1]) * (1 << _UNITS[match[2].lower()]))
    if isinstance(size, bool) or found < 1 << 20:
        raise InputError(f"max_memory is {size!r}, expected at least 1M, such as 500M or 8G")
    return found


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Count what is made of the file `where` from here on; inside another `reading` that one's count goes on.

    Raises
    ------
    MemoryBudgetError
        Memory ran out inside, whoever asked for it.
    """
    account, outer = _Account(where), _account.get()
    if outer is not None:
        account.taken = outer.taken
    token = _account.set(account)
    try:
        with _kernel_limit() if outer is None else nullcontext():
            yield
    except MemoryError as error:
        raise ran_out(where) from error
    finally:
        _account.reset(token)
        if outer is not None:
            outer.taken = account.taken


def take(size: int, what: str) -> None:
    """Ask for `size` bytes more, for `what`; MemoryBudgetError if that is too much for one file."""
    account = _account.get() or _Account("")
    account.taken += int(size)
    if account.taken > _limit:
        raise exceeded(account.where, what)


def ran_out(where: str) -> MemoryBudgetError:
    """The error for a file at which memory ran out: what was allowed, or what there is."""
    if _kernel:
        return exceeded(where, "what is in it")
    return MemoryBudgetError(f"{where} needs more memory than there is; give less at once")


def exceeded(where: str, what: str) -> MemoryBudgetError:
    """The error for a file that needs more memory than it may."""
    start = f"{where}: {what}" if where else what
    return MemoryBudgetError(
        f"{start} would need more than the {_told(_limit)} of memory that input may take; give less at once, "
        "or allow more if this is intended (--max-memory, set_max_memory)"
    )


def _told(size: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} bytes"


# ---- what the system refuses ----------------------------------------------------------------------------

_lock, _readers = threading.Lock(), 0
_before: tuple[int, int] = (-1, -1)
_STATUS = Path("/proc/self/status")


@contextmanager
def _kernel_limit() -> Iterator[None]:
    """No more data than there are now and `_limit`, until the last reader of all threads is done."""
    global _readers, _before
    if not _kernel or resource is None:
        yield
        return
    with _lock:
        if not _readers:
            _before = resource.getrlimit(resource.RLIMIT_DATA)
        _readers += 1
        _restrict(_data() + _limit + LIBRARIES)
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers:
                with suppress(OSError, ValueError):
                    resource.setrlimit(resource.RLIMIT_DATA, _before)


def _restrict(size: int) -> None:
    soft, hard = _before
    bounds = [size, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    if size > _limit + LIBRARIES:  # else what the process has is not known
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))


def _data() -> int:
    """Bytes of data that the process has; 0 where the system does not tell."""
    with suppress(OSError, ValueError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0
