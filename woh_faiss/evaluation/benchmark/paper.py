"""The paper's own experiment: its methods, its chunks, and its numbers beside the measured ones.

The numbers are not part of this package: give them in a file (`published`).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from woh_faiss.errors import InputError
from woh_faiss.validate import listed

from .cells import NAMES, Cell
from .records import Record, means

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
BITS = (8, 16, 32, 64, 96)
#: Uses from which a tag counts.
MIN_COUNT = 50
#: Items a chunk, what is left over with the last: its MIRFlickr, and of NUS-WIDE.
SIZE, NUS_WIDE_SIZE = 2000, 5000

#: Parts of Eq. 4 left out, one at a time, as in its Fig. 3a: features, word vectors, the hash function in the
#: codes, and the weights that the ℓ2,1 norm gives to tags that do not fit.
ABLATIONS: tuple[dict[str, float], ...] = ({"beta": 0}, {"theta": 0}, {"mu": 0}, {"weighted": False})

#: MAP by method and code length.
Numbers = dict[tuple[str, int], float]


def ablation(bits: Sequence[int], seeds: Sequence[int]) -> list[Cell]:
    """`woh-paper` as it is and with each of `ABLATIONS`."""
    return [
        Cell("woh-paper", length, seed, dict(hyper))
        for hyper in ({}, *ABLATIONS)
        for length in bits
        for seed in seeds
    ]


def published(path: Path) -> Numbers:
    """Numbers to compare with: a CSV with the columns method, bits and map.

    A method is called as the paper calls it or as the benchmark does; a MAP above 1 is in percent.

    Raises
    ------
    InputError
        The file cannot be read, or a row says nothing that can be compared.
    """
    found: Numbers = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            wanted = ("method", "bits", "map")
            if missing := [name for name in wanted if name not in (rows.fieldnames or ())]:
                raise InputError(f"{path} has no column {listed(missing)}; expected method,bits,map")
            for row in rows:
                given = str(row["method"]).strip()
                method = SYSTEMS.get(given.upper(), given)
                try:
                    bits, value = int(row["bits"]), float(row["map"])
                except (TypeError, ValueError):
                    bits, value = 0, 0.0
                value = value / 100 if value > 1 else value
                if method not in NAMES or bits < 1 or not 0 < value <= 1:
                    raise InputError(
                        f"{path}, line {rows.line_num}: expected a method ({', '.join(SYSTEMS)}), "
                        "a number of bits and a MAP"
                    )
                found[method, bits] = value
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not CSV: {error}") from error
    return found


def beside(records: Sequence[Record], numbers: Numbers) -> list[tuple[str, int, float, float]]:
    """Method, bits, MAP at the last round (mean over splits) and the published one, where there are both."""
    plain = [record for record in records if not record["hyper"] and record["bits"]]
    measured = means(plain, lambda record: record["rounds"][-1]["map"])
    return [
        (method, bits, float(value), numbers[method, bits])
        for (method, bits), value in measured.items()
        if bits is not None and (method, bits) in numbers
    ]
