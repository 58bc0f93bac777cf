import ast
import io
import os
import struct
import zipfile

import numpy as np
import pytest
from conftest import length
from failing_parser import FailingParser
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.inputs.chunk import Chunk, read_chunk
from woh_faiss.io import npz
from woh_faiss.io.npz import read_arrays

ARRAYS = {
    "features": np.arange(12, dtype=np.float32).reshape(4, 3),
    "tags": np.array(["sea sun", "", "cat", "été;"]),
    "ids": np.arange(4),
    "labels": np.array([[0, 1], [1, 0], [1, 1], [0, 0]], dtype=np.uint8),
}
CSR_ARRAYS = {
    "features": ARRAYS["features"].astype(np.float16),
    "tags_data": np.ones(3, np.uint8),
    "tags_indices": np.array([1, 0, 1], np.int32),
    "tags_indptr": np.array([0, 1, 1, 2, 3], np.int32),
    "tags_shape": np.array([4, 2]),
    "tag_names": np.array(["sea", "sun"]),
    "keys": np.array(["a", "b", "c", "d"]),
    "groups": np.array([0.5, 0.5, 1.0, 2.0]),
}


def npy_bytes(array):
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def npy_header(shape, descr="<f4", version=1, fortran=False):
    text = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text


def zip_bytes(members, method=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def npz_bytes(arrays, method=zipfile.ZIP_STORED):
    return zip_bytes([(f"{key}.npy", npy_bytes(array)) for key, array in arrays.items()], method)


def refused(path):
    """The message of the InputError that must come: one line that names the file."""
    with pytest.raises(InputError) as caught:
        read_chunk(path)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


@pytest.fixture
def file(tmp_path):
    def write(data, name="photos.npz"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


# --- what is accepted -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["photos.npz", "photos.npy", "photos"])
def test_content_decides_not_the_name(file, name):
    chunk = read_chunk(file(npz_bytes(ARRAYS), name))
    assert chunk.tags.of_row(3) == ["été"]
    features = read_chunk(file(npy_bytes(ARRAYS["features"]), "f-" + name))
    assert not features.features.flags.writeable
    assert_array_equal(features.features, ARRAYS["features"])
    assert features.tags is features.ids is None


def test_paths_may_be_text_or_bytes(file):
    path = file(npz_bytes(ARRAYS))
    assert len(read_chunk(str(path))) == len(read_chunk(os.fsencode(path))) == 4


def test_a_map_cannot_be_written(file):
    chunk = read_chunk(file(npy_bytes(ARRAYS["features"])))
    with pytest.raises(ValueError, match="read-only"):
        chunk.features[0, 0] = 1


def test_only_what_is_asked_for_is_read(file):
    """A damaged or pickled array that nobody needs does no harm."""
    junk = [
        ("notes.npy", b"junk"),
        ("extra.npy", npy_bytes(np.array([{}], dtype=object))),
        ("readme.txt", b"hello"),
    ]
    path = file(zip_bytes([("features.npy", npy_bytes(ARRAYS["features"])), *junk]))
    assert list(read_arrays(path, "features", ["tags"])) == ["features"]


def test_npy_format_2_and_python_2_headers(file):
    body = ARRAYS["features"].tobytes()
    assert_array_equal(read_chunk(file(npy_header((4, 3), version=2) + body)).features, ARRAYS["features"])
    old = npy_header((4, 3)).replace(b"(4, 3)", b"(4L, 3)")
    old = old[:8] + struct.pack("<H", len(old) - 10) + old[10:]
    assert_array_equal(read_chunk(file(old + body)).features, ARRAYS["features"])
    assert_array_equal(
        read_chunk(file(zip_bytes([("features.npy", old + body)]))).features, ARRAYS["features"]
    )


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [{0}, {1}, {0, 2}])  # of calls; a header is evaluated twice
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_header_is_evaluated_again_where_the_parser_fails(file, monkeypatch, method, failures):
    """Python 3.11's may, now and then, where other threads use it."""
    path, parser = file(npz_bytes({"features": ARRAYS["features"]}, method)), FailingParser(failures)
    monkeypatch.setattr(ast, "literal_eval", parser)
    assert_array_equal(read_arrays(path, "features", ())["features"], ARRAYS["features"])
    assert parser.calls == 2 + len(failures)


def test_a_parser_that_always_fails_is_a_damaged_header(file, monkeypatch):
    path = file(npz_bytes(ARRAYS))
    monkeypatch.setattr(ast, "literal_eval", FailingParser(range(9)))
    with pytest.raises(InputError, match="does not start with an"):
        read_arrays(path, "features", ())


def test_missing_paths_and_empty_folders(tmp_path):
    assert f"{tmp_path}/none.npz does not exist" in refused(tmp_path / "none.npz")
    assert f"{tmp_path} has no key 'features'; it holds nothing" in refused(tmp_path)
    (tmp_path / "features.npy").mkdir()
    np.save(tmp_path / "feature.npy", ARRAYS["features"])
    assert "has no key 'features'; it holds 'feature'" in refused(tmp_path)
    assert r"a\x00b does not exist" in refused("a\0b")
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(tmp_path / "pipe")


def test_a_path_with_a_line_end_is_escaped(tmp_path):
    assert r"\nb does not exist" in refused(tmp_path / "a\nb")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "neither an .npz nor an .npy file (it starts with b'')"),
        (b"\x80\x04\x95pickle", "neither an .npz nor an .npy file"),
        (b"a,b\n1,2\n", "write it with np.savez(path, features=...)"),
        (zip_bytes([]), "has no key 'features'; it holds nothing"),
        (
            npz_bytes({"tags": ARRAYS["tags"], "X": ARRAYS["ids"]}),
            "has no key 'features'; it holds 'X', 'tags'",
        ),
        (zip_bytes([("a\nb", b"")]), r"it holds 'a\nb'"),
        (npz_bytes(ARRAYS)[:-30], "cannot be read (BadZipFile: File is not a zip file)"),
        (b"PK\x03\x04junk", "cannot be read (BadZipFile"),
        (zip_bytes([("features.npy", b"junk")]), "key 'features' does not start with an .npy header"),
        (zip_bytes([("features.npy", b"")]), "key 'features' does not start with an .npy header"),
        (zip_bytes([("features.npy", npy_bytes(ARRAYS["features"])[:-1])]), "48 bytes, but holds 47"),
        (zip_bytes([("features.npy", npy_bytes(ARRAYS["features"]) + b"x")]), "48 bytes, but holds 49"),
        (zip_bytes([("features.npy", b"x")], zipfile.ZIP_BZIP2), "is compressed with zip method 12"),
        (npy_bytes(np.array([[1], "a"], dtype=object)), "photos.npz is a pickled object array"),
        (
            npy_bytes(np.zeros(3, dtype="f4,i4")),
            "dtype [('f0', '<f4'), ('f1', '<i4')], expected plain numbers",
        ),
        (npy_header((2, 2), "<V2") + bytes(8), "dtype |V2, expected plain numbers"),
        (npy_header((10**12,), "<U0"), "expected plain numbers or strings"),
        (npy_header((10**12, 10**3)) + b"1234", "4000000000000000 bytes, but holds 4"),
        (npy_header((10**40,)) + b"1234", "bytes, but holds 4"),
        (npy_header((-1, -1)) + b"1234", "its shape is (-1, -1)"),
        (npy_header((0, 10**12)), "a chunk needs at least one row"),
        (npy_header((10**40, 0)), "cannot be read"),
        (npy_header((1, 1), "<q9z") + bytes(8), "does not start with an .npy header"),
        (npy_header((1, 1), version=3) + bytes(4), "does not start with an .npy header"),
        (b"\x93NUMPY\x09\x00" + bytes(90), "does not start with an .npy header"),
        (b"\x93NUMPY\x01\x00\x02\x00((", "does not start with an .npy header"),
        (b"\x93NUMPY\x01\x00\xd0\x07" + b"(" * 2000, "does not start with an .npy header"),
        (npy_bytes(ARRAYS["features"])[:40], "does not start with an .npy header"),
    ],
    ids=lambda part: part if isinstance(part, str) else "bytes",  # zips have the time in them
)
def test_files_that_are_not_a_chunk(file, data, expected):
    assert expected in refused(file(data))


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_an_object_array_says_how_to_save(tmp_path, form):
    tags = np.array([["a"], ["b", "c"], [], ["d"]], dtype=object)
    path = tmp_path / "photos"
    if form == "npz":
        path.write_bytes(npz_bytes({**ARRAYS, "tags": tags}))
    else:
        path.mkdir()
        np.save(path / "features.npy", ARRAYS["features"])
        np.save(path / "tags.npy", tags)
    message = refused(path)
    assert f"{path}: key 'tags' is a pickled object array" in message
    assert "save text as strings: np.array([...], dtype=str)" in message


def test_a_pickle_is_never_run(file, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    refused(file(npz_bytes({"features": np.array([Bomb()], dtype=object)})))
    assert not (tmp_path / "ran").exists()


def test_a_short_file_in_a_folder(tmp_path):
    for key, array in ARRAYS.items():
        np.save(tmp_path / f"{key}.npy", array)
    path = tmp_path / "features.npy"
    path.write_bytes(path.read_bytes()[:-4])
    assert f"{tmp_path}: key 'features' claims shape (4, 3) of float32, 48 bytes, but holds 44" in refused(
        tmp_path
    )


def test_an_unreadable_file_is_one_line(file, monkeypatch):
    path = file(npz_bytes(ARRAYS))

    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(npz.Path, "open", deny)
    assert "cannot be read (PermissionError: [Errno 13] Permission denied)" in refused(path)


def test_a_key_stored_twice(file):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zip_bytes([("features.npy", npy_bytes(ARRAYS["features"]))] * 2)
    assert "holds key 'features' twice" in refused(file(data))


def central(data, offset, value, form):
    """The zip with one field of its only central directory entry overwritten."""
    at = data.index(b"PK\x01\x02") + offset
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def test_lies_in_the_zip_directory(file):
    data = npz_bytes({"features": ARRAYS["features"]})
    assert "is encrypted" in refused(file(central(data, 8, 1, "<H")))
    assert "it is cut short" in refused(file(central(data, 20, 10**9, "<I")))
    assert "more than 1000 times" in refused(file(central(data, 24, 10**9, "<I")))
    assert "48 bytes, but holds 1048" in refused(file(central(data, 24, 128 + 48 + 1000, "<I")))
    assert "Bad CRC-32" in refused(file(central(data, 16, 1, "<I")))


def test_data_that_ends_before_its_claim(file):
    """Header and directory agree on more than the member really has."""
    claim = npy_header((100, 3))
    data = central(zip_bytes([("features.npy", claim)], zipfile.ZIP_DEFLATED), 24, len(claim) + 1200, "<I")
    assert "key 'features' cannot be read" in refused(file(data))


def test_a_zip_bomb_is_refused_and_zeros_of_a_usual_size_are_not(file):
    def zeros(n):
        return zip_bytes([("features.npy", npy_header((n, 1), "|u1") + bytes(n))], zipfile.ZIP_DEFLATED)

    assert len(read_chunk(file(zeros(1 << 20)))) == 1 << 20
    assert "more than 1000 times" in refused(file(zeros((64 << 20) + 1)))


# --- anything at all --------------------------------------------------------------------------------

damage = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4)
cut = st.one_of(st.none(), st.floats(0, 1))


def damaged(data, flips, keep):
    data = bytearray(data)
    for place, mask in flips:
        data[int(place * len(data))] ^= mask
    return bytes(data if keep is None else data[: int(keep * len(data))])


def chunk_or_input_error(path):
    """Any other error, or any warning, fails the test."""
    message = ""
    try:
        chunk = read_chunk(path)
    except InputError as error:
        message = str(error)
    if message:
        assert message.isprintable()
        return
    assert isinstance(chunk, Chunk)
    if chunk.tags is not None:
        assert all(isinstance(tag, str) for i in range(len(chunk)) for tag in chunk.tags.of_row(i))
    chunk.rows(slice(0, 1))


ARCHIVES = [npz_bytes(a, m) for a in (ARRAYS, CSR_ARRAYS) for m in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]


@settings(max_examples=length(300), deadline=None)
@given(st.sampled_from(ARCHIVES), damage, cut)
def test_a_damaged_archive_is_a_chunk_or_an_input_error(tmp_path_factory, data, flips, keep):
    path = tmp_path_factory.getbasetemp() / "fuzz.npz"
    path.write_bytes(damaged(data, flips, keep))
    chunk_or_input_error(path)


@settings(max_examples=length(300), deadline=None)
@given(st.sampled_from([(a, k) for a in (ARRAYS, CSR_ARRAYS) for k in a]), damage, cut, st.booleans())
def test_a_damaged_array_is_a_chunk_or_an_input_error(tmp_path_factory, which, flips, keep, whole_file):
    """Behind a CRC that fits, or in a file of its own: nothing but our checks stands in the way."""
    arrays, key = which
    members = {k: npy_bytes(a) for k, a in arrays.items()}
    members[key] = damaged(members[key], flips, keep)
    path = tmp_path_factory.getbasetemp() / "fuzz.npz"
    path.write_bytes(
        members[key] if whole_file else zip_bytes([(f"{k}.npy", data) for k, data in members.items()])
    )
    chunk_or_input_error(path)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(24, dtype=">i2").reshape(2, 3, 4)[:, ::-1, ::2],
        np.array(3.5),
        np.array(True),
        np.empty((0, 5), np.float32),
        np.array(["a", "ü€"]),
        np.array(["2026-11-28"], "M8[D]"),
        np.array([1 + 2j]),
        np.array([""], "U0"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_write_npz_writes_what_numpy_reads_and_the_same_bytes_each_time(tmp_path, array):
    written = []
    for name in ("a.npz", "b.npz"):
        with (tmp_path / name).open("wb") as file:
            npz.write_npz(file, {"one": array, "two": array})
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        for name in ("one", "two"):
            np.testing.assert_array_equal(found[name], array)
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
