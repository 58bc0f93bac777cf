"""docs/paper.md: its commands, on the original distributions in small, and the features that they read."""

import functools
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import miniatures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy_models
from click.testing import CliRunner
from conftest import LENGTH
from numpy.testing import assert_array_equal

from woh_faiss.encoders import open_encoder
from woh_faiss.errors import InputError
from woh_faiss.evaluation.datasets import NusWide, mirflickr
from woh_faiss.inputs.chunk import concatenate
from woh_faiss_cli.main import main

PAGE = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()
BIN = Path(sys.executable).parent


def commands(heading):
    """The lines of the first block of a section."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.search(r"```sh\n(.*?)```", section, flags=re.DOTALL)[1].splitlines()


def done(folder, line):
    """What a shell says of a line; its first error fails."""
    env = {"PATH": f"{BIN}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    result = subprocess.run(["bash", "-ec", line], cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, (line, result.stderr)
    return result


def begun(folder, heading):
    """The last of the three commands of a section; the others are done, with a toy network and vectors."""
    toy_models.convolution(folder / "vggf.onnx")
    miniatures.vectors(folder / "vectors.txt")
    *first, last = commands(heading)
    assert len(first) == 2
    for line in first:
        done(folder, line)
    return last


@pytest.fixture
def command(request, monkeypatch):
    """As `done`; where time is short in this process, with few anchors and figures, and without a shell."""

    def run(folder, line):
        program, *arguments = shlex.split(line)
        assert program == "woh-index"
        monkeypatch.chdir(folder)
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, (line, result.output)
        return result

    if LENGTH >= 1:
        return done
    request.getfixturevalue("few_anchors")
    request.getfixturevalue("few_figures")
    return run


def usual(tags, least=50):
    """How often each word is typed, of those that are typed often enough."""
    count = Counter(word for each in tags for word in set(each))
    return {word for word, n in count.items() if n >= least}


def lines_of(report):
    return [json.loads(line) for line in (report / "results.jsonl").read_text().splitlines()]


def features(folder, pictures):
    """What the network gives for pictures, one at a time."""
    encoder = open_encoder(f"onnx:{folder / 'vggf.onnx'}")
    paths = []
    for i, picture in enumerate(pictures):
        paths.append(folder / f"one{i}.jpg")
        paths[-1].write_bytes(picture)
    return encoder.embed_images(list(map(str, paths)))


@pytest.fixture(scope="module")
def flickr(tmp_path_factory):
    """A folder in which but the last command for MIRFlickr was run, the miniature, and that command."""
    folder = tmp_path_factory.mktemp("mirflickr")
    made = miniatures.MirFlickr(folder, 420)
    return folder, made, begun(folder, "MIRFlickr-25K")


def test_mirflickr_from_its_archives_to_the_table(flickr, command):
    folder, made, line = flickr
    said = command(folder, f"{line} --queries 80 --bits 8 --seeds 1 --methods osh,woh-paper,woh")
    kept = [set(tags) & usual(made.tags) for tags in made.tags]
    n = sum(map(bool, kept))
    assert 350 < n < 420
    records = lines_of(folder / "mirflickr-report")
    assert {(it["queries"], it["database"]) for it in records} == {(80, n - 80)}
    assert "woh-paper, 8 bits: MAP 0." in said.stdout
    assert "published 0.671" in said.stdout
    assert "order at 8 bits: published woh-paper > osh" in said.stdout
    assert "MAP beside Zhan et al." in (folder / "mirflickr-report" / "report.html").read_text()


def test_each_image_of_mirflickr_has_its_own_features(flickr):
    folder, made, _ = flickr
    chunk = mirflickr(folder / "mirflickr", folder / "vggf")
    some = [0, 1, 9, 10, 99, 419]
    assert np.abs(chunk.features[some] - features(folder, [made.pictures[i] for i in some])).max() < 1e-5
    assert chunk.ids.tolist() == list(range(1, 421))
    assert chunk.keys[99] == "im100.jpg"
    assert [chunk.tags.of_row(i) for i in some] == [made.tags[i] for i in some]
    assert_array_equal(chunk.labels, made.labels)


def test_images_without_features_are_left_out_only_with_a_note(flickr, tmp_path, command):
    folder, made, _ = flickr
    for i in (1, 3, 8, 12):
        (tmp_path / f"im{i}.jpg").write_bytes(made.pictures[i - 1])
    (tmp_path / "other.jpg").write_bytes(made.pictures[0])
    command(tmp_path, f"woh-index embed . --encoder onnx:{folder / 'vggf.onnx'} -o few")
    with pytest.raises(InputError, match=r"few lacks features of 416 of 420 images, the first 'im2\.jpg'"):
        mirflickr(folder / "mirflickr", tmp_path / "few")
    notes = []
    chunk = mirflickr(folder / "mirflickr", tmp_path / "few", note=notes.append)
    assert chunk.ids.tolist() == [1, 3, 8, 12]
    assert [chunk.tags.of_row(i) for i in range(4)] == [made.tags[i - 1] for i in (1, 3, 8, 12)]
    assert_array_equal(chunk.labels, made.labels[[0, 2, 7, 11]])
    assert [note.split(": ")[-1].split(" of 420")[0] for note in notes] == [
        "1 pictures are none of the set's",
        f"{tmp_path}/few lacks features of 416",
    ]
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "im3.jpg").write_bytes(made.pictures[5])
    command(tmp_path, f"woh-index embed . --encoder onnx:{folder / 'vggf.onnx'} -o twice")
    with pytest.raises(InputError, match=r"twice has 'im3\.jpg' twice; encode the set's pictures once"):
        mirflickr(folder / "mirflickr", tmp_path / "twice", note=notes.append)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "x.jpg").write_bytes(made.pictures[5])
    command(tmp_path, f"woh-index embed none --encoder onnx:{folder / 'vggf.onnx'} -o nothing")
    with pytest.raises(InputError, match="nothing has no picture of the set"):
        mirflickr(folder / "mirflickr", tmp_path / "nothing", note=notes.append)


@pytest.fixture(scope="module")
def nus_wide(tmp_path_factory):
    """As `flickr`, of NUS-WIDE, once of each kind."""

    @functools.cache
    def make(flat):
        folder = tmp_path_factory.mktemp("nus")
        made = miniatures.NusWide(folder, 440, flat=flat)
        return folder, made, begun(folder, "NUS-WIDE")

    return make


@pytest.fixture(params=[False, True], ids=["in folders", "flat"])
def nus(request, nus_wide):
    return nus_wide(request.param)


def expected(made):
    """Images that the paper's preparation leaves, and the usual tags of each."""
    frequent = np.argsort(-made.labels.sum(axis=0), kind="stable")[:21]
    there = [
        i
        for i in range(len(made.names))
        if made.labels[i, frequent].any() and i not in made.gone and i != made.broken
    ]
    words = usual(made.tags[i] for i in there)
    return [i for i in there if set(made.tags[i]) & words]


@pytest.mark.parametrize("nus", [True], indirect=True, ids=["flat"])
def test_nus_wide_from_its_archives_to_the_table(nus, command):
    folder, made, line = nus
    flags = "--queries 80 --learn-from 200 --chunks 4 --bits 8 --seeds 1 --methods osh,cosdish,woh-paper"
    said = command(folder, f"{line} {flags}")
    n = len(expected(made))
    records = lines_of(folder / "nus-wide-report")
    assert {(it["queries"], it["database"], len(it["rounds"])) for it in records} == {(80, n - 80, 4)}
    assert "note: nus-vggf lacks features of " in said.stderr
    assert "woh-paper, 8 bits: MAP 0." in said.stdout
    assert "published 0.552" in said.stdout


def test_each_image_of_nus_wide_has_its_own_features(nus):
    folder, made, _ = nus
    notes = []
    found = NusWide(folder / "nus-wide", folder / "nus-vggf", note=notes.append)
    chunk = concatenate(list(found.chunks(100)), own_names=True)
    assert len(chunk) == len(found)
    frequent = np.argsort(-made.labels.sum(axis=0), kind="stable")[:21]
    there = [i for i in range(440) if made.labels[i, frequent].any()]
    without = [i for i in there if i in made.gone or i == made.broken]
    assert sorted(chunk.ids.tolist()) == [i for i in there if i not in without]
    some = [0, 1, 50, len(chunk) - 1]
    want = features(folder, [made.pictures[i] for i in chunk.ids[some]])
    assert np.abs(chunk.features[some] - want).max() < 1e-5
    assert chunk.keys.tolist() == [made.names[i] for i in chunk.ids]
    assert [chunk.tags.of_row(i) for i in some] == [made.tags[i] for i in chunk.ids[some]]
    assert len(without) == 3
    with pytest.raises(
        InputError, match=f"lacks features of 3 of {len(there)} images, the first 'actor/0031"
    ):
        NusWide(folder / "nus-wide", folder / "nus-vggf")


def test_a_folder_that_embed_did_not_write_is_refused(flickr, tmp_path):
    folder, _, _ = flickr
    pq.write_table(pa.table({"features": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "rows.parquet")
    with pytest.raises(
        InputError, match="does not say whose each row is; give a folder that woh-index embed"
    ):
        mirflickr(folder / "mirflickr", tmp_path)


def test_the_page_says_what_its_commands_need():
    for heading in ("MIRFlickr-25K", "NUS-WIDE"):
        for line in commands(heading)[1:]:
            assert shlex.split(line)[0] == "woh-index"
