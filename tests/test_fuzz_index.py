"""Indexes that are damaged, lie or mean harm; see `test_fuzz`."""

import json
import shutil
import sqlite3
import struct
from contextlib import closing, suppress

import numpy as np
import pytest
from conftest import drawn
from fuzzing import make_index
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from resealed import reseal
from test_fuzz import changes, damaged

from woh_faiss.store import Model


def examples(n):
    """An index is asked, and changed, in 18 ways."""
    return settings(max_examples=drawn(n), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("base") / "index.woh")


FILES = ["catalog.db", "codes.faiss", "ids.i64", "anchors.npy", "model-1.npz", "model-2.npz"]


def copy_of(base, folder):
    path = folder / "index.woh"
    shutil.rmtree(path, ignore_errors=True)
    return shutil.copytree(base, path)


@examples(40)
@given(st.sampled_from(FILES), changes)
def test_any_file_of_an_index_may_be_damaged_anywhere(tried, folder, base, name, changed):
    path = copy_of(base, folder)
    (path / name).write_bytes(damaged((path / name).read_bytes(), changed))
    tried("index", path)


@examples(15)
@given(st.binary(max_size=200), changes, st.sampled_from(["catalog.db-wal", "catalog.db-journal"]))
def test_so_may_the_logs_of_its_catalogue(tried, folder, base, noise, changed, name):
    path = copy_of(base, folder)
    wal = struct.pack(">6I", 0x377F0682, 3007000, 4096, 0, 1, 2) + noise
    (path / name).write_bytes(damaged(wal, changed))
    tried("index", path)


VALUES = [
    *(None, -1, 0, 1, 2**31, 2**63 - 1, -(2**63), 1.5, float("inf"), "", "x", "\0", "7", "7.5", "-8", "٣"),
    *("[]", "{}", "null", "[1]", '{"a": 1}', '{"balance": "x"}', '{"models": 3}', '["\\ud800"]', "[" * 5000),
    *('{"bits": "16"}', '{"bits": 8}', '{"seed": 1e999}', "9" * 5000, b"", b"\xff" * 8, b"\xff" * 40),
    *("model-9.npz", "../model-1.npz", "/dev/zero", "model-1.npz\n", "x" * 70000),
]
CELLS_OF = {
    "meta": ["name", "value"],
    "rounds": [
        *("round", "time", "kind", "n", "removed", "ntotal", "trained", "first_row", "end_row", "checksum"),
        *("model", "model_digest", "chunk_hash", "seconds", "health", "id_sums", "crc"),
    ],
    "tags": ["tag", '"column"', "count"],
    "vectors": ["tag", "vector"],
    "metadata_columns": ["slot", "name", "type", "round"],
    "metadata": ["row", "c0", "c1", "c2", "c31"],
    "items": ["id", "row", "key", "tags", "round", "trust", "crc"],
    "removed": ["row", "id", "key", "tags", "round", "trust", "crc", "removed"],
    "dead": ["block", "count", "bits", "crc"],
    "undo": ["round", "tags"],
    "spent": ["digest"],
    "early_features": ["row", "x"],
}


KEY_OF = {
    **{
        "meta": "name",
        "tags": "tag",
        "vectors": "tag",
        "rounds": "round",
        "items": "id",
        "removed": "row",
        "undo": "round",
        "dead": "block",
    },
    "spent": "digest",
    "early_features": "row",
    "metadata_columns": "slot",
    "metadata": "row",
}
#: Other values of the fields that `meta.state` holds.
STATES = {
    "models": [None, 3, ["../model-1.npz"], ["model-9.npz"], [], [1]],
    "anchors": [None, 3, "x"],
    "directories": [None, 3, [], {}, {"model-2.npz": 3}, {"model-2.npz": "x"}],
    **{
        name: [None, -1, 1.5, "1", True, 1, 5, 2**62, 2**63, 2**64, [], {}]
        for name in (
            "anchors_round",
            "generation",
            "next_id",
            "auto_end",
            "restorable",
            "recoded",
            "newest",
            "unknown",
        )
    },
}


def summed_anew(connection):
    """The sums fit: whoever wrote the values wrote those, too."""
    with suppress(Exception):
        reseal(connection)


@examples(40)
@given(st.sampled_from([(name, value) for name, values in STATES.items() for value in values]), st.booleans())
def test_the_state_may_say_anything(tried, folder, base, field, fits):
    path = copy_of(base, folder)
    with closing(sqlite3.connect(path / "catalog.db")) as connection:
        (text,) = connection.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()
        text = json.dumps(json.loads(text) | dict([field]))
        connection.execute("UPDATE meta SET value = ? WHERE name = 'state'", (text,))
        if fits:
            summed_anew(connection)
        connection.commit()
    tried("index", path)


@examples(50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([(t, c) for t, columns in CELLS_OF.items() for c in columns]),
            st.sampled_from(VALUES),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=2,
    ),
    st.booleans(),
)
def test_any_cell_of_the_catalogue_may_hold_anything(tried, folder, base, cells, fits):
    """With sums that tell, or that fit."""
    path = copy_of(base, folder)
    with closing(sqlite3.connect(path / "catalog.db")) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (table, column), value, row in cells:
            key = KEY_OF[table]
            # The last rows first: they are the state.
            which = f"SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1 OFFSET {row}"  # noqa: S608
            with suppress(sqlite3.IntegrityError, sqlite3.OperationalError):
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} IN ({which})", (value,))  # noqa: S608
        if fits:
            summed_anew(connection)
        connection.commit()
    tried("index", path)


@examples(50)
@given(
    name=st.sampled_from(["P", "mean", "width", "scale", "unit", "W", "C1", "C5", "n", "tags_a"]),
    shape=st.lists(st.integers(0, 12), max_size=3),
    dtype=st.sampled_from(["f8", ">f4", "i8", "U3", "c16", "b1", "M8[s]"]),
    fill=st.sampled_from([0, 1, -1, 3, np.nan, np.inf]),
    anchors=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_model_may_hold_other_arrays(tried, folder, base, name, shape, dtype, fill, anchors):
    """With a digest that fits: whoever wrote it wrote the catalogue, too. Reading must bear it."""
    path = copy_of(base, folder)
    with suppress(ValueError, OverflowError):  # NaN as a whole number
        array = np.full(shape, fill).astype(dtype)
        if anchors:
            np.save(path / "anchors.npy", array)
        else:
            with np.load(path / "model-2.npz") as found:
                arrays = {**found, name: array}
            np.savez(path / "model-2.npz", **arrays)
    with closing(sqlite3.connect(path / "catalog.db")) as connection:
        print_ = Model(path / "model-2.npz").digest
        connection.execute("UPDATE rounds SET model_digest = ? WHERE model = 'model-2.npz'", (print_,))
        reseal(connection)
        connection.commit()
    tried("reading", path)


def test_the_index_itself_passes_and_a_swapped_model_is_refused(tried, folder, base):
    path = copy_of(base, folder)
    (refused,) = tried("index", path)
    assert "id 100 was removed" in refused
    path = copy_of(base, folder)
    shutil.copy(path / "model-1.npz", path / "model-2.npz")
    messages = [message for message in tried("index", path) if message != refused]
    assert messages
    assert all("its SHA-256 is not the one in the catalogue" in message for message in messages)
