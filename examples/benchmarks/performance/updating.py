"""One update against the size of the index, and what appending takes of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import workload
from measuring import figure, ratios

from woh_faiss import WOH, WOHIndex
from woh_faiss.store import files
from woh_faiss.store.write_transaction import WriteTransaction

CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    sizes = {"0": 0, "10^6": 10**6, "10^7": 10**7, "5 * 10^7": 5 * 10**7}
    most = 10**6 if quick else 5 * 10**7 if os.environ.get("WOH_BENCH_LARGE") else 10**7
    base = folder / "base.woh"
    workload.built(base, workload.chunk(0))
    with ExitStack() as stack:
        indexes = {}
        for name, rows in sizes.items():
            if rows <= most:
                path = folder / f"{rows}.woh"
                shutil.copytree(base, path)
                workload.fill(path, rows)
                indexes[name] = stack.enter_context(WOHIndex.open(path))
        yield from _compared(indexes, 3 if quick else 7)


def _compared(indexes: dict[str, WOHIndex], repeat: int) -> Iterator[dict[str, Any]]:
    whole: dict[str, list[dict[str, float]]] = {name: [] for name in indexes}
    learning: list[dict[str, float]] = []
    appending: list[dict[str, float]] = []
    modelling: list[dict[str, float]] = []
    with (
        patch.object(WOH, "partial_fit", _timed(WOH.partial_fit, learning)),
        patch.object(WriteTransaction, "commit", _timed(WriteTransaction.commit, appending)),
        patch.object(files, "replace", _timed(files.replace, modelling)),
    ):
        for number in range(repeat + 1):
            chunk = workload.chunk(number + 1)
            for name, index in indexes.items():
                with _taken(whole[name]):
                    index.update(chunk)
    first = len(indexes)  # the first of each warms up
    cpu = {name: [taken["cpu"] for taken in some[1:]] for name, some in whole.items()}
    for name in list(indexes)[1:]:
        yield figure(
            f"update of {name} codes / of none",
            ratios(cpu[name], cpu["0"]),
            bar=1.1,
            note="2,000 items of 4096 features, 1,386 tags, 64 bits, adaptive preset",
            seconds=float(np.median(cpu[name])),
        )
    for clock in CLOCKS:
        learned, appended, modelled = (
            [taken[clock] for taken in some[first:]] for some in (learning, appending, modelling)
        )
        rest = [whole - part for whole, part in zip(appended, modelled, strict=True)]
        for what, seconds in (
            ("bytes, ids, catalogue, fsync, commit", rest),
            ("the same and the model", appended),
        ):
            yield figure(
                f"append / learning, {clock}: {what}",
                ratios(seconds, learned),
                bar=0.1,
                clock=clock,
                note="all sizes of index; a model file of 19 MB",
                seconds=float(np.median(seconds)),
            )


@contextmanager
def _taken(into: list[dict[str, float]]) -> Iterator[None]:
    start = {name: clock() for name, clock in CLOCKS.items()}
    yield
    into.append({name: clock() - start[name] for name, clock in CLOCKS.items()})


def _timed(method: Any, into: list[dict[str, float]]) -> Any:
    def timed(*args: Any, **named: Any) -> Any:
        with _taken(into):
            return method(*args, **named)

    return timed
