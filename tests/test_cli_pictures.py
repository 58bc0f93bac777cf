"""woh-index with pictures and texts: embed, build, update, add, query, and what is remembered."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import toy_models
from resealed import reseal
from test_cli import BUILD, run

from woh_faiss import WOHIndex
from woh_faiss.encoders import open_encoder
from woh_faiss.errors import InputError, StoreError
from woh_faiss.inputs import open_inputs

N = 8


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Pictures in folders named by their colour, a model of both sides, and an index of them."""
    folder = tmp_path_factory.mktemp("built")
    toy_models.clip(folder / "clip")
    toy_models.convolution(folder / "other.onnx")
    toy_models.photos(folder / "photos", N)
    run(
        "embed",
        folder / "photos",
        "--encoder",
        f"onnx:{folder / 'clip'}",
        "--tags-from",
        "folders",
        "-o",
        folder / "emb",
    )
    run("build", folder / "emb", *BUILD, "--index", folder / "index.woh")
    return folder


def answers(*arguments, code=0):
    done = run("query", *arguments, "--json", code=code)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def everything(path):
    """Keys and features of an input."""
    chunks = list(open_inputs([path]))
    return [str(key) for c in chunks for key in c.keys], [x for c in chunks for x in c.features]


def test_what_embed_says(here):
    (here / "photos" / "bad.png").write_bytes(b"x")
    done = run("embed", "photos", "--encoder", "onnx:clip", "--tags-from", "folders", "-o", "new")
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "note: clip/vision_model.onnx: features from output 'image_embeds'",
        "note: pictures without tags: 1 of 33",
        "note: pictures that were left out: 1; new/report.jsonl lists them",
        "new: features of 32 pictures in 1 file",
    ]
    again = run("embed", "photos", "--encoder", "onnx:clip", "--tags-from", "folders", "-o", "new")
    assert "files of features that were there already: 1 of 1" in again.stderr


def test_build_embeds_in_one_go(here):
    with WOHIndex.open("index.woh") as index:
        want = [r.checksum for r in index.rounds()]
    options = ["--encoder", "onnx:clip", "--tags-from", "folders"]
    run("build", "photos", *options, *BUILD, "--index", "a.woh")
    run("build", "photos", *options, *BUILD, "--index", "b.woh", "--features", "kept", "--workers", 2)
    for name in ("a.woh", "b.woh"):
        with WOHIndex.open(name) as index:
            assert [r.checksum for r in index.rounds()] == want
            assert index.encoder.fingerprint == open_encoder("onnx:clip").fingerprint
            assert index.info()["encoder"]["dimension"] == 3
    assert [len(chunk) for chunk in open_inputs(["kept"])] == [4 * N]
    assert "encoder\tonnx:" in run("info", "--index", "a.woh").stdout


def test_update_and_add_take_pictures_and_know_the_encoder(here):
    more = here / "more"
    for i in range(3):
        (more / "red").mkdir(parents=True, exist_ok=True)
        toy_models.picture("red", 500 + i).save(more / "red" / f"new{i}.png")
    run("update", "more", "--tags-from", "folders")
    shutil.move(more / "red", more / "blue")
    for path in (more / "blue").iterdir():
        path.rename(path.with_name("x" + path.name))
    run("add", "more")
    with WOHIndex.open("index.woh") as index:
        assert index.ntotal == 4 * N + 6
        assert index.items([index.id_of("red/new1.png")])[0].tags == ["red"]
        assert index.items([index.id_of("blue/xnew0.png")])[0].tags == []
        X = open_encoder("onnx:clip").embed_images([more / "blue" / "xnew0.png"])
        assert "new0.png" in {
            hit.key.split("/x")[-1].split("/")[-1] for hit in index.describe(*index.search(X, 9))[0]
        }


def test_an_update_encodes_new_pictures_only(here):
    same = run("update", "photos", "--tags-from", "folders")
    assert same.stderr == "chunk 1 of 1: already learned (round 1), skipped: photos (part-00000.parquet)\n"
    for i in range(3):
        toy_models.picture("red", 500 + i).save(f"photos/red/new{i}.png")
    with WOHIndex.open("index.woh") as index:
        before = index.ntotal
    done = run("update", "photos", "--tags-from", "folders", "--on-duplicate", "skip", "--features", "kept")
    assert f"pictures that are in the index already, and are not encoded again: {before}" in done.stderr
    assert "3 items appended" in done.stderr
    assert [len(chunk) for chunk in open_inputs(["kept"])] == [3]
    toy_models.picture("red", 600).save("photos/untagged.png")
    more = run("update", "photos", "--tags-from", "folders", "--on-duplicate", "skip")
    assert "pictures without tags: 1 of 1" in more.stderr
    before += 1
    again = run("update", "photos", "--tags-from", "folders", "--on-duplicate", "skip")
    assert "0 items appended" in again.stderr
    with WOHIndex.open("index.woh") as index:
        assert index.ntotal == before + 3


def test_another_encoder_is_refused(here):
    run("embed", "photos", "--encoder", "onnx:other.onnx", "--tags-from", "folders", "-o", "others")
    before = {
        path.name: path.read_bytes() for path in Path("index.woh").iterdir() if path.name.startswith("codes")
    }
    for command in (
        ["update", "photos", "--encoder", "onnx:other.onnx", "--tags-from", "folders"],
        ["add", "photos", "--encoder", "onnx:other.onnx"],
        ["update", "others"],
        ["add", "others"],
        ["query", "others"],
        ["query", "--image", "photos/red/1.png", "--encoder", "onnx:other.onnx"],
        ["query", "--text", "red", "--encoder", "onnx:other.onnx"],
        ["query", "--image", "photos/red/1.png", "--refine", "others"],
        ["build", "emb", "others", "--index", "new.woh"],
    ):
        done = run(*command, code=1)
        assert "do not compare" in done.stderr, command
        assert done.stderr.count("Error") == 1
        assert done.stdout == ""
    assert not Path("new.woh").exists()
    assert before == {
        path.name: path.read_bytes() for path in Path("index.woh").iterdir() if path.name in before
    }
    with WOHIndex.open("index.woh") as index, pytest.raises(InputError, match="do not compare"):
        next(index.extend(["others"]))


def test_query_by_pictures(here):
    toy_models.picture("blue", 999).save("asked.jpg")
    found, said = answers("--image", "asked.jpg", "--image", "photos/red/3.png", "-k", 4)
    assert [line["query"] for line in found] == ["asked.jpg"] * 4 + ["photos/red/3.png"] * 4
    assert {line["key"].split("/")[0] for line in found[:4]} == {"blue"}
    assert {line["key"].split("/")[0] for line in found[4:]} == {"red"}
    assert said == ""
    with WOHIndex.open("index.woh") as index:
        xq = open_encoder("onnx:clip").embed_images(["asked.jpg", "photos/red/3.png"])
        D, I = index.search(xq, 4)
    assert [line["id"] for line in found] == I.ravel().tolist()
    assert [line["score"] for line in found] == pytest.approx(D.ravel().tolist())
    refined, said = answers("--image", "asked.jpg", "-k", 4, "--refine", "emb")
    assert {line["key"].split("/")[0] for line in refined} == {"blue"}
    vectors = {path: x / np.linalg.norm(x) for path, x in zip(*everything("emb"), strict=True)}
    cosines = [float(vectors[line["key"]] @ xq[0]) / np.linalg.norm(xq[0]) for line in refined]
    assert [line["cosine"] for line in refined] == pytest.approx(cosines, abs=1e-6)
    by_tag, _ = answers("--image", "asked.jpg", "--tags", "red", "-k", 1)
    assert by_tag[0]["query"] == "asked.jpg"
    nearest, _ = answers("--image", "asked.jpg", "-k", 4, "--by", "hamming")
    assert {line["key"].split("/")[0] for line in nearest} == {"blue"}
    assert answers("photos/red", "-k", 1)[0][0]["query"] == "0.png"  # a folder of pictures is a file of rows
    assert answers("asked.jpg", "-k", 1)[0][0]["key"].startswith("blue/")


def test_query_by_texts(here):
    found, said = answers("--text", "blue", "--text", "red red", "-k", 4)
    assert [line["key"].split("/")[0] for line in found] == ["blue"] * 4 + ["red"] * 4
    assert said.startswith("note: --text by the encoder onnx:")
    mixed, _ = answers("--text", "blue", "--image", "photos/red/3.png", "-k", 1)
    assert [line["query"] for line in mixed] == ["photos/red/3.png", "blue"]


def test_a_text_is_tags_where_nothing_encodes_it(here):
    run("embed", "photos", "--encoder", "onnx:other.onnx", "--tags-from", "folders", "-o", "others")
    run("build", "others", *BUILD, "--index", "b.woh")
    np.savez("plain.npz", features=np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32),
             tags=["red;", "blue;"] * 15)  # fmt: skip
    run("build", "plain.npz", *BUILD, "--index", "c.woh")
    for name, why in (("b.woh", "takes no texts"), ("c.woh", "no encoder is known")):
        found, said = answers("--text", "Blue!", "-k", 3, "--index", name)
        want, _ = answers("--tags", "blue", "-k", 3, "--index", name)
        assert [(line["id"], line["score"]) for line in found] == [
            (line["id"], line["score"]) for line in want
        ]
        assert said.startswith("note: --text by its words as tags: ")
        assert why in said
        assert "'yacht'" in answers("--text", "blue yacht", "--index", name)[1]
        for more in (
            ["--by", "kind"],
            ["--radius", 3],
            ["--database", "postgresql://x"],
            ["--ann", "ivf"],
            ["--refine", "emb"],
        ):
            done = run("query", "--text", "blue", *more, "--index", name, code=1)
            assert "--text is asked as tags" in done.stderr
        assert run("query", "--text", "yacht", "--index", name, code=1).stdout == ""
    done = run("query", "--image", "photos/red/1.png", "--index", "c.woh", code=1)
    assert "does not say what made its features; --encoder NAME" in done.stderr


def test_features_made_elsewhere_may_name_their_encoder(here):
    encoder = open_encoder("onnx:clip")
    paths = sorted(Path("photos").rglob("*.png"))
    tags = [f"{path.parent.name};" for path in paths]
    np.savez("a.npz", features=encoder.embed_images(paths), tags=tags, keys=[*map(str, paths)])
    run("build", "a.npz", *BUILD, "--encoder", "onnx:clip", "--index", "a.woh")
    assert answers("--text", "blue", "-k", 1, "--index", "a.woh")[0][0]["tags"] == ["blue"]
    refused = run("build", "a.npz", *BUILD, "--encoder", "onnx:other.onnx", "--index", "b.woh", code=1)
    assert "gives 12 numbers, the inputs have 3" in refused.stderr
    assert not Path("b.woh").exists()


def test_columns_of_a_file_of_tags_are_filtered_by(here):
    lines = ["file_name,tags,year,place,day"]
    for path in sorted(Path("photos").rglob("*.png")):
        year = "" if path.stem == "7" else 2000 + int(path.stem)
        lines.append(
            f"{path.relative_to('photos')},{path.parent.name};,{year},a "
            f"{path.parent.name},2026-01-0{int(path.stem) + 1}"
        )
    Path("photos/metadata.csv").write_text("\n".join(lines[:-1]) + "\n")  # one picture has no row
    columns = ["--metadata", "year", "--metadata", "place", "--metadata", "day"]
    common = ["--encoder", "onnx:clip", "--tags-from", "photos/metadata.csv", *columns]
    run("embed", "photos", *common, "-o", "with")
    run("build", "with", *columns, *BUILD, "--index", "a.woh")
    run("build", "photos", *common, "--metadata", "width", *BUILD, "--index", "b.woh")
    for name in ("a.woh", "b.woh"):
        with WOHIndex.open(name) as index:
            item = index.items([index.id_of("red/3.png")])[0]
            assert dict(item.metadata) | {"width": 24} == {
                **{"year": 2003, "place": "a red", "width": 24},
                "day": item.metadata["day"],
            }
            assert str(item.metadata["day"]).startswith("2026-01-04")
            assert index.items([index.id_of("red/7.png")])[0].metadata.get("year") is None
            assert index.items([index.id_of("white/7.png")])[0].tags == []
        found, _ = answers(
            "--image", "photos/red/1.png", "--where", "year >= 2005 and 'red' in tags", "--index", name
        )
        assert {line["key"] for line in found} == {"red/5.png", "red/6.png"}
    same = run("embed", "photos", *common, "-o", "with")
    assert "files of features that were there already: 1 of 1" in same.stderr
    refined, _ = answers("--image", "photos/red/1.png", "--refine", "with", "--index", "a.woh", "-k", 1)
    assert refined[0]["key"] == "red/1.png"
    assert refined[0]["cosine"] == pytest.approx(1)
    for more, said in (
        (["--tags-from", "folders", "--metadata", "year"], "goes with a file of --tags-from"),
        (["--metadata", "year"], "--tags-from says which"),
        (["--tags-from", "photos/metadata.csv", "--metadata", "none"], "has no column 'none' for --metadata"),
        (["--tags-from", "width.csv", "--metadata", "width"], "'width' is what such files have anyway"),
    ):
        Path("width.csv").write_text("path,tags,width\nred/1.png,red,5\n")
        assert said in run("embed", "photos", "--encoder", "onnx:clip", *more, "-o", "x", code=1).stderr
    assert not Path("x").exists()


def test_flags_of_pictures_without_pictures_are_refused(here):
    encoder = open_encoder("onnx:clip")
    X = encoder.embed_images(sorted(Path("photos").rglob("*.png")))
    np.savez("a.npz", features=X, tags=["red;"] * len(X), keys=[f"k{i}" for i in range(len(X))])
    for more in (["--tags-from", "folders"], ["--features", "kept"], ["--workers", 2]):
        for command in (["build", "a.npz", "--index", "b.woh"], ["evaluate", "emb"]):
            assert "go with --encoder" in run(*command, *more, code=2).stderr
        for command in (
            ["build", "a.npz", "--index", "b.woh", "--encoder", "onnx:clip"],
            *(["update", "emb"], ["add", "a.npz"]),
        ):
            assert "go with pictures, and there are none" in run(*command, *more, code=2).stderr
    for command in (["update", "a.npz"], ["add", "a.npz"], ["query", "a.npz"]):
        assert "do not compare" in run(*command, "--encoder", "onnx:other.onnx", code=1).stderr
    done = run("build", "emb", "--encoder", "onnx:other.onnx", *BUILD, "--index", "b.woh", code=1)
    assert "do not compare" in done.stderr
    assert run("query", "a.npz", "--encoder", "onnx:clip", "-k", 1).stdout
    run("add", "a.npz", "--encoder", "onnx:clip")


@pytest.mark.usefixtures("few_anchors")
def test_evaluate_takes_pictures(here):
    toy_models.photos(here / "many", 80)
    options = ["--bits", 16, "--instance-bits", 16, "--queries", 20]
    run("embed", "many", "--encoder", "onnx:clip", "--tags-from", "folders", "-o", "many_emb")
    direct = run("evaluate", "many", "--encoder", "onnx:clip", "--tags-from", "folders", *options, "--json")
    through = run("evaluate", "many_emb", *options, "--json")
    timeless = [re.sub(r'"\w*seconds\w*": [^,}]+', "", done.stdout) for done in (direct, through)]
    assert timeless[0] == timeless[1]
    assert timeless[0]
    refused = run("evaluate", "many_emb", "--encoder", "onnx:clip", code=1)
    assert "there are no pictures among the inputs" in refused.stderr


def test_what_is_remembered_may_be_gone_or_changed(here):
    shutil.rmtree("index.woh")
    run("build", "photos", "--encoder", "onnx:clip", "--tags-from", "folders", *BUILD)
    shutil.move("clip", "moved")
    done = run("query", "--image", "photos/red/1.png", code=1)
    assert re.search(
        r"index.woh was made with onnx:.*clip, which cannot be opened: .* does not exist", done.stderr
    )
    assert answers("--image", "photos/red/1.png", "--encoder", "onnx:moved", "-k", 1)[0]
    toy_models.bag_of_words(Path("moved"), d=3, name="text_model.onnx", mask=False)
    assert "do not compare" in run("query", "--text", "red", "--encoder", "onnx:moved", code=1).stderr


def test_code_of_an_index_does_not_run(here):
    Path("own_code.py").write_text(
        "import numpy as np\nfrom pathlib import Path\n"
        "ran = Path('ran')\nran.write_text((ran.read_text() if ran.exists() else '') + 'x')\n"
        "class Own:\n    dimension, fingerprint = 3, 'f'\n"
        "    def embed_images(self, images):\n"
        "        return np.array([np.asarray(i).mean((0, 1)) for i in images])\n"
    )
    options = ["--encoder", "own_code:Own", "--tags-from", "folders"]
    run("build", "photos", *options, *BUILD, "--index", "own.woh")
    before = Path("ran").read_text()
    sys.modules.pop("own_code")
    done = run("query", "--image", "photos/red/1.png", "--index", "own.woh", code=1)
    assert "give it with --encoder" in done.stderr
    assert Path("ran").read_text() == before
    assert answers("--image", "photos/red/1.png", "--index", "own.woh", "-k", 1, *options[:2])[0]
    sys.modules.pop("own_code", None)


@pytest.mark.parametrize("bad", [{"name": "x"}, 3, [], {"name": "a", "fingerprint": "../", "dimension": 1}])
def test_a_damaged_record_is_one_line(here, bad):
    with closing(sqlite3.connect("index.woh/catalog.db")) as connection:
        (text,) = connection.execute("SELECT value FROM meta WHERE name = 'config'").fetchone()
        connection.execute(
            "UPDATE meta SET value = ? WHERE name = 'config'",
            (json.dumps({**json.loads(text), "encoder": bad}),),
        )
        reseal(connection)
        connection.commit()
    with pytest.raises(StoreError, match="no record of an encoder"):
        WOHIndex.open("index.woh")
    assert run("info", code=1).stderr.count("\n") == 1


def test_a_page_shows_what_was_asked(here):
    toy_models.picture("blue", 999).save("asked.jpg")
    run("query", "--image", "asked.jpg", "--text", "red", "-k", 3, "--html", "out.html", "--images", "photos")
    page = Path("out.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 1 + 3 + 3
    assert "asked.jpg" in page
    run("query", "--image", "asked.jpg", "-k", 3, "--html", "out.html")
    assert Path("out.html").read_text().count("data:image/jpeg;base64,") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--image", "x" * 5000], 1, "File name too long"),
        (["--image", "none.jpg"], 1, "none.jpg: No such file"),
        (["--image", "photos"], 1, "photos: "),
        (["--image", "photos/red/1.png", "--id", "3"], 2, "give one of QUERIES"),
        (["emb", "--text", "red"], 2, "give one of QUERIES"),
        (["--text", ""], 1, "empty"),
        (["--encoder", "onnx:clip", "--id", "3"], 2, "--encoder goes with"),
        (["--image", "photos/red/1.png", "--encoder", "clip"], 1, "expected onnx:MODEL"),
        (["--image", "photos/red/1.png", "--row", "x"], 2, "go with QUERIES"),
    ],
)
def test_questions_that_cannot_be_asked(here, arguments, code, said):
    done = run("query", *arguments, code=code)
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["photos", "-o", "x"], 1, "--encoder NAME says what makes features"),
        (["photos"], 2, "Missing option '-o'"),
        (["none", "--encoder", "onnx:clip", "-o", "x"], 1, "none does not exist"),
        (["n" * 5000, "--encoder", "onnx:clip", "-o", "x"], 1, "does not exist"),
        (["photos", "--encoder", "onnx:" + "n" * 5000, "-o", "x"], 1, "does not exist"),
        (["photos", "--encoder", "onnx:clip", "--tags-from", "n" * 5000, "-o", "x"], 1, "does not exist"),
        (["photos", "words.txt", "--encoder", "onnx:clip", "-o", "x"], 1, "words.txt is no picture"),
        (
            ["photos", "--text-column", "a", "--encoder", "onnx:clip", "-o", "x"],
            2,
            "goes with a file of texts",
        ),
        (["photos", "--key-column", "a", "--encoder", "onnx:clip", "-o", "x"], 2, "goes with texts, or"),
        (
            ["words.txt", "--tags-from", "folders", "--encoder", "onnx:clip", "-o", "x"],
            2,
            "goes with pictures",
        ),
        (["words.txt", "--encoder", "onnx:other.onnx", "-o", "x"], 1, "takes no texts"),
        (
            ["words.txt", "--encoder", "onnx:clip", "--text-column", "a", "-o", "x"],
            1,
            "leave --text-column out",
        ),
        (["empty.txt", "--encoder", "onnx:clip", "-o", "x"], 1, "has no texts"),
        (["gap.txt", "--encoder", "onnx:clip", "-o", "x"], 1, "text 1 is empty"),
        (["latin.txt", "--encoder", "onnx:clip", "-o", "x"], 1, "not UTF-8"),
        (["table.csv", "--encoder", "onnx:clip", "-o", "x"], 1, "say which with --text-column"),
        (["table.csv", "--encoder", "onnx:clip", "--text-column", "z", "-o", "x"], 1, "no column 'z'"),
        (["broken.jsonl", "--encoder", "onnx:clip", "-o", "x"], 1, "broken.jsonl"),
    ],
)
def test_what_embed_refuses(here, arguments, code, said):
    Path("words.txt").write_text("red\nblue\n")
    Path("empty.txt").write_text("")
    Path("gap.txt").write_text("red\n\nblue\n")
    Path("latin.txt").write_bytes(b"\xff\xfe\xfa\n")
    Path("table.csv").write_text("a,b\n1,2\n")
    Path("broken.jsonl").write_text('{"text": \n')
    done = run("embed", *arguments, code=code)
    assert said in done.stderr
    assert not Path("x").exists()


@pytest.mark.parametrize("name", ["words.txt", "words.csv", "words.jsonl", "words.parquet"])
def test_texts_become_an_index(here, name):
    words = ["red sea", "blue sea", "a green hill", "white"] * 3
    rows = [{"title": text, "ref": f"k{i}", "n": i, "tags": text.split()} for i, text in enumerate(words)]
    if name == "words.txt":
        Path(name).write_text("".join(f"{text}\r\n" for text in words))
    elif name == "words.csv":
        lines = [f"{row['title']},{row['ref']},{row['n']},{';'.join([*row['tags'], ''])}\n" for row in rows]
        Path(name).write_text("title,ref,n,tags\n" + "".join(lines))
    elif name == "words.jsonl":
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), name)
    more = [] if name == "words.txt" else ["--key-column", "ref", "--metadata", "n"]
    done = run("embed", name, "--encoder", "onnx:clip", "-o", "texts", *more)
    assert "features of 12 texts in 1 file" in done.stderr
    assert (f"note: {name}: texts from 'title', tags from 'tags', key from 'ref'" in done.stderr) == bool(
        more
    )
    run("build", "texts", *BUILD, *more[2:], "--index", "t.woh")
    found, _ = answers("--text", "blue", "-k", 3, "--index", "t.woh")
    assert all("blue" in line["tags"] for line in found)
    assert [line["key"] for line in found] == ([None] * 3 if name == "words.txt" else ["k1", "k5", "k9"])


def test_pillow_is_imported_only_for_pictures(here):
    script = (
        "import sys; from woh_faiss_cli.main import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "query", "--text", "blue", "-k", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not {"PIL", "torch", "pyarrow", "scipy"} & {*done.stderr.splitlines()[-1].split()}
