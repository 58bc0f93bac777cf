"""Searches in databases: answers are those of the index, to the bit, whatever the codes."""

import numpy as np
import pytest
from conftest import LEARNED, LENGTH, SMALL, tagged
from databases import XQ, check, grown, same_answers
from hypothesis import given
from hypothesis import strategies as st

from woh_faiss import WOHIndex, codes, score
from woh_faiss.errors import InputError
from woh_faiss.integrations import milvus as milvus_module
from woh_faiss.integrations import postgres as postgres_module
from woh_faiss.integrations import remote as remote_module
from woh_faiss.integrations.candidates import Weights
from woh_faiss.integrations.push import push
from woh_faiss.integrations.remote import Remote
from woh_faiss.store import NewRound

BY = "both", "kind", "instance", "hamming"


def crowded(path, seed=0, n=600, few=12, **config):
    """An index whose rows are pairs of few halves, so many are equal; in rounds, some removed or replaced."""
    rng = np.random.default_rng(seed)
    index = WOHIndex.create(path, **{**SMALL, **config})
    index.update(*tagged(0))
    r, s = index.config.bits, index.instance_bits
    halves = [rng.integers(0, 256, (few, bits // 8), dtype=np.uint8) for bits in (r, s)]
    for half in halves:  # some are near the first
        half[few // 2 :] = half[0] ^ (1 << rng.integers(0, 8, half[few // 2 :].shape)).astype(np.uint8)
    for start in range(0, n, 150):
        rows = np.hstack([half[rng.integers(few, size=150)] for half in halves])
        with index.store.writing() as writing:
            ids = np.arange(1000 + start, 1150 + start)
            writing.commit(NewRound("encoded", codes.pad(rows), ids, [None] * 150, [[]] * 150))
    index.remove(rng.choice(np.arange(1000, 1000 + n), 90, replace=False))
    index.update(*tagged(2, n=20), ids=np.arange(10, 30), on_duplicate="replace")
    return index


def short_lists(monkeypatch, most=40):
    """Databases that list few rows at once, by rough bounds, so that answers are seldom proved at first."""
    monkeypatch.setattr(postgres_module, "_TIMES", 1)
    monkeypatch.setattr(postgres_module, "_SPARE", 0)
    monkeypatch.setattr(postgres_module, "_PLANES", 1)
    monkeypatch.setattr(postgres_module, "_BLOCK", 7)
    monkeypatch.setattr(milvus_module, "_SPARE", 0)
    monkeypatch.setattr(milvus_module, "_LONGER", (most, 2 * most))
    monkeypatch.setattr(milvus_module, "_BLOCK", 70)


@pytest.mark.parametrize(
    "config", [{}, {"instance_bits": 0}, {"bits": 0}, {"bits": 72, "instance_bits": 8}], ids=str
)
def test_answers_of_the_index(server, table, url, tmp_path, monkeypatch, config):
    """Every order, with and without expansion, one query and more than are asked at once."""
    short_lists(monkeypatch)
    with crowded(tmp_path / "i", **config) as index:
        push(index, url)
        check(server, table, index)
        xq = tagged(7, n=70)[0]
        if LENGTH < 1:
            monkeypatch.setattr(remote_module, "_QUERIES", 16)
            xq = xq[:18]
        with Remote(index, url) as remote:
            for by in BY:
                if (by == "kind" and not index.config.bits) or (by == "instance" and not index.instance_bits):
                    with pytest.raises(InputError, match=f"by is '{by}', but the index has no such bits"):
                        remote.search(XQ, 3, by=by)
                    continue
                for some, k in ((xq[:0], 4), (xq[:1], 1), (xq, 9), (xq[:3], 200), (xq[:2], 1000)):
                    for expand in (0, 3, 40) if LENGTH >= 1 or len(some) < len(xq) else (0, 3):
                        same_answers(
                            remote.search(some, k, by=by, expand=expand),
                            index.search(some, k, by=by, expand=expand),
                        )
                ids = [0, *index.search(xq[:3], 1)[1][:, 0], 15]
                same_answers(remote.search_ids(ids, 30, by=by), index.search_ids(ids, 30, by=by))


def test_first_rows_that_prove_nothing(server, table, url, tmp_path, monkeypatch):
    """Without a second request the answers would be others."""
    short_lists(monkeypatch)
    with crowded(tmp_path / "i") as index, monkeypatch.context() as patch:
        push(index, url)
        with Remote(index, url) as remote:
            asked, reaching = [], server.engine.reaching

            def counted(engine, part, *rest):
                asked.append(len(part))
                return reaching(engine, part, *rest)

            patch.setattr(server.engine, "reaching", counted)
            wanted = index.search(XQ, 9, by="kind", expand=0)
            same_answers(remote.search(XQ, 9, by="kind", expand=0), wanted)
            assert sum(asked) > 0
            patch.setattr(server.engine, "reaching", lambda *given: iter(()))
            assert (remote.search(XQ, 9, by="kind", expand=0)[1] != wanted[1]).any()


def test_rows_that_float_sums_cannot_tell_apart(server, table, url, tmp_path):
    """Scores that differ by rounding, or not at all, keep the order of the index."""
    rng = np.random.default_rng(1)
    with WOHIndex.create(tmp_path / "i", **{**SMALL, "bits": 64}) as index:
        index.update(*tagged(0))
        one = rng.integers(0, 256, (1, 16), dtype=np.uint8)
        near = np.repeat(one, 200, axis=0)
        near[:, rng.integers(16, size=200)] ^= (1 << rng.integers(8, size=200)).astype(np.uint8)
        with index.store.writing() as writing:
            ids = np.arange(1000, 1200)
            writing.commit(NewRound("encoded", codes.pad(near), ids, [None] * 200, [[]] * 200))
        push(index, url)
        for k in (1, 5, 150):
            check(server, table, index, k=k)


@pytest.fixture(scope="module")
def crowd(server, tmp_path_factory):
    """A crowded index and a connection to its table."""
    url = server.url("t_crowd")
    with crowded(tmp_path_factory.mktemp("crowd") / "i") as index:
        push(index, url)
        with Remote(index, url) as remote, pytest.MonkeyPatch.context() as patch:
            short_lists(patch)
            yield index, remote


numbers = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-30, -1e-9, 0.3, -0.7])


@given(
    h=st.lists(numbers, min_size=16, max_size=16),
    a=st.lists(numbers, min_size=64, max_size=64),
    k=st.sampled_from([1, 7, 50, 800]),
    by=st.sampled_from(BY[:3]),
    expand=st.sampled_from([0, 2]),
)
def test_any_numbers(crowd, h, a, k, by, expand):
    index, remote = crowd
    h, a = score.normalised(np.array([h])), score.normalised(np.array([a]))
    found = remote._best(h, a, np.zeros((1, 0), np.uint8), k, by, expand)
    same_answers(found, index.store.view.score_search(16, 64, h, a, k, by=by, expand=expand))


@given(st.integers(0, 2**32 - 1), st.integers(1, 11), st.booleans())
def test_whole_numbers_are_as_far_off_as_they_say(seed, planes, rough):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(3, 24)) if rough else rng.choice([0.0, 1e-30, 0.25, -1.0], (3, 24))
    H = score.normalised(H)
    weights = Weights.of(H, planes)
    B = rng.choice([-1, 1], (40, 24))
    off = np.abs(H.astype(np.float64) @ B.T - weights.unit[:, None] * (weights.W @ B.T))
    assert (off <= weights.error[:, None] + 1e-12).all()
    assert (weights.W % 2 == 1).all()
    for i in range(3):
        signs = [np.where(plane, 1, -1) << p for p, plane in enumerate(weights.planes(i))]
        np.testing.assert_array_equal(sum(signs), weights.W[i])


def test_an_index_that_has_learned_nothing(server, table, url, tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        push(index, url)
        with Remote(index, url) as remote:
            for by in BY:
                same_answers(remote.search(XQ, 3, by=by), index.search(XQ, 3, by=by))


def test_what_is_refused(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        with Remote(index, url) as remote:
            for wrong, says in (
                ({"by": "color"}, "by is 'color', expected one of both, kind, instance, hamming"),
                ({"expand": -1}, "expand is -1"),
                ({"k": 0}, "k is 0"),
                ({"k": 2**30}, "there are 118 items for 12 queries; ask for fewer"),
            ):
                with pytest.raises(InputError, match=says):
                    remote.search(XQ, **{"k": 3, **wrong})
            with pytest.raises(InputError, match="6 columns"):
                remote.search(XQ[:, :6], 3)


def test_halves_of_learned_codes_alone(server, table, url, tmp_path):
    with WOHIndex.create(tmp_path / "i", **LEARNED) as index:
        index.update(*tagged(0))
        push(index, url)
        check(server, table, index)
        if server.has_approximate:
            push(index, server.url(f"{table}_x"), approximate=True)
            with Remote(index, server.url(f"{table}_x")) as remote:
                S, _ = remote.search(XQ, 5, expand=0)
            assert (index.search(XQ, 5, expand=0)[0] == S).mean() > 0.5


def test_a_search_sees_one_state_of_a_table(postgresql, table, tmp_path, monkeypatch):
    """A push between the requests of a search changes nothing of its answers."""
    short_lists(monkeypatch)
    url, best = postgresql.url(table), postgresql.engine.best
    with crowded(tmp_path / "i") as index, WOHIndex.open(tmp_path / "i") as writer:
        push(index, url)
        wanted = index.search(XQ, 30)

        def changed(engine, *asked):
            found = best(engine, *asked)
            monkeypatch.setattr(postgresql.engine, "best", best)
            writer.remove(np.unique(wanted[1][:, :20]))
            push(writer, url)
            return found

        with Remote(index, url) as remote:
            monkeypatch.setattr(postgresql.engine, "best", changed)
            same_answers(remote.search(XQ, 30), wanted)
            same_answers(remote.search(XQ, 30), writer.search(XQ, 30))
