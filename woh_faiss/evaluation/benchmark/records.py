"""Measurements, a JSON line a cell: an existing cell is not measured again."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss.errors import InputError
from woh_faiss.version import __version__

from .cells import Cell, Setting, label_of

#: A record as `Records.of` gives it.
Record = dict[str, Any]

#: What is told of the last round beside MAP and precision: see `quality.Quality`.
QUALITY = {
    "self1": "Items that are the first answer to their own features",
    "self10": "Items among the first ten answers to their own features",
    "float_recall10": "Recall of the ten nearest by float cosine among the first ten answers",
}
#: A round's row of the CSV.
COLUMNS = (
    *("method", "hyper", "bits", "bytes", "seed", "round", "map", "seconds"),
    *("queries", "database", "distinct", "precision_at_10", "self1", "self10", "float_recall10"),
)


class Records:
    """The lines of ``results.jsonl`` in a folder.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    data : str
        Name of the data, `cells.data_digest`.
    setting : Setting
        Of the benchmark; lines of others stay, and are not among `of`.

    Raises
    ------
    InputError
        The folder cannot be made or written to, or a line is damaged. The last one may be cut: a benchmark
        that was killed left it so, and the cell is measured again.
    """

    def __init__(self, folder: Path, data: str, setting: Setting) -> None:
        self.path, self._data, self._setting = folder / "results.jsonl", data, setting
        self._known: dict[str, dict[str, Any]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = self.path.read_text("utf-8") if self.path.exists() else ""
            lines = text.split("\n")
            for number, line in enumerate(lines, start=1):
                try:
                    record = json.loads(line) if line else None
                except ValueError:
                    if number < len(lines):
                        raise InputError(f"{self.path}: line {number} is not JSON; remove it") from None
                    record = None
                if record is not None:
                    self._known[record["key"]] = record
            if lines[-1]:  # cut short: what follows must start a line of its own
                whole = text[: len(text) - len(lines[-1])]
                self.path.write_text(whole, "utf-8")
        except OSError as error:
            raise InputError(
                f"cannot write to {folder}: {error.strerror or error}; choose another -o"
            ) from error

    def __contains__(self, cell: Cell) -> bool:
        return cell.key(self._data, self._setting) in self._known

    def add(self, cell: Cell, measured: dict[str, Any]) -> None:
        """Keep what a cell was measured at; it is on the disk when this returns."""
        key = cell.key(self._data, self._setting)
        record = {"key": key, **asdict(cell), **asdict(self._setting), "version": __version__, **measured}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._known[key] = record

    def of(self, cells: list[Cell]) -> list[dict[str, Any]]:
        """The records of these cells that there are, in their order."""
        keys = [cell.key(self._data, self._setting) for cell in cells]
        return [self._known[key] for key in keys if key in self._known]


def label(record: Record) -> str:
    """What a line of a figure is called."""
    return label_of(record["method"], record["hyper"])


def means(records: Sequence[Record], of: Callable[[Record], Any]) -> dict[tuple[str, int | None], Any]:
    """The mean over seeds of what `of` says of a record, by (label, bits), in the order of the records."""
    groups: dict[tuple[str, int | None], list[Any]] = {}
    for record in records:
        groups.setdefault((label(record), record["bits"]), []).append(of(record))
    return {key: np.mean(values, axis=0) for key, values in groups.items()}


def write_csv(records: list[dict[str, Any]], path: Path) -> None:
    """A row a round of every record."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(_rows(records))


def _rows(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        same = {name: record[name] for name in COLUMNS if name in record}
        same["hyper"] = " ".join(f"{name}={value:g}" for name, value in record["hyper"].items())
        for it in record["rounds"]:
            last = it is record["rounds"][-1]
            at_10 = dict(zip(record["first"], record["precision"], strict=True)).get(10) if last else None
            yield {
                **same,
                **it,
                "distinct": record["distinct"] if last else None,
                "precision_at_10": at_10,
                **({name: record["quality"][name] for name in QUALITY} if last else {}),
            }
