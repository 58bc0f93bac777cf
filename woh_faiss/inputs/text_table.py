"""A table as people keep beside their files: Parquet, Arrow, CSV, TSV or JSON lines, whole, as an Arrow
table.

pyarrow is imported in the functions that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from woh_faiss import budget
from woh_faiss.errors import InputError

from . import arrow_values as values
from .arrow import is_arrow, open_table
from .columns import check_metadata

#: Names of tables that are text, and what is between their columns.
_DELIMITED, _JSON = {".csv": ",", ".tsv": "\t"}, (".jsonl", ".ndjson")


def read_table(path: Path, where: str) -> Any:
    """The columns of a table that are no vectors; None for a file that is no table.

    Raises
    ------
    InputError
        It is Parquet or Arrow and damaged, or pyarrow is not there; for other damage pyarrow's own errors.
    """
    with path.open("rb") as stream:
        start = stream.read(8)
    if is_arrow(start):
        table = open_table(path)
        kinds = {field.name: values.kind(field.type) for field in table.schema}
        names = [name for name, kind in kinds.items() if kind not in ("vectors", "other")]
        return next(table.tables(names, None), table.schema.empty_table().select(names))
    suffix = path.suffix.lower()
    if suffix not in (*_DELIMITED, *_JSON):
        return None
    budget.take(4 * path.stat().st_size, "a table")
    try:
        from pyarrow import csv, json
    except ImportError:
        raise InputError(f"{where} is a table, which pyarrow reads: install woh-faiss[arrow]") from None
    if suffix in _JSON:
        return json.read_json(path)
    how = csv.ParseOptions(delimiter=_DELIMITED[suffix], newlines_in_values=True)
    return csv.read_csv(path, parse_options=how)


def read_metadata(path: Path, where: str, names: Sequence[str], n: int) -> Any:
    """Columns of a table of n rows, as an Arrow table.

    Raises
    ------
    InputError
        It is no table, or not of n rows; a column is not there, or has no single values.
    """
    table = read_table(path, where)
    if table is None:
        raise InputError(f"{where} has no columns for --metadata; give CSV, TSV, JSON lines or Parquet")
    check_metadata(where, values.offers(table.schema), names)
    if table.num_rows != n:
        raise InputError(
            f"{where} has tags of {n} items and {table.num_rows} rows of --metadata; give a row an item"
        )
    return table.select(list(names))
