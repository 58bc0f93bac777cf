"""The cells of a benchmark: one method, code length and seed each, on one split of one data set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from woh_faiss.errors import InputError
from woh_faiss.evaluation.baselines import METHODS, ablations
from woh_faiss.evaluation.baselines.faiss_yardsticks import MAKERS
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import PRESETS
from woh_faiss.validate import listed

#: WOH's learned bits by default, and with the constants of the paper, both ranked by Hamming distance.
OWN = {"woh": "adaptive", "woh-paper": "paper"}
#: What an index searches by default: half of the bits learned, half instance bits, ranked by score.
TWIN = "woh-twin"
#: Uncompressed search, which no code length changes.
FLOAT = ("float-l2", "float-cosine")
#: The paper's ablations of WOH; "all" leaves them out.
VARIANTS = tuple(ablations.VARIANTS)
#: Everything that can be measured, in the order of tables.
NAMES = (*OWN, TWIN, *METHODS, *MAKERS, *FLOAT, *VARIANTS)
#: What is learned by the methods to compare with and by the ablations.
LEARNERS = METHODS | ablations.VARIANTS


@dataclass(frozen=True, slots=True)
class Setting:
    """What all cells of a benchmark have in common.

    Attributes
    ----------
    chunks : int
        Equal parts the stream is cut into.
    queries : int
        Items that are held out.
    size : int
        Where not 0, the stream is cut into chunks of so many items, and what is left over goes with the last.
    own : int
        Where not 0, the set brings its own split: the first so many items are the queries.
    learned : int
        Where not 0, as `learn_from` of `streaming.stream`: items beyond these are in the database only.
    min_count : int
        Times a tag must have been seen before it is learned from.
    """

    chunks: int = 8
    queries: int = 1000
    min_count: int = 2
    size: int = 0
    own: int = 0
    learned: int = 0

    def identity(self) -> list[tuple[str, int]]:
        """Its fields, those that came later only where they say something: records from before stay."""
        return sorted((name, value) for name, value in asdict(self).items() if name != "learned" or value)


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure.

    Attributes
    ----------
    method : str
        One of `NAMES`.
    bits : int or None
        Code length; None for uncompressed search.
    seed : int
        Of the split and of the method.
    hyper : dict
        Fields of `WOHConfig` that are changed, for "woh" and "woh-paper".
    """

    method: str
    bits: int | None
    seed: int
    hyper: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What figures call it, without the code length."""
        return label_of(self.method, self.hyper)

    def key(self, data: str, setting: Setting) -> str:
        """Tells it from every other cell on any data."""
        return repr((data, setting.identity(), sorted(asdict(self).items(), key=str)))


def label_of(method: str, hyper: Mapping[str, float]) -> str:
    """A method, and what is changed of it."""
    changed = ", ".join(f"{name} {value:g}" for name, value in hyper.items())
    return f"{method} ({changed})" if changed else method


def cells(
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: Sequence[int],
    vary: Mapping[str, Sequence[float]] | None = None,
) -> list[Cell]:
    """The cells of a benchmark, the quick methods first.

    Parameters
    ----------
    methods : names, or "all"
    bits, seeds : int each
    vary : field of WOHConfig to values, optional
        Each value is one more cell of "woh-paper" at each length, the other fields as they are.

    Raises
    ------
    InputError
        A method is unknown, or a field to vary is none of the preset's.
    """
    every = [name for name in NAMES if name not in VARIANTS]
    named = every if list(methods) == ["all"] else list(dict.fromkeys(methods))
    if unknown := [name for name in named if name not in NAMES]:
        raise InputError(f"unknown methods {listed(unknown)}; known: {', '.join(NAMES)}, or all")
    if unknown := [name for name in vary or {} if name not in PRESETS["paper"]]:
        raise InputError(f"cannot vary {listed(unknown)}; known: {', '.join(PRESETS['paper'])}")
    found = []
    for name in named:
        lengths: Sequence[int | None] = [None] if name in FLOAT else bits
        lengths = [length for length in lengths if name != "faiss-rabitq" or (length or 0) > 64]
        found += [Cell(name, length, seed) for length in lengths for seed in seeds]
    for field_, values in (vary or {}).items():
        found += [
            Cell("woh-paper", length, seed, {field_: value})
            for value in values
            for length in bits
            for seed in seeds
        ]
    return found


def data_digest(chunk: Chunk) -> str:
    """SHA-256 over what the data say, labels and groups too: names the data that a record is of."""
    sha = hashlib.sha256(chunk.digest().encode())
    for array in (chunk.labels, chunk.groups):
        sha.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]
