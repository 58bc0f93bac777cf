"""CPU seconds of one `woh-index query` on a million codes, against importing faiss and click.

    python examples/benchmarks/start_up.py [--rows 1000000] [--repeat 9]

The two commands run in turn, as whole processes; the last line is the ratio of medians, PASS under 1.5.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import setting
import workload


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of one run, as the operating system accounts them."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--d", type=int, default=1280, help="width of the features")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index, query = Path(folder) / "index.woh", Path(folder) / "query.npz"
        first = workload.chunk(0, d=args.d)
        workload.built(index, first)
        workload.fill(index, args.rows - len(first))
        np.savez(query, features=first.features[:1])
        commands = {
            "import faiss, click": [sys.executable, "-c", "import faiss, click"],
            "woh-index query": [
                sys.executable,
                "-m",
                "woh_faiss_cli",
                "query",
                str(query),
                "--index",
                str(index),
            ],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(args.repeat + 1):
            for name, command in commands.items():
                taken = cpu_seconds(command)
                if number:  # the first of each warms the file cache
                    seconds[name].append(taken)
    for name, values in seconds.items():
        print(json.dumps({"what": name, "rows": args.rows, "cpu_seconds": workload.spread(values)}))
    base, ours = (float(np.median(values)) for values in seconds.values())
    print(f"ratio {ours / base:.2f}, {'PASS' if ours < 1.5 * base else 'ABOVE'} the bar of 1.5")


if __name__ == "__main__":
    main()
