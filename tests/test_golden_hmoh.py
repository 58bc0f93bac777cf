"""HMOH against what the authors' code gave, targets as published and mended (tests/golden/README.md)."""

import numpy as np
import pytest
from conftest import golden
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import hadamard
from scipy.sparse import csr_array

from woh_faiss import codes
from woh_faiss.evaluation.baselines import hmoh

H = hadamard(32, np.float64)
KINDS = ["single", "published", "corrected"]


@pytest.fixture(scope="module")
def published():
    return golden("hmoh")


def targets_of(kind, fixture, published):
    """Of the 1,000 items that were learned from; zeros of a vote were filled from the left."""
    Y = fixture["YTrain"] if kind != "single" else np.eye(16)[published["y1Train"] - 1]
    return hmoh.targets(csr_array(Y[:1000]), H, None, published=kind == "published")


@pytest.mark.parametrize("kind", KINDS)
def test_targets_equal_the_published_ones(fixture, published, kind):
    assert_array_equal(codes.pack(targets_of(kind, fixture, published)), published[f"targets_{kind}"])


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_equal_the_published_ones(fixture, published, kind, bits):
    T = targets_of(kind, fixture, published)
    if bits != 32:
        T = np.where(T @ published[f"G_{bits}"] > 0, 1.0, -1.0)
    _, total, wrong = hmoh.perceptron(fixture["XTrain"][:1000], T, np.zeros((128, bits)))
    stored = {name: published[f"r{bits}_{kind}_{name}"] for name in ("W", "wrong", "Q", "B")}
    assert_array_equal(wrong, stored["wrong"])
    theirs = stored["W"] / 0.1  # their learning rate; they compute in single precision
    assert_allclose(total, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    assert_array_equal(codes.pack(fixture["XTest"] @ total), stored["Q"])
    assert_array_equal(codes.pack(fixture["XTrain"] @ total), stored["B"])
