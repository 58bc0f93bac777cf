"""What every trainer must satisfy, whatever it learns: `ALL` is crossed with every trainer there is."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal

from woh_faiss.evaluation.baselines import Baseline


def check_inputs_are_not_changed(make, X, tags):
    before = X.copy()
    X.flags.writeable = False
    make().partial_fit(X, tags)
    assert_array_equal(X, before)


def check_seed_decides_everything(make, X, tags):
    first, second = make(), make()
    np.random.seed(1)  # noqa: NPY002 - the global generator must not matter
    first.partial_fit(X, tags)
    np.random.seed(2)  # noqa: NPY002
    second.partial_fit(X, tags)
    assert_array_equal(first.codes_, second.codes_)
    assert_array_equal(first.decision_function(X), second.decision_function(X))
    matters = np.any(make(seed=1).partial_fit(X, tags).codes_ != first.codes_)
    assert matters == getattr(first, "draws", True)


def resume(model, make):
    """One that knows no more than the state and the vocabulary of `model`."""
    copy = {name: np.array(value) for name, value in model.state().items()}
    known = model.vocabulary_
    vocabulary = type(known).from_rows(known.rows(), known.min_count)
    if isinstance(model, Baseline):
        return make().restore(copy, vocabulary)
    return type(model).from_state(model.config, copy, model.anchors_, vocabulary)


def check_state_round_trips(make, X, tags):
    """Away to disk and back, then one more round, equals one more round without the detour."""
    straight = make().partial_fit(X, tags)
    resumed = resume(straight, make)
    straight.partial_fit(X[::-1], tags[::-1])
    resumed.partial_fit(X[::-1], tags[::-1])
    assert_array_equal(resumed.codes_, straight.codes_)
    assert_array_equal(resumed.encode(X), straight.encode(X))
    assert resumed.state().keys() == straight.state().keys()
    for name, value in straight.state().items():
        assert_array_equal(resumed.state()[name], value, err_msg=name)


def check_one_row_encodes_as_in_a_batch(make, X, tags):
    model = make().partial_fit(X, tags)
    assert_array_equal(np.vstack([model.encode(x[None]) for x in X]), model.encode(X))


def check_any_strides_and_dtype_give_the_same(make, X, tags):
    wide = np.repeat(X.astype(np.float32), 2, axis=1)[:, ::2]
    plain = make().partial_fit(np.ascontiguousarray(wide), tags)
    for same in (wide, np.asfortranarray(wide), wide.astype(">f8"), wide.astype(np.float64)):
        assert_array_equal(make().partial_fit(same, tags).codes_, plain.codes_)


def check_state_does_not_grow_with_the_items(make, X, tags):
    model = make()
    if not getattr(model, "online", True):
        return
    for _ in range(4):  # what is kept while few items were seen is gone by then
        model.partial_fit(X, tags)
    sizes = {name: np.shape(value) for name, value in model.state().items()}
    for _ in range(3):
        model.partial_fit(X, tags)
    grown = {name: np.shape(value) for name, value in model.state().items()} != sizes
    assert grown == getattr(model, "grows", False)


ALL = [value for name, value in list(globals().items()) if name.startswith("check_")]
