"""Run the performance bench, or with --quick compare with the results that are kept.

    python examples/benchmarks/performance [--quick] [--large] [--parts training encoding]

Each part runs in a process of its own, on one thread. A full run writes results.jsonl and figures to --out;
a quick one writes nothing, prints what got worse by more than --tolerance, and exits with 1 if anything did.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import setting  # noqa: E402 - it lies beside this folder

OUT = Path(__file__).parents[3] / "docs" / "results" / "performance"
PARTS = (
    *("training", "growth", "encoding", "searching", "rivals", "ranking", "updating", "starting"),
    "threads",
)


def main() -> int:
    parser = setting.parser(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true", help="also indexes of 5 * 10^7 codes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--tolerance", type=float, default=0.25)
    parser.add_argument("--inside", nargs=2, help="one part, in this process, with its folder")
    args = parser.parse_args()
    if args.inside:
        part, folder = args.inside
        for record in importlib.import_module(part).records(args.quick, Path(folder)):
            print(json.dumps({"part": part} | record), flush=True)
        return 0
    lines, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts:
            started = time.monotonic()
            some, code = run(part, folder, args.quick, args.large)
            lines += some
            if code:
                failed.append(part)
            print(f"{part} took {time.monotonic() - started:.0f} s", file=sys.stderr)
    import keeping

    kept = keeping.read(args.out)
    if args.quick:
        worse = keeping.regressions(lines, kept, args.tolerance)
        print(*worse or [f"nothing got worse by more than {args.tolerance:.0%}"], sep="\n")
        return int(bool(worse or failed))
    keeping.write(args.out, lines, kept, args.parts)
    import drawing

    drawing.draw(keeping.read(args.out), args.out)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def run(part: str, folder: str, quick: bool, large: bool) -> tuple[list[dict[str, object]], int]:
    """The lines of a part, printed as they come, and its exit code."""
    setting.threads(1)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["WOH_BENCH_LARGE"] = "1" if large else ""
    command = [sys.executable, __file__, "--inside", part, folder, *["--quick"] * quick]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    lines = []
    for text in process.stdout:
        if not text.startswith('{"part"'):  # what a library prints
            continue
        line = json.loads(text)
        lines.append(line)
        bar = f", bar {line['bar']:g}: {line['verdict']}" if line["bar"] is not None else ""
        spread = f"{line['median']:.3f} ({line['q1']:.3f} to {line['q3']:.3f})"
        print(f"{part}: {line['what']} {spread}, {line['threads']} thread, {line['clock']}{bar}", flush=True)
    return lines, process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
