"""Data as people have it gives the chunks, and the index, that the same data in .npz files give."""

import re
import shutil
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import LENGTH, SMALL, WORDS, length, tagged
from hypothesis import given, settings
from hypothesis import strategies as st

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.inputs import Columns, open_inputs
from woh_faiss_cli.main import main

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")
h5py = pytest.importorskip("h5py")

N, D = 23, 7


def plain(chunk):
    """All that a chunk says, comparable."""
    tags = None if chunk.tags is None else [chunk.tags.of_row(i) for i in range(len(chunk))]
    more = [None if a is None else a.tolist() for a in (chunk.ids, chunk.keys)]
    return chunk.features.dtype.str, chunk.features.tolist(), tags, *more


def read(*paths, columns=None, size=None, learn=True):
    return list(open_inputs(paths, columns=columns, chunk_size=size, learn=learn))


def lists_of(X, kind="fixed"):
    values = pa.array(np.ascontiguousarray(X).ravel())
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(values, X.shape[1])
    offsets = np.arange(len(X) + 1) * X.shape[1]
    if kind == "large":
        return pa.LargeListArray.from_arrays(pa.array(offsets), values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def table_of(X, tags, ids=None, keys=None, kind="fixed"):
    columns = {"features": lists_of(X, kind), "tags": pa.array(tags, pa.list_(pa.string()))}
    if ids is not None:
        columns["id"] = pa.array(ids)
    if keys is not None:
        columns["key"] = pa.array(keys, pa.string())
    return pa.table(columns)


def write_ipc(path, table, open_=pa.ipc.new_file, compression=None, rows=10):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with open_(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)


WRITERS = {
    "parquet": lambda path, table: pq.write_table(table, path, row_group_size=9),
    "zstd": lambda path, table: pq.write_table(table, path, compression="zstd", use_dictionary=False),
    "arrow": write_ipc,
    "lz4": lambda path, table: write_ipc(path, table, compression="lz4"),
    "stream": lambda path, table: write_ipc(path, table, pa.ipc.new_stream),
}


@pytest.fixture
def parquet(tmp_path):
    """(path, features, tags) of one file of N rows."""
    X, tags = tagged(1, N)
    path = tmp_path / "photos.parquet"
    pq.write_table(table_of(X, tags), path)
    return path, X, tags


# ---- the same chunks, the same index -------------------------------------------------------------------


@settings(max_examples=length(40), deadline=None)
@given(st.data())
def test_parquet_and_arrow_give_the_chunks_of_npz(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("same")
    n, size = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 45))
    dtype = data.draw(st.sampled_from(["f2", "f4", "f8", "i4", "u1"]))
    X = np.random.default_rng(n).integers(0, 9, size=(n, data.draw(st.integers(1, 5)))).astype(dtype)
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
    tags = data.draw(st.lists(st.lists(text, max_size=3), min_size=n, max_size=n))
    ids = np.arange(n)[::-1] * 3 if data.draw(st.booleans()) else None
    keys = [f"k{i}" for i in range(n)] if data.draw(st.booleans()) else None
    table = table_of(X, tags, ids, keys, data.draw(st.sampled_from(["fixed", "list", "large"])))
    path = folder / "one"
    WRITERS[data.draw(st.sampled_from(sorted(WRITERS)))](path, table)
    from woh_faiss import Chunk

    whole = Chunk.of(X, tags, ids=ids, keys=keys)
    expected = [plain(whole.rows(slice(start, start + size))) for start in range(0, n, size)]
    assert [plain(chunk) for chunk in read(path, size=size)] == expected


def files_of(index):
    """Every byte of an index that does not tell the time."""
    found = {p.name: p.read_bytes() for p in index.path.iterdir() if not p.name.startswith("catalog.db")}
    ids = np.frombuffer(found["ids.i64"], "<i8")
    rounds = [{n: getattr(r, n) for n in r.__slots__ if n not in ("time", "seconds")} for r in index.rounds()]
    return found, rounds, index.items(ids), index.tags()


def test_npz_and_parquet_give_the_same_bytes(tmp_path):
    X, tags = tagged(3, 90)
    pq.write_table(table_of(X, tags), tmp_path / "all.parquet")
    strings = np.array([";".join([*given, ""]) for given in tags])
    for i in range(3):
        part = slice(30 * i, 30 * i + 30)
        np.savez(tmp_path / f"{i}.npz", features=X[part], tags=strings[part])
    np.savez(tmp_path / "all.npz", features=X, tags=strings)
    found = []
    for name, paths in {"p": ["all.parquet"], "n": ["all.npz"], "s": ["0.npz", "1.npz", "2.npz"]}.items():
        with WOHIndex.create(tmp_path / f"{name}.woh", **SMALL) as index:
            size = None if name == "s" else 30
            inputs = open_inputs([tmp_path / path for path in paths], chunk_size=size)
            assert [done.n for done in index.extend(inputs)] == [30, 30, 30]
            found.append(files_of(index))
    assert found[0] == found[1] == found[2]


# ---- columns -------------------------------------------------------------------------------------------


def columns_of(tmp_path, table, **wanted):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(table), path)
    (source,) = open_inputs([path], columns=Columns(**wanted), learn=True).sources
    return source.columns


VECTORS, TEXT, LISTS, INTS = lists_of(np.ones((2, 3))), ["a", "b"], [["a"], ["b"]], [1, 2]
UUIDS = pa.array([bytes(range(16)), bytes(16)], pa.binary(16))


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"Embedding": VECTORS, "keywords": LISTS}, ("Embedding", "keywords", None, None)),
        ({"vector": VECTORS, "tags": TEXT, "caption": TEXT, "id": INTS}, ("vector", "tags", "id", None)),
        ({"clip-features": VECTORS, "TEXT": TEXT, "id": TEXT}, ("clip-features", "TEXT", None, "id")),
        ({"emb": VECTORS, "tags": LISTS, "key": INTS}, ("emb", "tags", None, "key")),
        (
            {"emb": VECTORS, "caption": TEXT, "image_path": TEXT, "url": TEXT},
            ("emb", "caption", None, "image_path"),
        ),
        ({"emb": VECTORS, "x_emb": VECTORS, "tags": LISTS, "bbox": VECTORS}, ("emb", "tags", None, None)),
        ({"emb": VECTORS, "tags": LISTS, "id": INTS, "file_name": TEXT}, ("emb", "tags", "id", "file_name")),
        ({"emb": VECTORS, "tags": LISTS, "id": INTS, "url": TEXT}, ("emb", "tags", "id", "url")),
        ({"emb": VECTORS, "tags": LISTS, "id": [1.0, 2.0]}, ("emb", "tags", "id", None)),
        ({"emb": VECTORS, "tags": LISTS, "id": [1.0, 2.0], "path": TEXT}, ("emb", "tags", "id", "path")),
        ({"emb": VECTORS, "tags": LISTS, "id": [Decimal(1), Decimal(2)]}, ("emb", "tags", "id", None)),
        ({"emb": VECTORS, "tags": LISTS, "id": UUIDS}, ("emb", "tags", None, "id")),
    ],
)
def test_columns_are_found_by_their_usual_names(tmp_path, table, expected):
    assert columns_of(tmp_path, table) == expected


@pytest.mark.parametrize(
    ("table", "wanted", "message"),
    [
        ({"tags": LISTS}, {}, "no column of features under a usual name (features, "),
        ({"x": VECTORS, "tags": LISTS}, {}, "it has x (fixed_size_list<element: double>[3]), tags (list<"),
        ({"emb": VECTORS, "a": TEXT}, {}, "no column of tags under a usual name (tags, "),
        (
            {"image_embedding": VECTORS, "text_embedding": VECTORS, "tags": LISTS},
            {},
            "several columns that may be the features: image_embedding, text_embedding; say which with "
            "--features-column",
        ),
        ({"emb": VECTORS, "title": TEXT, "caption": TEXT}, {}, "may be the tags: title, caption; say which"),
        ({"emb": VECTORS, "tags": LISTS}, {"features": "x"}, "has no column 'x'; it has emb ("),
        (
            {"emb": VECTORS, "tags": LISTS},
            {"features": "tags"},
            "expected lists of numbers, all of one length",
        ),
        ({"emb": VECTORS, "tags": LISTS}, {"id": "tags"}, "expected whole numbers for --id-column"),
        (
            {"emb": VECTORS, "tags": INTS},
            {"tags": "tags"},
            "column 'tags' is int64, expected lists of text or",
        ),
    ],
)
def test_columns_that_are_not_clear_are_one_line_with_those_there_are(tmp_path, table, wanted, message):
    with pytest.raises(InputError) as caught:
        columns_of(tmp_path, table, **wanted)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_columns_that_are_named_are_taken_and_empty_names_are_none(tmp_path):
    table = {"a": VECTORS, "b": TEXT, "emb": VECTORS, "tags": LISTS, "id": INTS, "url": TEXT}
    assert columns_of(tmp_path, table, features="a", tags="b", id="", key="") == ("a", "b", None, None)


def test_captions_become_words_and_strings_are_split_as_tags_are(tmp_path):
    sentences = ["A dog's Night, at the SEA-side!", None]
    pq.write_table(pa.table({"emb": VECTORS, "caption": sentences}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"emb": VECTORS, "tags": ["golden gate;Sea", "a b"]}), tmp_path / "t.parquet")
    lists = [["A dog", "a CAT"], []]
    pq.write_table(pa.table({"emb": VECTORS, "captions": lists}), tmp_path / "l.parquet")
    told = [plain(*read(tmp_path / f"{name}.parquet"))[2] for name in "ctl"]
    assert told[0] == [["a", "dog's", "night", "at", "the", "sea-side"], []]
    assert told[1] == [["golden gate", "Sea"], ["a", "b"]]
    assert told[2] == [["a", "dog", "cat"], []]


def test_types_that_other_tools_write(tmp_path):
    """Dictionaries, tensors of fixed shape, nulls among tags, columns in slices."""
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [3]), lists_of(np.ones((4, 3), "f4"))
    )
    table = pa.table(
        {
            "emb": tensor,
            "tags": pa.array([["a", None], None, [], ["b"]]),
            "key": pa.array(["k", "l", "m", "n"]).dictionary_encode(),
        }
    )
    write_ipc(tmp_path / "t.arrow", table.slice(1), rows=2)
    (chunk,) = read(tmp_path / "t.arrow")
    assert plain(chunk) == ("<f4", [[1.0] * 3] * 3, [[], [], ["b"]], None, ["l", "m", "n"])


@pytest.mark.parametrize("type_", ["binary", "large_binary", "binary_view"])
@pytest.mark.parametrize("written", ["parquet", "arrow"])
def test_text_that_is_stored_as_bytes_is_text(tmp_path, type_, written):
    bytes_ = getattr(pa, type_)()
    if type_ == "binary_view" and written == "parquet":
        pytest.skip("pyarrow does not write it")
    columns = {
        "emb": VECTORS,
        "tags": pa.array(["Über;golden gate".encode(), None], bytes_),
        "key": pa.array(["ü".encode(), b"b"], bytes_),
    }
    WRITERS[written](tmp_path / "t", pa.table(columns))
    (chunk,) = read(tmp_path / "t")
    assert plain(chunk)[2:] == ([["Über", "golden gate"], []], None, ["ü", "b"])
    lists = [[b"sea"], ["ü".encode(), None]]
    WRITERS[written](
        tmp_path / "l", pa.table({"emb": VECTORS, "keywords": pa.array(lists, pa.list_(pa.binary()))})
    )
    assert plain(*read(tmp_path / "l"))[2] == [["sea"], ["ü"]]
    bad = columns | {"key": pa.array([b"\xff\xd8", b"b"], bytes_)}
    WRITERS[written](tmp_path / "b", pa.table(bad))
    with pytest.raises(InputError, match=r"xff.*in a column of bytes is not UTF-8 text") as caught:
        read(tmp_path / "b")
    assert str(caught.value).isprintable()
    assert read(tmp_path / "b", columns=Columns(key=""))[0].keys is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"emb": [[1.0, 2], [1.0]], "tags": LISTS}, "features of row 1 have 1 numbers, those of row 0 2"),
        ({"emb": [[1.0, 2], None], "tags": LISTS}, "features of row 1 are null"),
        ({"emb": [[1.0, 2], [1, None]], "tags": LISTS}, "features of row 1 have a null in place 1"),
        ({"emb": [[1.0, 2], [1, np.nan]], "tags": LISTS}, "features of row 1 are not finite"),
        ({"emb": VECTORS, "tags": LISTS, "id": [1, None]}, "id of row 1 is null"),
        ({"emb": VECTORS, "tags": LISTS, "key": ["a", None]}, "key of row 1 is null"),
        ({"emb": VECTORS, "tags": LISTS, "id": [1, -1]}, "id -1 of row 1 is negative"),
        ({"emb": VECTORS, "tags": LISTS, "key": ["a", "a"]}, "keys: 'a' of row 1 was row 0's already"),
    ],
)
def test_values_that_cannot_be_used_are_one_line(tmp_path, table, message):
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "t.parquet"))) as caught:
        read(tmp_path / "t.parquet")
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_widths_that_differ_between_chunks_are_refused(tmp_path):
    pq.write_table(pa.table({"emb": [[1.0, 2], [1.0]], "tags": LISTS}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="features from row 1 on have 1 numbers, those of row 0 2"):
        read(tmp_path / "t.parquet", size=1)


def test_a_fault_in_a_later_chunk_says_where_rows_are_counted_from(parquet):
    path, X, tags = parquet
    X[17, 2] = np.inf
    pq.write_table(table_of(X, tags), path)
    with pytest.raises(InputError, match=r"row 7 are not finite.*\(rows are counted from row 10 of the file"):
        read(path, size=10)


# ---- folders -------------------------------------------------------------------------------------------


def test_a_folder_is_its_files_in_natural_order_and_no_chunk_crosses_them(tmp_path):
    X, tags = tagged(2, 36)
    folder = tmp_path / "set"
    for name in ("_temporary", ".hidden", "year=2/x"):
        (folder / name).mkdir(parents=True)
    starts = {"part-2.parquet": 0, "part-10.parquet": 12, "year=2/x/part-0.parquet": 24}
    for name, start in starts.items():
        part = slice(start, start + 12)
        pq.write_table(table_of(X[part], tags[part]), folder / name)
    pq.write_table(table_of(X[:0], tags[:0]), folder / "part-3.parquet")
    for name in ("_SUCCESS", "_temporary/a.parquet", ".hidden/a.parquet", "part-2.parquet.crc"):
        (folder / name).write_bytes(b"no Parquet")
    inputs = open_inputs([folder], chunk_size=10, learn=True)
    chunks = list(inputs)
    assert [len(chunk) for chunk in chunks] == [10, 2] * 3
    assert len(inputs) == 6
    np.testing.assert_array_equal(np.concatenate([chunk.features for chunk in chunks]), X)


def test_a_partition_s_name_may_be_the_tags(tmp_path):
    for topic in ("sea", "golden%20gate", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / "set" / f"topic={topic}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"emb": VECTORS}), folder / "0.parquet")
    chunks = read(tmp_path / "set", columns=Columns(tags="topic"))
    assert [plain(chunk)[2] for chunk in chunks] == [[[]] * 2, [["golden gate"]] * 2, [["sea"]] * 2]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"vector": VECTORS, "tags": LISTS}, "b.parquet has no column 'emb'; it has vector"),
        ({"emb": lists_of(np.ones((2, 4))), "tags": LISTS}, "b.parquet has features of 4 numbers"),
    ],
)
def test_files_of_a_folder_that_differ_are_named(tmp_path, second, message):
    pq.write_table(pa.table({"emb": VECTORS, "tags": LISTS}), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(InputError) as caught:
        open_inputs([tmp_path], learn=True)
    assert message in str(caught.value)


def embeddings(folder, sizes, padded=0, **columns):
    """What clip-retrieval writes; returns all features."""
    X, tags = tagged(4, sum(sizes))
    X = X.astype(np.float16)
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    start = 0
    for i, n in enumerate(sizes):
        number, part = str(i).zfill(padded), slice(start, start + n)
        np.save(folder / f"img_emb/img_emb_{number}.npy", X[part])
        np.save(folder / f"text_emb/text_emb_{number}.npy", -X[part])
        known = {
            "image_path": [f"{i:05d}" for i in range(part.start, part.stop)],
            "caption": [f"A {' and a '.join(given)}." for given in tags[part]],
            "similarity": np.ones(n),
            **{name: values[part] for name, values in columns.items()},
        }
        pq.write_table(pa.table(known), folder / f"metadata/metadata_{number}.parquet")
        start += n
    return X, tags


@pytest.mark.parametrize("padded", [0, 2])
def test_a_folder_of_embeddings(tmp_path, padded):
    X, tags = embeddings(tmp_path / "out", [3] * 11, padded)
    inputs = open_inputs([tmp_path / "out"], chunk_size=2, learn=True)
    chunks = list(inputs)
    assert [len(chunk) for chunk in chunks] == [2, 1] * 11
    np.testing.assert_array_equal(np.concatenate([chunk.features for chunk in chunks]), X)
    assert np.concatenate([chunk.keys for chunk in chunks]).tolist() == [f"{i:05d}" for i in range(33)]
    told = [chunk.tags.of_row(i) for chunk in chunks for i in range(len(chunk))]
    assert [[word for word in words if word in WORDS] for words in told] == tags
    assert len(inputs.guessed(Columns())) == 1
    assert "tags from 'caption', key from 'image_path'" in inputs.guessed(Columns())[0]


def test_img2dataset_s_key_comes_before_its_paths(tmp_path):
    embeddings(tmp_path / "out", [3], key=["x", "y", "z"], url=["u", "u", "u"])
    (chunk,) = read(tmp_path / "out")
    assert chunk.keys.tolist() == ["x", "y", "z"]


def test_embeddings_without_their_partners_are_refused(tmp_path):
    folder = tmp_path / "out"
    embeddings(folder, [3, 4])
    with pytest.raises(InputError, match="has its features in img_emb"):
        read(folder, columns=Columns(features="x"))
    np.save(folder / "img_emb/img_emb_1.npy", np.ones((5, 7)))
    with pytest.raises(InputError, match=r"img_emb_1.npy has 5 rows, .*metadata_1.parquet 4: rows pair"):
        read(folder)
    (folder / "metadata/metadata_1.parquet").unlink()
    with pytest.raises(InputError, match=r"img_emb_1.npy has no partner of number 1 in .*metadata;"):
        read(folder)
    np.save(folder / "img_emb/img_emb_01.npy", np.ones((5, 7)))
    with pytest.raises(InputError, match="have the same number"):
        read(folder)


# ---- HDF5 and .mat -------------------------------------------------------------------------------------


def test_hdf5(tmp_path):
    X, tags = tagged(1, N)
    strings = [";".join([*given, ""]) for given in tags]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"], file["tags"], file["ids"] = X, strings, np.arange(N) + 5
        file.create_dataset("keys", data=[f"ü{i}" for i in range(N)], compression="gzip")
        file["train/features"] = X[::-1]
    parts = read(tmp_path / "a.h5", size=10)
    assert [len(part) for part in parts] == [10, 10, 3]
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts]), X)
    assert [part.tags.of_row(i) for part in parts for i in range(len(part))] == tags
    assert np.concatenate([part.ids for part in parts]).tolist() == list(range(5, 5 + N))
    assert parts[2].keys.tolist() == ["ü20", "ü21", "ü22"]
    (other,) = read(tmp_path / "a.h5", columns=Columns(features="train/features"))
    np.testing.assert_array_equal(other.features, X[::-1])


def test_hdf5_with_columns_of_tags(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["embeddings"], file["tags"], file["tag_names"] = np.ones((2, 3)), np.eye(2), ["sea", "hill"]
    (chunk,) = read(tmp_path / "a.h5")
    assert plain(chunk)[2] == [["sea"], ["hill"]]


def test_hdf5_that_leads_elsewhere_or_does_not_fit_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["features"] = np.ones((2, 3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = h5py.ExternalLink("other.h5", "features")
        file["emb"], file["tags"] = np.ones((2, 3)), ["a", "b", "c"]
    with pytest.raises(InputError, match=r"'tags' has 3 rows, 'emb' 2"):
        read(tmp_path / "a.h5")
    with pytest.raises(
        InputError, match=r"no column 'features'; it has emb \(2 x 3 float64\), tags \(3 text\)"
    ):
        read(tmp_path / "a.h5", columns=Columns(features="features"))


def write_mat73(path, **variables):
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            file[name] = np.asarray(value).T
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(512, b"\0"))


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_mat_files(tmp_path, version):
    import scipy.io

    X, marks = tagged(1, 6)[0].astype(float), np.eye(6, 3)
    path = tmp_path / "set.mat"
    write = write_mat73 if version == "7.3" else lambda path, **v: scipy.io.savemat(path, v)
    write(path, I_tr=X, T_tr=marks)
    parts = read(path, size=4)
    assert [len(part) for part in parts] == [4, 2]
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts]), X)
    assert [part.tags.of_row(i) for part in parts for i in range(len(part))] == [
        *(["tag0"], ["tag1"], ["tag2"], [], [], [])
    ]
    write(path, I_tr=X, T_tr=marks, I_te=X[:2], T_te=marks[:2])
    with pytest.raises(InputError, match=r"has the parts train, test; say which .*--features-column I_tr"):
        read(path)
    if version == "5" and LENGTH < 1:
        return  # a variable takes a process, and which are read is the same for both versions
    (test,) = read(path, columns=Columns(features="I_te"))
    assert plain(test)[2] == [["tag0"], ["tag1"]]
    write(path, features=X, tags=marks, ids=np.arange(6.0)[:, None] + 3)
    assert read(path)[0].ids.tolist() == [3, 4, 5, 6, 7, 8]
    with pytest.raises(InputError, match=r"has no column of tags .* it has features \(6 x 7 double\)"):
        read(path, columns=Columns(tags=""))


# ---- what a path holds ---------------------------------------------------------------------------------


def test_files_that_are_none_of_these(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"hello, here is nothing")
    (tmp_path / "f.feather").write_bytes(b"FEA1 and more")
    (tmp_path / "p.parquet").write_bytes(b"PARE and more")
    (tmp_path / "empty").mkdir()
    for name, message in {
        "a.parquet": "is none of .npz, .npy, Parquet",
        "f.feather": "is Feather of version 1",
        "p.parquet": "is encrypted",
        "none.parquet": "does not exist",
        "empty": "has no key 'features'",
    }.items():
        with pytest.raises(InputError, match=message):
            read(tmp_path / name)


def test_chunk_files_are_as_before_and_cut_where_asked(tmp_path):
    X, tags = tagged(1, N)
    np.savez(tmp_path / "a.npz", features=X, tags=[";".join([*t, ""]) for t in tags], ids=np.arange(N))
    (whole,) = read(tmp_path / "a.npz")
    parts = read(tmp_path / "a.npz", size=10)
    assert len(whole) == N
    assert [plain(part) for part in parts] == [plain(whole.rows(slice(s, s + 10))) for s in (0, 10, 20)]
    with pytest.raises(InputError, match="chunk file, whose arrays have fixed names"):
        read(tmp_path / "a.npz", columns=Columns(tags="x"))


def test_nothing_without_rows(tmp_path):
    pq.write_table(table_of(np.ones((0, 3)), []), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no rows"):
        read(tmp_path / "a.parquet")


WITHOUT = """
import sys
sys.modules["pyarrow"] = sys.modules["h5py"] = None
from woh_faiss_cli.main import main
main(sys.argv[1:])
"""


def test_without_the_extras_an_error_names_them(tmp_path, parquet):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = np.ones((2, 3))
    for path, extra in ((parquet[0], "woh-faiss[arrow]"), (tmp_path / "a.h5", "woh-faiss[mat]")):
        command = [sys.executable, "-c", WITHOUT, "build", path, "--index", tmp_path / "i.woh"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ")
        assert f"install {extra}" in done.stderr
        assert done.stderr.count("\n") == 1


MEASURED = """
import resource, sys
from woh_faiss.inputs import open_inputs
import pyarrow.parquet, pyarrow.dataset, numpy
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
list(open_inputs([sys.argv[1]], chunk_size=500, learn=True))
before = peak()
rows = sum(len(chunk) for chunk in open_inputs([sys.argv[2]], chunk_size=500, learn=True))
print(rows, peak() - before)
"""


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_larger_than_memory_s_share_is_read_in_chunks(tmp_path, kind):
    """50 MB in one row group, against the same kind of file with one chunk."""
    X = np.random.default_rng(0).normal(size=(24_000, 512)).astype(np.float32)
    tags = [["sea", "hill"]] * len(X)
    small, large = tmp_path / "small", tmp_path / "large"
    for path, n in ((small, 600), (large, len(X))):
        table = table_of(X[:n], tags[:n])
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=n, use_dictionary=False, compression="none")
        else:
            write_ipc(path, table, compression="zstd", rows=1000)
    command = [sys.executable, "-c", MEASURED, small, large]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows, grown = map(int, done.stdout.split())
    assert rows == len(X)
    assert large.stat().st_size > 40 << 20
    assert grown * (1 if sys.platform == "darwin" else 1024) < 20 << 20


# ---- the command line ----------------------------------------------------------------------------------


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, tags = tagged(3, 60)
    table = table_of(X, tags).rename_columns(["v", "w"])
    pq.write_table(table, "a.parquet")
    run = CliRunner().invoke
    names = ["--features-column", "v", "--tags-column", "w"]
    built = run(main, ["build", "a.parquet", *names, "--chunk-size", "30", "--bits", "16", "--anchors", "10"])
    assert built.exit_code == 0, built.output
    assert "round 1: 60 items appended" in built.stderr
    pq.write_table(table.rename_columns(["emb", "tags"]), "b.parquet")
    added = run(main, ["add", "b.parquet", "--chunk-size", "30", "--no-skip"])
    assert "note: b.parquet: features from 'emb', tags from 'tags'\n" in added.stderr
    assert "round 3: 30 items appended; 120 items in all" in added.stderr
    refused = run(main, ["update", "a.parquet"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: a.parquet has no column of features")
    assert refused.stderr.count("\n") == 1


# ---- damage --------------------------------------------------------------------------------------------


def damaged(data, rng):
    """A few bytes changed, cut off, taken out or put twice."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        place, n = int(rng.integers(len(data) + 1)), int(rng.integers(1, 65))
        kind = rng.integers(5)
        if kind == 0:
            data[place : place + n % 8 + 1] = rng.bytes(n % 8 + 1)
        elif kind == 1:
            edge = int(rng.choice([0, 1, 0x7F, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF]))
            data[place : place + 4] = edge.to_bytes(4, "little")
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[place : place + n]
        else:
            data[place:place] = data[place : place + n]
    return bytes(data)


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_damaged_files_work_or_are_refused_in_one_line(tried, tmp_path, kind):
    """In another process, as pyarrow might end it; the same damage each time."""
    X, tags = tagged(1, N)
    WRITERS[kind](tmp_path / "whole", table_of(X, tags, np.arange(N), [f"k{i}" for i in range(N)], "list"))
    data, rng = (tmp_path / "whole").read_bytes(), np.random.default_rng(11)
    assert tried("inputs", tmp_path / "whole") == []
    refused = 0
    for _ in range(60):
        (tmp_path / "damaged").write_bytes(damaged(data, rng))
        refused += bool(tried("inputs", tmp_path / "damaged"))
    assert refused > 10


# ---- ids and tags that other programs wrote otherwise ------------------------------------------------------


def chunk_of(tmp_path, note=None, separator=None, wanted=None, **table):
    n = len(next(iter(table.values())))
    columns = {"features": lists_of(np.eye(n, 4)), "tags": [["sea"]] * n, **table}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    (chunk,) = open_inputs([path], learn=True, note=note, tag_separator=separator, columns=wanted)
    return chunk


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([3.0, 1.0, 2.0**53], [3, 1, 2**53]),
        (pa.array(np.float16([3, 1])), [3, 1]),
        ([Decimal("3.00"), Decimal(2**62)], [3, 2**62]),
        (pa.array([3.0, 1.0, 3.0]).dictionary_encode().slice(0, 2), [3, 1]),
    ],
)
def test_ids_that_became_another_type_are_ids(tmp_path, ids, expected):
    assert chunk_of(tmp_path, id=ids).ids.tolist() == expected


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3.0, None], "id of row 1 is null; give every item one, or say another --id-column ('' for none)"),
        (np.array([3, 2**24 + 2], np.float32), "id 16777218.0 of row 1 is no whole number that a float"),
        ([3.0, 1.5], "id 1.5 of row 1 is no whole number that a float holds exactly"),
        ([3.0, 1e300], "id 1e+300 of row 1 is no whole number that a float holds exactly"),
        ([3.0, float("nan")], "id nan of row 1 is no whole number"),
        ([Decimal("1.5"), Decimal(2)], "id 1.5 of row 0 is no whole number of 64 signed bits"),
        (
            [Decimal(1), Decimal(2**63)],
            "id 9223372036854775808 of row 1 is no whole number of",
        ),
        ([3.0, 3.0], "id 3 of row 1 is given twice"),
        (
            [{"a": 1}, {"a": 2}],
            "column 'id' is struct<a: int64>, expected whole numbers for ids or text",
        ),
        ([True, False], "column 'id' is bool, expected whole numbers"),
    ],
)
def test_ids_are_never_dropped_in_silence(tmp_path, ids, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        chunk_of(tmp_path, id=ids)
    assert "\n" not in str(caught.value)
    assert chunk_of(tmp_path, id=ids, wanted=Columns(id="", key="")).ids is None


def test_ids_that_are_no_numbers_become_keys(tmp_path):
    chunk = chunk_of(tmp_path, id=UUIDS)
    assert (chunk.ids, chunk.keys.tolist()) == (
        None,
        ["00010203-0405-0607-0809-0a0b0c0d0e0f", "00000000-0000-0000-0000-000000000000"],
    )
    if hasattr(pa, "uuid"):
        extension = pa.ExtensionArray.from_storage(pa.uuid(), UUIDS)
        assert chunk_of(tmp_path, id=extension).keys.tolist() == chunk.keys.tolist()
    numbers = chunk_of(tmp_path, id=[3.0, 1.5], wanted=Columns(id="", key="id"))
    assert numbers.keys.tolist() == ["3", "1.5"]


def test_ids_and_keys_stand_together(tmp_path):
    chunk = chunk_of(tmp_path, id=[5, 7], file_name=["a.jpg", "b.jpg"])
    assert (chunk.ids.tolist(), chunk.keys.tolist()) == ([5, 7], ["a.jpg", "b.jpg"])
    with pytest.raises(InputError, match="or give no keys \\(--key-column ''\\)"):
        chunk_of(tmp_path, id=[5, 7], url=["a", "a"])


def test_ids_of_hdf5_that_became_floats(tmp_path):
    for ids, path in (([3.0, 1.0], tmp_path / "a.h5"), ([3.0, 1.5], tmp_path / "b.h5")):
        with h5py.File(path, "w") as file:
            file["features"], file["tags"], file["id"] = np.eye(2), ["sea", "hill"], ids
    assert read(tmp_path / "a.h5")[0].ids.tolist() == [3, 1]
    with pytest.raises(InputError, match=r"id 1.5 of row 1 is no whole number"):
        read(tmp_path / "b.h5")


TEXTS = ["sea, golden gate", "hill, fog"]
SPLIT = [["sea", "golden gate"], ["hill", "fog"]]


def test_tags_of_a_column_of_text_are_split_as_its_first_rows_tell(tmp_path):
    notes = []
    chunk = chunk_of(tmp_path, notes.append, tags=TEXTS)
    assert plain(chunk)[2] == SPLIT
    assert notes == ["tags are split at commas, not at blanks"]
    blanks = chunk_of(tmp_path, notes.append, " ", tags=TEXTS)
    assert plain(blanks)[2] == [["sea", "golden", "gate"], ["hill", "fog"]]
    assert len(notes) == 1
    assert plain(chunk_of(tmp_path, tags=["a,b;c", "d e"], separator=","))[2] == [["a", "b;c"], ["d e"]]
    if hasattr(pa, "json_"):
        texts = pa.array(['["sea", "golden gate"]', '["hill","fog"]'])
        json = pa.ExtensionArray.from_storage(pa.json_(), texts)
        assert plain(chunk_of(tmp_path, notes.append, tags=json))[2] == SPLIT
        assert notes[-1] == "lists that are written as text are read as lists"


def test_all_files_of_an_input_are_split_as_the_first(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.eye(2), tags=TEXTS)
    np.savez(tmp_path / "b.npz", features=np.eye(2), tags=["golden gate", "hill"])
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["features"], file["tags"] = np.eye(2), ["golden gate", "a b, c"]
    a, b, c = read(tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "c.h5")
    assert [plain(chunk)[2] for chunk in (a, b)] == [SPLIT, [["golden gate"], ["hill"]]]
    assert plain(c)[2] == [["golden gate"], ["a b", "c"]]


def test_commands_say_how_they_split_tags(tmp_path):
    X, tags = tagged(0, n=60)
    np.savez(tmp_path / "a.npz", features=X, tags=[", ".join([*given, "golden gate"]) for given in tags])
    index = ["--index", str(tmp_path / "i.woh")]
    how = ["--bits", "16", "--anchors", "20", *index]
    done = CliRunner().invoke(main, ["build", str(tmp_path / "a.npz"), *how])
    note = "note: tags are split at commas, not at blanks; --tag-separator says otherwise\n"
    assert (done.exit_code, done.stderr.count(note)) == (0, 1), done.output
    with WOHIndex.open(tmp_path / "i.woh") as built:
        assert "golden gate" in {tag for tag, _, _ in built.tags()}
    done = CliRunner().invoke(main, ["add", str(tmp_path / "a.npz"), *index, "--tag-separator", "; "])
    assert (done.exit_code, "separator of tags is '; ', expected one character" in done.stderr) == (1, True)


@pytest.mark.parametrize("first_lacks", ["tags", "id", "path"])
@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_what_only_later_files_of_a_folder_have_is_taken(tmp_path, first_lacks, suffix):
    found = {"tags": lambda c: c.tags and c.tags.of_row(0), "id": lambda c: c.ids, "path": lambda c: c.keys}
    for number in range(3):
        columns = {
            "embedding": [[1.0, number]],
            "tags": [["sea"]],
            "id": [10 + number],
            "path": [f"{number}.jpg"],
        }
        if number == 0:
            del columns[first_lacks]
        table, path = pa.table(columns), tmp_path / f"part-{number}.{suffix}"
        pq.write_table(table, path) if suffix == "parquet" else feather.write_feather(table, path)
    inputs = open_inputs([tmp_path])
    first, *others = (piece.chunk for piece in inputs.pieces())
    assert found[first_lacks](first) is None
    for number, chunk in enumerate(others, 1):
        assert chunk.tags.of_row(0) == ["sea"]
        assert chunk.ids.tolist() == [10 + number]
        assert chunk.keys.tolist() == [f"{number}.jpg"]
    assert len(inputs.guessed(Columns())) == 2  # both kinds of files are told
    without = open_inputs([tmp_path], columns=Columns(tags="", id="", key=""))
    assert all(c.tags is c.ids is c.keys is None for c in without)


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("keywords", [1.5, 2.5], "'keywords' is double, expected lists of text or text for tags"),
        ("caption", pa.array([{"a": 1}, {"a": 2}]), "'caption' is struct<a: int64>, expected lists of text"),
        ("file_name", [["a"], ["b"]], "expected text or UUIDs or numbers for key"),
        ("url", [True, False], "'url' is bool"),
    ],
)
def test_a_column_that_cannot_be_what_its_name_says_is_told(tmp_path, name, values, told):
    pq.write_table(pa.table({"embedding": [[1.0, 2.0], [2.0, 1.0]], name: values}), tmp_path / "a.parquet")
    shutil.copy(tmp_path / "a.parquet", tmp_path / "b.parquet")
    (line,) = open_inputs([tmp_path]).notes(Columns())[1:]  # said once for both files
    assert told in line
    assert line.endswith("; not taken")
    named = Columns(tags="", key="")
    assert not any("not taken" in line for line in open_inputs([tmp_path], columns=named).notes(named))


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "--chunks", "2"],
        ["benchmark", "-o", "report", "--methods", "itq", "--seeds", "1", "--queries", "15"],
    ],
)
@pytest.mark.usefixtures("few_anchors", "few_figures")
def test_measures_say_how_tags_are_split_and_take_the_separator(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    X, tags = tagged(0, n=60)
    texts = [", ".join([*given, "golden gate"]) for given in tags]
    np.savez("a.npz", features=X, tags=texts, labels=np.arange(60) % 3)
    run = [command[0], "a.npz", *command[1:], "--bits", "16"]
    note = "note: tags are split at commas, not at blanks; --tag-separator says otherwise\n"
    done = CliRunner().invoke(main, run)
    assert (done.exit_code, done.stderr.count(note)) == (0, 1), done.output
    shutil.rmtree("report", ignore_errors=True)
    done = CliRunner().invoke(main, [*run, "--tag-separator", ","])
    assert (done.exit_code, note in done.stderr) == (0, False), done.output
    done = CliRunner().invoke(main, [*run, "--tag-separator", "; "])
    assert "expected one character" in done.stderr
