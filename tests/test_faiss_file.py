"""A flat Faiss file and a file of tags give the index that the same data in .npz files give."""

import contextlib
import json
import struct

import faiss
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, tagged
from numpy.testing import assert_array_equal

from woh_faiss import Chunk, WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.inputs import Columns
from woh_faiss.inputs.faiss_file import open_faiss
from woh_faiss.inputs.flat_faiss_file import read_floats
from woh_faiss_cli.main import main

N = 23
X, TAGS = tagged(1, N)
IDS = np.arange(N)[::-1] * 7 + 2


def flat(metric=faiss.METRIC_L2):
    index = faiss.IndexFlat(X.shape[1], metric)
    index.add(X)
    return index


def mapped(kind):
    index = kind(faiss.IndexFlatIP(X.shape[1]))
    index.add_with_ids(X, IDS)
    return index


INDEXES = {
    "l2": flat,
    "ip": lambda: flat(faiss.METRIC_INNER_PRODUCT),
    "lp": lambda: flat(faiss.METRIC_Lp),
    "map": lambda: mapped(faiss.IndexIDMap),
    "map2": lambda: mapped(faiss.IndexIDMap2),
}


@pytest.fixture
def files(tmp_path):
    """A flat index with ids, and its tags as text."""
    faiss.write_index(mapped(faiss.IndexIDMap2), str(tmp_path / "photos.faiss"))
    (tmp_path / "tags.txt").write_text("".join(f"{';'.join([*given, ''])}\n" for given in TAGS))
    return tmp_path / "photos.faiss", tmp_path / "tags.txt"


def chunks_of(path, tags, size=10, **columns):
    return list(open_faiss(path, tags, columns=Columns(**columns), chunk_size=size))


@pytest.mark.parametrize("kind", INDEXES)
def test_vectors_and_ids_are_what_was_added(tmp_path, kind):
    faiss.write_index(INDEXES[kind](), str(tmp_path / "i.faiss"))
    found = read_floats(tmp_path / "i.faiss")
    np.testing.assert_array_equal(found.vectors, X)
    assert (None if found.ids is None else found.ids.tolist()) == (IDS.tolist() if "map" in kind else None)


def write_npz(path):
    np.savez(path, tags=np.array([";".join([*given, ""]) for given in TAGS]), ids=IDS)


def write_parquet(path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"keywords": TAGS, "id": IDS}), path)


def write_lines(values):
    return lambda path: path.write_text("".join(json.dumps(value) + "\n" for value in values))


SIDES = {
    "a.npz": write_npz,
    "a.parquet": write_parquet,
    "lists.jsonl": write_lines(TAGS),
    "texts.jsonl": write_lines(";".join([*given, ""]) for given in TAGS),
    "objects.jsonl": write_lines({"id": i, "tags": t} for i, t in zip(IDS.tolist(), TAGS, strict=True)),
}


@pytest.mark.parametrize("name", SIDES)
def test_every_form_of_tags_says_the_same(files, tmp_path, name):
    SIDES[name](tmp_path / name)
    expected, found = chunks_of(*files), chunks_of(files[0], tmp_path / name)
    assert [len(chunk) for chunk in found] == [10, 10, 3]
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a.features, b.features)
        assert a.tags.names == b.tags.names
        assert a.tags.indices.tolist() == b.tags.indices.tolist()
        assert a.ids.tolist() == b.ids.tolist()


def test_keys_captions_empty_lines_and_ids_of_the_file_of_tags(tmp_path):
    faiss.write_index(flat(), str(tmp_path / "i.faiss"))
    lines = [{"key": f"k{i}", "caption": f"The {t[0]}.", "id": i + 5} for i, t in enumerate(TAGS)]
    lines[3]["caption"] = None
    write_lines(lines)(tmp_path / "a.jsonl")
    (chunk,) = chunks_of(tmp_path / "i.faiss", tmp_path / "a.jsonl", size=None)
    assert chunk.tags.of_row(0) == ["the", TAGS[0][0]]
    assert chunk.tags.of_row(3) == []
    assert chunk.ids.tolist() == list(range(5, N + 5))
    assert chunk.keys.tolist()[-1] == "k22"
    (chunk,) = chunks_of(tmp_path / "i.faiss", tmp_path / "a.jsonl", size=None, id="", key="")
    assert chunk.ids is chunk.keys is None
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfsea\r\n\r\n" + b"hill night\n" * (N - 2))
    (chunk,) = chunks_of(tmp_path / "i.faiss", tmp_path / "a.txt", size=None)
    assert [chunk.tags.of_row(i) for i in range(3)] == [["sea"], [], ["hill", "night"]]


def test_the_command_builds_what_the_same_chunks_build(files, tmp_path):
    path, tags = files
    done = CliRunner().invoke(
        main,
        [
            *("import", str(path), "--tags", str(tags), "--index", str(tmp_path / "a.woh")),
            *("--bits", "16", "--anchors", "10", "--chunk-size", "10"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert "round 1: 23 items appended" in done.stderr
    config = {"bits": 16, "anchors": 10}
    with WOHIndex.build(tmp_path / "b.woh", [Chunk.of(X, TAGS, ids=IDS)], config=None, **config) as index:
        codes = (index.path / "codes.faiss").read_bytes()
        assert (tmp_path / "a.woh" / "codes.faiss").read_bytes() == codes
    with WOHIndex.open(tmp_path / "a.woh") as index:
        assert index.items(IDS)[0].tags == TAGS[0]


def prices(path):
    """A table of tags, prices and days, one price missing, in the format of the path's ending."""
    pytest.importorskip("pyarrow")
    rows = [
        {"id": int(i), "tags": ";".join([*t, ""]), "price": k / 2, "day": "2024-03-01"}
        for k, (i, t) in enumerate(zip(IDS, TAGS, strict=True))
    ]
    rows[2]["price"] = None
    if path.suffix == ".jsonl":
        write_lines(rows)(path)
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet").write_table(
            pytest.importorskip("pyarrow").Table.from_pylist(rows), path
        )
    else:
        between = {".csv": ",", ".tsv": "\t"}[path.suffix]
        lines = [between.join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
        path.write_text("\n".join([between.join(rows[0]), *lines, ""]))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_metadata_are_columns_of_the_file_of_tags(files, tmp_path, name):
    prices(tmp_path / name)
    done = CliRunner().invoke(
        main,
        [
            *("import", str(files[0]), "--tags", str(tmp_path / name), "--index", str(tmp_path / "a.woh")),
            *(
                "--bits",
                "16",
                "--anchors",
                "10",
                "--chunk-size",
                "10",
                "--metadata",
                "price",
                "--metadata",
                "day",
            ),
        ],
    )
    assert done.exit_code == 0, done.output
    with WOHIndex.open(tmp_path / "a.woh") as index:
        assert [index.items([int(id_)])[0].metadata["price"] for id_ in IDS] == [
            None if k == 2 else k / 2 for k in range(N)
        ]
        assert index.items([int(IDS[5])])[0].metadata["day"].startswith("2024-03-01")
        assert index.ids("price >= 11").tolist() == sorted(IDS[22:].tolist())


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        (
            "tags.txt",
            ["price"],
            "tags.txt has no columns for --metadata; give CSV, TSV, JSON lines or Parquet",
        ),
        ("a.npz", ["ids"], "a.npz has no columns for --metadata"),
        ("a.csv", ["prize"], "a.csv has no column 'prize' for --metadata; it has id (int64), tags"),
        ("a.csv", ["id"], "metadata 'id' is what items have anyway"),
        ("semicolons.csv", ["price"], "semicolons.csv has no column 'price' for --metadata"),
        (
            "nan.csv",
            ["price"],
            "metadata 'price' of row 0 is inf, expected one number that is finite",
        ),
    ],
)
def test_metadata_that_are_not_there_are_refused(files, tmp_path, name, metadata, message):
    write_npz(tmp_path / "a.npz")
    prices(tmp_path / "a.csv")
    lines = [f"{';'.join([*given, ''])},1.5" for given in TAGS]
    (tmp_path / "semicolons.csv").write_text("tags;price\n" + "sea;1\n" * N)
    (tmp_path / "nan.csv").write_text("\n".join(["tags,price", *lines, ""]).replace("1.5", "inf", 1))
    with pytest.raises(InputError) as caught:
        list(open_faiss(files[0], tmp_path / name, metadata=metadata))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "sea\n" * 22, "has tags of 22 items, "),
        ("a.txt", "sea\n" * 22 + "\0\n", "row 22 is"),
        ("a.txt", b"sea\n\xff\n", "line 2 is not UTF-8 text"),
        ("a.txt", b"\x00\x01", "is not text"),
        ("a.jsonl", '["a"]\n' * 22 + "[", "line 23 is '[', not JSON"),
        ("a.jsonl", '["a"]\n' * 22 + "7", "row 22 is 7, expected a list of text, or a text"),
        ("a.jsonl", '["a"]\n' * 22 + "[7]", "tags of row 22 are [7]"),
        ("a.jsonl", '{"tags": []}\n' * 22 + "[]", "row 22 is [], expected an object"),
        ("a.jsonl", '{"words": []}\n' * 23, "no column of tags under a usual name"),
        ("a.jsonl", '{"tags": [], "id": 1}\n' * 23, "row 0 has id 1, "),
        ("a.jsonl", '{"tags": [], "id": 1}\n{"tags": []}\n' + "{}\n" * 21, "row 1 has None for 'id'"),
        ("a.npz", b"PK\x03\x04 no more", "cannot be read"),
        ("none.txt", None, "does not exist"),
    ],
)
def test_tags_that_do_not_fit_are_one_line(files, tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        chunks_of(files[0], tmp_path / name, size=None)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert str(caught.value).isprintable()


def test_without_tags_nothing_can_be_learned(files, tmp_path):
    done = CliRunner().invoke(main, ["import", str(files[0]), "--index", str(tmp_path / "i.woh")])
    assert done.exit_code == 1
    assert done.stderr.endswith("give a file with --tags\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "i.woh").exists()


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        ("PQ7x4", "IndexPQ"),
        ("PCA4,Flat", "IndexPreTransform"),
        ("LSH", "IndexLSH"),
        ("HNSW8_SQ8", "IndexHNSWSQ"),
        ("IVF4,SQ8", "IndexIVFScalarQuantizer"),
        ("IDMap,PQ7x4", "IndexPQ"),
    ],
)
def test_other_kinds_of_index_are_named(tmp_path, factory, name):
    index = faiss.index_factory(7, factory)
    index.train(np.tile(X, (30, 1)))
    if factory.startswith("IDMap"):
        index.add_with_ids(X, IDS)
    faiss.write_index(index, str(tmp_path / "i.faiss"))
    with pytest.raises(InputError, match=rf"i\.faiss is an {name}, expected IndexFlat,"):
        read_floats(tmp_path / "i.faiss")


@pytest.mark.parametrize(
    "factory",
    ["HNSW8", "IDMap,HNSW8", "IDMap2,HNSW8", "IVF4,Flat", "IDMap,IVF4,Flat", "SQ8", "SQfp16", "IDMap,SQfp16"],
)
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L1])
def test_vectors_are_those_that_faiss_reconstructs(tmp_path, factory, metric):
    if metric == faiss.METRIC_L1 and factory != "HNSW8":
        pytest.skip("Faiss has none")
    index = faiss.index_factory(7, factory, metric)
    index.train(np.tile(X, (10, 1)))
    by_id = "IDMap" in factory or "IVF" in factory
    if by_id:
        index.add_with_ids(X, IDS)
    else:
        index.add(X)
    path = tmp_path / "i.faiss"
    faiss.write_index(index, str(path))
    found = read_floats(path)
    ids = np.sort(IDS) if factory.startswith("IVF") else IDS
    if by_id:
        assert_array_equal(found.ids, ids)
    else:
        assert found.ids is None
    if factory.startswith("IVF"):
        expected = X[np.argsort(IDS)]
    else:
        inner = faiss.downcast_index(index.index if "IDMap" in factory else index)
        if "IVF" in factory:
            inner.make_direct_map(True)
        expected = np.stack([inner.reconstruct(place) for place in range(N)])
    np.testing.assert_allclose(found.vectors, expected, rtol=1e-6, atol=1e-6)
    if "SQ" not in factory:
        assert_array_equal(found.vectors, expected)
    data = path.read_bytes()
    for changed in [*(data[:end] for end in range(0, len(data), 7)), data + b"\0"]:
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"i\.faiss"):
            read_floats(path)
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(data)
        place = int(rng.integers(len(data)))
        damaged[place : place + 8] = rng.bytes(8)
        path.write_bytes(damaged[: len(data)])
        with contextlib.suppress(InputError):
            assert read_floats(path).vectors.shape[0] > 0


def test_inverted_lists_are_imported_by_id(tmp_path):
    index = faiss.index_factory(7, "IVF4,Flat")
    index.train(np.tile(X, (10, 1)))
    index.add_with_ids(X, IDS)
    faiss.write_index(index, str(tmp_path / "i.faiss"))
    order = np.argsort(IDS)
    lines = [f'{{"id": {IDS[row]}, "tags": ["t{row}"]}}\n' for row in order]
    (tmp_path / "tags.jsonl").write_text("".join(lines))
    (chunk,) = open_faiss(tmp_path / "i.faiss", tmp_path / "tags.jsonl")
    assert_array_equal(chunk.features, X[order])
    assert [chunk.tags.of_row(i) for i in range(N)] == [[f"t{row}"] for row in order]
    (tmp_path / "tags.jsonl").write_text("".join(reversed(lines)))
    with pytest.raises(InputError, match="put both in one order"):
        list(open_faiss(tmp_path / "i.faiss", tmp_path / "tags.jsonl"))


def test_binary_indexes_are_named(tmp_path):
    faiss.write_index_binary(faiss.IndexBinaryFlat(64), str(tmp_path / "i.faiss"))
    with pytest.raises(InputError, match="is an IndexBinaryFlat, expected IndexFlat"):
        read_floats(tmp_path / "i.faiss")


@pytest.mark.parametrize(
    ("at", "packed", "message"),
    [
        (0, b"????", "starts with b'????'"),
        (4, struct.pack("<i", -7), "23 vectors of width -7"),
        (4, struct.pack("<i", 2**31 - 1), "23 ids of width 2147483647 for 23 vectors of 7"),
        (8, struct.pack("<q", 2**62), "ids of width 7 for 23 vectors"),
        (8, struct.pack("<q", 0), "holds no vectors"),
        (37 + 8, struct.pack("<q", 2**62), "23 ids of width 7 for 4611686018427387904"),
        (37 + 37, struct.pack("<Q", 2**63), "fewer than the 161 numbers"),
        (37 + 37 + 8 + 4 * N * 7, struct.pack("<Q", N + 1), "fewer than the 23 numbers"),
    ],
)
def test_numbers_that_lie_are_refused(files, at, packed, message):
    path = files[0]
    data = bytearray(path.read_bytes())
    data[at : at + len(packed)] = packed
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_floats(path)
    assert message in str(caught.value)


def test_a_file_cut_or_extended_anywhere_is_refused(files):
    path = files[0]
    data = path.read_bytes()
    for changed in [*(data[:end] for end in range(len(data))), data + b"\0"]:
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"photos\.faiss"):
            read_floats(path)


def test_ids_that_repeat_are_refused(tmp_path):
    index = faiss.IndexIDMap2(faiss.IndexFlatL2(7))
    index.add_with_ids(X, np.zeros(N, np.int64))
    faiss.write_index(index, str(tmp_path / "i.faiss"))
    (tmp_path / "tags.txt").write_text("sea\n" * N)
    with pytest.raises(InputError, match="id 0 of row 1 is given twice"):
        WOHIndex.build(tmp_path / "i.woh", open_faiss(tmp_path / "i.faiss", tmp_path / "tags.txt"), **SMALL)
    assert not (tmp_path / "i.woh").exists()


ITEMS = [{"id": int(i), "tags": given} for i, given in zip(IDS, TAGS, strict=True)]
CSV = "id,tags\n" + "".join(f'{i},"{", ".join([*given, ""])}"\n' for i, given in zip(IDS, TAGS, strict=True))

ROWS = "id\ttags\n" + "".join(f"{i}\t{','.join(given)}\n" for i, given in zip(IDS, TAGS, strict=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", json.dumps(TAGS)),
        ("t.json", json.dumps(TAGS, indent=1)),
        ("t.json", json.dumps([";".join([*given, ""]) for given in TAGS])),
        ("t.json", json.dumps(ITEMS, indent=2)),
        ("t.jsonl", json.dumps(ITEMS)),
        ("t.ndjson", "\ufeff" + json.dumps(TAGS, indent=1)),
        ("t.json", "".join(json.dumps(given) + "\n" for given in TAGS)),
        ("t.csv", CSV),
        ("t.csv", "\ufeff" + CSV.replace("id,tags", "ID,Keywords").replace("\n", "\r\n")),
        ("t.csv", "\n".join(f'"{", ".join(given)}"' for given in TAGS)),
        ("t.csv", "\n".join(";".join([*given, ""]) for given in TAGS)),
        ("t.csv", ROWS.replace("\t", ";")),
        ("t.tsv", ROWS),
    ],
)  # fmt: skip
def test_tags_in_json_arrays_and_tables(files, tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    chunks = chunks_of(files[0], tmp_path / name)
    assert [chunk.tags.of_row(i) for chunk in chunks for i in range(len(chunk))] == TAGS
    assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.json", '{"tags": [["sea"]],\n"id": [1]}', "t.json is one JSON object; give an array of items"),
        ("t.json", '[["sea"],\n["hill"', "is neither a JSON array nor JSON lines (Expecting ',' delimiter"),
        ("t.csv", "1,sea\n2,hill\n", "has 2 columns in row 0 and no header with one of tags; begin it"),
        ("t.csv", "id,tags\n1,sea,hill\n", "row 1 has 3 columns, the first line 2; quote what has a"),
        ("t.csv", 'id,tags\n1,"sea', "t.csv is not CSV (unexpected end of data); write it again"),
        ("t.csv", "tags,tags\n", "has a name twice in its first line: tags, tags; rename one"),
        ("t.csv", "keywords,tags\nsea,hill\n", "several columns that may be the tags: keywords, tags"),
        ("t.csv", 'tags\n"[1, 2]"\n' + "sea\n" * (N - 1), "tags of row 0 are '[1, 2]', which looks like"),
    ],
)  # fmt: skip
def test_what_is_no_table_of_tags_is_refused_in_one_line(files, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        chunks_of(files[0], tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
