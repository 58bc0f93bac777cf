"""Threads that learn and encode: blocks of rows beside each other, each on one thread of BLAS.

Threads of BLAS spin while they wait for each other. On a machine that is busy, or in a container that shows
more processors than it may use, an eigendecomposition on two threads takes ten times as long as on one.
Blocks meet only where their sums are added.

A query needs neither threadpoolctl nor a pool of threads: they are imported where they are used.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

U = TypeVar("U")

#: Blocks at a time, at most: each takes memory.
MOST = 8


_mine = threading.local()
_pool: ThreadPoolExecutor | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """What is inside uses one thread of BLAS, also for blocks of `ordered`; then it is as it was.

    Where another thread has set a number of its own meanwhile, that holds.
    """
    libraries, outer = _libraries("scipy.linalg" in sys.modules), getattr(_mine, "threads", None)
    _mine.threads = outer or min((it["num_threads"] for it in libraries.info()), default=1)
    try:
        with libraries.limit(limits=1):
            yield
    finally:
        _mine.threads = outer


@lru_cache(maxsize=2)
def _libraries(with_scipy: bool) -> Any:
    """BLAS of NumPy, and of SciPy once it is loaded. Faiss has its own, whose threads also search."""
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas")
    return found.select(filepath=[it.filepath for it in found.lib_controllers if "faiss" not in it.filepath])


def ordered(step: Callable[[int], U], n: int) -> Iterator[U]:
    """step(0) to step(n - 1), in order, several at a time within `one_blas_thread`.

    As many as BLAS had threads, so that its environment variables limit them, and `MOST` at most.
    """
    workers = min(n, MOST, getattr(_mine, "threads", None) or 1)  # 1 within a step: it does its own steps
    if workers < 2:
        yield from map(step, range(n))
        return
    pending: deque[Future[U]] = deque()
    try:
        for i in range(n):
            if len(pending) == workers:
                yield pending.popleft().result()
            pending.append(_threads().submit(step, i))
        while pending:
            yield pending.popleft().result()
    finally:
        for left in pending:
            left.cancel()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        from concurrent.futures import ThreadPoolExecutor

        _pool = ThreadPoolExecutor(MOST, thread_name_prefix="woh-faiss")
    return _pool


def _after_fork() -> None:
    """A forked child has none of the threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_after_fork)
