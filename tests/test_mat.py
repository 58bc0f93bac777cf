"""MATLAB files of each version, as hashing papers hand them round."""

import io
import struct
import sys

import numpy as np
import pytest
from conftest import LENGTH, drawn
from numpy.testing import assert_array_equal
from scipy.io import savemat
from scipy.sparse import csc_matrix

from woh_faiss.errors import InputError
from woh_faiss.evaluation.datasets import read_mat
from woh_faiss.inputs.matlab.mat import open_mat, open_rows

X = np.arange(15, dtype=np.float64).reshape(5, 3)
Y = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0]])
L = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 1]])
PARTS = {"I_tr": X, "T_tr": Y, "L_tr": L, "I_te": X[:2] + 100, "T_te": Y[:2], "L_te": L[:2]}
TAGS = [["tag0"], ["tag1"], ["tag0", "tag1"], [], ["tag0"]]


def save73(path, variables):
    """As MATLAB writes version 7.3: HDF5 behind a header, transposed, sparse and cells as it does."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if isinstance(value, list):
                refs = file.create_dataset(name, (1, len(value)), h5py.ref_dtype)
                refs.attrs["MATLAB_class"] = np.bytes_("cell")
                for i, text in enumerate(value):
                    codes = np.frombuffer(text.encode("utf-16-le"), "<u2")
                    node = file.create_dataset(f"#refs#/{name}{i}", data=codes[:, None])
                    refs[0, i] = node.ref
            elif hasattr(value, "tocsc"):
                group = file.create_group(name)
                group.attrs["MATLAB_class"] = np.bytes_("double")
                group.attrs["MATLAB_sparse"] = np.uint64(value.shape[0])
                group["jc"] = value.indptr.astype(np.uint64)
                if value.nnz:
                    group["ir"], group["data"] = value.indices.astype(np.uint64), value.data
            else:
                node = file.create_dataset(name, data=np.asarray(value, np.float64).T)
                node.attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


def save5(path, variables):
    def cells(value):
        return np.array(value, dtype=object)[:, None] if isinstance(value, list) else value

    savemat(path, {name: cells(value) for name, value in variables.items()}, do_compression=True)


#: What is said of variables once they are read is tested with 7.3 alone: a read of version 5 takes a process.
SAVERS = pytest.mark.parametrize("save", [save5, save73])
#: Both at full length, of what is made of variables that another test reads from either version.
EITHER = SAVERS if LENGTH >= 1 else pytest.mark.parametrize("save", [save73])


def lists(chunk):
    return [chunk.tags.of_row(i) for i in range(len(chunk))]


def refused(*arguments, read=read_mat, **more):
    with pytest.raises(InputError) as caught:
        read(*arguments, **more)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set.mat"


@SAVERS
def test_parts_under_usual_names(save, path):
    save(path, PARTS)
    train, test = read_mat(path, "train"), read_mat(path, "test")
    assert_array_equal(train.features, X)
    assert lists(train) == TAGS
    assert_array_equal(train.labels, L)
    assert_array_equal(test.features, X[:2] + 100)
    assert_array_equal(test.labels, L[:2])


def test_parts_that_are_not_there_or_not_clear(path):
    save73(path, PARTS)
    assert "has the parts train, test; say which: part='train'" in refused(path)
    assert "no features of part 'database' under a usual name; it holds" in refused(path, "database")
    assert "part is 'val', expected one of train, test, database, all" in refused(path, "val")


@EITHER
def test_one_part_and_absent_tags(save, path):
    save(path, {"XDatabase": X, "databaseL": L})
    chunk = read_mat(path)
    assert chunk.tags is None
    assert_array_equal(chunk.labels, L)


@SAVERS
def test_names_are_the_users_and_messages_list_what_there_is(save, path):
    save(path, {"cnn": X, "words": Y, "gt": L, "names": ["sea ", "été"]})
    message = refused(path)
    for words in ("cnn (5 x 3 double)", "gt (5 x 3", "names (2 x 1 cell)", "features='...'"):
        assert words in message
    chunk = read_mat(path, features="cnn", tags="words", labels="gt", tag_names="names")
    assert lists(chunk)[2] == ["sea", "été"]
    mat = open_mat(path)
    assert "has no variable 'vgg'; it holds cnn (5 x 3 double)" in refused("vgg", read=mat.rows)
    assert "expected a full matrix" in refused("names", read=mat.rows)


def test_names_that_are_not_there_or_do_not_fit(path):
    save73(path, {"cnn": X, "words": Y})
    assert read_mat(path, features="cnn").tags is None
    assert lists(read_mat(path, features="cnn", tags="words", tag_names=["a", "b"]))[2] == ["a", "b"]
    assert "has no variable 'w'" in refused(path, features="cnn", tags="w")
    assert "features is not given" in refused(path, tags="words")
    assert "give one of them" in refused(path, "train", features="cnn")
    assert "there are 1 tag_names" in refused(path, features="cnn", tags="words", tag_names=["a"])


@SAVERS
def test_sparse_tags_and_labels(save, path):
    save(path, {"X": X, "Y": csc_matrix(Y.astype(float)), "L": csc_matrix(L.astype(float))})
    chunk = read_mat(path)
    assert lists(chunk) == TAGS
    assert_array_equal(chunk.labels, L)
    assert "expected a full matrix of real numbers" in refused(path, "Y", read=open_rows)
    save(path, {"X": X, "Y": csc_matrix((5, 2))})
    assert lists(read_mat(path)) == [[]] * 5


def test_sparse_ones_that_do_not_fit(path):
    save = save73
    save(path, {"X": X, "Y": csc_matrix(Y.astype(float))})
    named = read_mat(path, features="X", tags="Y", tag_names=["a", "b"])
    assert lists(named)[2] == ["a", "b"]
    save(path, {"X": X, "Y": csc_matrix((4, 2))})
    assert "tags have shape (4, 2) for 5 rows of features" in refused(path)
    save(path, {"X": X, "L": csc_matrix((4, 2))})
    assert "labels have shape (4, 2), expected 5 rows" in refused(path)


@EITHER
def test_class_numbers(save, path):
    save(path, {"X": X, "L": np.array([[1.0], [3], [2], [1], [1]])})
    assert np.argmax(read_mat(path).labels, axis=1).tolist() == [1, 3, 2, 1, 1]


def test_what_does_not_fit_is_refused(path):
    save73(path, {"X": X, "Y": Y * 0.5, "L": L[:4], "inf": np.full((2, 2), np.inf)})
    assert "(X, Y, L): tags of row 0, column 0 is 0.5, expected 0 or 1" in refused(path)
    assert "there are 4 labels for 5 rows" in refused(path, features="X", labels="L")
    assert "features of row 0 are not finite" in refused(path, features="inf")
    assert "(X, Y): tags" in refused(path, features="X", tags="Y")


@SAVERS
def test_rows_of_a_matrix(save, path):
    save(path, {"cnn": X})
    rows = open_rows(path)
    assert tuple(rows.shape) == (5, 3)
    assert_array_equal(rows[1:3], X[1:3])
    save(path, {"a": X, "b": X})
    with pytest.raises(InputError, match=r"holds a \(5 x 3 double\), b .*; say which"):
        open_rows(path)
    assert_array_equal(open_rows(path, "b")[0:5], X)


def test_version_7_3_without_h5py(path, monkeypatch):
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512))
    monkeypatch.setitem(sys.modules, "h5py", None)
    message = refused(path)
    assert "is a .mat file of version 7.3, which h5py reads: install woh-faiss[mat], or save it" in message


def test_other_files_are_refused(path, tmp_path):
    assert "does not exist; give an .npy, .npz or .mat file" in refused(path)
    assert "is not a regular file" in refused(tmp_path)
    for data in (b"", b"hello", b"\0" * 200, b"MATLAB 7.3 MAT-file".ljust(600)):
        path.write_bytes(data)
        refused(path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n".ljust(100))
    assert "HDF5 but not MATLAB's" in refused(path)


def test_a_variable_twice_is_refused(path, tmp_path):
    savemat(path, {"X": X})
    header, body = path.read_bytes()[:128], path.read_bytes()[128:]
    path.write_bytes(header + body + body)
    assert "holds variable 'X' twice" in refused(path)


def test_hdf5_that_points_elsewhere_or_claims_too_much(path, tmp_path):
    h5py = pytest.importorskip("h5py")
    save73(tmp_path / "other.mat", {"X": X})
    save73(path, {"L": L})
    with h5py.File(path, "r+") as file:
        file["X"] = h5py.ExternalLink("other.mat", "X")
        file["soft"] = h5py.SoftLink("/L")
        file.create_dataset("big", (1 << 20, 1 << 10), "f8", chunks=(1 << 10, 1 << 10))
        file.create_dataset("raw", (2, 2), "f8", external=[(str(tmp_path / "raw.bin"), 0, 32)])
        layout = h5py.VirtualLayout((5, 3), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.mat", "X", (5, 3))
        file.create_virtual_dataset("virtual", layout)
    assert "no variable 'X'" in refused(path, features="X")
    assert "no variable 'soft'" in refused(path, features="soft")
    assert "claims 8589934592 bytes and holds 0" in refused(path, features="big")
    assert "lies in other files" in refused(path, features="raw")
    assert "lies in other files" in refused(path, features="virtual")


def mat_bytes(compress):
    buffer = io.BytesIO()
    savemat(buffer, {"X": X, "Y": csc_matrix(Y.astype(float)), "L": L}, do_compression=compress)
    return buffer.getvalue()


@pytest.mark.parametrize("seed", range(drawn(40)))
def test_damage_is_an_input_error_or_harmless(path, seed):
    """Cut or changed anywhere behind the 128 bytes that say which format it is."""
    rng = np.random.default_rng(seed)
    whole = bytearray(mat_bytes(compress=bool(seed % 2)))
    for _ in range(rng.integers(4)):
        whole[rng.integers(128, len(whole))] = rng.integers(256)
    path.write_bytes(whole if seed % 3 else whole[: rng.integers(len(whole))])
    try:
        chunk = read_mat(path)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert chunk.features.ndim == 2


def test_a_file_that_ends_scipy_s_process_is_an_input_error(path):
    """SciPy 1.17 looks numbers of types up without comparing them with how many there are."""
    whole = mat_bytes(compress=False)
    at = whole.index(b"Y", 128)
    at = whole.index(struct.pack("<I", 5), at)  # the type of the row numbers
    path.write_bytes(whole[:at] + b"\x7f" + whole[at + 1 :])
    assert "set.mat: variable 'Y' cannot be read (" in refused(path)


def test_what_matlab_writes_byte_by_byte(path):
    """Big-endian, small elements, numbers stored narrower than their class, an unnamed variable."""

    def element(kind, data):
        if len(data) <= 4:
            return struct.pack(">HH", len(data), kind) + data.ljust(4, b"\0")
        return struct.pack(">II", kind, len(data)) + data + b"\0" * (-len(data) % 8)

    def variable(kind, name, numbers):
        flags = element(6, struct.pack(">II", kind, 0))
        return element(14, flags + element(5, struct.pack(">ii", 2, 2)) + element(1, name) + numbers)

    narrow = element(2, bytes([1, 2, 3, 4]))
    wide = element(9, np.array([1.5, 2, 3, 4], ">f8").tobytes())
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\1\0MI"
    variables = [(6, b"small", narrow), (6, b"X", wide), (9, b"", narrow)]
    path.write_bytes(header + b"".join(variable(*each) for each in variables))
    assert_array_equal(read_mat(path).features, [[1.5, 3], [2, 4]])
    mat = open_mat(path)
    small = mat.rows("small")[0:2]
    assert small.dtype == np.float64
    assert_array_equal(small, [[1, 3], [2, 4]])
    assert "it holds small (2 x 2 double), X (2 x 2 double)" in refused("x", read=mat.rows)


def test_a_bomb_is_refused(path):
    savemat(path, {"X": np.zeros((1 << 12, 1 << 12))}, do_compression=True)
    whole = path.read_bytes()
    assert len(whole) < 1 << 18
    with pytest.raises(InputError, match="claims"):
        read_mat(path, features="X")


def test_classes_keep_their_dtype(path):
    save5(path, {name: np.eye(2, dtype=dtype) for name, dtype in (("A", "f4"), ("B", "i1"), ("X", "?"))})
    assert read_mat(path).features.dtype == bool
    mat = open_mat(path)
    for name, dtype in (("A", "f4"), ("B", "i1"), ("X", "?")):
        features = mat.rows(name)[0:2]
        assert features.dtype == np.dtype(dtype)
        assert_array_equal(features, np.eye(2))


def test_what_is_no_matrix_and_no_text_is_refused(path):
    mixed = np.array([["a", 1.0]], dtype=object)
    savemat(path, {"A": np.array([[{"a": 1}]]), "B": {"a": 1.0}, "C": X + 1j, "D": mixed})
    mat = open_mat(path)
    for name in "ABCD":
        assert f"set.mat: variable '{name}'" in refused(name, read=mat.rows)
