"""Threads that compute, a few at once and each in turn; searches that wait for theirs are asked together.

One scan of the codes for several queries takes less time than a scan for each. Nobody waits for company: what
is there when a thread is free is asked together.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException

from .service import Answers, How, Queries, Service

T = TypeVar("T")
#: Queries that are asked together at most: of more the last ones would wait too long.
TOGETHER = 16
#: Requests that may wait for a thread.
_WAITING = 1000


class Turns:
    """A few threads.

    Parameters
    ----------
    threads : int
        That compute at once; more than there are cores would only wait for each other.
    timeout : float or None
        Seconds until a request is told to come again; None for work that must not be left alone.
    """

    def __init__(self, threads: int, timeout: float | None) -> None:
        self._pool = ThreadPoolExecutor(threads, "woh-turn")
        self._timeout, self._waiting = timeout, 0

    @classmethod
    def of(cls, workers: int, timeout: float) -> Turns:
        """As many as this process has cores for, one of several workers."""
        return cls(max(1, len(os.sched_getaffinity(0)) // workers), timeout)

    def close(self) -> None:
        """End the threads when they have done what they were given."""
        self._pool.shutdown()

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives in a thread, when it is its turn; HTTPException where that takes too long."""
        return await self.result(asyncio.get_running_loop().run_in_executor(self._pool, work))

    async def result(self, future: asyncio.Future[T]) -> T:
        """What a future gives whose work has been handed in; HTTPException as `run`."""
        if self._waiting >= _WAITING:
            future.cancel()
            raise _busy(f"{self._waiting} requests are waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            raise _busy(f"no answer was found within {self._timeout:g} s") from None
        finally:
            self._waiting -= 1

    def hand_in(self, work: Callable[[], None]) -> None:
        """Give a thread something to do that nobody waits for."""
        self._pool.submit(work)


def _busy(why: str) -> HTTPException:
    return HTTPException(503, f"{why}; try again", {"Retry-After": "1"})


@dataclass(frozen=True, eq=False)
class _Waiting:
    xq: NDArray[Any]
    future: asyncio.Future[Answers]


#: What searches that are asked together have in common: how, the width of vectors, and their type.
_Alike = tuple[How, int, Any]


class Batches:
    """Searches by few vectors, together where several wait for a thread and are to be answered alike."""

    def __init__(self, service: Service, turns: Turns) -> None:
        self._service, self._turns = service, turns
        self._lock = threading.Lock()
        self._groups: dict[_Alike, deque[_Waiting]] = {}

    async def search(self, xq: NDArray[Any], how: How) -> Answers:
        """The answers to rows of features (nq, d), as `Service.search_all`."""
        loop = asyncio.get_running_loop()
        me, alike = _Waiting(xq, loop.create_future()), (how, xq.shape[1], xq.dtype)
        with self._lock:
            self._groups.setdefault(alike, deque()).append(me)
        self._turns.hand_in(lambda: self._together(alike, loop))  # which may take others, or find me taken
        return await self._turns.result(me.future)

    def _together(self, alike: _Alike, loop: asyncio.AbstractEventLoop) -> None:
        """Answer those who wait, as many as are asked together; in a thread."""
        taken, how = self._taken(alike), alike[0]
        results: list[Answers | BaseException]
        try:
            results = [*self._found(taken, how)] if taken else []
        except BaseException as error:
            results = [error]
            if len(taken) > 1:  # who asked for it gets the error, the others their answers
                results = [self._alone(each, how) for each in taken]
        loop.call_soon_threadsafe(_tell, taken, results)

    def _alone(self, one: _Waiting, how: How) -> Answers | BaseException:
        try:
            return self._found([one], how)[0]
        except BaseException as error:
            return error

    def _taken(self, alike: _Alike) -> list[_Waiting]:
        taken: list[_Waiting] = []
        n = 0
        with self._lock:
            group = self._groups.get(alike, ())
            while group and (not taken or n + len(group[0].xq) <= TOGETHER):
                one = group.popleft()
                if not one.future.done():  # else its client was told to come again
                    taken.append(one)
                    n += len(one.xq)
            if not group:
                self._groups.pop(alike, None)
        return taken

    def _found(self, taken: list[_Waiting], how: How) -> list[Answers]:
        xq = taken[0].xq if len(taken) == 1 else np.concatenate([each.xq for each in taken])
        found = self._service.search_all(Queries(vectors=xq), how)
        ends = np.cumsum([0, *(len(each.xq) for each in taken)]).tolist()
        return [found.part(*pair) for pair in pairwise(ends)]


def _tell(taken: list[_Waiting], results: list[Answers | BaseException]) -> None:
    for one, result in zip(taken, results, strict=True):
        if one.future.done():
            continue
        if isinstance(result, BaseException):
            one.future.set_exception(result)
        else:
            one.future.set_result(result)
