"""Files that are damaged, lie or mean harm: they work, or are refused in one line that names them.

Never another exception, never the end of the process, never more memory than twice the file and a fixed
allowance; see `fuzzing`. More examples: ``WOH_FULL=20 pytest tests/test_fuzz*.py`` tries 20 times as many.
"""

import gzip
import shutil
import struct
import zipfile

import numpy as np
import pytest
from conftest import length
from fuzzing import (
    chunk_members,
    csr_members,
    npy_bytes,
    npz_bytes,
    word_files,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def examples(n):
    return settings(max_examples=length(n), deadline=None, suppress_health_check=list(HealthCheck))


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
    "parts",  # bytes and how often; made only when they are needed: a process that holds them forks slowly
    [
        [(b"x", 40 << 20)],
        [(b"sea 1 2 3\n", 1), (b"x", 40 << 20)],
        [(b"2 3\nsea ", 1), (b"\0", 12), (b"x", 40 << 20)],
        [(b"2 3\n", 1), (b"x", 40 << 20), (b" ", 1), (b"\0", 12)],
        [(b"9 3\n", 1), (b"\0", 80 << 20)],
        [(b"999999999999999999 999999\nsea 1 2 3\n", 1)],
        [(b" ", 40 << 20)],
        [(b"\n", 10 << 20)],
    ],
    ids=["line", "long line", "long binary", "long word", "zeros", "huge claim", "blanks", "lines"],
)
def test_vectors_without_end(tried, folder, parts, zipped):
    """None needs memory for more than a line of it, zipped or not."""
    data = b"".join(piece * times for piece, times in parts)
    path = folder / "w.txt"
    path.write_bytes(gzip.compress(data, 1) if zipped else data)
    assert len(tried("vectors", path)) == 2
