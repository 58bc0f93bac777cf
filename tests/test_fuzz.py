"""Files that are damaged, lie or mean harm: they work, or are refused in one line that names them.

Never another exception, never the end of the process, never more memory than twice the file and a fixed
allowance; see `fuzzing`. More examples: ``WOH_FUZZ=20 pytest tests/test_fuzz.py`` tries 20 times as many.
"""

import gzip
import json
import os
import shutil
import sqlite3
import struct
import zipfile
from contextlib import closing, suppress
from hashlib import sha256

import numpy as np
import pytest
from fuzzing import (
    Trier,
    chunk_members,
    csr_members,
    make_index,
    npy_bytes,
    npz_bytes,
    word_files,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from woh_faiss.store import sums

MORE = float(os.environ.get("WOH_FUZZ", "1"))


def examples(n):
    return settings(
        max_examples=max(1, int(n * MORE)), deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.fixture(scope="module")
def tried():
    trier = Trier()
    yield trier
    trier.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("base") / "index.woh")


#: Numbers that break arithmetic, in the widths that formats use.
EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1]
place = st.floats(0, 1, exclude_max=True)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), place, st.integers(1, 255)),
        st.tuples(st.just("edge"), place, st.sampled_from(EDGES)),
        st.tuples(st.just("cut"), place, st.just(0)),
        st.tuples(st.just("drop"), place, st.integers(1, 64)),
        st.tuples(st.just("twice"), place, st.integers(1, 4096)),
        st.tuples(st.just("bytes"), place, st.binary(min_size=1, max_size=8)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data, changes):
    data = bytearray(data)
    for kind, where, value in changes:
        at = int(where * len(data))
        if kind == "flip" and data:
            data[at] ^= value
        elif kind == "edge":
            width = 1 if value < 256 else 2 if value < 65536 else 4 if value < 2**32 else 8
            data[at : at + width] = value.to_bytes(width, "little")
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + value]
        elif kind == "twice":
            data[at:at] = data[at : at + value]
        elif kind == "bytes":
            data[at : at + len(value)] = value
    return bytes(data)


# ---- chunks ------------------------------------------------------------------------------------------

SEEDS = [chunk_members(), csr_members()]
dimension = st.one_of(
    st.integers(-2, 30), st.sampled_from([2**31, 2**40, 2**62, 2**63, 2**64, 10**30, True, 1.5, "3", None])
)
DTYPES = [
    *("<f4", ">f8", "<f2", "<i8", ">i2", "|u1", "|b1", "<u8", "<c8", "<U3", ">U2", "|S4", "|O", "<M8[ns]"),
    *("<m8[s]", "|V3", "<f16", "<U0", "<U99999999", "=i4", "|T", "i4,f4", "nonsense", "", 7, None),
    *([("a", "<f4"), ("b", "|O")], [("a", "<f4", (2**40,))], ("<f4", (2, 2))),
]


@st.composite
def npy_files(draw):
    """A header that says nearly anything, with a body that may fit it."""
    if draw(st.booleans()):
        return damaged(draw(st.sampled_from(sorted(SEEDS[0].values()))), draw(changes))
    shape = tuple(draw(st.lists(dimension, max_size=4)))
    order = draw(st.sampled_from([True, False, 2]))
    header = {"descr": draw(st.sampled_from(DTYPES)), "fortran_order": order}
    text = repr(header | {"shape": draw(st.sampled_from([shape, list(shape), "x"]))}).encode("latin-1")
    version = draw(st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]))
    length = len(text) if draw(st.integers(0, 9)) else draw(st.sampled_from(EDGES)) & 0xFFFF
    packed = struct.pack("<H" if version[0] == 1 else "<I", length)
    body = bytes(draw(st.sampled_from([0, 1, 8, 48, 84, 336, 5000])))
    return b"\x93NUMPY" + bytes(version) + packed + text + body


@examples(200)
@given(members=st.sampled_from(SEEDS), key=st.integers(0, 5), data=npy_files(), alone=st.booleans())
def test_an_npy_header_may_say_anything(tried, folder, members, key, data, alone):
    path = folder / "c.npz"
    path.write_bytes(data if alone else npz_bytes({**members, sorted(members)[key]: data}))
    tried("chunk", path)


@examples(60)
@given(members=st.sampled_from(SEEDS), key=st.integers(0, 5), data=npy_files())
def test_so_may_a_file_in_a_folder(tried, folder, members, key, data):
    path = folder / "c"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, content in {**members, sorted(members)[key]: data}.items():
        (path / name).write_bytes(content)
    tried("chunk", path)


@examples(200)
@given(st.sampled_from(SEEDS), st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), changes)
def test_an_archive_may_be_damaged_anywhere(tried, folder, members, method, changed):
    path = folder / "c.npz"
    path.write_bytes(damaged(npz_bytes(members, method), changed))
    tried("chunk", path)


#: (offset, width) of each number in an entry of a zip's directory, and in its end record.
ENTRY = [(4, 2), (6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)]
END = [(4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)]


@examples(150)
@given(
    st.sampled_from(SEEDS),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 10), st.sampled_from(EDGES)), min_size=1),
)
def test_a_zip_directory_may_lie(tried, folder, members, method, lies):
    """Encrypted, of another method, of another size, at another place, many or none."""
    data = bytearray(npz_bytes(members, method))
    entries = [at for at in range(len(data)) if data.startswith(b"PK\x01\x02", at)]
    for which, number, value in lies:
        start, fields = (data.rindex(b"PK\x05\x06"), END) if which == 6 else (entries[which], ENTRY)
        at, width = fields[number % len(fields)]
        data[start + at : start + at + width] = (value & (256**width - 1)).to_bytes(width, "little")
    path = folder / "c.npz"
    path.write_bytes(data)
    tried("chunk", path)


BOMB = npz_bytes({"features.npy": npy_bytes(np.zeros((80 << 20, 1), np.uint8))}, zipfile.ZIP_DEFLATED)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "message"),
    {
        "bomb": "more than 1000 times",
        "overlap": "in each other's place",
        "nested": "does not start with an .npy header",
        "twice": "holds key 'features' twice",
    }.items(),
)
def test_archives_that_mean_harm(tried, folder, name, message):
    members, path = chunk_members(), folder / "c.npz"
    if name == "bomb":
        zeros = npy_bytes(np.zeros((80 << 20, 1), np.uint8))
        data = npz_bytes({"features.npy": zeros}, zipfile.ZIP_DEFLATED)
    elif name == "nested":
        data = npz_bytes({**members, "tags.npy": npz_bytes(members)})
    elif name == "twice":
        with zipfile.ZipFile(path, "w") as archive:
            for _ in range(2):
                archive.writestr("features.npy", members["features.npy"])
        data = path.read_bytes()
    else:  # each array is all that is left of the file
        data = bytearray(npz_bytes(members))
        for at in [at for at in range(len(data)) if data.startswith(b"PK\x01\x02", at)]:
            rest = len(data) - int.from_bytes(data[at + 42 : at + 46], "little")
            data[at + 20 : at + 28] = struct.pack("<2I", rest, rest)
    path.write_bytes(data)
    (refusal,) = tried("chunk", path)
    assert message in refusal


def test_names_of_members_are_not_paths(tried, folder):
    path = folder / "c.npz"
    path.write_bytes(npz_bytes({**chunk_members(), "../up.npy": b"x", "/tags.npy": b"x", "a\\b": b"x"}))
    before = sorted(folder.parent.iterdir())
    assert tried("chunk", path) == []
    assert sorted(folder.parent.iterdir()) == before


# ---- word vectors ------------------------------------------------------------------------------------

WORD_FILES = word_files()


@examples(250)
@given(st.sampled_from(sorted(WORD_FILES)), changes)
def test_word_vectors_may_be_damaged_anywhere(tried, folder, name, changed):
    path = folder / "w.bin"
    path.write_bytes(damaged(WORD_FILES[name], changed))
    tried("vectors", path)


CELLS = ["1", "-0.5", "nan", "inf", "-inf", "1e999", "1_0", "0x1", "1\u00a0", "١", "", "a", "\0"]
ENDS = ["\n", "\r\n", " \n", "\t\n", "\x85", "\u2028", "\0\n", "\n\n", ""]
word = st.one_of(st.sampled_from(["sea", "", "\u00a0", "\x85", "\0", "😀", "a\tb", "é"]), st.text(max_size=3))


@examples(250)
@given(
    header=st.one_of(
        st.just(""),
        st.tuples(st.sampled_from([0, 1, 2, 3, 9, 10**17]), st.sampled_from([0, 1, 2, 3, 999999])).map(
            lambda pair: f"{pair[0]} {pair[1]}\n"
        ),
    ),
    rows=st.lists(
        st.tuples(word, st.lists(st.sampled_from(CELLS), min_size=2, max_size=3), st.sampled_from(ENDS)),
        max_size=4,
    ),
    encoding=st.sampled_from(["utf-8", "utf-16", "latin-1"]),
    zipped=st.booleans(),
)
def test_text_vectors_of_any_cells(tried, folder, header, rows, encoding, zipped):
    text = header + "".join(f"{name} {' '.join(cells)}{end}" for name, cells, end in rows)
    data = text.encode(encoding, "replace")
    path = folder / "w.txt"
    path.write_bytes(gzip.compress(data) if zipped else data)
    tried("vectors", path)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        b"x" * (40 << 20),
        b"sea 1 2 3\n" + b"x" * (40 << 20),
        b"2 3\nsea " + bytes(12) + b"x" * (40 << 20),
        b"2 3\n" + b"x" * (40 << 20) + b" " + bytes(12),
        b"9 3\n" + b"\0" * (80 << 20),
        b"999999999999999999 999999\nsea 1 2 3\n",
        b" " * (40 << 20),
        b"\n" * (10 << 20),
    ],
    ids=["line", "long line", "long binary", "long word", "zeros", "huge claim", "blanks", "lines"],
)
def test_vectors_without_end(tried, folder, data, zipped):
    """None needs memory for more than a line of it, zipped or not."""
    path = folder / "w.txt"
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    assert len(tried("vectors", path)) == 2


# ---- an index ----------------------------------------------------------------------------------------

FILES = ["catalog.db", "codes.faiss", "ids.i64", "anchors.npy", "model-1.npz", "model-2.npz"]


def copy_of(base, folder):
    path = folder / "index.woh"
    shutil.rmtree(path, ignore_errors=True)
    return shutil.copytree(base, path)


@examples(60)
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
        *("model", "fingerprint", "chunk_hash", "seconds", "health"),
    ],
    "tags": ["tag", '"column"', "count", "vector"],
    "items": ["id", "row", "key", "tags", "round"],
    "removed": ["row", "id", "key", "tags", "round", "removed"],
    "undo": ["round", "tag", '"column"', "count"],
    "spent": ["digest"],
}


KEY_OF = {
    **{"meta": "name", "tags": "tag", "rounds": "round", "items": "id", "removed": "row", "undo": "round"},
    "spent": "digest",
}
#: Other values of the fields that `meta.state` holds.
STATES = {
    "models": [None, 3, ["../model-1.npz"], ["model-9.npz"], [], [1]],
    "anchors": [None, 3, "x"],
    **{
        name: [None, -1, 1.5, "1", True, 1, 5, 2**62, 2**63, 2**64, [], {}]
        for name in ("anchors_round", "generation", "next_id", "auto_end", "restorable", "unknown")
    },
}


def summed_anew(connection):
    """The sums fit: whoever wrote the values wrote those, too."""
    with suppress(Exception):
        found = sums.Sums(connection)
        found.renew(*sums.SELECTS)
        found.store()


@examples(60)
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


@examples(90)
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
    name=st.sampled_from(["P", "mean", "width", "scale", "unit", "W", "C1", "C5", "adaptive_n", "tags_a"]),
    shape=st.lists(st.integers(0, 12), max_size=3),
    dtype=st.sampled_from(["f8", ">f4", "i8", "U3", "c16", "b1", "M8[s]"]),
    fill=st.sampled_from([0, 1, -1, 3, np.nan, np.inf]),
    anchors=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_model_may_hold_other_arrays(tried, folder, base, name, shape, dtype, fill, anchors):
    """With a fingerprint that fits: whoever wrote it wrote the catalogue, too. Reading must bear it."""
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
        print_ = sha256((path / "model-2.npz").read_bytes()).hexdigest()
        connection.execute("UPDATE rounds SET fingerprint = ? WHERE model = 'model-2.npz'", (print_,))
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
