"""Ratios taken in one run: what is compared takes turns, and processor time is counted, not the clock's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

Clock = Callable[[], float]
#: Seconds of the quickest function that make one measurement, as long as the slowest takes no more than MOST.
LONG_ENOUGH, MOST = 0.05, 0.3


def figure(
    what: str,
    ratios: Sequence[float],
    *,
    better: str = "less",
    bar: float | None = None,
    clock: str = "cpu",
    note: str = "",
    **more: Any,
) -> dict[str, Any]:
    """A line of results: median and quartiles of ratios, and what the bar says of the median.

    `better` is "less", "more", or "" for what has no better side. `more` is kept as it is.
    """
    q1, median, q3 = np.percentile(ratios, [25, 50, 75]).tolist()
    line = {"what": what, "median": median, "q1": q1, "q3": q3, "repeats": len(ratios), "better": better}
    line |= {"bar": bar, "verdict": verdict(median, bar, better), "clock": clock}
    return line | {"threads": int(os.environ.get("OMP_NUM_THREADS", "0")), "note": note} | more


def verdict(median: float, bar: float | None, better: str) -> str:
    """PASS, or by how much the bar is missed; nothing without a bar."""
    if bar is None:
        return ""
    if median >= bar if better == "more" else median <= bar:
        return "PASS"
    if not bar:
        return f"short by {median:g}"
    missed = abs(median / bar - 1)
    return f"short by {missed:.0%}" if missed >= 0.01 else f"short by {missed:.1%}"


def in_turn(
    functions: dict[str, Callable[[], object]], repeat: int, clock: Clock = time.process_time
) -> dict[str, list[float]]:
    """Seconds of a call of each function, `repeat` times, after calls that only warm up.

    Functions take turns call by call: what others do to the machine, and to its caches, happens to all.
    """
    once = []
    for function in functions.values():
        function()
        start = clock()
        function()
        once.append(max(clock() - start, 1e-7))
    loops = max(1, int(min(LONG_ENOUGH / min(once), MOST / max(once))))
    seconds = {name: np.zeros(repeat) for name in functions}
    for number in range(repeat):
        for _ in range(loops):
            for name, function in functions.items():
                start = clock()
                function()
                seconds[name][number] += clock() - start
    return {name: (taken / loops).tolist() for name, taken in seconds.items()}


def ratios(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """Pair by pair: both were taken one after the other."""
    return [a / b for a, b in zip(above, below, strict=True)]


def processes(pids: Sequence[int]) -> Clock:
    """Processor seconds of this process and of others, servers say, all their threads together (Linux)."""
    others = [(~pid << 3) | 2 for pid in pids]  # clock_getcpuclockid(3)
    return lambda: time.process_time() + sum(map(time.clock_gettime, others))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The power of x that y grows with: a straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
