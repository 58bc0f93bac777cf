"""Metadata of items: what is read, how it is kept, shown, erased and brought back."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, tagged
from hypothesis import given
from hypothesis import strategies as st

from woh_faiss import Chunk, WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.inputs import BadRows, open_inputs
from woh_faiss.metadata import MOST, TYPES, MetadataColumn, fitted, metadata_of
from woh_faiss_cli.main import main

ODD = 'a "name"; DROP TABLE items --'


def held(index, ids):
    return [item.metadata for item in index.items(ids)]


# ---- values --------------------------------------------------------------------------------------------

ZONE = dt.timezone(dt.timedelta(hours=2))
VALUES = {
    "integers": (np.array([1, -2], np.int16), "integer", [1, -2]),
    "reals": (np.array([1.5, np.nan]), "real", [1.5, None]),
    "both": ([1, 2.5, None], "real", [1.0, 2.5, None]),
    "decimals": ([Decimal("1.25")], "real", [1.25]),
    "bools": ([True, np.False_, None], "boolean", [1, 0, None]),
    "text": (np.array(["a", ""]), "text", ["a", ""]),
    "bytes": ([b"\xc3\xa9"], "text", ["é"]),
    "days": (np.array(["2024-02-29", "NaT"], "M8[D]"), "date", ["2024-02-29", None]),
    "times": (np.array(["2024-02-29T10:00"], "M8[ns]"), "datetime", ["2024-02-29T10:00:00"]),
    "zones": ([dt.datetime(2024, 1, 1, 1, tzinfo=ZONE)], "datetime", ["2023-12-31T23:00:00"]),
    "days and times": (
        [dt.date(2024, 1, 1), dt.datetime(2024, 1, 2)],
        "datetime",
        ["2024-01-01T00:00:00", "2024-01-02T00:00:00"],
    ),
    "masked": (np.ma.array([1, 2], mask=[0, 1]), "integer", [1, None]),
    "none": ([None, float("nan")], None, [None, None]),
}  # fmt: skip


@pytest.mark.parametrize("what", VALUES)
def test_values_as_people_have_them(what):
    values, type_, cells = VALUES[what]
    column = metadata_of({"x": values}, len(cells))["x"]
    assert (column.type, column.cells) == (type_, cells)
    assert [type(cell) for cell in column.cells] == [type(cell) for cell in cells]


def test_values_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"i": pandas.array([1, None], "Int64"), "t": ["a", None]})
    frame["when"] = pandas.to_datetime(["2024-01-01 10:00", None])
    found = metadata_of({name: frame[name] for name in frame}, 2)
    assert {name: (column.type, column.cells) for name, column in found.items()} == {
        "i": ("integer", [1, None]),
        "t": ("text", ["a", None]),
        "when": ("datetime", ["2024-01-01T10:00:00", None]),
    }


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"x": [1, "a"]}, "'x' of row 1 are text, those before integer"),
        ({"x": [2**63]}, "row 0 is 9223372036854775808, expected one number"),
        ({"x": [float("inf")]}, "expected one number that is finite"),
        ({"x": [[1]]}, "expected one number"),
        ({"x": np.zeros((2, 2))}, "expected 1-D numbers"),
        ({"x": [1, 2]}, "there are 2 values of metadata 'x' for 1 items"),
        ({"x": ["a\0"]}, "NUL"),
        ({"x": [b"\xff"]}, "expected one number"),
        ({"x": np.array([1], "M8[ns]")}, "at most microseconds"),
        ({"id": [1]}, "'id' is what items have anyway"),
        ({"": [1]}, "'' is no name"),
        ({1: [1]}, "expected a str"),
        ({"a\0b": [1]}, "NUL"),
        ([1], "expected a dict of arrays"),
    ],
)
def test_what_is_no_metadata_is_refused_in_one_line(values, told):
    with pytest.raises(InputError, match="metadata") as refused:
        Chunk.of(np.ones((1, 3)), metadata=values)
    assert told in str(refused.value)


def test_metadata_follow_the_items_of_a_chunk_that_stay():
    X, more = np.eye(4), {"x": ["a", "b", "c", None], "y": [1, 2, 3, 4]}
    for policy, cells in (("skip", ["a", "c", None]), ("replace", ["b", "c", None])):
        chunk = Chunk.of(X, ids=[7, 7, 8, 9], metadata=more, on_duplicate=policy)
        assert chunk.metadata["x"].cells == cells
        part = chunk.rows(np.array([2, 0]))
        assert part.metadata["x"].cells == [None, cells[0]]
        assert chunk.rows(slice(1, 2)).metadata["y"].cells == [3]
    assert Chunk.of(X, metadata=more).digest().partition("+")[0] == Chunk.of(X).digest()
    assert Chunk.of(X, metadata=more).digest() != Chunk.of(X, metadata=more | {"y": [1, 2, 3, 5]}).digest()


numbers = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.lists(numbers), st.sampled_from(["integer", "real"]))
def test_numbers_of_another_type_are_the_same_or_refused(cells, type_):
    for given_type, kind in (("integer", int), ("real", float)):
        column = MetadataColumn(given_type, [None if c is None or type(c) is not kind else c for c in cells])
        try:
            found = fitted("x", type_, column)
        except InputError:
            continue
        assert found == column.cells
        assert all(cell is None or type(cell) is {"integer": int, "real": float}[type_] for cell in found)


# ---- what an index keeps ---------------------------------------------------------------------------------


@pytest.fixture
def priced(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL, keep_models=5) as index:
        metadata = {"price": np.arange(40) / 4, "year": [None, *range(39)], ODD: [f"x{i}" for i in range(40)]}
        index.update(*tagged(0), keys=[f"k{i}" for i in range(40)], metadata=metadata)
        yield index


def test_metadata_live_and_leave_with_their_item(priced):
    priced.add(tagged(1, 3)[0], metadata={"price": [1, 2.5, None], "new": [True, None, False]})
    assert held(priced, [0, 39, 40, 42]) == [
        {"price": 0.0, "year": None, ODD: "x0", "new": None},
        {"price": 9.75, "year": 38, ODD: "x39", "new": None},
        {"price": 1.0, "year": None, ODD: None, "new": True},
        {"price": None, "year": None, ODD: None, "new": False},
    ]
    priced.add(tagged(2, 2)[0], keys=["k3", "k4"], metadata={"price": [7, 8]}, on_duplicate="replace")
    assert held(priced, [3, 4]) == [
        {"price": price, "year": None, ODD: None, "new": None} for price in (7, 8)
    ]
    priced.remove([0, 5, 40])
    with WOHIndex.open(priced.path) as reader:
        before = held(priced, [1, 3, 39, 41])
        priced.compact()
        assert held(priced, [1, 3, 39, 41]) == before
        assert held(reader, [1, 3, 39, 41]) == before  # its rows have other numbers by now
    assert WOHIndex.verify(priced.path) == []
    priced.rollback(1)
    assert "new" not in priced.items([1])[0].metadata
    assert held(priced, [39]) == [{"price": 9.75, "year": 38, ODD: "x39"}]
    priced.add(tagged(1, 1)[0], metadata={"new": ["another type"]})
    assert WOHIndex.verify(priced.path) == []


def test_what_is_removed_is_back_after_a_rollback(priced):
    was = held(priced, range(40))
    priced.add(tagged(2, 2)[0], keys=["k3", "k4"], metadata={"price": [7, 8]}, on_duplicate="replace")
    priced.remove([7, 8])
    priced.rollback(1)
    assert held(priced, range(40)) == was
    assert WOHIndex.verify(priced.path) == []


def test_no_byte_of_erased_metadata_is_left(priced):
    secret, real, whole = "secret-person", 2.718281828, 0x5EC2E7_1D5
    priced.update(*tagged(1), metadata={"who": [secret] * 40, "price": [real] * 40, "year": [whole] * 40})
    priced.update(*tagged(2), metadata={"who": ["nobody"] * 40})
    traces = [secret.encode(), np.array(real, ">f8").tobytes(), whole.to_bytes(6, "big"), b"who"]

    def left():
        found = b"".join(path.read_bytes() for path in priced.path.iterdir())
        return [trace in found for trace in traces]

    assert left() == [True] * 4
    priced.remove(range(40, 80))
    assert priced.compact() == (40, True)
    assert left() == [False] * 3 + [True]
    assert held(priced, [80]) == [{"price": None, "year": None, ODD: None, "who": "nobody"}]
    priced.remove(range(80, 120))  # no item is left that has anything in the column
    priced.compact()
    assert left() == [False] * 4
    assert held(priced, [1])[0] == {"price": 0.25, "year": 0, ODD: "x1"}
    assert WOHIndex.verify(priced.path) == []


def test_a_column_keeps_its_type_and_nothing_is_written_where_another_comes(priced):
    before = priced.rounds()
    X, tags = tagged(3)
    for metadata, told in (
        ({"price": ["a"] * 40}, "'price' has 'a', which is text; that column is real"),
        ({"year": [1.5] * 40}, "'year' has 1.5, which is real; that column is integer"),
        ({"year": [True] * 40}, "which is boolean"),
        (
            {f"c{i}": [1] * 40 for i in range(MOST)},
            f"metadata would have {MOST + 3} columns, expected at most {MOST}",
        ),
    ):
        for act in (priced.update, priced.add):
            with pytest.raises(InputError) as refused:
                act(X, tags, metadata=metadata)
            assert told in str(refused.value)
    assert priced.rounds() == before
    priced.add(X, metadata={"year": np.full(40, 3.0), "price": np.ones(40, int)})  # the same values
    assert held(priced, [40])[0] == {"price": 1.0, "year": 3, ODD: None}


def test_several_files_are_checked_before_the_first_is_written(priced, tmp_path):
    for name, year in (("a", np.arange(40)), ("b", np.array(["x"] * 40))):
        X, tags = tagged(ord(name))
        np.savez(tmp_path / f"{name}.npz", features=X, tags=[";".join(t) for t in tags], year=year)
    inputs = open_inputs([tmp_path / "a.npz", tmp_path / "b.npz"], metadata=["year"])
    with pytest.raises(InputError, match=r"b\.npz: metadata 'year' has 'x', which is text"):
        list(priced.extend(inputs))
    assert len(priced.rounds()) == 1


def test_a_chunk_that_is_there_with_other_metadata_is_not_taken_in_again(tmp_path):
    for seed in range(3):
        X, tags = tagged(seed)
        np.savez(tmp_path / f"{seed}.npz", features=X, tags=[";".join(t) for t in tags], size=np.arange(40))
    files = sorted(tmp_path.glob("*.npz"))
    with WOHIndex.build(tmp_path / "i", open_inputs(files[:1], metadata=["size"]), **SMALL) as index:
        assert index.rounds()[0].chunk_hash.count("+") == 1
        notes = []
        assert len(list(index.extend(open_inputs(files[:2], metadata=["size"]), note=notes.append))) == 1
        assert len(notes) == 1  # of the one that is there
        with pytest.raises(
            InputError, match=r"0\.npz: its items are .* already \(round 1\) with other metadata"
        ):
            list(index.extend(open_inputs(files)))
        assert len(index) == 80
        assert len(list(index.extend(open_inputs(files[:1]), skip_known=False))) == 1


def test_damaged_metadata_are_noticed(priced):
    priced.close()
    catalogue = priced.path / "catalog.db"
    data = catalogue.read_bytes()
    assert data.count(b"x17") == 1
    catalogue.write_bytes(data.replace(b"x17", b"x71"))
    with WOHIndex.open(priced.path) as index:
        assert held(index, [16, 18])
        with pytest.raises(StoreError, match="a row of table items is not as it was written"):
            index.items([17])
    faults = WOHIndex.verify(priced.path)
    assert any("table metadata is not as it was written" in fault for fault in faults)
    assert any("a row of table items is not as it was written" in fault for fault in faults)


def test_a_commit_costs_the_chunk(tmp_path):
    """Pages that a commit writes do not become more with the items that are there."""
    sizes = []
    with WOHIndex.create(tmp_path / "i", **SMALL, instance_bits=0) as index:
        index.update(*tagged(0))
        X = np.tile(tagged(1)[0], (50, 1))
        for round_ in range(8):
            rng = np.random.default_rng(round_)
            with WOHIndex.open(tmp_path / "i"):  # the log is kept, and begins anew
                before = (tmp_path / "i" / "catalog.db-wal").stat().st_size if round_ else 0
                index.add(
                    X, metadata={"price": rng.random(2000), "word": rng.integers(9999, size=2000).astype(str)}
                )
                sizes.append((tmp_path / "i" / "catalog.db-wal").stat().st_size - before)
    assert max(sizes[1:]) < 1.5 * min(sizes[1:]) + 20 * 4096


# ---- files -----------------------------------------------------------------------------------------------


def files_with(folder, X, tags):
    """The same items as every format that has names for columns, by what it is called."""
    import h5py
    import pyarrow as pa
    from pyarrow import feather, parquet

    n = len(X)
    columns = {"price": np.arange(n) / 4, "year": np.arange(n), ODD: [f"x{i}" for i in range(n)]}
    table = pa.table({"features": list(X), "tags": tags, "public": [i % 2 == 0 for i in range(n)], **columns})
    parquet.write_table(table, folder / "a.parquet")
    feather.write_feather(table, folder / "a.feather")
    np.savez(
        folder / "a.npz",
        features=X,
        tags=[";".join(t) for t in tags],
        public=np.arange(n) % 2 == 0,
        **columns,
    )
    with h5py.File(folder / "a.h5", "w") as file:
        file["features"], file["tags"] = X, [";".join(t) for t in tags]
        file["public"] = np.arange(n) % 2 == 0
        for name, values in columns.items():
            file[name] = values
    for part in ("img_emb", "metadata"):
        (folder / "clip" / part).mkdir(parents=True)
    np.save(folder / "clip" / "img_emb" / "img_emb_0.npy", X)
    parquet.write_table(table.drop_columns("features"), folder / "clip" / "metadata" / "metadata_0.parquet")
    return ["a.parquet", "a.feather", "a.npz", "a.h5", "clip"]


def test_every_format_gives_the_same_metadata(tmp_path):
    X, tags = tagged(0)
    found = {}
    for name in files_with(tmp_path, X, tags):
        inputs = open_inputs([tmp_path / name], metadata=["price", "year", "public", ODD], chunk_size=17)
        with WOHIndex.build(tmp_path / f"{name}.woh", inputs, **SMALL, first_sample=20) as index:
            found[name] = sorted(held(index, index.ids()), key=lambda it: it["year"])
        with pytest.raises(InputError, match="'nothing'"):
            open_inputs([tmp_path / name], metadata=["nothing"], chunk_size=5)
    expected = [{"price": i / 4, "year": i, "public": i % 2 == 0, ODD: f"x{i}"} for i in range(40)]
    assert found == dict.fromkeys(found, expected)


def test_variables_of_matlab(tmp_path):
    from scipy.io import savemat

    X, _ = tagged(0, n=4)
    names = np.array(["a", "b", "", "d"], object)
    savemat(tmp_path / "a.mat", {"features": X, "price": [[1.5], [2], [np.nan], [4]], "name": names[:, None]})
    (chunk,) = open_inputs([tmp_path / "a.mat"], metadata=["price", "name"])
    assert {name: it.cells for name, it in chunk.metadata.items()} == {
        "price": [1.5, 2.0, None, 4.0],
        "name": ["a", "b", "", "d"],
    }
    with pytest.raises(InputError, match=r"a\.mat.* has no variable 'nothing' for --metadata"):
        open_inputs([tmp_path / "a.mat"], metadata=["nothing"])


def test_names_of_folders_and_bad_rows(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    X, _ = tagged(0, n=3)
    for place in ("fr", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / "d" / f"country={place}").mkdir(parents=True)
        rows = [*X[:2].tolist(), [float("nan"), *X[2].tolist()[1:]]]
        parquet.write_table(
            pa.table({"features": rows, "size": [1, 2, 3]}), tmp_path / "d" / f"country={place}" / "a.parquet"
        )
    bad = BadRows()
    chunks = list(open_inputs([tmp_path / "d"], metadata=["country", "size"], bad=bad))
    found = [(chunk.metadata["country"].cells, chunk.metadata["size"].cells) for chunk in chunks]
    assert sorted(found, key=str) == [(["fr"] * 2, [1, 2]), ([None] * 2, [1, 2])]
    assert len(bad.found) == 2
    np.savez(tmp_path / "a.npz", features=rows, size=[1, 2, 3])
    (chunk,) = open_inputs([tmp_path / "a.npz"], metadata=["size"], bad=BadRows())
    assert chunk.metadata["size"].cells == [1, 2]


def test_types_of_arrow(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    X, _ = tagged(0, n=2)
    times = pa.array([dt.datetime(2024, 1, 1), None], pa.timestamp("ns", tz="+02:00"))
    columns = {
        "d": pa.array([Decimal("1.25"), None]),
        "day": pa.array([dt.date(2024, 1, 1), None]),
        "when": times,
        "dictionary": pa.array(["a", None]).dictionary_encode(),
        "nothing": pa.nulls(2),
        "b": pa.array([b"x", None]),
        "list": pa.array([[1], [2]]),
    }
    parquet.write_table(pa.table({"features": list(X), **columns}), tmp_path / "a.parquet")
    inputs = open_inputs([tmp_path / "a.parquet"], metadata=[name for name in columns if name != "list"])
    (chunk,) = inputs
    assert {name: (it.type, it.cells) for name, it in chunk.metadata.items()} == {
        "d": ("real", [1.25, None]),
        "day": ("date", ["2024-01-01", None]),
        "when": ("datetime", ["2024-01-01T00:00:00", None]),
        "dictionary": ("text", ["a", None]),
        "nothing": (None, [None, None]),
        "b": ("text", ["x", None]),
    }
    with pytest.raises(InputError, match=r"column 'list' is list<.*>, expected numbers, text"):
        open_inputs([tmp_path / "a.parquet"], metadata=["list"])


def test_commands_take_and_show_them(tmp_path):
    X, tags = tagged(0)
    files_with(tmp_path, X, tags)
    run = CliRunner()
    at = ["--index", str(tmp_path / "i.woh")]
    small = ["--bits", "16", "--anchors", "10", "--instance-bits", "64"]
    done = run.invoke(
        main, ["build", str(tmp_path / "a.parquet"), *at, *small, "--metadata", "price", "--metadata", ODD]
    )
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in run.invoke(main, ["items", "--json", *at]).stdout.splitlines()]
    assert lines[3]["metadata"] == {"price": 0.75, ODD: "x3"}
    lines = run.invoke(main, ["query", "--id", "3", "-k", "2", "--json", *at]).stdout.splitlines()
    assert json.loads(lines[0])["metadata"][ODD].startswith("x")
    facts = run.invoke(main, ["info", *at]).stdout
    assert f"metadata\tprice (real), {ODD} (text)\n" in facts
    done = run.invoke(main, ["add", str(tmp_path / "a.npz"), *at, "--metadata", "tags"])
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: metadata 'tags' is what items have anyway; give the column another name\n",
    )
    assert set(TYPES) == {"integer", "real", "text", "boolean", "date", "datetime"}
