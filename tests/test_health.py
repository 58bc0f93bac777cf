"""What an index says of its own health: figures of each round, drift between kept models, tags in doubt."""

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

#: Items a round.
N = 200
HYPER = {"bits": 16, "anchors": 20, "vector_size": 5, "keep_models": 3}


def wrongly_tagged(seed, n=N):
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
    """The same rounds by a trainer of its own: after each, its hash function, codes and trust."""
    woh = WOH(**HYPER)
    for seed in range(rounds):
        X, tags, _ = wrongly_tagged(seed)
        woh.partial_fit(X, tags)
        yield woh.hasher_, woh.codes_, woh.trust_


def test_every_figure_equals_that_of_a_trainer_beside_it(path):
    hashers, packed, trusts = zip(*beside(), strict=True)
    with WOHIndex.open(path) as index:
        health = index.health(1000)
    assert [done["round"] for done in health["rounds"]] == [1, 2, 3, 4, 5]
    for done, codes_ in zip(health["rounds"], packed, strict=False):
        assert {name: done[name] for name in codes.health(codes_)} == codes.health(codes_)
        assert done["items"] == done["items_tagged"] == N
    assert health["rounds"][4]["kind"] == "encoded"
    assert [moved["round"] for moved in health["drift"]] == [2, 3]
    for moved, before in zip(health["drift"], hashers[1:3], strict=True):
        assert_allclose(moved["bits"], hashers[-1].drift(before))
        assert moved["turned"] == pytest.approx(np.mean(moved["bits"]))
    trust = np.round(np.concatenate(trusts), 3)
    want = [id_ for id_ in np.argsort(trust, kind="stable").tolist() if trust[id_] < 1][:1000]
    assert len(want) > 20
    assert [(item["id"], item["trust"]) for item in health["doubted"]] == [(id_, trust[id_]) for id_ in want]
    assert all(item["key"] == f"{item['id'] // N}/{item['id'] % N}" for item in health["doubted"])


def test_wrong_tags_come_first(path):
    with WOHIndex.open(path) as index:
        worst = index.health(10)["doubted"]
    assert np.mean([item["id"] % N in wrongly_tagged(0)[2] for item in worst]) >= 0.6  # an eighth is wrong


@pytest.mark.parametrize("most", [-1, 1.5, "3"])
def test_how_many_is_a_count(path, most):
    with WOHIndex.open(path) as index, pytest.raises(InputError, match="most is"):
        index.health(most)


def test_an_index_without_rounds_has_no_faults(tmp_path):
    with WOHIndex.create(tmp_path / "i.woh", bits=16) as index:
        assert index.health() == {"rounds": [], "warnings": [], "drift": [], "doubted": []}


def test_trust_goes_with_its_item(path):
    def ids(index):
        return [item["id"] for item in index.health(10_000)["doubted"]]

    def rows(table):
        with closing(sqlite3.connect(path / "catalog.db")) as connection:
            return sorted(connection.execute(f"SELECT id FROM {table} WHERE trust IS NOT NULL"))  # noqa: S608

    with WOHIndex.open(path) as index:
        before = ids(index)
        first, second, third = before[:3]
        trust = {item.id: item.trust for item in index.items(before)}
        index.remove([first])
        assert ids(index) == [i for i in before if i != first]
        X, tags = tagged(7, n=1)
        index.add(X, tags, ids=[second], on_duplicate="replace")
        assert index.items([second])[0].trust == 1
        assert ids(index) == [i for i in before if i not in (first, second)]
        index.rollback(5)
        assert ids(index) == before
        assert index.items([first])[0].trust == trust[first] < 1
        index.remove([first])
        assert (first,) in rows("removed")
        index.compact()
        assert rows("removed") == []
        assert rows("items") == sorted((i,) for i in before if i != first)
        assert WOHIndex.verify(path) == []
        index.rollback(3)
        assert ids(index) == [i for i in before if i < 3 * N and i != first]
        D, I = index.search_ids([third], 1)
        assert index.describe(D, I)[0][0].trust == index.items(I[0])[0].trust
    assert WOHIndex.verify(path) == []


def test_a_reader_of_an_earlier_state_is_told_of_that_state(path):
    with WOHIndex.open(path) as reader, WOHIndex.open(path) as writer:
        before = reader.health()
        X, tags, _ = wrongly_tagged(5)
        writer.update(X, tags)
        after = reader.health()
        assert after["doubted"] == before["doubted"]
        assert [moved["round"] for moved in after["drift"]] == [3]  # the writer keeps three
        assert len(writer.health()["rounds"]) == len(before["rounds"]) + 1


def test_info_shows_health(path):
    with WOHIndex.open(path) as index:
        health = index.health(3)
    facts = json.loads(run("info", "--index", path, "--json", "--doubted", 3).stdout)
    assert facts["doubted"] == health["doubted"]
    assert facts["drift"] == health["drift"]
    text = run("info", "--index", path, "--doubted", 3).stdout
    for word in ("balance", "entropy", "correlation", "distinct", "tagged", "tags trusted least"):
        assert word in text
    assert text.count("since round") == 2
    assert health["doubted"][0]["key"] in text
    assert "trusted least" not in run("info", "--index", path, "--doubted", 0).stdout


def test_a_stream_that_leaves_the_anchors_is_told_with_what_to_do(tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(2, 12)) * 3
    chunks = []
    for seed, centre in ((0, 0), (1, 0), (2, 1), (3, 1)):
        X = (centres[centre] + rng.normal(size=(N, 12))).astype(np.float32)
        path = tmp_path / f"{seed}.npz"
        np.savez(path, features=X, tags=[f"{WORDS[centre]} {WORDS[2 + int(side)]}" for side in X[:, 0] > 0])
        chunks.append(path)
    how = ("--index", tmp_path / "i.woh")
    run("build", *chunks[:2], *how, "--bits", 16, "--anchors", 100, "--min-count", 1, "--first-sample", 0)
    with WOHIndex.open(tmp_path / "i.woh") as index:
        assert index.health()["warnings"] == []
    told = run("update", *chunks[2:], *how).stderr
    assert told.count("are near an anchor") == 1
    line = next(line for line in told.splitlines() if "are near an anchor" in line)
    assert "build --first-sample" in line
    with WOHIndex.open(tmp_path / "i.woh") as index:
        newest = index.health()
        covered = [done["covered"] for done in newest["rounds"]]
        assert min(covered[:-2]) > 0.8 > 0.5 > max(covered[-2:])
        assert "are near an anchor" in newest["warnings"][-1]
    shown = run("info", *how).stdout
    assert newest["warnings"][-1] in shown
    assert "covered" in shown
    assert json.loads(run("info", *how, "--json").stdout)["warnings"] == newest["warnings"]
