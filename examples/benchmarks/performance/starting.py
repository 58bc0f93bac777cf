"""Whole processes: start-up and memory of a query, and bytes an image on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import searching
import workload
from measuring import figure, ratios

#: Starts a command from a small process: the peak of a process counts what its parent had when it forked.
LAUNCHER = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)
"""


def run(command: list[str]) -> tuple[float, float]:
    """Processor seconds and peak resident bytes of one run, as the operating system accounts them."""
    launcher = [sys.executable, "-S", "-E", "-c", LAUNCHER, *command]
    done = subprocess.run(launcher, stdout=subprocess.PIPE, text=True, check=True)
    code, seconds, peak = map(float, done.stdout.split())
    if code:
        raise SystemExit(f"{command} failed with {code:.0f}")
    return seconds, peak


def records(quick: bool, folder: Path) -> Iterator[dict[str, Any]]:
    index, query = searching.million(folder), folder / "query.npz"
    np.savez(query, features=workload.chunk(7, n=100, d=512, n_tags=20).features[:1])
    command = [sys.executable, "-m", "woh_faiss_cli"]
    pairs = {
        "woh-index --help / import click": ([*command, "--help"], "import click"),
        "woh-index query / import faiss, click": (
            [*command, "query", str(query), "--index", str(index)],
            "import faiss, click",
        ),
    }
    for what, (ours, theirs) in pairs.items():
        taken = [(run(ours), run([sys.executable, "-c", theirs])) for _ in range(6 if quick else 10)]
        (seconds, memory), (least, held) = np.transpose(taken[1:], (1, 2, 0)).tolist()  # the first warms up
        yield figure(
            what,
            ratios(seconds, least),
            bar=1.5,
            note="processor time of whole processes; the index has 10^6 codes",
            seconds=float(np.median(seconds)),
        )
        yield figure(
            f"{what}, peak memory",
            ratios(memory, held),
            clock="bytes",
            note=f"{np.median(memory) / 1e6:.0f} MB of {np.median(held) / 1e6:.0f} MB",
        )
    size = {path.name: path.stat().st_size for path in index.iterdir()}
    for name in ("codes.faiss", "ids.i64", "catalog.db"):
        yield figure(
            f"bytes an image in {name}",
            [size[name] / searching.ROWS],
            clock="bytes",
            note="10^6 items of 64 bits without keys or tags" if name == "catalog.db" else "",
        )
