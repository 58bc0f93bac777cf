"""Agreement of SH with the published code on a stored fixture (tests/golden/README.md)."""

import numpy as np
import pytest
from conftest import golden
from numpy.testing import assert_allclose, assert_array_equal

from woh_faiss.codes import pack, unpack
from woh_faiss.evaluation.baselines import sh


@pytest.fixture(scope="module")
def published():
    return golden("sh")


@pytest.fixture(scope="module")
def centred(published):
    stored = golden("fixture")
    return {part: stored[name] - published["mean"] for part, name in (("train", "XTrain"), ("test", "XTest"))}


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_bits_equal_the_published_ones_or_are_their_complement(centred, published, bits):
    """Eigenvectors have no sign: a flipped one complements whole bits, and no distance changes."""
    modes = sh.fit(centred["train"], bits)
    flipped = {}
    for part, X in centred.items():
        differ = unpack(pack(modes(X))) != unpack(published[f"r{bits}_{part}"])
        assert_array_equal(differ, np.broadcast_to(differ[0], differ.shape))
        flipped[part] = differ[0]
    assert_array_equal(flipped["train"], flipped["test"])
    even = published[f"r{bits}_modes"].sum(axis=1) % 2 == 0
    assert not flipped["train"][even].any()  # even modes do not know the sign


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_modes_and_box_equal_the_published_ones(centred, published, bits):
    modes = sh.fit(centred["train"], bits)
    size = published[f"r{bits}_mx"] - published[f"r{bits}_mn"]
    assert_allclose(modes.omega, published[f"r{bits}_modes"] * np.pi / size, atol=1e-10)
    assert_allclose(np.abs(modes(centred["test"][:20])), np.abs(published[f"r{bits}_U_test"]), atol=1e-8)


def test_more_bits_than_directions_use_higher_modes():
    X = np.random.default_rng(0).uniform(-1, 1, (300, 3)) * [3, 2, 1]
    modes = sh.fit(X - X.mean(axis=0), 16)
    assert modes.pc.shape == (3, 3)
    assert_array_equal(np.count_nonzero(modes.omega, axis=1), 1)
    assert len(np.unique(modes.omega, axis=0)) == 16
