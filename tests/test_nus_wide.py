"""NUS-WIDE's files as they are unpacked, small, against what they were written from."""

import contextvars
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss import budget
from woh_faiss.errors import InputError
from woh_faiss.evaluation.datasets import NusWide
from woh_faiss.evaluation.datasets.nus_wide import KINDS
from woh_faiss.inputs.chunk import concatenate

N = 23
CONCEPTS = ["animal", "plants", "sky", "water"]
WT, SKY = "Low_Level_Features/Normalized_WT.dat", "Groundtruth/AllLabels/Labels_sky.txt"
WORDS = ["sea", "sun", "sky", "nikon"]


class Set:
    """What is in the files, and the files."""

    def __init__(self, root, seed=0, n=N):
        self.root, self.n = root, n
        rng = np.random.default_rng(seed)
        self.names = [f"{'actor' if i % 2 else 'zoo'}/{i:04d}_{10**9 + 7 * i}.jpg" for i in range(n)]
        train = rng.permutation(n)[: n // 2 + 1]
        self.places = {"all": np.arange(n), "train": train, "test": np.setdiff1d(np.arange(n), train)}
        self.labels = rng.random((n, 4)) < [0.2, 0.1, 0.5, 0.3]
        self.labels[0] = False
        self.labels[1, 2] = self.labels[2, 0] = True
        self.marks = rng.random((n, 4)) < 0.4
        self.marks[2] = False
        self.X = {kind: rng.normal(size=(n, 2 + i)).round(4) for i, kind in enumerate(KINDS)}
        self.tags = [
            [w for w, m in zip(WORDS, row, strict=True) if m] + ["own"] * (i == 3)
            for i, row in enumerate(self.marks)
        ]

    def write(self, *, whole_features=True, whole_labels=True, whole_tags=True):
        self.text("ImageList/Imagelist.txt", self.names, "\\")
        for part in ("Train", "Test"):
            names = [self.names[i] for i in self.places[part.lower()]]
            self.text(f"ImageList/{part}Imagelist.txt", names, "\\")
        order = np.random.default_rng(9).permutation(self.n)  # found by number, not by line
        self.text(
            "NUS_WID_Tags/All_Tags.txt",
            [f"{10**9 + 7 * i}      {' '.join(self.tags[i])} " for i in order],
        )
        self.text("NUS_WID_Tags/TagList1k.txt", WORDS)
        self.matrix(whole_tags, "NUS_WID_Tags/AllTags1k.txt", "NUS_WID_Tags/{}_Tags1k.dat", self.marks, "\t")
        for column, name in enumerate(CONCEPTS):
            self.matrix(
                whole_labels,
                f"Groundtruth/AllLabels/Labels_{name}.txt",
                f"Groundtruth/TrainTestLabels/Labels_{name}_{{}}.txt",
                self.labels[:, column : column + 1],
            )
        for kind, X in self.X.items():
            self.matrix(
                whole_features,
                f"Low_Level_Features/Normalized_{kind}.dat",
                f"Low_Level_Features/{{}}_Normalized_{kind}.dat",
                X,
            )
        return self

    def text(self, name, rows, slash="/"):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes("".join(f"{row.replace('/', slash)}\r\n" for row in rows).encode())
        return file

    def matrix(self, whole, name, partly, M, blank=" "):
        def rows(places):
            return [blank.join(f"{x:g}" for x in row) + " " for row in M[places].astype(float)]

        if whole:
            self.text(name, rows(slice(None)))
        else:
            for part in ("Train", "Test"):
                self.text(partly.format(part), rows(self.places[part.lower()]))


@pytest.fixture
def nus(tmp_path):
    return Set(tmp_path / "nus").write()


def refused(*arguments, **more):
    with pytest.raises(InputError) as caught:
        list(NusWide(*arguments, **more).chunks(4))
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def check(nus, found, part, *, labelled=True, kinds=KINDS, size=4):
    """Every image of the part, once, with all that belongs to it."""
    chunks = list(found.chunks(size))
    chunk = concatenate(chunks, own_names=True)
    members = [i for i in nus.places[part] if nus.labels[i].any() or not labelled]
    assert sorted(chunk.ids.tolist()) == sorted(members)
    assert len(found) == len(members)
    assert all(len(c) == size for c in chunks[:-1])
    columns = [CONCEPTS.index(name) for name in found.concepts]
    assert_array_equal(chunk.labels, nus.labels[chunk.ids][:, columns])
    assert_allclose(chunk.features, np.hstack([nus.X[kind] for kind in kinds])[chunk.ids], rtol=1e-3)
    assert chunk.keys.tolist() == [nus.names[i] for i in chunk.ids]
    return chunk


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 99),
    whole=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    part=st.sampled_from(["all", "train", "test"]),
    tags=st.sampled_from(["all", "1k"]),
    labelled=st.booleans(),
    size=st.integers(1, 30),
)
def test_every_form_gives_the_same_set(tmp_path, seed, whole, part, tags, labelled, size):
    shutil.rmtree(tmp_path / "nus", ignore_errors=True)
    features, labels, matrix = whole
    nus = Set(tmp_path / "nus", seed).write(whole_features=features, whole_labels=labels, whole_tags=matrix)
    found = NusWide(nus.root, part=part, tags=tags, concepts=4, labelled=labelled)
    chunk = check(nus, found, part, labelled=labelled, size=size)
    for i, place in enumerate(chunk.ids):
        assert chunk.tags.of_row(i) == [t for t in nus.tags[place] if tags == "all" or t != "own"]
    counts = nus.labels.sum(axis=0)
    assert list(found.concepts) == sorted(CONCEPTS, key=lambda c: (-counts[CONCEPTS.index(c)], c))


def test_blocks_smaller_and_larger_than_chunks(tmp_path, monkeypatch):
    nus = Set(tmp_path / "nus").write(whole_features=False)
    for block in (1, 3, 1000):
        monkeypatch.setattr("woh_faiss.evaluation.datasets.nus_wide.BLOCK", block)
        for size in (1, 5, 100):
            check(nus, NusWide(nus.root, concepts=4), "all", size=size)


def test_features_are_never_held_whole(tmp_path, monkeypatch):
    """The first chunk is there when little more than it was read: the rest of the file may be no good."""
    monkeypatch.setattr("woh_faiss.evaluation.datasets.nus_wide.BLOCK", 2)
    nus = Set(tmp_path / "nus").write()
    file = nus.root / "Low_Level_Features" / "Normalized_CH.dat"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:12], "no number", *lines[13:]]))
    stream = NusWide(nus.root, concepts=4, labelled=False).chunks(10)
    assert next(stream).ids.tolist() == list(range(10))
    with pytest.raises(InputError, match=r"CH\.dat: row 13 holds 'no'"):
        next(stream)


def test_a_stream_can_be_read_again(nus):
    found = NusWide(nus.root, concepts=2)
    first, second = (concatenate(list(found.chunks(7))).features for _ in range(2))
    assert_array_equal(first, second)


def test_kinds_and_named_concepts(nus):
    found = NusWide(nus.root, concepts=["water", "animal"], kinds=["WT", "CH"])
    assert found.concepts == ("water", "animal")
    columns = [CONCEPTS.index(name) for name in found.concepts]
    chunk = concatenate(list(found.chunks()), own_names=True)
    assert chunk.ids.tolist() == np.flatnonzero(nus.labels[:, columns].any(axis=1)).tolist()
    assert_allclose(chunk.features, np.hstack([nus.X["WT"], nus.X["CH"]])[chunk.ids], rtol=1e-3)
    assert NusWide(nus.root, concepts="sky").concepts == ("sky",)


@pytest.mark.parametrize("rows", ["all", "train"])
def test_the_users_own_features(nus, tmp_path, rows):
    X = np.arange(N * 3, dtype=np.float16).reshape(N, 3)
    np.save(tmp_path / "cnn.npy", X[nus.places[rows]])
    found = NusWide(nus.root, tmp_path / "cnn.npy", part="train", concepts=4)
    chunk = concatenate(list(found.chunks(4)), own_names=True)
    assert chunk.features.dtype == np.float16
    assert_array_equal(chunk.features, X[chunk.ids])
    assert sorted(chunk.ids) == sorted(i for i in nus.places["train"] if nus.labels[i].any())
    message = refused(nus.root, tmp_path / "cnn.npy", part="test")
    if rows == "train":
        assert f"has 12 rows, expected {N} (part 'all') or 11 (part 'test'), one an image" in message


def test_rare_tags_and_images_without_tags_can_be_left_out(nus):
    found = NusWide(nus.root, concepts=4, min_count=2)
    chunk = concatenate(list(found.chunks(6)), own_names=True)
    labelled = [i for i in range(N) if nus.labels[i].any()]
    counts = nus.marks[labelled].sum(axis=0)
    usual = [word for word, count in zip(WORDS, counts, strict=True) if count >= 2]
    expected = {i: tags for i in labelled if (tags := [t for t in nus.tags[i] if t in usual])}
    assert len(expected) < len(labelled)
    assert chunk.ids.tolist() == list(expected)
    assert [chunk.tags.of_row(i) for i in range(len(chunk))] == list(expected.values())
    assert "give min_count" in refused(nus.root, word_vectors=object())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ImageList/Imagelist.txt", {}),
        ("ImageList/TrainImagelist.txt", {"part": "train"}),
        ("NUS_WID_Tags/All_Tags.txt", {}),
        ("NUS_WID_Tags/TagList1k.txt", {"tags": "1k"}),
        ("NUS_WID_Tags/AllTags1k.txt", {"tags": "1k"}),
        ("NUS_WID_Tags/AllTags1k.txt", {"tags": "1k", "part": "test"}),
        ("Groundtruth/AllLabels", {}),
        ("Low_Level_Features/Normalized_EDH.dat", {}),
        ("Low_Level_Features/Normalized_EDH.dat", {"part": "train"}),
    ],
)
def test_a_missing_file_is_named_with_where_to_get_it(nus, name, options):
    file = nus.root / name
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    message = refused(nus.root, concepts=4, **options)
    assert message.startswith("NUS-WIDE: ")
    assert f"in {nus.root}; the set can be had from the NUS-WIDE page of the Lab for Media Search" in message
    if "part" not in options:
        assert name.casefold() in message.casefold()


def test_a_missing_part_and_an_empty_folder(tmp_path):
    nus = Set(tmp_path / "nus").write(whole_features=False, whole_labels=False)
    (nus.root / "Low_Level_Features" / "Test_Normalized_WT.dat").unlink()
    assert "Test_Normalized_WT.dat is missing" in refused(nus.root)
    check(nus, NusWide(nus.root, part="train", concepts=4), "train")
    (nus.root / "Groundtruth" / "TrainTestLabels" / "Labels_sky_Test.txt").unlink()
    assert "Labels_sky_Test.txt is missing" in refused(nus.root, part="train", concepts=4)
    (nus.root / "Groundtruth" / "AllLabels").mkdir()
    assert "Labels_airport.txt is missing" in refused(nus.root, part="train", concepts=4)
    assert "is not a folder; give the one that" in refused(tmp_path / "none")


def edited(file, change):
    file.write_text(change(file.read_text()))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "Low_Level_Features/Normalized_WT.dat",
            lambda t: t[: t.rindex("\n", 0, -1)],
            "has 22 rows, expected 23",
        ),
        (WT, lambda t: t + t.splitlines()[0], "more than 23 rows"),
        (
            "Low_Level_Features/Normalized_WT.dat",
            lambda t: t.replace(" \n", " 7 \n", 1),
            "row 2 has 6 numbers",
        ),
        (WT, lambda t: "nan " + t.split(" ", 1)[1], "row 1 holds 'nan'"),
        (
            "Low_Level_Features/Normalized_WT.dat",
            lambda t: "1e99 " + t.split(" ", 1)[1],
            "row 1 holds '1e99'",
        ),
        (WT, lambda t: "é " + t.split(" ", 1)[1], "expected a finite"),
        (WT, lambda _: "", "has 0 rows, expected 23"),
        (
            "Groundtruth/AllLabels/Labels_sky.txt",
            lambda t: t.replace("1", "2", 1),
            "is b'2', expected 0 or 1",
        ),
        (SKY, lambda t: t + "1\n", "has 24 rows, expected 23"),
        ("NUS_WID_Tags/All_Tags.txt", lambda t: t.split("\n", 1)[1], "has no line for image"),
        ("ImageList/Imagelist.txt", lambda t: t + t.splitlines()[4], "twice"),
        ("ImageList/Imagelist.txt", lambda _: "\n", "is empty"),
        ("ImageList/TrainImagelist.txt", lambda t: t + "zoo\\x_1.jpg\n", "has 'zoo/x_1.jpg', which"),
    ],
)
def test_damage_is_refused(nus, name, change, words):
    edited(nus.root / name, change)
    message = refused(nus.root, concepts=4, part="train" if "Train" in name else "all")
    assert words in message
    assert (nus.root / name).name in message


def test_damaged_tag_matrix_and_split(tmp_path):
    nus = Set(tmp_path / "nus").write(whole_features=False)
    edited(nus.root / "NUS_WID_Tags" / "AllTags1k.txt", lambda t: t.replace("1", "3", 1))
    assert "AllTags1k.txt, rows from 1 on: tags of row" in refused(nus.root, tags="1k", concepts=4)
    edited(nus.root / "NUS_WID_Tags" / "AllTags1k.txt", lambda t: t.replace("3", "1", 1))
    edited(nus.root / "NUS_WID_Tags" / "TagList1k.txt", lambda t: t + "more\n")
    assert "there are 5 tag_names for 4 columns" in refused(nus.root, tags="1k", concepts=4)
    edited(nus.root / "ImageList" / "TestImagelist.txt", lambda t: t.split("\n", 1)[1])
    assert "is not the train and the test list together" in refused(nus.root, concepts=4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"part": "val"}, "part is 'val', expected one of all, train, test"),
        ({"tags": "81"}, "tags is '81', expected one of all, 1k"),
        ({"kinds": ["SIFT"]}, "kinds has 'SIFT', expected some of CH, CM55"),
        ({"kinds": []}, "kinds is []"),
        ({"concepts": 0}, "concepts is 0"),
        ({"concepts": 5}, "concepts is 5, but"),
        ({"concepts": ["sky", "moon"]}, "concept 'moon' has no file in"),
        ({"concepts": ["sky", "sky"]}, "expected different names"),
    ],
)
def test_arguments_are_refused(nus, options, words):
    assert words in refused(nus.root, **{"concepts": 4, **options})


def test_one_form_of_features(nus):
    shutil.copytree(nus.root, nus.root.parent / "both")
    both = Set(nus.root.parent / "both").write(whole_features=False)
    check(nus, NusWide(both.root, concepts=4, part="train"), "train")
    (both.root / "Low_Level_Features" / "Normalized_CH.dat").unlink()
    assert "some kinds have a file of all images" in refused(both.root, concepts=4)


def test_a_stream_that_is_left_counts_nothing_and_ends_anywhere(nus):
    """Readers of several files in turn: none holds its account of memory while the caller has a block."""
    before = budget._account.get()
    chunks = NusWide(nus.root, concepts=2).chunks(10)
    next(chunks)
    assert budget._account.get() is before
    contextvars.Context().run(chunks.close)  # as the garbage collector may
    assert budget._account.get() is before
