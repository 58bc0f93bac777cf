"""Columns of metadata: what items have beside keys and tags, of one type a column.

Cells are kept as SQLite holds them: whole numbers, floats, text; true and false as 1 and 0; dates and times
as ISO text, whose order is theirs. None stands for a missing value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import budget, validate
from .errors import InputError, short

TYPES = ("integer", "real", "text", "boolean", "date", "datetime")
#: What items have anyway: no column may be called so.
RESERVED = ("id", "key", "tags")
#: Columns that an index can have.
MOST = 32
#: Types of which two columns put together are of the second.
_WIDER = {("integer", "real"), ("date", "datetime")}


@dataclass(frozen=True, slots=True, eq=False)
class MetadataColumn:
    """The cells of one column, one an item.

    Attributes
    ----------
    type : one of `TYPES`, or None where all cells are missing
    cells : list of int, float, str or None
    """

    type: str | None
    cells: list[Any]

    def __len__(self) -> int:
        return len(self.cells)

    def rows(self, select: slice | NDArray[Any]) -> MetadataColumn:
        """The cells of a slice, an int array or a bool mask."""
        if isinstance(select, slice):
            return MetadataColumn(self.type, self.cells[select])
        places = np.flatnonzero(select) if select.dtype == np.bool_ else select
        return MetadataColumn(self.type, [self.cells[place] for place in places.tolist()])


#: Columns by name.
Metadata = Mapping[str, MetadataColumn]


def metadata_of(values: Any, n: int) -> dict[str, MetadataColumn]:
    """Columns of n items, checked.

    Parameters
    ----------
    values : mapping of str to array_like or MetadataColumn
        Each of length n: numbers, text, bools, dates (datetime64[D], ``date``), times (datetime64,
        ``datetime``; those with a zone become UTC). NaN, NaT and None are missing values. ``Decimal`` is
        real.
    n : int
        Items.

    Raises
    ------
    InputError
        Names or values are not as described, or values of one column have different types.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"metadata are {short(values)}, expected a dict of arrays by name")
    check_names(list(values))
    found = {name: _column(name, column) for name, column in values.items()}
    for name, column in found.items():
        if len(column) != n:
            raise InputError(
                f"there are {len(column)} values of metadata {short(name)} for {n} items; give one an item"
            )
    return found


def check_names(names: Sequence[Any]) -> None:
    """InputError unless columns may be called so, each once."""
    for name in validate.texts(names, "names of metadata", "name"):
        if not name or name in RESERVED:
            what = "is what items have anyway" if name else "is no name"
            raise InputError(f"metadata {short(name)} {what}; give the column another name")
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"metadata {short(twice)} is named twice; name it once")


def joined(parts: Sequence[Metadata], names: Sequence[str]) -> dict[str, MetadataColumn]:
    """The columns of several chunks as those of one; `names` say in a message which chunk it is."""
    found: dict[str, MetadataColumn] = {}
    for name in parts[0]:
        of_parts = [part[name] for part in parts]
        type_ = None
        for where, column in zip(names, of_parts, strict=True):
            type_ = _common(name, where, type_, column.type)
        found[name] = MetadataColumn(
            type_, [cell for column in of_parts for cell in fitted(name, type_, column)]
        )
    return found


def _common(name: str, where: str, a: str | None, b: str | None) -> str | None:
    """The type of columns of two types together."""
    if a is None or b is None or a == b:
        return a or b
    for narrow, wide in _WIDER:
        if {a, b} == {narrow, wide}:
            return wide
    raise InputError(f"metadata {short(name)} of {where} are {b}, those before {a}; give one type")


def fitted(name: str, type_: str | None, column: MetadataColumn) -> list[Any]:
    """The cells as those of a column of a type; InputError where one would not be the same value."""
    given = column.type
    if given in (None, type_):
        return column.cells
    if (given, type_) == ("date", "datetime"):
        return [None if cell is None else f"{cell}T00:00:00" for cell in column.cells]
    numbers = {given, type_} == {"integer", "real"}
    changed = [None if cell is None or not numbers else _converted(cell, type_) for cell in column.cells]
    for cell, now in zip(column.cells, changed, strict=True):
        if cell != now:
            raise InputError(
                f"metadata {short(name)} has {short(cell)}, which is {given}; that column is {type_}: "
                "convert it, or give it another name"
            )
    return changed


def _converted(cell: Any, type_: str | None) -> Any:
    """A cell as another type, None where it has no such value."""
    if type_ == "real":
        return float(cell)
    if type_ == "integer" and isinstance(cell, float) and cell.is_integer() and abs(cell) < 2.0**63:
        return int(cell)  # one missing value makes floats of integers
    return None


def new_types(known: Mapping[str, str], given: Metadata) -> dict[str, str]:
    """Types of the columns that are not `known` (types by name) and have a value.

    Raises
    ------
    InputError
        A column has another type than is known, or there would be more than `MOST`.
    """
    found = {}
    for name, column in given.items():
        if name in known:
            fitted(name, known[name], column)
        elif column.type is not None:
            found[name] = column.type
    if len(known) + len(found) > MOST:
        raise InputError(
            f"metadata would have {len(known) + len(found)} columns, expected at most {MOST} an index"
        )
    return found


def shown(type_: str, cell: Any) -> Any:
    """A cell as a value for people and JSON: true and false are no numbers there."""
    return bool(cell) if type_ == "boolean" and cell is not None else cell


# ---- values as people have them --------------------------------------------------------------------------


def _column(name: str, values: Any) -> MetadataColumn:
    if isinstance(values, MetadataColumn):
        return values
    if isinstance(values, list | tuple):
        return _of_values(name, list(values))
    if np.ma.isMaskedArray(values) or (not isinstance(values, np.ndarray) and hasattr(values, "tolist")):
        return _of_values(name, values.tolist())  # pandas's, whose missing values NumPy would make floats of
    array = validate.array(values, f"metadata {short(name)}")
    if array.ndim != 1 or array.dtype.kind not in "biufUSTMO":
        raise InputError(
            f"metadata {short(name)} have shape {array.shape} and dtype {array.dtype}, expected 1-D numbers, "
            "text, bools, dates or times"
        )
    budget.take(validate.TEXT * len(array), f"metadata {short(name)}")
    kind = array.dtype.kind
    if kind == "M":
        return _of_times(name, array)
    if kind in "UST":
        return MetadataColumn("text", validate.texts(array, f"metadata {short(name)}"))
    if kind == "f" and not np.isinf(array).any():
        reals = array.astype(np.float64).tolist()
        return MetadataColumn("real", [None if cell != cell else cell for cell in reals])
    if kind in "bi":
        return MetadataColumn("boolean" if kind == "b" else "integer", array.astype(np.int64).tolist())
    return _of_values(name, array.tolist())


def _of_times(name: str, array: NDArray[Any]) -> MetadataColumn:
    """Dates where the unit is a day or more, else times, of microseconds where nothing is lost by it."""
    days = np.datetime_data(array.dtype)[0] in ("Y", "M", "W", "D")
    exact = array.astype("M8[D]" if days else "M8[us]")
    lost = np.flatnonzero((exact != array) & ~np.isnat(array))
    if lost.size:
        raise InputError(
            f"metadata {short(name)} of row {lost[0]} is {array[lost[0]]}, expected at most microseconds; "
            "round it"
        )
    return _of_values(name, exact.tolist())


def _of_values(name: str, values: list[Any]) -> MetadataColumn:
    """Python's values, or those of NumPy and pandas among them."""
    cells: list[Any] = []
    type_: str | None = None
    for row, value in enumerate(values):
        kind, cell = _cell(value)
        if kind == "":
            raise InputError(
                f"metadata {short(name)} of row {row} is {short(value)}, expected one number that is finite "
                "and fits in 64 bits, a text, true or false, a date or a time; or None"
            )
        if kind != type_ and kind is not None:
            type_ = _common(name, f"row {row}", type_, kind)
        cells.append(cell)
    validate.texts([cell for cell in cells if isinstance(cell, str)], f"metadata {short(name)}", "value")
    if type_ == "real":
        of_numbers = MetadataColumn("integer", cells)
        return MetadataColumn(type_, fitted(name, type_, of_numbers))
    if type_ == "datetime":
        cells = [cell if cell is None or "T" in cell else f"{cell}T00:00:00" for cell in cells]
    return MetadataColumn(type_, cells)


def _cell(value: Any) -> tuple[str | None, Any]:
    """Type and cell of a value; the type is None for a missing one and "" for what is no value."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # pandas's
        return None, None
    if isinstance(value, bool | np.bool_):
        return "boolean", int(value)
    if isinstance(value, int | np.integer):
        number = int(value)
        return ("integer", number) if -(2**63) <= number < 2**63 else ("", None)
    if isinstance(value, float | np.floating | Decimal):
        real = float(value)
        if real != real:
            return None, None
        return ("real", real) if abs(real) != np.inf else ("", None)
    if isinstance(value, bytes):
        try:
            return "text", value.decode()
        except UnicodeDecodeError:
            return "", None
    if isinstance(value, str):
        return "text", str(value)
    if isinstance(value, datetime):
        if getattr(value, "nanosecond", 0):
            return "", None
        return "datetime", iso(value)
    if isinstance(value, date):
        return "date", value.isoformat()
    return "", None


def iso(value: datetime) -> str:
    """A time as a cell: in UTC if it has a zone."""
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return datetime.isoformat(value)
