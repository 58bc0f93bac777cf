from __future__ import annotations

import builtins
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss.errors import InputError
from woh_faiss.evaluation import plots
from woh_faiss.evaluation.metrics import average_precision, cosine, l2, mean_average_precision
from woh_faiss.evaluation.quality import ScoreRanking, StreamInstanceBits
from woh_faiss.evaluation.streaming import Result, split, stream
from woh_faiss.inputs.chunk import Chunk, concatenate
from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.instance import packed_signs


class Fake:
    """Codes that say in which round they were made, so that re-encoding the database would show."""

    made: ClassVar[list[Fake]] = []

    def __init__(self, config):
        self.config, self.seen = config, []
        Fake.made.append(self)

    def encode(self, X):
        rng = np.random.default_rng((self.config.bits, len(self.seen)))
        return np.packbits(X @ rng.normal(size=(X.shape[1], self.config.bits)) >= 0, axis=1)

    def partial_fit(self, X, tags, *, word_vectors=None):
        assert len(tags) == len(X)
        self.seen.append((X, [tags.of_row(i) for i in range(len(X))], word_vectors))
        self.codes_ = self.encode(X)
        return self


@pytest.fixture(autouse=True)
def _fresh():
    Fake.made.clear()


def data(n=60, groups=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    X[:, 0] = np.arange(n)  # tells which row it is
    tags = [[f"tag{i}", "all"] for i in range(n)]
    return Chunk.of(X, tags, labels=rng.random((n, 3)) < 0.3, groups=groups)


def configs(*bits):
    return [WOHConfig(bits=b, seed=1) for b in bits]


def rows_of(X):
    return X[:, 0].astype(int)


@pytest.mark.parametrize("chunks", [1, 3, 8])
@pytest.mark.parametrize("seed", [0, 5])
def test_stream_equals_the_definition(chunks, seed):
    """Oracle: split, stream, code and rank again, by hand."""
    chunk, vectors = data(), object()
    found = list(
        stream(chunk, configs(8, 24), chunks=chunks, queries=20, seed=seed, word_vectors=vectors, make=Fake)
    )
    order = np.random.default_rng(seed).permutation(60)
    held_out, rest = order[:20], order[20:]
    expected = []
    for bits in (8, 24):
        model, database = Fake(configs(bits)[0]), []
        for t, part in enumerate(np.array_split(rest, chunks), start=1):
            model.partial_fit(chunk.features[part], chunk.tags.rows(part))
            database.append(model.codes_)
            so_far = rest[: sum(map(len, database))]
            score = mean_average_precision(
                model.encode(chunk.features[held_out]),
                np.concatenate(database),
                chunk.labels[held_out],
                chunk.labels[so_far],
            )
            expected.append(("woh", "adaptive", bits, t, score, 20, len(so_far)))
    for name, distance in (("float-l2", l2), ("float-cosine", cosine)):
        X, L = chunk.features, chunk.labels
        score = mean_average_precision(X[held_out], X[rest], L[held_out], L[rest], distance=distance)
        expected.append((name, None, None, chunks, score, 20, 40))
    got = [(r.method, r.preset, r.bits, r.round, r.map, r.queries, r.database) for r in found]
    assert [g[:4] + g[5:] for g in got] == [e[:4] + e[5:] for e in expected]
    assert [g[4] for g in got] == pytest.approx([e[4] for e in expected])
    assert all(r.seconds > 0 if r.method == "woh" else r.seconds == 0 for r in found)

    first, second, *_ = Fake.made
    for model in (first, second):  # every item of the stream once, with its own tags
        X = np.concatenate([X for X, _, _ in model.seen])
        assert_array_equal(rows_of(X), rest)
        assert [t for _, tags, _ in model.seen for t in tags] == [[f"tag{i}", "all"] for i in rest]
        assert all(v is vectors for _, _, v in model.seen)


@pytest.mark.parametrize("learn_from", [9, 39])
def test_items_that_are_not_learned_from_are_encoded_by_the_newest_function(learn_from):
    """Oracle: the whole rest is the database of every round; only codes of what was learned stay."""
    chunk = data()
    found = list(stream(chunk, configs(8), chunks=3, queries=20, seed=2, make=Fake, learn_from=learn_from))
    order = np.random.default_rng(2).permutation(60)
    held_out, rest = order[:20], order[20:]
    model, learned = Fake(configs(8)[0]), []
    for part, result in zip(np.array_split(rest[:learn_from], 3), found, strict=False):
        model.partial_fit(chunk.features[part], chunk.tags.rows(part))
        learned.append(model.codes_)
        kept = np.concatenate(learned)
        database = np.concatenate([kept, model.encode(chunk.features[rest[len(kept) :]])])
        score = mean_average_precision(
            model.encode(chunk.features[held_out]), database, chunk.labels[held_out], chunk.labels[rest]
        )
        assert result.map == pytest.approx(score)
        assert (result.queries, result.database) == (20, 40)
    whole = list(stream(chunk, configs(8), chunks=3, queries=20, seed=2, make=Fake))
    assert [it.map for it in found[3:]] == [it.map for it in whole[3:]]  # uncompressed search
    for same in (0, 40, 41):
        again = list(stream(chunk, configs(8), chunks=3, queries=20, seed=2, make=Fake, learn_from=same))
        assert [it.map for it in again] == [it.map for it in whole]
    with pytest.raises(InputError, match="learn_from"):
        stream(chunk, configs(8), queries=20, make=Fake, learn_from=-1)
    with pytest.raises(InputError, match="expected a random split"):
        stream(chunk, configs(8), queries=np.arange(20), make=Fake, learn_from=9)


def test_both_halves_of_items_that_are_not_learned_from():
    """Twin codes: learned bits of the newest function, instance bits of the one there is."""
    rng = np.random.default_rng(0)
    topic = rng.integers(4, size=200)
    X = np.eye(4, 12)[topic] * 3 + rng.normal(size=(200, 12))
    chunk = Chunk.of(X, [[f"topic{t}"] for t in topic], labels=np.eye(4, dtype=bool)[topic])
    how = {"queries": 40, "instance_bits": 8, "by": "both", "expand": 3, "chunks": 2}
    config = WOHConfig(bits=8, min_count=1, anchors=20)
    some = list(stream(chunk, [config], learn_from=100, **how))
    assert [it.database for it in some] == [160] * 4
    assert 0.5 < some[1].map <= 1
    (alone, *_) = stream(chunk, [WOHConfig(bits=0)], learn_from=100, **{**how, "chunks": 1})
    held_out, rest = split(chunk, 40, 0)
    half = StreamInstanceBits(8, 0)
    packed = half.beside_encoded(half.codes(X[rest[:100]]), X[rest[100:]])
    assert_array_equal(packed, packed_signs(X[rest], half.function))
    D = ScoreRanking(Hasher.of_instance(half.function), np.empty((160, 0), np.uint8), packed, 3)(X[held_out])
    scores = average_precision(D, chunk.labels[held_out] @ chunk.labels[rest].T)
    assert alone.map == pytest.approx(scores.mean())


def test_rounds_before_the_last_may_have_their_map_alone():
    whole = list(stream(data(), configs(8, 16), chunks=3, queries=20, make=Fake))
    quick = list(stream(data(), configs(8, 16), chunks=3, queries=20, make=Fake, last_only=True))
    for one, two in zip(whole, quick, strict=True):
        assert one.map == two.map
        rest = [(it.p10, it.self1, it.self10, it.float_recall10) for it in (one, two)]
        if two.round < 3:
            assert np.isnan(rest[1]).all()
        else:
            assert rest[0] == rest[1]


def test_the_chunk_is_not_changed_and_a_seed_decides_everything():
    chunk = data()
    before = chunk.features.copy()
    one, two, other = (
        [r.map for r in stream(chunk, configs(8), chunks=2, seed=s, make=Fake)] for s in (0, 0, 1)
    )
    assert one == two
    assert one != other
    assert_array_equal(chunk.features, before)


@pytest.mark.parametrize(("n", "expected"), [(2, 1), (3, 1), (40, 10), (4100, 1000)])
def test_default_number_of_queries(n, expected):
    held_out, rest = split(data(n), None, 0)
    assert (len(held_out), len(rest)) == (expected, n - expected)


@given(st.lists(st.integers(0, 12), min_size=8, max_size=60), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_groups_stay_on_one_side(groups, queries, seed):
    chunk = data(len(groups), groups=np.array(groups))
    order = np.random.default_rng(seed).permutation(np.unique(groups))
    taken = 0  # oracle: whole groups in a random order until there are enough
    while sum(groups.count(g) for g in order[:taken]) < queries:
        taken += 1
    expected = [i for i, g in enumerate(groups) if g in order[:taken]]
    if len(expected) > len(groups) // 2:
        with pytest.raises(InputError, match="whole groups"):
            split(chunk, queries, seed)
        return
    held_out, rest = split(chunk, queries, seed)
    assert sorted(held_out) == expected
    assert sorted([*held_out, *rest]) == list(range(len(groups)))
    assert not {groups[i] for i in held_out} & {groups[i] for i in rest}


class TestRefusals:
    def test_too_many_queries(self):
        with pytest.raises(InputError, match="31 queries were asked for, at most half of the 60"):
            stream(data(), configs(8), queries=31, make=Fake)
        assert len(list(stream(data(), configs(8), queries=30, make=Fake))) == 10

    def test_too_many_chunks(self):
        with pytest.raises(InputError, match="40 items cannot be cut into 41"):
            stream(data(), configs(8), queries=20, chunks=41, make=Fake)

    @pytest.mark.parametrize(("chunks", "queries"), [(0, 5), (2, 0), (2.5, 5)])
    def test_not_a_count(self, chunks, queries):
        with pytest.raises(InputError, match="expected"):
            stream(data(), configs(8), queries=queries, chunks=chunks, make=Fake)

    @pytest.mark.parametrize(
        ("given", "missing"), [({"tags": ["a"] * 9}, "labels"), ({"labels": [0] * 9}, "tags")]
    )
    def test_tags_and_labels_are_needed(self, given, missing):
        with pytest.raises(InputError, match=f"has no {missing}"):
            stream(Chunk.of(np.zeros((9, 2)), **given), configs(8), make=Fake)


class TestJoined:
    def test_parts_give_the_whole(self):
        whole = data(groups=np.arange(60) % 7)
        parts = [whole.rows(slice(0, 11)), whole.rows(slice(11, 12)), whole.rows(slice(12, 60))]
        again = concatenate(parts)
        for name in ("features", "labels", "groups"):
            assert_array_equal(getattr(again, name), getattr(whole, name))
        assert [again.tags.of_row(i) for i in range(60)] == [whole.tags.of_row(i) for i in range(60)]
        assert concatenate([whole]) is whole

    def test_what_one_part_lacks_is_left_out(self):
        both = concatenate([data(6), Chunk.of(np.zeros((2, 5)))])
        assert len(both) == 8
        assert both.tags is None
        assert both.labels is None
        assert both.groups is None

    def test_columns_must_agree(self):
        with pytest.raises(InputError, match=r"features of b have 4 columns, those of a 5"):
            concatenate([data(6), Chunk.of(np.zeros((2, 4)))], ["a", "b"])
        other = Chunk.of(np.zeros((2, 5)), labels=np.zeros((2, 9), bool))
        with pytest.raises(InputError, match=r"labels of chunk 1 have 9 columns"):
            concatenate([data(6), other])
        with pytest.raises(InputError, match="no chunks"):
            concatenate([])


class TestPlot:
    results: ClassVar[list[Result]] = [
        *(
            Result("woh", "adaptive", bits, 0, t, 0.1 * t, 0, 0, 0, 0, 5, 10 * t, 0.1)
            for bits in (8, 16)
            for t in (1, 2, 3)
        ),
        Result("float-l2", None, None, None, 3, 0.2, 0, 0, 0, 0, 5, 30, 0.0),
        Result("float-cosine", None, None, None, 3, 0.25, 0, 0, 0, 0, 5, 30, 0.0),
    ]

    @pytest.mark.parametrize("suffix", [".png", ".PNG", ".svg", ".pdf"])
    def test_writes(self, tmp_path, suffix):
        path = tmp_path / f"map{suffix}"
        plots.map_by_round(self.results, path)
        start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
        assert path.read_bytes().startswith(start)

    def test_names_every_line(self, tmp_path):
        path = tmp_path / "map.svg"
        plots.map_by_round(self.results, path)
        text = path.read_text()
        for label in ("woh adaptive, 8 bits", "woh adaptive, 16 bits", "float-l2", "float-cosine"):
            assert text.count(f"<!-- {label} -->") == 1

    def test_refuses_before_drawing(self, tmp_path, monkeypatch):
        with pytest.raises(InputError, match=r"map\.xyz: expected a name ending in one of .*png"):
            plots.check(tmp_path / "map.xyz")
        with pytest.raises(InputError, match="its folder does not exist"):
            plots.check(tmp_path / "none" / "map.png")
        (tmp_path / "folder.png").mkdir()
        with pytest.raises(InputError, match="cannot write"):
            plots.map_by_round(self.results, tmp_path / "folder.png")
        real = builtins.__import__

        def without(name, *rest):
            if name.startswith("matplotlib"):
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(InputError, match=r"woh-faiss\[plot\]"):
            plots.check(tmp_path / "map.png")
