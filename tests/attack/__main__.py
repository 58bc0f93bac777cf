"""Attacks a checkout by its public surface, and counts what holds: ``python tests/attack --minutes 10``.

Needs a real disk: where fsync takes no time, the worst fault of a store never shows.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")

import harness
from life import Shim

#: Name of each attack, and its share of the time.
ATTACKS = {"kills": 4, "errors": 2, "flips": 2, "mixes": 1, "folders": 2, "files": 1}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/attack", description=__doc__)
    here = Path(__file__).resolve().parents[2]
    parser.add_argument("--checkout", type=Path, default=here, help="what to attack (default: this one)")
    parser.add_argument("--minutes", type=float, default=10, help="for all attacks together (default: 10)")
    parser.add_argument("--seed", type=int, help="of the random numbers (default: another one each time)")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(ATTACKS)}")
    parser.add_argument("--run", type=int, help="only this run of each attack, to see a failure again")
    parser.add_argument("--stop", action="store_true", help="end an attack at its first failure")
    parser.add_argument("--work", type=Path, help="folder on a disk (default: CHECKOUT/.attack, or $TMPDIR)")
    given = parser.parse_args()
    given.checkout = given.checkout.resolve()
    given.names = given.only.split(",") if given.only else [*ATTACKS]
    if unknown := {*given.names} - {*ATTACKS}:
        parser.error(f"no attack is called {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    if not (given.checkout / "woh_faiss" / "__init__.py").is_file():
        parser.error(f"{given.checkout} is no checkout of woh-faiss")
    return given


def working_folder(given: argparse.Namespace) -> Path:
    """A folder on a disk; exits where there is none."""
    choices = (
        [given.work] if given.work else [given.checkout / ".attack", Path(tempfile.gettempdir()) / "attack"]
    )
    for choice in choices:
        try:
            choice.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if harness.disk_of(choice) not in harness.WITHOUT_DISK:
            return choice.resolve()
    tried = ", ".join(f"{choice}" for choice in choices)
    raise SystemExit(
        f"none of these can be written and is on a disk, which attacks need: {tried}; give --work"
    )


def shim_of(work: Path) -> Shim | None:
    """The shim; where it is not loaded yet, this program starts again with it. None without a C compiler."""
    library = work / "shim.so"
    if os.environ.get("LD_PRELOAD") == str(library):
        return Shim(library)
    if shutil.which("cc") is None:
        return None
    source, made = Path(__file__).with_name("shim.c"), library.with_suffix(f".{os.getpid()}")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"], check=True)
    made.replace(library)  # another run may have the old one loaded
    os.environ["LD_PRELOAD"] = str(library)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    return None


def main() -> int:
    given = parsed()
    work = working_folder(given)
    shim = shim_of(work)
    seed = random.randrange(10**6) if given.seed is None else given.seed  # noqa: S311 - no secret
    harness.use(given.checkout, work)
    print(f"attacking {given.checkout} in {work} ({harness.disk_of(work)}), seed {seed}", flush=True)
    share = given.minutes * 60 / sum(ATTACKS[name] for name in given.names)
    modules = {name: importlib.import_module(name) for name in given.names}
    done, began = [], time.monotonic()
    for name in given.names:
        attack = harness.Attack(name, work, seed, share * ATTACKS[name], given.run, given.stop)
        modules[name].run(attack, shim)
        print(attack.line(), flush=True)
        done.append(attack)
    print(f"\n| attack | runs | outcomes | failures |\n|---|---|---|---|  ({time.monotonic() - began:.0f} s)")
    for attack in done:
        outcomes = ", ".join(f"{kind} {count}" for kind, count in sorted(attack.counts.items()))
        failures = ", ".join(f"{kind} {count}" for kind, count in attack.failures.most_common())
        print(f"| {attack.name} | {attack.runs} | {outcomes or 'none'} | {failures or 'none'} |")
    return 1 if any(attack.failures for attack in done) else 0


if __name__ == "__main__":
    sys.exit(main())
