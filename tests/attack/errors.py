"""System calls of a writer that fail: once, from then on, or in the middle of a write."""

from __future__ import annotations

import errno
import random

from harness import Attack
from life import Shim, Strike, live

ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT]


def run(attack: Attack, shim: Shim | None) -> None:
    """Random errors until the time is up."""
    if shim is None:
        print("errors: skipped, there is no C compiler (cc) to make the shim with", flush=True)
        return

    def strike(rng: random.Random) -> Strike:
        kind = rng.choice(["once", "once", "always", "short"])
        return Strike(kind, rng.random(), rng.random() < 0.5, rng.choice(ERRORS))

    live(attack, shim, strike)
