"""Bit-for-bit agreement of SDH with the published code on a stored fixture (tests/golden/README.md)."""

import numpy as np
import pytest
from conftest import golden
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from woh_faiss.codes import pack
from woh_faiss.evaluation.baselines import sdh
from woh_faiss.learner.kernel import unit_rows


@pytest.fixture(scope="module")
def published():
    return golden("sdh")


@pytest.fixture(scope="module")
def given(published):
    """The kernel map of training items and queries, both kinds of Y, and the start of B."""
    stored = golden("fixture")
    X = unit_rows(stored["XTrain"])
    A = X[:500][stored["anchor_idx"].astype(int) - 1]
    return {
        "train": sdh.kernel_map(X, A),
        "test": sdh.kernel_map(unit_rows(stored["XTest"]), A),
        "tags": csr_array(stored["YTrain"].astype(np.float64)),
        "single": csr_array(np.eye(16)[published["y1"] - 1]),
        **{bits: stored[f"B0_{bits}"].astype(np.float64) for bits in (8, 16, 32)},
    }


@pytest.mark.parametrize("kind", ["tags", "single"])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_codes_equal_the_published_ones_bit_for_bit(given, published, bits, kind):
    found = sdh.fit(given["train"], given[kind], given[bits])
    key = f"r{bits}_{kind}"
    assert_array_equal(pack(found.B), published[f"{key}_B"])
    assert_array_equal(pack(given["train"] @ found.P), published[f"{key}_train"])
    assert_array_equal(pack(given["test"] @ found.P), published[f"{key}_test"])
    if kind == "tags":
        assert_allclose(found.P, published[f"{key}_P"], atol=1e-11)
        assert_allclose(found.W, published[f"{key}_W"], atol=1e-12)


def test_kernel_map_equals_the_published_one(given, published):
    assert_allclose(given["test"][:20], published["phi_test"], atol=1e-13)
