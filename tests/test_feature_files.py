"""Features of pictures and texts as files: the same however they were made, killed or not; and their tags."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy_models
from PIL import Image
from test_picture_files import iptc, with_segments, xmp
from test_thumbnails import png_of

from woh_faiss.encoders import open_encoder
from woh_faiss.errors import InputError
from woh_faiss.inputs import PictureOptions, embed_pictures, open_inputs
from woh_faiss.inputs.feature_files import PictureWork, TextWork, encode_batch, write_features
from woh_faiss.inputs.picture_files import list_pictures
from woh_faiss.inputs.text_files import Texts

N = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, and pictures, some of them bad."""
    folder = tmp_path_factory.mktemp("made")
    toy_models.convolution(folder / "m.onnx")
    photos = toy_models.photos(folder / "photos", N)
    (photos / "red" / "2bad.png").write_bytes(b"no picture")
    (photos / "blue" / "bomb.png").write_bytes(png_of(2**31 - 1, 2**31 - 1))
    Image.new("1", (1, 100_000)).save(photos / "thin.png")
    frames = [toy_models.picture(colour) for colour in ("red", "blue")]
    frames[0].save(photos / "moving.gif", save_all=True, append_images=frames[1:])
    (photos / "notes.md").write_text("no picture")
    (photos / ".hidden.png").write_text("passed over")
    return folder


@pytest.fixture
def encoder(made):
    return open_encoder(f"onnx:{made / 'm.onnx'}")


def embed(made, out, encoder, paths=None, **options):
    said = []
    how = PictureOptions(**{"encoder": encoder, "chunk_size": 10, "note": said.append, **options})
    return embed_pictures(paths or [made / "photos"], how, out, split_note=said.append), said


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows_of(folder):
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]).to_pylist()


def test_features_keys_tags_and_sizes(made, tmp_path, encoder):
    done, said = embed(made, tmp_path / "emb", encoder, tags_from="folders")
    assert (done.items, done.left_out, done.untagged, done.animated) == (4 * N + 1, 3, 0, 1)
    assert done.files == 4
    rows = rows_of(tmp_path / "emb")
    assert len(rows) == done.items
    assert [row["path"] for row in rows][:3] == ["blue/0.png", "blue/1.png", "blue/2.png"]
    for row in rows:
        path = made / "photos" / row["path"]
        with Image.open(path) as image:
            assert (row["width"], row["height"]) == image.size
        assert row["tags"] == [*Path(row["path"]).parts[:-1]]
        np.testing.assert_allclose(row["features"], encoder.embed_images([path])[0], rtol=1e-4, atol=1e-5)
    report = [json.loads(line) for line in (tmp_path / "emb" / "report.jsonl").read_text().splitlines()]
    assert [Path(entry["file"]).name for entry in report] == ["bomb.png", "2bad.png", "thin.png"]
    assert all(entry["fault"] for entry in report)
    assert "files that are left out, for their names are no pictures': .md (1)" in said
    assert "pictures without tags: 2 of 36" in said
    assert "pictures that are animated, of which the first frame was taken: 1" in said


def test_inputs_read_them_as_they_are(made, tmp_path, encoder):
    embed(made, tmp_path / "emb", encoder, tags_from="folders")
    inputs = open_inputs([tmp_path / "emb"], learn=True)
    chunks = [*inputs]
    assert [len(chunk) for chunk in chunks] == [9, 10, 8, 6]
    assert inputs.encoder.fingerprint == encoder.fingerprint
    assert chunks[0].keys[0] == "blue/0.png"
    assert chunks[0].tags.of_row(0) == ["blue"]
    direct = open_inputs(
        [made / "photos"],
        learn=True,
        pictures=PictureOptions(encoder=encoder, tags_from="folders", chunk_size=10),
    )
    assert [chunk.digest() for chunk in direct] == [chunk.digest() for chunk in chunks]
    assert [chunk.digest() for chunk in direct] == [chunk.digest() for chunk in chunks]  # read twice
    with pytest.raises(InputError, match="photos holds pictures: give --encoder"):
        open_inputs([made / "photos"])
    with pytest.raises(InputError, match="pictures bring no tags to learn from"):
        open_inputs([made / "photos"], learn=True, pictures=PictureOptions(encoder=encoder))


def test_temporary_features_go_with_their_inputs(made, tmp_path, encoder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inputs = open_inputs([made / "photos"], pictures=PictureOptions(encoder=encoder))
    assert len([*tmp_path.iterdir()]) == 1
    sources = inputs.sources
    del inputs
    assert len([*tmp_path.iterdir()]) == 1
    del sources
    assert [*tmp_path.iterdir()] == []


def test_any_number_of_workers_gives_the_same_files(made, tmp_path, encoder):
    embed(made, tmp_path / "one", encoder, tags_from="folders")
    embed(made, tmp_path / "two", encoder, tags_from="folders", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


class Stops:
    """An encoder that dies at its nth call."""

    def __init__(self, encoder, calls):
        self._encoder, self._calls = encoder, calls

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def embed_images(self, images):
        self._calls -= 1
        if self._calls < 0:
            raise KeyboardInterrupt
        return self._encoder.embed_images(images)


@pytest.mark.parametrize("calls", range(5))
def test_work_that_was_stopped_anywhere_goes_on(made, tmp_path, encoder, calls):
    embed(made, tmp_path / "whole", encoder, tags_from="folders")
    out = tmp_path / "emb"
    if calls < 4:
        with pytest.raises(KeyboardInterrupt):
            embed(made, out, Stops(encoder, calls), tags_from="folders")
    else:
        embed(made, out, encoder, tags_from="folders")
    assert len([*out.glob("*.parquet")]) == calls
    done, said = embed(made, out, Stops(encoder, 4 - calls), tags_from="folders")
    assert done.kept == calls
    assert contents(out) == contents(tmp_path / "whole")
    assert bool(calls) == any("were there already" in line for line in said)


def test_what_changed_is_encoded_again_and_nothing_else(made, tmp_path, encoder):
    photos = shutil.copytree(made / "photos", tmp_path / "photos")
    out = tmp_path / "emb"
    embed(made, out, encoder, [photos], tags_from="folders")
    toy_models.picture("green", 77).save(photos / "green" / "3.png")
    done, _ = embed(made, out, Stops(encoder, 1), [photos], tags_from="folders")
    assert done.kept == 3
    row = next(row for row in rows_of(out) if row["path"] == "green/3.png")
    want = encoder.embed_images([photos / "green" / "3.png"])[0]
    np.testing.assert_allclose(row["features"], want, rtol=1e-4, atol=1e-5)
    (photos / "red" / "2bad.png").unlink()  # those behind it move up
    embed(made, out, Stops(encoder, 2), [photos], tags_from="folders")
    embed(made, tmp_path / "new", encoder, [photos], tags_from="folders")
    assert contents(out) == contents(tmp_path / "new")


def test_other_tags_need_no_encoding(made, tmp_path, encoder):
    out = tmp_path / "emb"
    embed(made, out, encoder)
    assert "tags" not in rows_of(out)[0]
    done, _ = embed(made, out, Stops(encoder, 0), tags_from="folders")
    assert done.kept == 0
    embed(made, tmp_path / "new", encoder, tags_from="folders")
    assert contents(out) == contents(tmp_path / "new")
    assert embed(made, out, Stops(encoder, 0), tags_from="folders")[0].kept == 4


def test_a_folder_of_something_else_is_refused_untouched(made, tmp_path, encoder):
    out = tmp_path / "emb"
    embed(made, out, encoder)
    before = contents(out)
    toy_models.convolution(tmp_path / "other.onnx", seed=9)
    with pytest.raises(InputError, match="do not compare"):
        embed(made, out, open_encoder(f"onnx:{tmp_path / 'other.onnx'}"))
    with pytest.raises(InputError, match=r"part-0000[1-3]\.parquet is of more items"):
        embed(made, out, encoder, [made / "photos" / "red"])
    pq.write_table(pa.table({"a": [1]}), out / "mine.parquet")
    with pytest.raises(InputError, match=r"mine\.parquet is not of this"):
        embed(made, out, encoder)
    (out / "mine.parquet").unlink()
    assert contents(out) == before
    (out / "part-00001.parquet").write_bytes(before["part-00001.parquet"][:500])
    with pytest.raises(InputError, match=r"part-00001\.parquet is not of this"):
        embed(made, out, encoder)
    with pytest.raises(InputError, match="is a file"):
        embed(made, made / "m.onnx", encoder)


def test_names_that_no_key_can_have(made, tmp_path, encoder):
    folder = tmp_path / "photos"
    folder.mkdir()
    toy_models.picture("red").save(folder / "a.png")
    toy_models.picture("red").save(folder / "\x1b[31mb\nc.png")
    try:
        shutil.copy(folder / "a.png", os.fsencode(folder) + b"/\xff.png")
    except OSError:
        pytest.skip("names are text here")
    done, _ = embed(made, tmp_path / "emb", encoder, [folder])
    assert (done.items, done.left_out) == (2, 1)
    (entry,) = map(json.loads, (tmp_path / "emb" / "report.jsonl").read_text().splitlines())
    assert entry["fault"] == "its name is not UTF-8; rename it"
    assert {row["path"] for row in rows_of(tmp_path / "emb")} == {"a.png", "\x1b[31mb\nc.png"}


def test_paths_that_hold_no_pictures(made, tmp_path, encoder):
    (tmp_path / "empty").mkdir()
    for path, said in ((tmp_path / "none", "does not exist"), (tmp_path / "empty", "holds no pictures")):
        with pytest.raises(InputError, match=said):
            embed(made, tmp_path / "emb", encoder, [path])
    with pytest.raises(InputError, match=r"would have one key, 0\.png"):
        embed(made, tmp_path / "emb", encoder, [made / "photos" / "red", made / "photos" / "blue"])
    assert not (tmp_path / "emb").exists()
    bad = made / "photos" / "red" / "2bad.png"
    with pytest.raises(InputError, match=r"no item can be used: .*2bad.png: no picture"):
        embed(made, tmp_path / "emb", encoder, [bad])
    done, _ = embed(
        made, tmp_path / "emb2", encoder, [made / "photos" / "red" / "0.png", made / "photos/moving.gif"]
    )
    assert [row["path"] for row in rows_of(tmp_path / "emb2")] == ["0.png", "moving.gif"]
    assert done.items == 2


def test_features_that_were_changed_are_not_of_their_encoder(made, tmp_path, encoder):
    embed(made, tmp_path / "emb", encoder, chunk_size=2000)
    table = pq.read_table(tmp_path / "emb" / "part-00000.parquet")
    X = np.array(table["features"].to_pylist(), np.float32)[:, :3]
    other = table.set_column(table.column_names.index("features"), "features", pa.array(X.tolist()))
    pq.write_table(other, tmp_path / "cut.parquet")
    with pytest.raises(InputError, match=r"its features have 3 numbers, .* take woh_faiss.encoder out"):
        open_inputs([tmp_path / "cut.parquet"])
    pq.write_table(table.rename_columns(["path", "width", "height", "emb"]), tmp_path / "renamed.parquet")
    assert open_inputs([tmp_path / "renamed.parquet"]).encoder is None
    pq.write_table(table.replace_schema_metadata({"woh_faiss.encoder": "{}"}), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r"bad.parquet: .* no record of an encoder"):
        open_inputs([tmp_path / "bad.parquet"])


def test_a_chunk_of_bad_pictures_alone(made, tmp_path, encoder):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.png").write_bytes(b"x")
    toy_models.picture("red").save(folder / "9.png")
    done, _ = embed(made, tmp_path / "emb", encoder, [folder], chunk_size=2)
    assert (done.items, done.files) == (1, 2)
    assert [len(chunk) for chunk in open_inputs([tmp_path / "emb"])] == [1]


def test_many_pixels_are_not_decoded_at_once(made, encoder, monkeypatch):
    monkeypatch.setattr("woh_faiss.inputs.feature_files._PIXELS", 2 * 24 * 20)
    sizes = []

    class Counts(Stops):
        def embed_images(self, images):
            sizes.append(len(images))
            return super().embed_images(images)

    paths = [str(path) for path in sorted((made / "photos" / "blue").glob("[0-9].png"))]
    done = encode_batch(Counts(encoder, 99), "images", paths)
    assert sizes == [3, 3, 2]
    np.testing.assert_allclose(done.X, encoder.embed_images(paths), rtol=1e-5)


# ---- tags --------------------------------------------------------------------------------------------------


def tags_of(made, tmp_path, encoder, folder, source):
    done, said = embed(made, tmp_path / "emb", encoder, [folder], tags_from=source)
    return {row["path"]: row["tags"] for row in rows_of(tmp_path / "emb")}, done, said


@pytest.fixture
def few(tmp_path):
    folder = tmp_path / "few"
    (folder / "in").mkdir(parents=True)
    for name in ("a.png", "b.png", "in/c.png", "in/d.png"):
        toy_models.picture("red").save(folder / name)
    return folder


WANT = {"a.png": ["sea", "golden gate"], "b.png": [], "in/c.png": ["hill"], "in/d.png": ["snow", "sea"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tags.csv", "path,tags\na.png,sea;golden gate\nin/c.png,hill\n./in/d.png,snow;sea\n"),
        ("tags.tsv", "file_name\tkeywords\na.png\tsea;golden gate\nin/c.png\thill\nin/d.png\tsnow;sea\n"),
        ("tags.jsonl", '{"path": "a.png", "tags": ["sea", "golden gate"]}\n'
         '{"path": "in/c.png", "tags": ["hill"]}\n{"path": "in/d.png", "tags": ["snow", "sea"]}\n'),
        ("tags.csv", "path,tags\n{few}/a.png,sea;golden gate\n{few}/in/c.png,hill\n"
         "{few}/in/d.png,snow;sea\n"),
        ("tags.csv", "path,tags\nfew/a.png,sea;golden gate\nfew/in/c.png,hill\nfew/in/d.png,snow;sea\n"
         "few/x.png,sea\n"),
    ],
)  # fmt: skip
def test_tags_of_a_file(made, tmp_path, encoder, few, name, text):
    (tmp_path / name).write_text(text.replace("{few}", str(few)))
    got, _, said = tags_of(made, tmp_path, encoder, few, tmp_path / name)
    assert got == WANT
    assert "pictures without tags: 1 of 4" in said
    assert any("name no picture" in line for line in said) == ("x.png" in text)


def test_tags_of_files_beside_pictures(made, tmp_path, encoder, few):
    (few / "a.txt").write_text("sea;golden gate\n")
    (few / "in" / "c.png.json").write_text('{"Keywords": ["hill"], "caption": "not this"}')
    (few / "in" / "d.json").write_text('["snow", "sea"]')
    (few / "more.md").write_text("")
    got, done, said = tags_of(made, tmp_path, encoder, few, "sidecars")
    assert got == WANT
    assert done.untagged == 0
    assert "files that are left out, for their names are no pictures': .md (1)" in said
    (few / "in" / "d.json").write_text('{"caption": "A dog, at the sea-side!"}')
    shutil.rmtree(tmp_path / "emb")
    assert tags_of(made, tmp_path, encoder, few, "sidecars")[0]["in/d.png"] == [
        "a",
        "dog",
        "at",
        "the",
        "sea-side",
    ]


@pytest.mark.parametrize(
    "content", [b"{", b'{"tags": 3}', b"\xff\xfe", b"[" * 100_000, b"[[1]]", b" " * (1 << 21)]
)
def test_a_damaged_file_beside_costs_the_tags(made, tmp_path, encoder, few, content):
    (few / "a.txt").write_text("sea")
    (few / "b.json").write_bytes(content)
    got, done, _ = tags_of(made, tmp_path, encoder, few, "sidecars")
    assert got == {"a.png": ["sea"], "b.png": [], "in/c.png": [], "in/d.png": []}
    assert (done.items, done.left_out, done.untagged) == (4, 0, 1)
    (entry,) = map(json.loads, (tmp_path / "emb" / "report.jsonl").read_text().splitlines())
    assert entry["file"].endswith("b.png")
    assert entry["fault"].startswith("no tags: b.json")
    (few / "b.png").write_bytes(b"no picture either")
    done = tags_of(made, tmp_path, encoder, few, "sidecars")[1]
    assert (done.items, done.left_out, done.untagged) == (3, 1, 0)
    assert len((tmp_path / "emb" / "report.jsonl").read_text().splitlines()) == 1


def test_tags_in_pictures(made, tmp_path, encoder, few):
    with_segments(few / "e.jpg", iptc("sea", "golden gate"), xmp=xmp("sea", "hill"))
    with_segments(few / "f.jpg", xmp=b"<bad")
    (few / "g.jpg").write_bytes(b"no picture")
    got, done, _ = tags_of(made, tmp_path, encoder, few, "keywords")
    assert got["e.jpg"] == ["sea", "golden gate", "hill"]
    assert got["f.jpg"] == []
    assert (done.left_out, done.untagged) == (1, 1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tags.csv", "path,tags\na.png,sea\n./a.png,hill\n", "twice"),
        ("tags.csv", "name,tags\na.png,sea\n", "no column of paths"),
        ("tags.csv", "path,label\na.png,sea\n", "no column of tags|no header"),
        ("tags.csv", "path,tags\nz.png,sea\n", "gives no picture a tag: it names 'z.png'"),
        ("tags.jsonl", "{\n", "JSON lines"),
        ("missing.csv", None, "does not exist"),
    ],
)
def test_tags_that_are_not_there_are_refused(made, tmp_path, encoder, few, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        embed(made, tmp_path / "emb", Stops(encoder, 0), [few], tags_from=tmp_path / name)


def test_no_tags_anywhere_is_found_before_the_work(made, tmp_path, encoder, few):
    shutil.rmtree(few / "in")
    for source in ("folders", "sidecars"):
        with pytest.raises(InputError, match=f"--tags-from {source} gives no picture a tag"):
            embed(made, tmp_path / "emb", Stops(encoder, 0), [few], tags_from=source)
    said = embed(made, tmp_path / "emb", encoder, [few], tags_from="keywords")[1]  # these are in the pictures
    assert "pictures without tags: 2 of 2" in said


# ---- texts -------------------------------------------------------------------------------------------------


def test_texts_are_written_the_same_way(tmp_path):
    encoder = open_encoder(f"onnx:{toy_models.bag_of_words(tmp_path / 'm')}")
    texts = [f"red {word}" for word in toy_models.WORDS] * 3
    given = Texts(texts, None, [*range(24)], None, {}, None)
    for workers in (1, 2):
        out = tmp_path / f"emb{workers}"
        write_features(TextWork(given, "titles"), encoder, out, chunk_size=10, workers=workers)
        rows = rows_of(out)
        assert [row["text"] for row in rows] == texts
        assert [row["id"] for row in rows] == [*range(24)]
        np.testing.assert_allclose([row["features"] for row in rows], encoder.embed_texts(texts), rtol=1e-5)
    assert contents(tmp_path / "emb1") == contents(tmp_path / "emb2")
    with pytest.raises(InputError, match="takes no pictures"):
        write_features(PictureWork([], None), encoder, tmp_path / "x")


# ---- processes ---------------------------------------------------------------------------------------------

#: While there is no file `fast`.
SLOW = """
import os
import time
import numpy as np

class Slow:
    dimension, fingerprint = 3, "slow"

    def embed_images(self, images):
        pause = 0 if os.path.exists("fast") else 0.1
        time.sleep(pause)
        return np.array([np.asarray(image).mean((0, 1)) for image in images])
"""


def embed_slowly(made, *more):
    arguments = [made / "photos", "--encoder", "slow_encoder:Slow", "--chunk-size", 2, *more]
    return [sys.executable, "-m", "woh_faiss_cli", "embed", *map(str, arguments)]


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """What one process writes that nobody kills."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "slow_encoder.py").write_text(SLOW)
    (folder / "fast").touch()
    command = embed_slowly(made, "--tags-from", "folders", "--workers", 1, "-o", "emb")
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return folder / "emb"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_process_is_continued_and_leaves_no_worker(made, tmp_path, whole, workers):
    (tmp_path / "slow_encoder.py").write_text(SLOW)
    command = embed_slowly(made, "--tags-from", "folders", "--workers", workers, "-o", "emb")
    out = tmp_path / "emb"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        while len([*out.glob("*.parquet")] if out.exists() else []) < 3 and process.poll() is None:
            time.sleep(0.01)
        children = [
            int(pid)
            for task in Path(f"/proc/{process.pid}/task").glob("*/children")
            for pid in task.read_text().split()
        ]
        process.send_signal(signal.SIGKILL)
    for _ in range(500):
        if not any(_runs(pid) for pid in children):
            break
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in children)
    assert 3 <= len([*out.glob("*.parquet")]) < 18
    (tmp_path / "fast").touch()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "files of features that were there already" in done.stderr
    for leftover in out.glob(".woh-index-*.tmp"):  # of the file that was being written
        leftover.unlink()
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_that_it_can_go_on(made, tmp_path, stop):
    (tmp_path / "slow_encoder.py").write_text(SLOW)
    command = embed_slowly(made, "--workers", 2, "-o", "emb")
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not [*tmp_path.glob("emb/*.parquet")]:
            time.sleep(0.01)
        if stop == signal.SIGINT:  # a terminal sends it to all
            os.killpg(process.pid, stop)
        else:
            process.send_signal(stop)
        said = process.communicate(timeout=600)[1]
    assert process.returncode == 128 + stop
    assert said.endswith("stopped; what emb has is kept; the same command continues\n")
    assert "Traceback" not in said


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_a_worker_that_dies_is_one_line(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dying_encoder.py").write_text(
        SLOW.replace("time.sleep(pause)", "os._exit(9) if len(images) == 3 else None")
    )
    dying = open_encoder("dying_encoder:Slow")
    with pytest.raises(InputError, match="a worker died, perhaps for want of memory"):
        embed(made, tmp_path / "emb", dying, workers=2, chunk_size=3)
    with pytest.raises(InputError, match=r"cannot write features to .*: Not a directory"):
        embed(made, made / "m.onnx" / "emb", dying)


def test_list_pictures_is_in_natural_order(tmp_path):
    for name in ("10.png", "9.png", "a/2.jpg", "a/10.JPG", "_x/1.png", "a/.h.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [file.key for file in list_pictures([tmp_path])] == ["9.png", "10.png", "a/2.jpg", "a/10.JPG"]
