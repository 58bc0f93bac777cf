"""MIRFlickr's files as they are unpacked, small."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation.datasets import mirflickr, prepared
from woh_faiss.evaluation.datasets.mirflickr import LABELS, POTENTIAL, RELEVANT

TAGS = [["sea", "sunset"], [], ["café"], ["sea"]]
MARKS = {"sea": [1, 4], "sea_r1": [4], "tree": [2], "animals": [1, 2, 3]}


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "mirflickr"
    for name, change in (("tags", str), ("tags_raw", str.title)):
        (folder / "meta" / name).mkdir(parents=True)
        for i, tags in enumerate(TAGS, start=1):
            text = "".join(f"{change(tag)}\r\n" for tag in tags)
            (folder / "meta" / name / f"tags{i}.txt").write_bytes(text.encode())
    notes = tmp_path / "mirflickr25k_annotations_v080"
    notes.mkdir()
    (notes / "README.txt").write_text("not a label")
    for name in LABELS["both"]:
        text = "".join(f"{number}\n" for number in MARKS.get(name, []))
        (notes / f"{name}.txt").write_text(text)
    np.save(tmp_path / "vgg.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
    return folder


def refused(*arguments, **more):
    with pytest.raises(InputError) as caught:
        mirflickr(*arguments, **more)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def test_the_whole_set(root, tmp_path):
    chunk = mirflickr(root, tmp_path / "vgg.npy")
    assert [chunk.tags.of_row(i) for i in range(4)] == TAGS
    assert not chunk.features.flags.writeable
    assert_array_equal(chunk.features, np.arange(8).reshape(4, 2))
    assert chunk.ids.tolist() == [1, 2, 3, 4]
    assert chunk.keys.tolist() == ["im1.jpg", "im2.jpg", "im3.jpg", "im4.jpg"]
    assert chunk.labels.shape == (4, 24)
    for column, name in enumerate(POTENTIAL):
        assert (np.flatnonzero(chunk.labels[:, column]) + 1).tolist() == MARKS.get(name, [])


def test_other_labels_tags_and_places(root, tmp_path):
    both = mirflickr(tmp_path, tmp_path / "vgg.npy", labels="both", raw_tags=True)
    assert both.labels.shape == (4, 38)
    assert (np.flatnonzero(both.labels[:, 24 + RELEVANT.index("sea_r1")]) + 1).tolist() == [4]
    assert both.tags.of_row(0) == ["Sea", "Sunset"]
    relevant = mirflickr(
        root, tmp_path / "vgg.npy", labels="relevant", annotations=tmp_path / "mirflickr25k_annotations_v080"
    )
    assert_array_equal(relevant.labels, both.labels[:, 24:])
    (tmp_path / "mirflickr25k_annotations_v080").rename(root / "Annotations")
    assert_array_equal(mirflickr(root, tmp_path / "vgg.npy", labels="relevant").labels, relevant.labels)


def test_prepared_as_the_paper_did(root, tmp_path):
    chunk = prepared(mirflickr(root, tmp_path / "vgg.npy"), min_count=2)
    assert chunk.keys.tolist() == ["im1.jpg", "im4.jpg"]
    assert chunk.tags.names == ("sea",)


def test_a_missing_file_is_named_with_where_to_get_it(root, tmp_path):
    (root / "meta" / "tags" / "tags2.txt").unlink()
    message = refused(root, tmp_path / "vgg.npy")
    assert f"tags2.txt is missing; looked for tags2.txt in {root}/meta/tags;" in message
    assert "the MIRFLICKR page of LIACS, Leiden University" in message
    (tmp_path / "mirflickr25k_annotations_v080" / "river.txt").unlink()
    assert "river.txt is missing" in refused(root, tmp_path / "vgg.npy", raw_tags=True)
    assert "animals.txt is missing" in refused(root, tmp_path / "vgg.npy", raw_tags=True, annotations=root)
    assert "tags is missing; looked for meta/tags or mirflickr/meta/tags in" in refused(root / "meta", "x")
    assert "none is not a folder" in refused(tmp_path / "none", "x")
    assert "is not a folder" in refused("a\0b", "x")


def test_damage_is_refused(root, tmp_path):
    notes = tmp_path / "mirflickr25k_annotations_v080" / "sky.txt"
    for text in ("5", "0", "-1", "1.5", "x", "9" * 30, "²", "1\n\n3 4"):
        notes.write_text(text, encoding="utf-8")
        message = refused(root, tmp_path / "vgg.npy")
        assert f"sky.txt: line {text.count(chr(10)) + 1} is" in message
        assert "expected an image's number, 1 to 4" in message
    notes.write_text("")
    (root / "meta" / "tags" / "tags3.txt").write_bytes(b"sea\ncaf\xe9\n")
    assert "tags3.txt: line 2 is not utf-8 text" in refused(root, tmp_path / "vgg.npy")
    assert mirflickr(root, tmp_path / "vgg.npy", encoding="latin-1").tags.of_row(2) == ["sea", "café"]
    assert "encoding is 'klingon'" in refused(root, tmp_path / "vgg.npy", encoding="klingon")
    assert "labels is 'all', expected one of potential, relevant, both" in refused(root, "x", labels="all")


def test_features_must_be_a_row_an_image(root, tmp_path):
    np.save(tmp_path / "few.npy", np.ones((3, 2)))
    assert "few.npy has 3 rows, expected 4, one an image" in refused(root, tmp_path / "few.npy")
    np.save(tmp_path / "nan.npy", np.array([[1.0], [1], [np.nan], [1]]))
    assert "nan.npy: features of row 2 are not finite" in refused(root, tmp_path / "nan.npy")
    assert "vgg.mat does not exist; give an .npy, .npz or .mat file" in refused(root, tmp_path / "vgg.mat")
    np.savez(tmp_path / "vgg.npz", features=np.ones((4, 2)), other=np.zeros((4, 1)))
    assert_array_equal(mirflickr(root, tmp_path / "vgg.npz").features, 1)
    assert_array_equal(mirflickr(root, tmp_path / "vgg.npz", variable="other").features, 0)
    assert "has no key 'vgg'; it holds features, other" in refused(root, tmp_path / "vgg.npz", variable="vgg")
