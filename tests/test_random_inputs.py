"""Random tables and mixtures of files: read right, refused in one line, or told; never silently dropped."""

import datetime
import decimal
import shutil
import uuid

import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st

from woh_faiss.errors import InputError
from woh_faiss.inputs import Columns, open_inputs

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

TEXT = st.text("aé日x1-_A", min_size=1, max_size=5)
WHOLE = st.integers(0, 2**31 - 1)
#: Types that tables give columns, and their values.
VALUES = {
    "int64": (pa.int64(), st.integers(0, 2**62)),
    "negative": (pa.int64(), st.integers(-100, -1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "whole floats": (pa.float64(), st.integers(0, 2**53).map(float)),
    "floats": (pa.float64(), st.floats(0, 100)),
    "decimals": (pa.decimal128(20, 2), st.integers(0, 10**6).map(decimal.Decimal)),
    "text": (pa.string(), TEXT),
    "large text": (pa.large_string(), TEXT),
    "bytes": (pa.binary(), TEXT.map(str.encode)),
    "no text": (pa.binary(), TEXT.map(lambda text: b"\xff\xfe" + text.encode())),
    "booleans": (pa.bool_(), st.booleans()),
    "dates": (pa.date32(), st.dates(datetime.date(1990, 1, 1))),
    "times": (pa.timestamp("us"), st.datetimes(datetime.datetime(1990, 1, 1))),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXT),
    "lists": (pa.list_(pa.string()), st.lists(TEXT, max_size=3)),
    "structs": (pa.struct([("a", pa.int64())]), st.builds(lambda n: {"a": n}, WHOLE)),
    "uuids": (pa.binary(16), st.uuids().map(lambda value: value.bytes)),
    "durations": (pa.duration("s"), st.integers(0, 99).map(lambda n: datetime.timedelta(seconds=n))),
}
NAMES = {
    "id": ["id", "image_id"],
    "key": ["key", "path", "file_name", "url"],
    "tags": ["tags", "keywords", "caption", "text"],
}


def write(table, path, form):
    if form == "parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path)


def read(path):
    """The chunks and all that is said of them; None where they are refused, in one line."""
    said = []
    try:
        inputs = open_inputs([path], note=said.append)
        said += inputs.notes(Columns())
        return [piece.chunk for piece in inputs.pieces()], said
    except InputError as error:
        said.append(str(error))
        return None, said


@settings(max_examples=length(200), deadline=None)
@given(data=st.data())
def test_a_column_of_any_type_is_taken_refused_or_told(tmp_path_factory, data):
    n = data.draw(st.integers(1, 5))
    columns = {"embedding": pa.array(np.random.default_rng(n).random((n, 3)).tolist())}
    given_ = {}
    for role in data.draw(st.sets(st.sampled_from(sorted(NAMES)), min_size=1)):
        name, kind = data.draw(st.sampled_from(NAMES[role])), data.draw(st.sampled_from(sorted(VALUES)))
        type_, one = VALUES[kind]
        values = data.draw(st.lists(st.none() | one, min_size=n, max_size=n))
        columns[name] = pa.array(values, type_)
        if any(value not in (None, []) for value in values):
            given_[name] = role, kind, values
    form = data.draw(st.sampled_from(["parquet", "feather"]))
    path = tmp_path_factory.mktemp("t") / f"t.{form}"
    write(pa.table(columns), path, form)
    chunks, said = read(path)
    assert all(line.isprintable() for line in said)
    for name, (role, kind, values) in {} if chunks is None else given_.items():
        (chunk,) = chunks
        # Or another column is: a role has one.
        told = any(repr(name) in line or f"{role} from" in line for line in said)
        if role == "tags":
            assert told
            assert chunk.tags is not None or any("not taken" in line for line in said)
            continue
        found = [had.tolist() for had in (chunk.ids, chunk.keys) if had is not None]
        if kind == "uuids":
            values = [None if value is None else str(uuid.UUID(bytes=value)) for value in values]
        elif kind in ("bytes",):
            values = [None if value is None else value.decode() for value in values]
        elif kind in ("int64", "uint64", "whole floats", "decimals", "floats"):
            whole = [None if value is None else int(value) for value in values]
            values = values if whole not in found and None in values else whole
        right = values in found or [None if v is None else str(v) for v in values] in found
        assert right or told, (name, role, kind, values, found, said)


@settings(max_examples=length(100), deadline=None)
@given(data=st.data())
def test_every_file_of_a_folder_gives_what_it_has(tmp_path_factory, data):
    folder, form = tmp_path_factory.mktemp("f"), data.draw(st.sampled_from(["parquet", "feather"]))
    usual = data.draw(st.sets(st.sampled_from(["id", "path", "tags"])))
    expected, start = [], 0
    for number in range(data.draw(st.integers(1, 4))):
        has = usual ^ data.draw(st.sets(st.sampled_from(["id", "path", "tags"]), max_size=1))
        n = data.draw(st.integers(1, 3))
        columns = {
            "embedding": [[1.0, float(start + row)] for row in range(n)],
            "id": list(range(start, start + n)),
            "path": [f"{start + row}.jpg" for row in range(n)],
            "tags": [["sea", f"t{start + row}"] for row in range(n)],
        }
        place = folder / data.draw(st.sampled_from([".", "more", "country=fr"]))
        place.mkdir(exist_ok=True)
        kept = {name: values for name, values in columns.items() if name == "embedding" or name in has}
        write(pa.table(kept), place / f"part-{number}.{form}", form)
        expected += [(start + row, has) for row in range(n)]
        start += n
    for junk in data.draw(st.sets(st.sampled_from(["README.md", "_SUCCESS", f".hidden.{form}"]))):
        (folder / junk).write_text("hi")
    chunks, said = read(folder)
    if chunks is None:  # a file lacks a column that the first one has
        assert "has no column" in said[-1]
        assert len({frozenset(has) for _, has in expected}) > 1
        return
    found = {}
    for chunk in chunks:
        for row, x in enumerate(np.asarray(chunk.features)):
            id_, key, tags = (
                None if had is None else one(had)
                for had, one in (
                    (chunk.ids, lambda ids, row=row: ids[row]),
                    (chunk.keys, lambda keys, row=row: keys[row]),
                    (chunk.tags, lambda tags, row=row: tags.of_row(row)),
                )
            )
            found[int(x[1])] = id_, key, tags
    assert len(found) == len(expected)
    for item, has in expected:
        id_, key, tags = found[item]
        assert id_ == (item if "id" in has else None)
        assert key == (f"{item}.jpg" if "path" in has else None)
        assert tags == (["sea", f"t{item}"] if "tags" in has else None)
    shutil.rmtree(folder)
