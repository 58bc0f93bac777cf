import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse

from woh_faiss.errors import InputError
from woh_faiss.inputs import chunk
from woh_faiss.inputs.chunk import Chunk, TagLists, read_chunk

X3 = np.arange(6, dtype=np.float32).reshape(3, 2)
# Text that survives the string form: no ';', not blank at the ends, no quote at the start, which would keep
# what follows whole, no NUL (numpy drops trailing ones).
tag = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=";"), min_size=1, max_size=6
).filter(lambda text: text == text.strip() and text[0] != '"')
tag_lists = st.lists(st.lists(tag, max_size=4, unique=True), min_size=1, max_size=7)


def as_lists(tags):
    return [tags.of_row(i) for i in range(len(tags))]


def refused(function, *arguments, **named):
    """The message of the InputError that must come, which must be one line."""
    with pytest.raises(InputError) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def matrix(lists):
    """Oracle: the 0/1 matrix of the lists, columns in sorted order, one cell at a time."""
    names = sorted({tag for row in lists for tag in row})
    return np.array([[int(name in row) for name in names] for row in lists]).reshape(len(lists), -1), names


# --- TagLists ---------------------------------------------------------------------------------------


@given(tag_lists)
def test_lists_come_back_as_written(lists):
    tags = TagLists.from_lists(lists)
    assert len(tags) == len(lists)
    assert as_lists(tags) == lists
    assert tags.names == tuple(dict.fromkeys(tag for row in lists for tag in row))
    assert tags.indptr.dtype == tags.indices.dtype == np.int64


def test_lists_drop_blanks_and_second_mentions_but_keep_spelling():
    tags = TagLists.from_lists([[" Cat ", "cat", "", "  ", "Cat"], (), np.array(["dog"])])
    assert as_lists(tags) == [["Cat", "cat"], [], ["dog"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sea sun", ["sea", "sun"]),
        ("  sea\t sun\n", ["sea", "sun"]),
        ("golden gate;sea", ["golden gate", "sea"]),
        ("golden gate;", ["golden gate"]),
        (";; ;", []),
        ("", []),
        ("sun sun", ["sun"]),
        ("été 海", ["été", "海"]),
    ],
)
def test_strings_split(text, expected):
    assert TagLists.from_strings([text]).of_row(0) == expected
    assert TagLists.from_strings(np.array([text.encode()])).of_row(0) == expected
    assert TagLists.from_strings(np.array([text], dtype=object)).of_row(0) == expected


@pytest.mark.skipif(not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"), reason="numpy 1")
def test_string_dtype_is_text():
    made = Chunk.of(
        X3,
        np.array(["a b", "", "c;"], np.dtypes.StringDType()),
        ids=np.array(list("xyz"), np.dtypes.StringDType()),
    )
    assert as_lists(made.tags) == [["a", "b"], [], ["c"]]
    assert made.keys.tolist() == ["x", "y", "z"]
    assert made.keys.dtype.kind == "U"


@given(tag_lists)
def test_dense_and_csr_agree_with_the_matrix(lists):
    dense, names = matrix(lists)
    expected = [sorted(row) for row in lists]
    assert as_lists(TagLists.from_dense(dense, names)) == expected
    assert as_lists(TagLists.from_dense(dense.astype(bool), names)) == expected
    csr = sparse.csr_matrix(dense)
    parts = (csr.data, csr.indices, csr.indptr, csr.shape)
    assert as_lists(TagLists.from_csr(*parts, names)) == expected
    assert TagLists.from_csr(*parts).names == tuple(f"tag{j}" for j in range(len(names)))


def test_csr_keeps_the_order_of_entries_and_drops_zeros():
    tags = TagLists.from_csr([1, 0, 1, 1.0], [2, 1, 0, 1], [0, 3, 3, 4], (3, 3), ["a", "b", "c"])
    assert as_lists(tags) == [["c", "a"], [], ["b"]]


@given(tag_lists, st.data())
def test_rows_agree_with_lists(lists, data):
    n = len(lists)
    row = st.integers(-n, n - 1)
    tags = TagLists.from_lists(lists)
    made = Chunk.of(
        np.arange(n)[:, None], tags, ids=np.arange(n) + 5, labels=np.arange(n), groups=np.arange(n)
    )
    cut = data.draw(st.slices(n))
    picks = data.draw(st.lists(row, max_size=9))
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    for select, expected in [
        (cut, list(range(n))[cut]),
        (np.array(picks, dtype=int), [range(n)[i] for i in picks]),
        (np.array(mask), [i for i in range(n) if mask[i]]),
    ]:
        assert as_lists(tags.rows(select)) == [lists[i] for i in expected]
        part = made.rows(select)
        assert len(part) == len(part.tags) == len(expected)
        assert as_lists(part.tags) == [lists[i] for i in expected]
        assert part.features[:, 0].tolist() == part.groups.tolist() == expected
        assert part.ids.tolist() == [i + 5 for i in expected]
        assert [row.argmax() for row in part.labels] == expected


def test_rows_of_a_bare_chunk_and_of_keys():
    assert Chunk.of(X3).rows(slice(1, 2)).tags is None
    part = Chunk.of(X3, keys=["a", "b", "c"]).rows(np.array([2, 0]))
    assert part.keys.tolist() == ["c", "a"]
    assert part.ids is part.labels is part.groups is None


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ([["a"], "b c"], "tags of row 1 are 'b c', expected a list of str"),
        ([["a"], None], "tags of row 1 are None, expected a list of str"),
        ([["a"], ["b", 3]], "tags of row 1: entry 1 is 3, expected a str"),
        ([["a", "b\0c"]], r"tags of row 0: entry 1 is 'b\x00c', which holds a NUL character"),
        ([["\ud800"]], r"entry 0 is '\ud800', not UTF-8 text"),
        ([[b"\xff"]], r"entry 0 is b'\xff', not UTF-8 text"),
        ([np.array([1.5])], "tags of row 0 have shape (1,) and dtype float64, expected 1-D strings"),
        ([["a" * 99 + "\0"]], "'" + "a" * 56 + "..."),
    ],
)
def test_bad_lists(lists, expected):
    assert expected in refused(TagLists.from_lists, lists)


@pytest.mark.parametrize("order", ["<", ">"])
def test_numbers_that_are_no_characters_are_refused(order):
    damaged = np.array([65, 0, 66, 0x7FFFFFFF], dtype=order + "u4").view(order + "U2")
    assert "row 1 is not Unicode text" in refused(TagLists.from_strings, damaged)


@pytest.mark.parametrize(
    ("dense", "names", "expected"),
    [
        ([[0, 1], [2, 0]], None, "tags of row 1, column 0 is 2, expected 0 or 1"),
        ([[0, np.nan]], None, "tags of row 0, column 1 is nan"),
        ([0, 1], None, "tags have shape (2,) and dtype int64, expected a 1-D string array"),
        ([[1j]], None, "dtype complex128"),
        ([["a", "b"]], None, "dtype <U1"),
        ([[0], [0, 1]], None, "tags are not an array"),
        ([[0, 1]], ["a"], "there are 1 tag_names for 2 columns of tags"),
        ([[0, 1]], ["a", "a"], "tag_names: 'a' names columns 0 and 1"),
        ([[0, 1]], ["a", " "], "tag_names: column 1 is blank"),
        ([[0, 1]], ["a", 2], "tag_names: column 1 is 2, expected a str"),
    ],
)
def test_bad_dense(dense, names, expected):
    assert expected in refused(TagLists.from_dense, dense, names)


GOOD_CSR = {"data": [1, 1], "indices": [0, 1], "indptr": [0, 1, 2], "shape": (2, 2)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shape": (3, 2)}, "tags_indptr have shape (3,) and dtype int64, expected 4 1-D integers"),
        ({"shape": (2, 2, 2)}, "tags_shape have shape (3,)"),
        ({"shape": (-1, 2)}, "tags_shape is (-1, 2)"),
        ({"shape": (2, -1)}, "tags_shape is (2, -1)"),
        ({"shape": (2.0, 2.0)}, "tags_shape have shape (2,) and dtype float64"),
        ({"shape": (2, 1)}, "tags_indices has 1 in row 1, expected 0 to 0"),
        ({"shape": (2, 2**62)}, f"{2**62} columns without names"),
        ({"indices": [0, -1]}, "tags_indices has -1 in row 1"),
        ({"indices": np.array([0, 2**64 - 1], np.uint64)}, "tags_indices has -1 in row 1"),
        ({"indices": [0.0, 1.0]}, "tags_indices have shape (2,) and dtype float64"),
        ({"indices": [0]}, "tags_data have shape (2,), tags_indices (1,)"),
        ({"indptr": [0, 2, 1]}, "tags_indptr decreases after row 1"),
        ({"indptr": [0, 2**63 - 1, -(2**63)]}, "tags_indptr decreases after row 1"),
        ({"indptr": [0, 1, 1]}, "tags_indptr runs from 0 to 1, expected 0 to 2"),
        ({"indptr": [1, 1, 2]}, "tags_indptr runs from 1 to 2"),
        ({"data": [1, 3]}, "tags_data has 3 in row 1, expected 0 or 1"),
        ({"data": [1, np.nan]}, "tags_data has nan in row 1"),
        ({"data": ["1", "1"]}, "tags_data have dtype <U1"),
        ({"indices": [1, 1], "indptr": [0, 0, 2]}, "tags give column 1 twice in row 1"),
        ({"names": ["a"]}, "there are 1 tag_names for 2 columns"),
    ],
)
def test_bad_csr(change, expected):
    assert as_lists(TagLists.from_csr(**GOOD_CSR)) == [["tag0"], ["tag1"]]
    assert expected in refused(TagLists.from_csr, **{**GOOD_CSR, **change})


# --- Chunk.of ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tags",
    [
        TagLists.from_lists([["tag1"], [], ["tag0", "tag1"]]),
        ["tag1", "", "tag0;tag1"],
        ("tag1", "", "tag0 tag1"),
        np.array(["tag1", "", "tag0 tag1"]),
        np.array(["tag1", "", "tag0 tag1"], dtype=object),
        np.array([b"tag1", b"", b"tag0 tag1"]),
        [["tag1"], [], ["tag0", "tag1"]],
        np.array([["tag1"], [], ["tag0", "tag1"]], dtype=object),
        [np.array(["tag1"]), np.array([], str), np.array(["tag0", "tag1"])],
        [[0, 1], [0, 0], [1, 1]],
        np.array([[0, 1], [0, 0], [1, 1]], dtype=bool),
        np.array([[0, 1], [0, 0], [1, 1]], dtype=object),
        sparse.csr_matrix([[0, 1], [0, 0], [1, 1]]),
        sparse.coo_matrix([[0, 1], [0, 0], [1, 1]], dtype=np.float32),
        sparse.csr_array(np.array([[0, 1], [0, 0], [1, 1]], dtype=bool)),
    ],
)
def test_every_form_of_tags(tags):
    assert as_lists(Chunk.of(X3, tags).tags) == [["tag1"], [], ["tag0", "tag1"]]


def test_sparse_with_room_behind_the_last_entry():
    roomy = sparse.csr_matrix((np.ones(5), np.array([1, 0, 1, 0, 0]), np.array([0, 1, 1, 3])), shape=(3, 2))
    assert as_lists(Chunk.of(X3, roomy).tags) == [["tag1"], [], ["tag0", "tag1"]]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i4", "u1", "?"])
def test_features_keep_their_dtype_and_are_not_copied(dtype):
    X = np.asfortranarray(np.eye(3, 4).astype(dtype))
    made = Chunk.of(X)
    assert made.features.dtype == np.dtype(dtype)
    assert np.shares_memory(made.features, X)
    assert len(made) == 3


def test_ids_keys_labels_groups():
    made = Chunk.of(
        X3, ids=[7, 0, 2**62], keys=["b", "a", "é"], labels=[[0, 1], [1, 1], [0, 0]], groups=["u", "u", "v"]
    )
    assert made.ids.dtype == np.int64
    assert made.ids.tolist() == [7, 0, 2**62]
    assert made.keys.tolist() == ["b", "a", "é"]
    assert made.labels.dtype == bool
    assert_array_equal(made.labels, [[0, 1], [1, 1], [0, 0]])
    assert made.groups.tolist() == ["u", "u", "v"]


def test_class_numbers_become_one_hot():
    labels = Chunk.of(X3, labels=np.array([2, 0, 2], np.uint8)).labels
    assert_array_equal(labels, np.eye(3, dtype=bool)[[2, 0, 2]])


def test_text_in_ids_is_keys():
    for ids in (
        ["x", "y", "z"],
        np.array(["x", "y", "z"]),
        np.array(["x", "y", "z"], object),
        np.array([b"x", b"y", b"z"]),
    ):
        made = Chunk.of(X3, ids=ids)
        assert made.ids is None
        assert made.keys.tolist() == ["x", "y", "z"]
        assert made.keys.dtype.kind == "U"


def test_python_objects_that_are_numbers():
    made = Chunk.of(X3, ids=np.array([1, 2, 3], object), groups=np.array([4, 4, 5], object))
    assert made.ids.tolist() == [1, 2, 3]
    assert made.groups.tolist() == [4, 4, 5]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"features": [1.0, 2.0]}, "features have shape (2,), expected 2-D"),
        ({"features": np.zeros((0, 4))}, "features have shape (0, 4): a chunk needs at least one row"),
        ({"features": np.zeros((3, 0))}, "features have no columns"),
        ({"features": [[1], [1, 2]]}, "features are not an array"),
        ({"features": [["a"], ["b"]]}, "features have dtype <U1"),
        ({"features": X3 + 1j}, "features have dtype complex"),
        ({"features": [[1, 2], [3, np.nan], [5, 6]]}, "features of row 1 are not finite"),
        ({"features": [[1, 2], [3, 4], [np.inf, 6]]}, "features of row 2 are not finite"),
        ({"tags": ["a", "b"]}, "there are 2 tags for 3 rows of features"),
        ({"tags": []}, "tags have shape (0,)"),
        ({"tags": [None, "a", "b"]}, "tags: row 0 is None, expected a str"),
        ({"tags": [["a"], None, ["b"]]}, "tags of row 1 are None, expected a list of str"),
        ({"tags": [["a", "b"], ["c", 1], ["d", "e"]]}, "tags of row 1: entry 1 is 1, expected a str"),
        ({"tags": [{"a"}, {"b"}, set()]}, "expected a 1-D string array, a list of lists of str"),
        ({"tags": object()}, "tags have shape () and dtype object"),
        ({"tags": "a b c"}, "tags have shape () and dtype <U5"),
        ({"tags": np.array([1, 2, 3])}, "tags have shape (3,)"),
        ({"tags": sparse.csr_matrix([[0, 2], [0, 0], [1, 1]])}, "tags_data has 2 in row 0"),
        ({"ids": [1, 2]}, "there are 2 ids for 3 items"),
        ({"ids": [1, -2, 3]}, "id -2 of row 1 is negative"),
        ({"ids": [1, 2, 1]}, "id 1 of row 2 is given twice"),
        ({"ids": [1.0, 2.0, 3.0]}, "ids have shape (3,) and dtype float64"),
        ({"ids": ["a", 2, "b"]}, "keys: row 1 is 2, expected a str"),
        ({"ids": ["a", "b", "c"], "keys": ["a", "b", "c"]}, "ids are strings and there are keys too"),
        ({"keys": ["a", "b"]}, "there are 2 keys for 3 rows"),
        ({"keys": ["a", "", "c"]}, "keys: row 1 is empty"),
        ({"keys": ["a", "b", "a"]}, "keys: 'a' of row 2 was row 0's already"),
        ({"keys": ["a", "b\0", "c"]}, "keys: row 1 is 'b\\x00', which holds a NUL"),
        ({"keys": [1, 2, 3]}, "keys: row 0 is 1, expected a str"),
        ({"keys": np.arange(3)}, "keys have shape (3,) and dtype int64, expected 1-D strings"),
        ({"labels": [[1, 0], [0, 2], [0, 0]]}, "labels of row 1, column 1 is 2, expected 0 or 1"),
        ({"labels": [[1], [0]]}, "there are 2 labels for 3 rows"),
        ({"labels": [1, 0]}, "there are 2 labels for 3 rows"),
        ({"labels": [1, -1, 0]}, "labels: class -1 of row 1"),
        ({"labels": [1, 2, 10**9]}, "labels: class 1000000000 of row 2, expected 0 to 65535"),
        ({"labels": [0.5, 1, 2]}, "labels have shape (3,) and dtype float64"),
        ({"labels": ["a", "b", "c"]}, "labels have shape (3,) and dtype <U1"),
        ({"groups": [1, 2]}, "there are 2 groups for 3 rows"),
        ({"groups": [[1], [2], [3]]}, "groups have shape (3, 1)"),
        ({"groups": [object()] * 3}, "groups have shape (3,) and dtype object"),
    ],
)
def test_bad_chunks(given, expected):
    message = refused(Chunk.of, **{"features": X3, **given})
    assert expected in message


# --- read_chunk -------------------------------------------------------------------------------------


def write(path, form, arrays):
    """The arrays as an .npz or as a folder of .npy."""
    if form == "folder":
        path.mkdir()
        for key, array in arrays.items():
            np.save(path / f"{key}.npy", array)
    else:
        with path.open("wb") as file:
            (np.savez_compressed if form == "compressed" else np.savez)(file, **arrays)
    return path


def stored(lists, form):
    """Arrays that hold the lists in one of the forms a file may have, and the lists as they come back."""
    if form in ("str", "bytes"):
        text = [";".join(row) + ";" for row in lists]
        return {"tags": np.array(text if form == "str" else [t.encode() for t in text])}, lists
    dense, names = matrix(lists)
    names = {"tag_names": np.array(names, dtype=str)}
    if form == "dense":
        return {"tags": dense.astype(np.uint8), **names}, [sorted(row) for row in lists]
    csr = sparse.csr_matrix(dense)
    parts = {f"tags_{part}": np.array(getattr(csr, part)) for part in ("data", "indices", "indptr", "shape")}
    return {**parts, **names}, [sorted(row) for row in lists]


@settings(max_examples=40, deadline=None)
@given(
    lists=tag_lists,
    tag_form=st.sampled_from(["str", "bytes", "dense", "csr"]),
    file_form=st.sampled_from(["stored", "compressed", "folder"]),
    dtype=st.sampled_from(["f2", "f4", ">f8", "i2"]),
    fortran=st.booleans(),
)
def test_read_gives_back_what_was_written(tmp_path_factory, lists, tag_form, file_form, dtype, fortran):
    n = len(lists)
    X = np.arange(3 * n).reshape(n, 3).astype(dtype)
    arrays, expected = stored(lists, tag_form)
    arrays |= {
        "features": np.asfortranarray(X) if fortran else X,
        "ids": np.arange(n),
        "groups": np.arange(n) // 2,
    }
    arrays |= {"keys": np.array([f"k{i}" for i in range(n)]), "labels": np.eye(n, dtype=np.uint8), "other": X}
    chunk = read_chunk(write(tmp_path_factory.mktemp("chunk") / "c", file_form, arrays))
    assert as_lists(chunk.tags) == expected
    assert chunk.features.dtype == X.dtype
    assert_array_equal(chunk.features, X)
    assert_array_equal(chunk.ids, arrays["ids"])
    assert_array_equal(chunk.keys, arrays["keys"])
    assert_array_equal(chunk.labels, arrays["labels"].astype(bool))
    assert_array_equal(chunk.groups, arrays["groups"])


def test_columns_without_names_in_a_file(tmp_path):
    dense = np.array([[0, 1], [0, 0], [1, 1]])
    chunk = read_chunk(write(tmp_path / "d.npz", "stored", {"features": X3, "tags": dense}))
    assert as_lists(chunk.tags) == [["tag1"], [], ["tag0", "tag1"]]
    csr = sparse.csr_matrix(dense)
    parts = {f"tags_{p}": np.array(getattr(csr, p)) for p in ("data", "indices", "indptr", "shape")}
    chunk = read_chunk(write(tmp_path / "c.npz", "stored", {"features": X3, **parts}))
    assert as_lists(chunk.tags) == [["tag1"], [], ["tag0", "tag1"]]


def test_string_ids_in_a_file_are_keys(tmp_path):
    chunk = read_chunk(
        write(tmp_path / "c", "compressed", {"features": X3, "ids": np.array(["p", "q", "r"])})
    )
    assert chunk.ids is None
    assert chunk.keys.tolist() == ["p", "q", "r"]


@pytest.mark.parametrize("form", ["stored", "folder"])
@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"features": np.array([[1, np.nan]])}, "features of row 0 are not finite"),
        ({"features": np.zeros(3)}, "features have shape (3,), expected 2-D"),
        ({"features": np.array(1.0)}, "features have shape (), expected 2-D"),
        ({"features": np.zeros((0, 3))}, "a chunk needs at least one row"),
        ({"features": X3.astype(complex)}, "features have dtype complex128"),
        ({"features": X3.astype(str)}, "features have dtype <U"),
        ({"tags": np.array(["a", "b"])}, "there are 2 tags for 3 rows"),
        (
            {"tags": np.array(["a b", "a", "b"]), "tags_data": np.ones(3)},
            "tags are given twice, as 'tags' and as tags_data",
        ),
        (
            {"tags_data": np.ones(3), "tags_shape": np.array([3, 2])},
            "tags_data, tags_shape need tags_indices, tags_indptr",
        ),
        ({"tags": np.array([b"a", b"\xff", b"b"])}, r"tags: row 1 is b'\xff', not UTF-8 text"),
        ({"ids": np.array(["a", "b", "b"])}, "keys: 'b' of row 2 was row 1's already"),
        ({"ids": np.array([1, 2, 2])}, "id 2 of row 2 is given twice"),
        ({"labels": np.zeros((3, 2, 2))}, "labels have shape (3, 2, 2)"),
    ],
)
def test_bad_arrays_in_a_file(tmp_path, form, arrays, expected):
    path = write(tmp_path / "photos", form, {"features": X3, **arrays})
    message = refused(read_chunk, path)
    assert expected in message
    assert message.startswith(f"{path}: ")


def test_too_little_memory_is_one_line(tmp_path, monkeypatch):
    path = write(tmp_path / "c.npz", "stored", {"features": X3, "labels": np.arange(3)})

    def starve(labels, n):
        raise MemoryError

    monkeypatch.setattr(chunk, "_multi_hot", starve)
    assert re.search(r"c\.npz needs more memory than there is", refused(read_chunk, path))


def test_the_query_path_stays_light():
    code = (
        "import sys, woh_faiss.inputs.chunk\n"
        "print([m for m in ('scipy', 'gensim', 'faiss') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_digest_is_of_what_a_chunk_says_and_not_of_how_it_lies_in_memory(tmp_path):
    X = np.random.default_rng(0).normal(size=(9000, 3))
    tags, ids = ["a b", "c", ""] * 3000, np.arange(9000)
    digest = Chunk.of(X, tags, ids=ids).digest()
    np.save(tmp_path / "X.npy", X)
    for same in (np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], np.load(tmp_path / "X.npy", "r")):
        assert Chunk.of(same, [text.split() for text in tags], ids=ids.tolist()).digest() == digest
    other = X.copy()
    other[-1, -1] += 1e-9
    different = [
        Chunk.of(other, tags, ids=ids),
        Chunk.of(X.astype(np.float32), tags, ids=ids),
        Chunk.of(X, ["a", "b c", ""] * 3000, ids=ids),
        Chunk.of(X, None, ids=ids),
        Chunk.of(X, tags, ids=ids + 1),
        Chunk.of(X, tags),
        Chunk.of(X, tags, keys=[str(i) for i in ids]),
    ]
    assert len({digest, *(chunk.digest() for chunk in different)}) == 8


def test_sparse_features_say_so():
    with pytest.raises(InputError, match="features are a sparse csr_array, expected a dense array; call"):
        Chunk.of(sparse.csr_array(np.eye(3)), ["a", "b", "c"])
