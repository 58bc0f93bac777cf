"""Arrow columns as what a chunk is made of: kinds of types, and values. Trusts that pyarrow is there."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget, validate
from woh_faiss.errors import InputError
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists
from woh_faiss.tags.tag_text import words

from .bad_rows import NOT_FINITE, Fault, not_finite
from .columns import Columns, Offer, is_caption

if TYPE_CHECKING:
    import pyarrow as pa


def offers(schema: pa.Schema) -> list[Offer]:
    """The columns of a schema."""
    return [Offer(field.name, kind(field.type), " ".join(str(field.type).split())[:60]) for field in schema]


def kind(type_: Any) -> str:
    """Which of `columns.KINDS`' kinds a type is, or "other"."""
    import pyarrow as pa

    types = pa.types
    type_ = _stored(type_)
    if types.is_dictionary(type_):
        type_ = type_.value_type
    if types.is_integer(type_):
        return "ints"
    if types.is_floating(type_):
        return "floats"
    if types.is_decimal(type_):
        return "decimals"
    if types.is_fixed_size_binary(type_) and type_.byte_width == 16:
        return "uuids"
    if types.is_boolean(type_):
        return "bools"
    if types.is_date(type_) or types.is_timestamp(type_):
        return "times"
    if is_text(type_) or is_bytes(type_) or types.is_null(type_):  # nulls alone: pandas writes no text so
        return "text"
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        value = type_.value_type
        if types.is_floating(value) or types.is_integer(value):
            return "vectors"
        if types.is_dictionary(value):
            value = value.value_type
        if is_text(value) or is_bytes(value) or types.is_null(value):
            return "words"
    return "other"


def is_text(type_: Any) -> bool:
    """Whether a type is text, stored in any way."""
    return str(type_) in ("string", "large_string", "string_view")


def is_bytes(type_: Any) -> bool:
    """Whether a type is bytes of any length: the text of those who write Parquet without its annotation."""
    return str(type_) in ("binary", "large_binary", "binary_view")


def _stored(type_: Any) -> Any:
    """The type that an extension type, such as a tensor of fixed shape, is stored as."""
    return getattr(type_, "storage_type", type_)


def width(schema: pa.Schema, name: str) -> int | None:
    """The length of a column's lists, where its type says it."""
    return getattr(_stored(schema.field(name).type), "list_size", None)


def features(column: Any, what: str = "features") -> NDArray[Any]:
    """(n, d) numbers of a column of lists, in their own dtype; InputError where their lengths differ."""
    import pyarrow as pa

    array = _one(column)
    n = len(array)
    _no_nulls(array, what)
    if pa.types.is_fixed_size_list(array.type):
        d = array.type.list_size
    else:
        lengths = np.diff(array.offsets.to_numpy())
        d = int(lengths[0]) if n else 0
        if (other := np.flatnonzero(lengths != d)).size:
            raise InputError(
                f"{what} of row {other[0]} have {lengths[other[0]]} numbers, those of row 0 {d}; "
                f"give all items {what} of one width"
            )
    values = array.flatten()
    if values.null_count:
        place = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            f"{what} of row {place // d} have a null in place {place % d}; repair or leave it out"
        )
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(n, d)
    return numbers


def faults(part: Any, columns: Columns, d: int) -> list[Fault]:
    """What is wrong with rows of a table: features that are missing or not d finite numbers, ids, keys."""
    found: list[Fault] = []
    if columns.features is not None:
        found += _of_lists(part.column(columns.features), d)
    for role, name in (("id", columns.id), ("key", columns.key)):
        if name is None or name not in part.column_names:
            continue
        array = _one(part.column(name))
        missing = _nulls(array)
        found.append((missing, f"{role} is null"))
        if role == "id":
            numbers = _decoded(array).fill_null(0).to_numpy(zero_copy_only=False)
            found.append((numbers < 0, "id is negative"))
        elif kind(array.type) == "text" and not missing.all():
            empty = [value in ("", b"") for value in _decoded(array).to_pylist()]
            found.append((np.array(empty, np.bool_), "key is empty"))
    return found


def _of_lists(column: Any, d: int) -> list[Fault]:
    array = _one(column)
    array = getattr(array, "storage", array)
    missing = _nulls(array)
    fixed = hasattr(array.type, "list_size")
    lengths = np.full(len(array), d) if fixed else array.value_lengths().fill_null(d).to_numpy()
    found: list[Fault] = [(missing, "features are null"), (lengths != d, f"features are not {d} numbers")]
    usable = ~missing & (lengths == d)
    values = array.filter(_mask(usable)).flatten()
    for of_values, why in (
        (_nulls(values), "features have a null"),
        (not_finite(values.fill_null(0).to_numpy(zero_copy_only=False)[:, None]), NOT_FINITE),
    ):
        bad = np.zeros(len(array), np.bool_)
        bad[usable] = of_values.reshape(-1, d).any(axis=1)
        found.append((bad, why))
    return found


def _nulls(array: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _mask(kept: NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return pa.array(kept)


def without(part: Any, kept: NDArray[np.bool_]) -> Any:
    """The rows of a table that are kept."""
    return part if kept.all() else part.filter(_mask(kept))


def labels(column: Any) -> Any:
    """Labels of a column: a matrix (n, L), class numbers (n,), or n lists of names, which are not split."""
    array = _one(column)
    found = kind(array.type)
    if found == "vectors":
        return features(column, "labels")
    _no_nulls(array, "labels")
    if found == "ints":
        return _decoded(array).to_numpy(zero_copy_only=False)
    rows = _python(array)
    return label_names(rows)


def label_names(rows: list[Any]) -> list[list[str]]:
    """The classes of items that have each a text or a list of text."""
    lists = [row if isinstance(row, list) else [row] for row in rows]
    for row, own in enumerate(lists):
        if not all(own):  # None or ""
            raise InputError(f"labels of row {row} have an empty name; give every class one")
    return lists


def tags(column: Any, name: str, split_as: TagTexts | None = None) -> TagLists:
    """Tags of a column of lists or of text; of a caption (by its `name`) the words."""
    rows = _python(_one(column))
    lists = [[tag for tag in row if tag is not None] if isinstance(row, list) else row for row in rows]
    return tags_of(lists, name, split_as)


def tags_of(rows: list[Any], name: str, split_as: TagTexts | None = None) -> TagLists:
    """Tags of items that have each a list of text, a text or None; of a caption the words."""
    if is_caption(name):
        sentences = ("\n".join(row) if isinstance(row, list) else row or "" for row in rows)
        return TagLists.from_lists(map(words, sentences))
    if any(isinstance(row, list) for row in rows):
        return TagLists.from_lists([row or [] for row in rows])
    return TagLists.from_strings([row or "" for row in rows], split_as)


def ids(column: Any) -> NDArray[Any]:
    """Ids of a column of whole numbers, whatever their type."""
    import pyarrow as pa

    array = _decoded(_one(column))
    _no_nulls(array, "id")
    if pa.types.is_decimal(array.type):
        return _of_decimals(array)
    return validate.whole_floats(array.to_numpy(zero_copy_only=False))


def _of_decimals(array: Any) -> NDArray[np.int64]:
    budget.take(2 * validate.TEXT * len(array), "a column")
    values = array.to_pylist()
    for row, value in enumerate(values):
        if value != int(value) or not 0 <= value < 2**63:
            raise InputError(
                f"id {value} of row {row} is no whole number of 64 signed bits; --key-column takes any number"
            )
    return np.array([int(value) for value in values], np.int64)


def keys(column: Any) -> list[str]:
    """Keys of a column of text, or of numbers or UUIDs as text."""
    import pyarrow as pa

    array = _decoded(_one(column))
    _no_nulls(array, "key")
    if pa.types.is_fixed_size_binary(array.type):
        return [str(uuid.UUID(bytes=value)) for value in _python(array)]
    return [key_text(value) for value in _python(array)]


def cells(column: Any, name: str) -> list[Any]:
    """Metadata of a column: a value, or None for null, an item."""
    import pyarrow as pa

    array = _decoded(_one(column))
    if pa.types.is_fixed_size_binary(array.type):
        found = _python(array)
        return [None if value is None else str(uuid.UUID(bytes=value)) for value in found]
    if pa.types.is_timestamp(array.type):
        try:
            array = array.cast(pa.timestamp("us", array.type.tz))
        except pa.ArrowInvalid:
            raise InputError(
                f"metadata {validate.short(name)} have times of nanoseconds, expected microseconds; round "
                "them"
            ) from None
    try:
        return _python(array)
    except (ValueError, OverflowError) as error:  # a year that datetime has not, an unknown time zone
        raise InputError(f"metadata {validate.short(name)}: {' '.join(str(error).split())[:160]}") from error


def key_text(value: Any) -> str:
    """A key as text; whole numbers have no point, for one missing value makes floats of integers."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _python(array: Any) -> list[Any]:
    """The values of text, numbers or lists of text; what a dictionary holds once is made once."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        meant = _python(array.dictionary)
        budget.take(8 * len(array), "a column")
        return [None if place is None else meant[place] for place in array.indices.to_pylist()]
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        flat, start = _python(array.flatten()), 0
        rows: list[Any] = []
        for length in array.value_lengths().to_pylist():
            rows.append(None if length is None else flat[start : start + length])
            start += length or 0
        return rows
    if is_text(array.type) or is_bytes(array.type):
        budget.take(_letters(array), "a column of text")
    budget.take(validate.TEXT * len(array), "a column")
    values: list[Any] = array.to_pylist()
    return [_text(value) for value in values] if is_bytes(array.type) else values


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        raise InputError(
            f"{validate.short(value)} in a column of bytes is not UTF-8 text; write the column as text, or "
            "name another (--tags-column, --key-column; '' for none)"
        ) from None


def _letters(array: Any) -> int:
    """Bytes of the texts of an array; views may show the same letters any number of times."""
    import pyarrow.compute as pc

    if not str(array.type).endswith("_view"):
        return int(pc.sum(pc.binary_length(array)).as_py() or 0)
    shown = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)[array.offset :][: len(array), 0]
    return int(shown.astype(np.int64).sum())


def _one(column: Any) -> Any:
    """A column as one array."""
    import pyarrow as pa

    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # as for older versions and for none
        whole = whole.chunk(0) if whole.num_chunks == 1 else pa.concat_arrays(whole.chunks)
    return getattr(whole, "storage", whole)  # of an extension type: JSON, UUIDs


def _decoded(array: Any) -> Any:
    return array.dictionary_decode() if hasattr(array, "dictionary_decode") else array


def _no_nulls(array: Any, what: str) -> None:
    if not array.null_count:
        return
    row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
    if what in ("features", "labels"):
        raise InputError(f"{what} of row {row} are null; repair or leave it out")
    raise InputError(
        f"{what} of row {row} is null; give every item one, or say another --{what}-column ('' for none)"
    )
