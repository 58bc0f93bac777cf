"""Published numbers, and how measured ones compare with them.

``published-map.csv`` and ``published-seconds.csv`` are facts from Zhan et al., "Weakly-Supervised Online
Hashing", ICME 2021 (arXiv 2009.07436): MAP at the last round of eight systems, at five code lengths, on two
sets; and seconds of training for chunks 1 to 5 of MIRFlickr at 16 bits (MATLAB; the machine is not said).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.tags.word_vectors import WordVectors
from woh_faiss.validate import listed

from .cells import NAMES
from .paper import SYSTEMS
from .records import Record, means

#: The paper's features, and the width of its word vectors.
WIDTH, FEATURES, VECTORS = 4096, "VGG-F", 300
#: Images that the paper has of each of its sets, after its preparation.
IMAGES = {"mirflickr": 17_833, "nus-wide": 194_541}
#: The code length of the paper's training seconds.
SECONDS_BITS = 16

#: MAP by method and code length.
Numbers = dict[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class Reference:
    """Numbers to compare with.

    Attributes
    ----------
    title : str
        Whose they are.
    map : Numbers
        MAP at the last round.
    seconds : dict of list of float
        By method, seconds of training for chunks 1, 2, ... at `SECONDS_BITS`; often empty.
    caveats : tuple of str
        What, besides the methods, is not as it was there: sentences for a reader.
    """

    title: str
    map: Numbers
    seconds: dict[str, list[float]] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()


def of_paper(name: str, data: Chunk, vectors: WordVectors | None = None) -> Reference:
    """The paper's numbers for one of `IMAGES`.

    Parameters
    ----------
    name : str
        The set.
    data : Chunk
        What is measured here, prepared.
    vectors : WordVectors, optional
        Those that are learned with here.
    """
    folder = Path(__file__).parent
    numbers = _numbers(folder / "published-map.csv", name)
    seconds: dict[str, list[float]] = {}
    with _rows(folder / "published-seconds.csv", "method", "chunk", "seconds") as rows:
        for row in rows:
            if row["set"] == name:
                seconds.setdefault(SYSTEMS[row["method"].upper()], []).append(float(row["seconds"]))
    title = 'Zhan et al., "Weakly-Supervised Online Hashing", ICME 2021'
    return Reference(title, numbers, seconds, tuple(_caveats(name, data, vectors)))


def _caveats(name: str, data: Chunk, vectors: WordVectors | None) -> Iterator[str]:
    d = data.features.shape[1]
    if d != WIDTH:
        yield (
            f"The features are not the paper's: {d:,} numbers an item here, {WIDTH:,} of {FEATURES} there. "
            "Differences come from them first, and from the methods second."
        )
    else:
        yield f"Features have {d:,} numbers, as the paper's; whether they are {FEATURES}'s is not known here."
    if len(data) != IMAGES[name]:
        yield f"{len(data):,} images are here, {IMAGES[name]:,} there."
    if vectors is None:
        yield f"Word vectors come from the tags of the first chunk; the paper's have {VECTORS} numbers."
    elif vectors.f != VECTORS:
        yield f"Word vectors have {vectors.f} numbers, the paper's {VECTORS}."


def of_file(path: Path) -> Reference:
    """Numbers of a CSV with the columns method, bits and map.

    A method is called as the paper calls it or as the benchmark does; a MAP above 1 is in percent.

    Raises
    ------
    InputError
        The file cannot be read, or a row says nothing that can be compared.
    """
    return Reference(path.name, _numbers(path))


def _numbers(path: Path, name: str | None = None) -> Numbers:
    found: Numbers = {}
    with _rows(path, "method", "bits", "map") as rows:
        for row in rows:
            if name not in (None, row.get("set")):
                continue
            given = str(row["method"]).strip()
            method = SYSTEMS.get(given.upper(), given)
            try:
                bits, value = int(row["bits"]), float(row["map"])
            except (TypeError, ValueError):
                bits, value = 0, 0.0
            value = value / 100 if value > 1 else value
            if method not in NAMES or bits < 1 or not 0 < value <= 1:
                raise InputError(
                    f"{display_path(path)}, line {rows.line_num}: expected a method ({', '.join(SYSTEMS)}), "
                    "a number of bits and a MAP"
                )
            found[method, bits] = value
    return found


@contextmanager
def _rows(path: Path, *wanted: str) -> Iterator[csv.DictReader[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if missing := [name for name in wanted if name not in (rows.fieldnames or ())]:
                raise InputError(
                    f"{display_path(path)} has no column {listed(missing)}; expected {','.join(wanted)}"
                )
            yield rows
    except OSError as error:
        raise InputError(f"cannot read {display_path(path)}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{display_path(path)} is not CSV: {error}") from error


def measured(records: Sequence[Record]) -> Numbers:
    """MAP at the last round, the mean over splits, of methods as they are."""
    plain = [record for record in records if not record["hyper"] and record["bits"]]
    found = means(plain, lambda record: record["rounds"][-1]["map"])
    return {(method, bits): float(value) for (method, bits), value in found.items() if bits is not None}


class Order(NamedTuple):
    """The methods of one code length, best MAP first, there and here, and how far the two agree.

    Attributes
    ----------
    bits : int
        Code length.
    there, here : list of str
        The methods that have a published number and a measured one.
    tau : float
        Kendall's τ of the two rankings: 1 is the same order, −1 the reverse; NaN where all are equal.
    """

    bits: int
    there: list[str]
    here: list[str]
    tau: float

    @property
    def agreement(self) -> str:
        """τ as text."""
        return "undefined" if math.isnan(self.tau) else f"{self.tau:.2f}"


def orders(records: Sequence[Record], numbers: Numbers) -> list[Order]:
    """The order of methods at each code length with two or more that can be compared."""
    from scipy.stats import kendalltau

    found, ours = [], measured(records)
    for length in sorted({bits for name, bits in ours if (name, bits) in numbers}):
        methods = [name for name, bits in ours if bits == length and (name, bits) in numbers]
        if len(methods) < 2:
            continue
        tau = kendalltau(*([table[name, length] for name in methods] for table in (numbers, ours))).statistic
        there, here = (sorted(methods, key=lambda name: -table[name, length]) for table in (numbers, ours))
        found.append(Order(length, there, here, float(tau)))
    return found
