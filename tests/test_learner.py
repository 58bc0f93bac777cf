import numpy as np
import pytest
import trainer_checks
from conftest import learned as learn_round
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array

from woh_faiss import WOH, WOHConfig, codes
from woh_faiss.errors import ConfigError, InputError, NotFittedError
from woh_faiss.learner.kernel import Kernel
from woh_faiss.learner.statistics import Statistics, widen

WORDS = ["sea", "beach", "hill", "snow", "city", "night"]


def stream(seed=0, n=60, d=7):
    """Items of six topics; each carries its topic's word and often the next one."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(6, size=n)
    X = np.eye(6, d)[topic] * 3 + rng.normal(size=(n, d))
    tags = [[WORDS[t], WORDS[(t + 1) % 6]] if rng.random() < 0.6 else [WORDS[t]] for t in topic]
    return X, tags


def make(**hyper):
    return WOH(**{"bits": 16, "preset": "paper", "anchors": 20, "vector_size": 5, **hyper})


def make_adaptive(**hyper):
    return make(**{"preset": "adaptive", **hyper})


TRAINERS = {
    "paper": make,
    "paper-refreshed": lambda **h: make(refresh_statistics=True, **h),
    "paper-no-blocks": lambda **h: make(beta=0.0, theta=0.0, **h),
    "adaptive": make_adaptive,
    "adaptive-filling": lambda **h: make_adaptive(anchors=150, **h),  # anchors change in the second round
    "adaptive-more-bits-than-tags": lambda **h: make_adaptive(bits=64, **h),
}


@pytest.mark.parametrize("check", trainer_checks.ALL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("maker", TRAINERS.values(), ids=TRAINERS)
def test_every_trainer(maker, check):
    X, tags = stream()
    check(maker, X, tags)


def test_two_rounds_are_learn_round_on_kernel_tags_and_word_vectors(any_blocks):
    """The estimator adds state, not arithmetic; W0, B0 and anchors come from outside here."""
    rng = np.random.default_rng(1)
    (X1, tags1), (X2, tags2) = stream(1), stream(2)
    tags2 = [[*tags, "harbour"] for tags in tags2]  # a tag that appears only now
    anchors, W0 = X1[:9], rng.normal(size=(16, 6))
    starts = [rng.choice([-1.0, 1.0], size=(60, 16)) for _ in range(2)]
    woh = WOH(WOHConfig(bits=16, preset="paper", vector_size=5), A=anchors, W0=W0)
    kernel, past, W = Kernel.fit(X1, anchors), Statistics.zero(r=16, m=9, f=5, c=6), W0
    for X, tags, B0 in ((X1, tags1, starts[0]), (X2, tags2, starts[1])):
        woh.partial_fit(X, tags, B0=B0)
        known = woh.vocabulary_.tags
        Y = np.array([[float(tag in given) for tag in known] for given in tags])
        Z = np.array(
            [np.mean([woh.vocabulary_.E[known.index(tag)] for tag in given], axis=0) for given in tags]
        )
        past, W = past.widened(len(known)), widen(W, len(known))
        phi = kernel.map(X)
        learned = learn_round(phi, csr_array(Y), Z, B0, W, past, woh.config)
        past, W = learned.stats, learned.W
        assert_array_equal(woh.codes_, codes.pack(learned.B))
        np.testing.assert_allclose(woh.decision_function(X), kernel.map(X) @ learned.P, atol=1e-5)
    assert len(known) == 7
    assert woh.rounds_ == 2
    assert woh.n_features_in_ == 7


def test_items_without_a_known_tag_are_encoded_and_not_learned_from():
    X, tags = stream()
    rare = [5, 17, 40]
    for row, tag in zip(rare, ([], ["once"], ["seldom", "never"]), strict=True):
        tags[row] = tag
    mixed = make().partial_fit(X, tags)
    assert np.flatnonzero(~mixed.trained_).tolist() == rare
    assert_array_equal(mixed.codes_[rare], mixed.encode(X[rare]))
    assert mixed.coverage_.items_tagged == 57
    assert mixed.state()["n"] == 57


def test_a_chunk_without_known_tags_changes_counts_but_no_model():
    X, tags = stream()
    woh = make().partial_fit(X, tags)
    before = woh.state()
    woh.partial_fit(X[:5], [["unheard"], [], [], [], []])
    assert woh.rounds_ == 1
    assert not woh.trained_.any()
    assert_array_equal(woh.codes_, woh.encode(X[:5]))
    for name, value in before.items():
        assert_array_equal(woh.state()[name], value)
    assert woh.vocabulary_.counts["unheard"] == 1


def test_a_tag_is_learned_from_once_the_stream_has_shown_it_often_enough():
    X, tags = stream()
    woh = make(min_count=3).partial_fit(X, tags)
    for times, known in ((2, False), (1, True)):
        woh.partial_fit(X, [["dune"] if row < times else given for row, given in enumerate(tags)])
        assert ("dune" in woh.vocabulary_.tags) is known


def test_transform_and_encode_are_the_sign_of_the_decision_function():
    X, tags = stream()
    woh = make().partial_fit(X, tags)
    H = woh.decision_function(X)
    assert_array_equal(woh.transform(X), np.where(H >= 0, 1, -1))
    assert_array_equal(woh.encode(X), codes.pack(H))


def test_Z_replaces_the_word_vectors():
    X, tags = stream()
    Z = np.random.default_rng(3).normal(size=(60, 9))
    with_Z = make().partial_fit(X, tags, Z=Z)
    assert with_Z.state()["C5"].shape == (16, 9)
    with pytest.raises(InputError, match="word-vector means have 5 columns, the model was fitted with 9"):
        with_Z.partial_fit(X, tags)


@pytest.mark.parametrize("hyper", [{"beta": 0.0}, {"theta": 0.0}, {"mu": 0.0}])
def test_a_block_can_be_left_out(hyper):
    X, tags = stream()
    woh = make(**hyper).partial_fit(X, tags).partial_fit(X, tags)
    assert np.isfinite(woh.decision_function(X)).all()
    assert np.any(woh.decision_function(X))


@pytest.mark.parametrize("n", [2, 19, 21])
def test_first_chunks_of_any_size_give_at_most_that_many_anchors(n):
    X, tags = stream(n=n)
    woh = make(min_count=1).partial_fit(X, tags)
    assert len(woh.anchors_) == min(n, 20)
    assert {tuple(row) for row in woh.anchors_} <= {tuple(row) for row in X}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, tags: (X[:, :5], tags), "features have 5 columns, the model was fitted with 7"),
        (lambda X, tags: (np.where(np.arange(60)[:, None] == 4, np.nan, X), tags), "row 4 are not finite"),
        (lambda X, tags: (X, tags[:-1]), "59"),
        (lambda X, tags: (X, None), "tags are None"),
        (lambda X, tags: (X.astype(complex), tags), "complex"),
    ],
)
def test_a_bad_chunk_changes_nothing(change, message):
    X, tags = stream()
    woh = make().partial_fit(X, tags)
    before, vocabulary = woh.state(), woh.vocabulary_
    with pytest.raises(InputError, match=message):
        woh.partial_fit(*change(X, tags))
    assert woh.vocabulary_ is vocabulary
    for name, value in before.items():
        assert_array_equal(woh.state()[name], value)


@pytest.mark.parametrize(
    "given", [{"B0": np.ones((3, 16))}, {"Z": np.ones((3, 5))}, {"B0": np.ones((60, 8))}]
)
def test_starts_of_another_shape_are_refused(given):
    X, tags = stream()
    with pytest.raises(InputError, match=r"has shape .* expected"):
        make().partial_fit(X, tags, **given)


def test_a_first_chunk_without_any_known_tag_is_refused():
    X, _ = stream(n=3)
    with pytest.raises(
        InputError, match="none of the 3 items of the first chunk has a tag that was seen 2 times"
    ):
        make().partial_fit(X, ["a", "b", "c"])


def test_nothing_answers_before_the_first_round():
    for ask in (lambda w: w.transform([[1.0]]), lambda w: w.n_features_in_, lambda w: w.state()):
        with pytest.raises(NotFittedError, match="call partial_fit"):
            ask(make())


def test_hyper_parameters_by_name_replace_those_of_a_config():
    config = WOHConfig(bits=32, seed=5, mu=3.0)
    assert WOH(config, seed=6).config == WOHConfig(bits=32, seed=6, mu=3.0)
    assert WOH(config).config == config
    with pytest.raises(ConfigError, match="unknown hyper-parameters bit;"):
        WOH(bit=8)


@pytest.mark.parametrize("maker", TRAINERS.values(), ids=TRAINERS)
def test_tags_that_nothing_was_learned_from_are_trusted(maker):
    woh = maker(min_count=2)
    for seed in range(3):
        X, tags = stream(seed)
        tags[seed] = [f"only in round {seed}"]
        woh.partial_fit(X, tags)
        assert (woh.trust_[~woh.trained_] == 1).all()
        assert ((woh.trust_ > 0) & (woh.trust_ <= 1)).all()


def test_the_tags_of_others_are_trusted_least():
    X, tags = stream(1, n=400)
    swapped = np.arange(0, 400, 20)
    for i in swapped:
        tags[i] = [next(word for word in WORDS if word not in tags[i])]
    woh = make_adaptive().partial_fit(X, tags)
    others = np.setdiff1d(np.arange(400), swapped)
    assert woh.trust_[swapped].mean() < 0.5 * woh.trust_[others].mean()
