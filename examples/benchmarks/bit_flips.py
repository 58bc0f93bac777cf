"""Single bits flipped in the files of an index: what queries answer then, and what `verify` says.

    python examples/benchmarks/bit_flips.py [--flips 2000] [--seed 0] [--real 20]

An index of 300 items in several rounds, some removed, with two models and an approximate index. Each flip
strikes a random bit of a file; every file gets as many. After it the command `woh-index query` is asked by
features, by an item, by its key and by tags, and the byte is put back. Commands run in this process, but for
every `--real`-th flip, after which they run as processes. A line a file:

refused    a command exited with an error
harmless   every answer is the same
wrong      an answer differs, and the command exited with 0
codes      of those where a stored code was flipped: a command maps codes without reading all of them
told       `verify` found it, whatever the answers
unseen     an answer differs, and `verify` did not find it
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import setting

#: Where the codes start in their file: the bytes before them are a header.
CODES, START = "codes.faiss", 33
COLUMNS = ("flips", "refused", "harmless", "wrong", "codes", "told", "unseen")
WORDS = ("sea", "beach", "hill", "snow", "city", "night")


class Flip(NamedTuple):
    """One bit; what became of it (`refused`, `harmless`, `wrong` or `codes`); whether `verify` told."""

    name: str
    byte: int
    bit: int
    outcome: str
    told: bool


def main() -> None:
    parser = setting.parser(__doc__)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--file", help="strike this one only, such as catalog.db")
    parser.add_argument("--real", type=int, default=20, help="every so many flips ask by real processes")
    args: argparse.Namespace = parser.parse_args()
    setting.threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index.woh")
        asked = made(path, args.items)
        struck = flips(path, asked, args.flips, args.seed, args.real, args.file)
        counts: dict[str, Counter[str]] = {}
        for number, flip in enumerate(struck, 1):
            for name in (flip.name, "all files"):
                seen = counts.setdefault(name, Counter())
                seen.update(["flips", flip.outcome, *(["told"] if flip.told else [])])
                seen["unseen"] += flip.outcome in ("wrong", "codes") and not flip.told
            if flip.outcome == "wrong" or (flip.outcome == "codes" and not flip.told):
                print(f"{number}: {flip}", file=sys.stderr, flush=True)
    print(f"{'file':20}" + "".join(f"{column:>10}" for column in COLUMNS))
    for name in sorted(counts, key=lambda name: (name == "all files", name)):
        print(f"{name:20}" + "".join(f"{counts[name][column]:10,}" for column in COLUMNS))
    if counts["all files"]["wrong"] or counts["all files"]["unseen"]:
        raise SystemExit(1)


def made(path: Path, n: int = 300) -> list[list[str]]:
    """An index of n items at `path`, and what to ask it: arguments of `woh-index query`."""
    import numpy as np

    from woh_faiss import WOHIndex

    rng = np.random.default_rng(0)

    def drawn(count: int) -> tuple[np.ndarray, list[list[str]]]:
        topic = rng.integers(6, size=count)
        X = (np.eye(6, 12)[topic] * 3 + rng.normal(size=(count, 12))).astype(np.float32)
        return X, [[WORDS[t], WORDS[(t + 1) % 6]] for t in topic]

    def keys(first: int, count: int) -> list[str]:
        return [f"photos/{i:04d}.jpg" for i in range(first, first + count)]

    sizes = [n // 2, n // 6, n // 6, n - n // 2 - 2 * (n // 6)]
    with WOHIndex.create(path, bits=32, anchors=20, vector_size=5) as index:
        first = 0
        for number, size in enumerate(sizes):
            X, tags = drawn(size)
            act = index.add if number == 2 else index.update
            metadata = {
                "year": np.arange(first, first + size),
                "place": [f"place {i % 9}" for i in range(size)],
            }
            act(X, tags, keys=keys(first, size), metadata=metadata)
            first += size
        index.remove([5, n // 2 + 1])
        index.compact()
        index.build_ann("ivf", nlist=4, nprobe=4)
        index.remove([7, 70, n - 3])
    np.savez(path.with_name("queries.npz"), features=drawn(4)[0])
    queries = str(path.with_name("queries.npz"))
    return [
        [*what, "--json", "--index", str(path)]
        for what in (
            [queries, "-k", "10", "--explain"],
            [queries, "-k", "10", "--ann", "ivf"],
            ["--id", "20", "-k", "10"],
            ["--key", f"photos/{n // 2 + 7:04d}.jpg", "--by", "hamming", "-k", "10"],
            ["--tags", "sea night", "-k", "10"],
        )
    ]


def flips(
    path: Path,
    asked: Sequence[list[str]],
    count: int,
    seed: int = 0,
    real: int = 0,
    only: str | None = None,
) -> Iterator[Flip]:
    """Flip `count` bits, one at a time, of all files or of `only` one.

    After every `real`-th flip the commands run as processes; never, if it is 0.
    """
    rng = random.Random(seed)  # noqa: S311 - a place, no secret
    right = [run(arguments, False) for arguments in asked]
    if any(code for code, _ in right):
        raise SystemExit(f"the sound index is refused: {right}")
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    names = sorted(name for name, size in sizes.items() if size and not name.endswith("-shm"))
    names = [name for name in names if only in (None, name)]
    for number in range(count):
        name = names[number % len(names)]
        byte, bit = rng.randrange(sizes[name]), rng.randrange(8)
        _flip(path / name, byte, bit)
        try:
            outcome = _outcome(asked, right, bool(real) and number % real == real - 1)
            told = run_verify(path)
        finally:
            _flip(path / name, byte, bit)
        if outcome == "wrong" and name == CODES and byte >= START:
            outcome = "codes"
        yield Flip(name, byte, bit, outcome, told)


def _flip(path: Path, byte: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        was = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([was ^ 1 << bit]))


def _outcome(asked: Sequence[list[str]], right: Sequence[tuple[int, str]], real: bool) -> str:
    found = [run(arguments, real) for arguments in asked]
    if any(code not in (0, 1) for code, _ in found):
        return "wrong"  # neither an answer nor an error in one line
    if any(code == 0 and answer != known for (code, answer), (_, known) in zip(found, right, strict=True)):
        return "wrong"
    return "refused" if any(code for code, _ in found) else "harmless"


def run(arguments: list[str], real: bool) -> tuple[int, str]:
    """Exit status and output of `woh-index query`: of a process, or of the same command in this one."""
    if real:
        done = subprocess.run(
            [sys.executable, "-m", "woh_faiss_cli", "query", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return done.returncode, done.stdout
    from click.testing import CliRunner

    from woh_faiss_cli.main import main as command

    ran = CliRunner().invoke(command, ["query", *arguments])
    # 99: a traceback, of which a process would say 1.
    return (99 if ran.exception and not isinstance(ran.exception, SystemExit) else ran.exit_code), ran.stdout


def run_verify(path: Path) -> bool:
    """Whether `verify` finds a fault, or something that the next write repairs."""
    from woh_faiss import WOHIndex

    return bool(WOHIndex.verify(path))


if __name__ == "__main__":
    main()
