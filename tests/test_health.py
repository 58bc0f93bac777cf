"""What an index says of its own health: figures of each round, drift between kept models, tag_outliers."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from conftest import WORDS, tagged
from numpy.testing import assert_allclose
from test_cli import run

from woh_faiss import WOH, WOHIndex, codes
from woh_faiss.errors import InputError
from woh_faiss.index.writer import TAG_OUTLIERS

HYPER = {"bits": 16, "anchors": 20, "vector_size": 5, "keep_models": 3}


def wrongly_tagged(seed, n=40):
    """A chunk, and the rows that carry a tag of another topic."""
    X, tags = tagged(seed, n)
    rows = range(0, n, 8)
    for row in rows:
        tags[row] = [next(word for word in WORDS if word not in tags[row])]
    return X, tags, list(rows)


@pytest.fixture
def path(tmp_path):
    with WOHIndex.create(tmp_path / "i.woh", **HYPER) as index:
        for seed in range(4):
            X, tags, _ = wrongly_tagged(seed)
            index.update(X, tags, keys=[f"{seed}/{row}" for row in range(len(X))])
        index.add(tagged(9)[0])
    return tmp_path / "i.woh"


def beside(rounds=4):
    """The same rounds by a trainer of its own: after each, its hash function, codes and tag_outliers."""
    woh = WOH(**HYPER)
    for seed in range(rounds):
        X, tags, _ = wrongly_tagged(seed)
        woh.partial_fit(X, tags)
        yield woh.hasher_, woh.codes_, woh.tag_outlier_


def test_every_figure_equals_that_of_a_trainer_beside_it(path):
    hashers, packed, tag_outliers = zip(*beside(), strict=True)
    with WOHIndex.open(path) as index:
        health = index.health(1000)
    assert [done["round"] for done in health["rounds"]] == [1, 2, 3, 4, 5]
    for done, codes_ in zip(health["rounds"], packed, strict=False):
        assert {name: done[name] for name in codes.health(codes_)} == codes.health(codes_)
        assert done["items"] == done["items_tagged"] == 40
    assert health["rounds"][4]["kind"] == "encoded"
    assert [moved["round"] for moved in health["drift"]] == [2, 3]
    for moved, before in zip(health["drift"], hashers[1:3], strict=True):
        assert_allclose(moved["bits"], hashers[-1].drift(before))
        assert moved["turned"] == pytest.approx(np.mean(moved["bits"]))
    want = []
    for number, differ in enumerate(tag_outliers):
        worst = sorted((-bits, row) for row, bits in enumerate(differ) if bits)[:TAG_OUTLIERS]
        want += [(-bits, 40 * number + row) for bits, row in worst]
    want = sorted(want, key=lambda pair: (-pair[0], pair[1]))
    assert [(item["differ"], item["id"]) for item in health["tag_outliers"]] == want
    assert all(item["key"] == f"{item['id'] // 40}/{item['id'] % 40}" for item in health["tag_outliers"])


def test_wrong_tags_come_first(path):
    with WOHIndex.open(path) as index:
        worst = index.health(10)["tag_outliers"]
    assert np.mean([item["id"] % 40 in wrongly_tagged(0)[2] for item in worst]) >= 0.8


@pytest.mark.parametrize("most", [-1, 1.5, "3"])
def test_how_many_is_a_count(path, most):
    with WOHIndex.open(path) as index, pytest.raises(InputError, match="most is"):
        index.health(most)


def test_an_index_without_rounds_has_no_faults(tmp_path):
    with WOHIndex.create(tmp_path / "i.woh", bits=16) as index:
        assert index.health() == {"rounds": [], "drift": [], "tag_outliers": []}


def test_a_tag_outlier_goes_with_its_item(path):
    def ids(index):
        return [item["id"] for item in index.health(1000)["tag_outliers"]]

    def rows():
        with closing(sqlite3.connect(path / "catalog.db")) as connection:
            return sorted(connection.execute("SELECT id, round FROM tag_outliers"))

    with WOHIndex.open(path) as index:
        before = ids(index)
        first, second, third = before[:3]
        index.remove([first])
        assert ids(index) == [i for i in before if i != first]
        X, tags = tagged(7, n=1)
        index.add(X, tags, ids=[second], on_duplicate="replace")
        assert ids(index) == [i for i in before if i not in (first, second)]
        index.compact()
        assert first not in [id_ for id_, _ in rows()]
        assert WOHIndex.verify(path) == []
        index.rollback(3)
        assert ids(index) == [i for i in before if i < 120 and i not in (first, second)]
        assert {number for _, number in rows()} == {1, 2, 3}
        assert third in before
    assert WOHIndex.verify(path) == []


def test_a_reader_of_an_earlier_state_is_told_of_that_state(path):
    with WOHIndex.open(path) as reader, WOHIndex.open(path) as writer:
        before = reader.health()
        X, tags, _ = wrongly_tagged(5)
        writer.update(X, tags)
        after = reader.health()
        assert after["tag_outliers"] == before["tag_outliers"]
        assert [moved["round"] for moved in after["drift"]] == [3]  # the writer keeps three
        assert len(writer.health()["rounds"]) == len(before["rounds"]) + 1


def test_info_shows_health(path):
    with WOHIndex.open(path) as index:
        health = index.health(3)
    facts = json.loads(run("info", "--index", path, "--json", "--tag-outliers", 3).stdout)
    assert facts["tag_outliers"] == health["tag_outliers"]
    assert facts["drift"] == health["drift"]
    text = run("info", "--index", path, "--tag-outliers", 3).stdout
    for word in ("balance", "entropy", "correlation", "distinct", "tagged", "tags and features disagree"):
        assert word in text
    assert text.count("since round") == 2
    assert health["tag_outliers"][0]["key"] in text
    assert "disagree" not in run("info", "--index", path, "--tag-outliers", 0).stdout
