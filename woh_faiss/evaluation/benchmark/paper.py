"""The paper's own experiment: its systems, lengths, chunks, ablations and ranges of constants."""

from __future__ import annotations

from collections.abc import Sequence

from .cells import OWN, TWIN, VARIANTS, Cell

#: What the paper calls the methods it compares, and what they are here.
SYSTEMS = {
    "SH": "sh",
    "SDH": "sdh",
    "COSDISH": "cosdish",
    "WDH": "wdh-style",
    "OSH": "osh",
    "BOSDH": "bosdh",
    "HMOH": "hmoh-published",
    "WOH": "woh-paper",
}
#: What stands beside them in every table: what an index learns and searches by default.
DEFAULTS = (next(iter(OWN)), TWIN)
BITS = (8, 16, 32, 64, 96)
#: Uses from which a tag counts.
MIN_COUNT = 50
#: Items a chunk, what is left over with the last: its MIRFlickr, and of NUS-WIDE.
SIZE, NUS_WIDE_SIZE = 2000, 5000
#: Queries of NUS-WIDE (MIRFlickr has 1,000), and what is learned from; all the rest is database only.
NUS_WIDE_QUERIES, NUS_WIDE_LEARNED = 2000, 40_000

#: Parts of Eq. 4 left out, one at a time: features, the hash function in the codes, and the weights that the
#: ℓ2,1 norm gives to tags that do not fit. The paper's own ablations are `cells.VARIANTS`.
ABLATIONS: tuple[dict[str, float], ...] = ({"beta": 0}, {"mu": 0}, {"weighted": False})

#: Code length of the paper's sensitivity, and values about the ranges that it names: α from 300 to 500 and μ
#: from 1 to 10 are good, β and θ hardly matter.
SENSITIVITY_BITS = 16
SENSITIVITY: dict[str, tuple[float, ...]] = {
    "alpha": (1, 10, 100, 200, 300, 400, 500, 1000),
    "beta": (0.001, 0.01, 0.1, 1, 10),
    "theta": (0.001, 0.01, 0.1, 1, 10),
    "mu": (0.1, 1, 2, 5, 10, 20, 100),
}


def ablation(bits: Sequence[int], seeds: Sequence[int]) -> list[Cell]:
    """`woh-paper` as it is, WOH-1 to WOH-4, and each of `ABLATIONS`."""
    whole = [
        Cell(name, length, seed) for name in ("woh-paper", *VARIANTS) for length in bits for seed in seeds
    ]
    return whole + [
        Cell("woh-paper", length, seed, dict(hyper))
        for hyper in ABLATIONS
        for length in bits
        for seed in seeds
    ]


def sensitivity(seeds: Sequence[int]) -> list[Cell]:
    """`woh-paper` with each of the values of `SENSITIVITY`, the other constants as published."""
    return [
        Cell("woh-paper", SENSITIVITY_BITS, seed, {name: value})
        for name, values in SENSITIVITY.items()
        for value in values
        for seed in seeds
    ]
