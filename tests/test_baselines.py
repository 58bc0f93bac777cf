"""What holds for every method that WOH is compared with."""

import numpy as np
import pytest
import trainer_checks
from numpy.testing import assert_array_equal
from test_learner import stream

from woh_faiss.errors import ConfigError, InputError, NotFittedError
from woh_faiss.evaluation import streaming
from woh_faiss.evaluation.baselines import METHODS as BASELINES
from woh_faiss.evaluation.baselines.ablations import VARIANTS
from woh_faiss.evaluation.metrics import mean_average_precision
from woh_faiss.inputs.chunk import Chunk
from woh_faiss.learner.config import WOHConfig

METHODS = BASELINES | VARIANTS
ONLINE = [name for name, method in METHODS.items() if method.online]
BATCH = [name for name, method in METHODS.items() if not method.online]


def maker(name):
    return lambda **hyper: METHODS[name](**{"bits": 16, **hyper})


@pytest.mark.parametrize("check", trainer_checks.ALL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_every_method(name, check):
    X, tags = stream()
    check(maker(name), X, tags)


@pytest.mark.parametrize("name", METHODS)
def test_says_what_it_is(name):
    method = METHODS[name]
    assert method.name == name
    assert method.source
    assert method.__doc__


@pytest.mark.parametrize("name", METHODS)
def test_untagged_items_and_tags_that_come_later_are_no_trouble(name):
    model = maker(name)()
    for round_, tags in enumerate(
        ([["sea"]] * 20 + [[]] * 20, [[]] * 40, [["sea", "harbour"]] * 40), start=1
    ):
        X, _ = stream(round_, n=40)
        model.partial_fit(X, tags)
        assert model.codes_.shape == (40, 2)
    assert model.vocabulary_.tags == ("sea", "harbour")
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_first_chunk_without_any_tag(name):
    X, tags = stream()
    model = maker(name)().partial_fit(X, [[]] * len(X)).partial_fit(X, tags)
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("bits", [8, 64])
def test_more_bits_than_directions_and_chunks_smaller_than_the_code(name, bits):
    X, tags = stream(n=10)
    model = maker(name)(bits=bits).partial_fit(X, tags).partial_fit(X[:1], tags[:1])
    assert model.encode(X).shape == (10, bits // 8)
    assert np.isfinite(model.decision_function(X)).all()


@pytest.mark.parametrize("name", METHODS)
def test_items_that_are_all_alike(name):
    X, tags = stream()
    assert np.isfinite(maker(name)().partial_fit(X * 0, tags).decision_function(X * 0)).all()


@pytest.mark.parametrize("name", METHODS)
def test_refuses_in_one_line(name):
    X, tags = stream()
    with pytest.raises(ConfigError, match="multiple of 8"):
        METHODS[name](12)
    model = maker(name)()
    with pytest.raises(NotFittedError, match="call partial_fit"):
        model.encode(X)
    with pytest.raises(InputError, match="tags are None"):
        model.partial_fit(X, None)
    with pytest.raises(InputError, match="6 columns"):
        model.partial_fit(X, tags).partial_fit(X[:, :6], tags)


@pytest.mark.parametrize("name", METHODS)
def test_the_config_decides_bits_seed_and_min_count(name):
    model = METHODS[name].of(WOHConfig(bits=24, seed=3, min_count=5))
    assert (model.bits, model.seed, model.min_count) == (24, 3, 5)


@pytest.mark.parametrize("name", BATCH)
def test_a_batch_method_learns_from_all_items_anew(name):
    """Two chunks leave the functions that the same items in one would, given the same draws."""
    X, tags = stream(n=80)
    tags[3], tags[70] = ["harbour"], ["harbour"]  # admitted in round 2, for the item of round 1, too
    halves = maker(name)().partial_fit(X[:40], tags[:40]).partial_fit(X[40:], tags[40:])
    whole = maker(name)()
    whole.rounds_ = 1  # draws of round 2
    whole.vocabulary_ = maker(name)().partial_fit(X[:40], tags[:40]).vocabulary_  # columns in the same order
    whole.n_features_in_ = X.shape[1]
    whole._items = lambda chunk: Chunk.of(X, tags)
    whole.partial_fit(X[40:], tags[40:])
    assert_array_equal(halves.features_, X)
    assert_array_equal(halves.codes_, whole.codes_)
    assert_array_equal(halves.decision_function(X), whole.decision_function(X))


@pytest.mark.parametrize("name", METHODS)
def test_the_database_is_what_the_method_says(name):
    X, tags = stream(n=80)
    model, learned = maker(name)(), []
    for rows in (slice(0, 40), slice(40, 80)):
        model.partial_fit(X[rows], tags[rows])
        learned.append(model.codes_)
    learned = np.concatenate(learned)
    database = model.database(X, learned)
    if not model.keeps_learned:
        assert_array_equal(database, model.encode(X))
    elif model.online:
        assert_array_equal(database, learned)
    else:
        assert_array_equal(database[40:], learned[40:])
        assert np.any(database[:40] != learned[:40])


@pytest.mark.parametrize("name", METHODS)
def test_the_protocol_ranks_that_database(name):
    X, tags = stream(n=90)
    labels = np.array([["sea" in given, "hill" in given, "city" in given] for given in tags])
    chunk, config = Chunk.of(X, tags, labels=labels), WOHConfig(bits=16)
    last = next(
        r
        for r in streaming.stream(chunk, [config], chunks=2, queries=20, make=METHODS[name].of)
        if r.round == 2
    )
    held_out, rest = streaming.split(chunk, 20, 0)
    model, learned = METHODS[name].of(config), []
    for part in np.array_split(rest, 2):
        model.partial_fit(X[part], chunk.tags.rows(part))
        learned.append(model.codes_)
    score = mean_average_precision(
        model.encode(X[held_out]),
        model.database(X[rest], np.concatenate(learned)),
        labels[held_out],
        labels[rest],
    )
    assert (last.method, last.preset, last.bits, last.database) == (name, None, 16, 70)
    assert last.map == score


@pytest.mark.parametrize("name", BASELINES)
def test_nearer_topics_get_nearer_codes(name):
    """Any method must see six well-parted topics: items of one differ in fewer bits than items of two."""
    rng = np.random.default_rng(0)
    topic = rng.integers(6, size=400)
    X = np.eye(6, 12)[topic] * 6 + rng.normal(size=(400, 12))
    tags = [[f"topic{t}"] for t in topic]
    model = maker(name)(bits=32)
    for rows in np.array_split(np.arange(300), 3):
        model.partial_fit(X[rows], [tags[i] for i in rows])
    B = model.transform(X[300:]).astype(int)
    same = topic[300:, None] == topic[None, 300:]
    agree = B @ B.T
    assert agree[same].mean() > agree[~same].mean() + 3
