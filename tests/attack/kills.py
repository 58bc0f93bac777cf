"""Kill -9 of writers beside readers: at any time, when the log grows, and before or after any system call."""

from __future__ import annotations

import random

from harness import Attack
from life import Shim, Strike, live


def run(attack: Attack, shim: Shim | None) -> None:
    """Random kills until the time is up."""
    kinds = ["time", "log grows", "log grows"] + (["die before", "die after"] * 2 if shim else [])

    def strike(rng: random.Random) -> Strike:
        return Strike(rng.choice(kinds), rng.random(), commit=rng.random() < 0.5)

    live(attack, shim, strike)
