import dataclasses
import json

import pytest

from woh_faiss.config import PRESETS, WOHConfig
from woh_faiss.errors import ConfigError


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
        ("bits", 0, "bits is 0, expected a whole number of at least 8"),
        ("bits", -8, "at least 8"),
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
