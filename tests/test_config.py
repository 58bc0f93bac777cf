import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
from conftest import length
from hypothesis import given, settings
from hypothesis import strategies as st

from woh_faiss import WOH, Chunk, WOHIndex
from woh_faiss.errors import ConfigError
from woh_faiss.learner.config import PARAMETERS, PRESETS, WOHConfig, merged


def test_the_paper_preset_has_the_papers_constants():
    config = WOHConfig(preset="paper")
    assert (config.alpha, config.beta, config.theta, config.mu) == (300, 0.1, 0.1, 10)
    assert (config.iterations, config.sweeps, config.anchors) == (7, 3, 1000)
    assert not config.refresh_statistics


def test_a_given_field_wins_over_the_preset():
    assert WOHConfig(preset="paper", mu=0.0, iterations=2).mu == 0
    assert WOHConfig(preset="paper", mu=0.0, iterations=2).iterations == 2


@pytest.mark.parametrize("preset", PRESETS)
def test_round_trips_through_json(preset):
    config = WOHConfig(bits=24, preset=preset, alpha=1.5, seed=7)
    assert WOHConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        WOHConfig().bits = 8


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bits", 4104, "bits is 4104, expected at most 4096"),
        ("bits", -8, "bits is -8, expected a whole number of at least 0"),
        ("bits", 12, "bits is 12, expected a multiple of 8"),
        ("bits", 16.0, "bits is 16.0, expected a whole number"),
        ("bits", True, "bits is True"),
        ("anchors", 0, "anchors is 0, expected a whole number of at least 1"),
        ("iterations", 0, "at least 1"),
        ("sweeps", -1, "at least 1"),
        ("min_count", 0, "at least 1"),
        ("seed", -1, "at least 0"),
        ("alpha", 0.0, "alpha is 0.0, expected more than 0"),
        ("alpha", float("nan"), "alpha is nan, expected a finite number"),
        ("mu", float("inf"), "mu is inf, expected a finite number"),
        ("beta", -1, "beta is -1, expected a finite number of at least 0"),
        ("theta", "1", "theta is '1', expected a finite number"),
        ("refresh_statistics", 1, "refresh_statistics is 1, expected true or false"),
        ("preset", "best", "preset is 'best', expected one of adaptive, paper"),
        ("lambda", 1, "unknown hyper-parameters lambda; known: bits, preset, anchors"),
    ],
)
def test_what_no_model_can_be_made_from_is_refused(name, value, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as caught:
        WOHConfig.from_dict({name: value})
    assert "\n" not in str(caught.value)


#: A few values of every field, the presets' own among them.
VALUES = {
    "bits": [8, 64], "preset": list(PRESETS), "anchors": [3, 1000], "start": [None, "random", "semantic"],
    "alpha": [None, 300.0, 0.01, 2], "beta": [None, 0.1, 0.0], "theta": [None, 0.1, 1.0, 0],
    "mu": [None, 10.0, 0.5, 0], "iterations": [None, 7, 3, 1], "sweeps": [None, 3, 1],
    "refresh_statistics": [None, True, False], "weighted": [True, False], "min_count": [2, 1],
    "vector_size": [100, 5], "keep_models": [2, 7], "seed": [0, 4],
}  # fmt: skip
FIELDS = st.fixed_dictionaries({}, optional={name: st.sampled_from(VALUES[name]) for name in VALUES})


def made(**fields):
    """The config, or what refuses it."""
    try:
        return WOHConfig(**fields)
    except ConfigError as error:
        return str(error)


def test_every_field_has_values():
    assert tuple(VALUES) == PARAMETERS


@given(FIELDS, FIELDS)
@settings(max_examples=length(150), deadline=None)
def test_keywords_win_over_the_config_and_that_over_the_preset(own, hyper):
    """Merged is what one call with all of them makes, whoever does it."""
    if isinstance(config := made(**own), str):
        return
    if all(own.get(name) is not None for name in PRESETS["paper"]):  # as a copy of all values, see below
        preset = PRESETS[config.preset]
        own = {name: value for name, value in own.items() if name not in preset or preset[name] != value}
    expected = made(**{**own, **hyper})
    for merge in (
        lambda: merged(config, hyper),
        lambda: WOH(config, **hyper).config,
        lambda: WOH(**own).set_params(**hyper).config,
        lambda: merged(merged(config, {}), hyper),
        lambda: merged(pickle.loads(pickle.dumps(config)), hyper),  # noqa: S301
        lambda: merged(copy.deepcopy(config), hyper),
        lambda: merged(WOHConfig(**config.given()), hyper),
    ):
        if isinstance(expected, str):
            with pytest.raises(ConfigError) as caught:
                merge()
            assert str(caught.value) == expected
        else:
            both = merge()
            assert both == expected
            assert both.overrides == expected.overrides


@given(FIELDS, st.sampled_from(list(PRESETS)))
@settings(max_examples=length(80), deadline=None)
def test_what_a_copy_of_all_values_has_from_the_preset_follows_another_preset(own, preset):
    """A config that was read from an index has every value; only what differs from its preset was chosen."""
    if isinstance(config := made(**own), str):
        return
    chosen = {
        name: value
        for name, value in config.to_dict().items()
        if name not in PRESETS["paper"] or value != PRESETS[config.preset][name]
    }
    expected = made(**{**chosen, "preset": preset})
    for same in (WOHConfig.from_dict(json.loads(json.dumps(config.to_dict()))), dataclasses.replace(config)):
        assert same == config
        if isinstance(expected, str):
            with pytest.raises(ConfigError):
                merged(same, {"preset": preset})
        else:
            assert merged(same, {"preset": preset}) == expected


SMALL = {"anchors": 5, "vector_size": 4}


@pytest.mark.parametrize(
    ("config", "hyper", "expected"),
    [
        (WOHConfig(bits=16), {"preset": "paper", **SMALL}, WOHConfig(bits=16, preset="paper", **SMALL)),
        (WOHConfig(preset="paper", **SMALL), {"bits": 16}, WOHConfig(bits=16, preset="paper", **SMALL)),
        (WOHConfig(preset="paper", **SMALL), {"preset": "adaptive"}, WOHConfig(**SMALL)),
        (
            WOHConfig(iterations=3),
            {"preset": "paper", **SMALL},
            WOHConfig(preset="paper", iterations=3, **SMALL),
        ),
        (WOHConfig(mu=3.0), {"mu": None, **SMALL}, WOHConfig(**SMALL)),
        (None, {"preset": "paper", "seed": 2, **SMALL}, WOHConfig(preset="paper", seed=2, **SMALL)),
    ],
)
def test_an_index_is_made_with_config_and_keywords_as_an_estimator_is(tmp_path, config, hyper, expected):
    X, tags = np.eye(20, 6) + np.arange(20)[:, None], ["a b", "a", "b c", "c"] * 5
    learned = WOH(config, **hyper).partial_fit(X, tags)
    assert learned.config == expected
    with WOHIndex.create(tmp_path / "made.woh", config, **hyper) as index:
        assert index.config == expected
        assert index.info()["preset"] == expected.preset
        index.update(X, tags)
        np.testing.assert_array_equal(index.hasher.P, learned.hasher_.P)
    with WOHIndex.build(tmp_path / "built.woh", [Chunk.of(X, tags)], config, **hyper) as index:
        assert index.config == expected
        np.testing.assert_array_equal(index.hasher.P, learned.hasher_.P)


def test_the_config_of_an_index_takes_another_preset_with_it(tmp_path):
    with WOHIndex.create(tmp_path / "one.woh", bits=16, mu=3.0) as one:
        read = one.config
    with WOHIndex.create(tmp_path / "other.woh", read, preset="paper") as other:
        assert other.config == WOHConfig(bits=16, mu=3.0, preset="paper")


@pytest.mark.parametrize("config", [{"bits": 16}, "paper", WOHConfig])
def test_a_config_of_another_type_is_refused(tmp_path, config):
    for make in (
        WOH,
        lambda given: WOHIndex.create(tmp_path / "i.woh", given),
        lambda given: merged(given, {}),
    ):
        with pytest.raises(ConfigError, match=r"config is .*, expected a WOHConfig; give single"):
            make(config)
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_become_pythons():
    config = WOHConfig(bits=np.int64(16), mu=np.float32(0.5), theta=np.int32(2))
    assert config == WOHConfig(bits=16, mu=0.5, theta=2)
    assert json.loads(json.dumps(config.to_dict())) == config.to_dict()


@pytest.mark.parametrize("value", [[], {}, np.array([1, 2]), b"paper", 3])
@pytest.mark.parametrize("name", ["preset", "start"])
def test_a_name_that_is_no_text_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is .*, expected one of"):
        WOHConfig(**{name: value})
