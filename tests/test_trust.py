"""Tags are trusted as far as features foretell them."""

import numpy as np
import pytest
from conftest import tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOH
from woh_faiss.learner import blocks
from woh_faiss.learner.blocks import split_blocks
from woh_faiss.learner.kernel import Kernel, unit_rows
from woh_faiss.learner.semantic_start import main_directions
from woh_faiss.learner.trust import POWER, trusts


def foretold(n, wrong, noise=1.0):
    """What features and tags of items ask of 32 bits, and whose tags are another item's."""
    rng = np.random.default_rng(0)
    Gt = rng.standard_normal((n, 32))
    Gv = Gt + noise * rng.standard_normal((n, 32))
    swapped = np.flatnonzero(rng.random(n) < wrong)
    Gt[swapped] = Gt[np.roll(swapped, 1)]
    return Gv, Gt, np.isin(np.arange(n), swapped)


def as_one(trust):
    return np.concatenate(trust.gathered())


@pytest.mark.parametrize("wrong", [0.1, 0.3, 0.6])
def test_wrong_tags_are_told_from_right_ones(wrong):
    Gv, Gt, swapped = foretold(1000, wrong)
    trust = as_one(trusts(split_blocks(Gv), split_blocks(Gt)))
    assert trust[swapped].mean() < 0.1
    assert trust[~swapped].mean() > 0.9
    assert (trust > 0).all()
    assert (trust <= 1).all()


@pytest.mark.parametrize("n", [1, 2, 9, 1000])
def test_right_tags_are_trusted_whole(n):
    Gv, Gt, _ = foretold(n, 0)
    Gv[: n // 3] *= 1e-3  # features that foretell nothing much
    Gt[: n // 3] = np.roll(Gt[: n // 3], 1, axis=0)
    assert trusts(split_blocks(Gv), split_blocks(Gt)) is None


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.3])
def test_where_features_are_weak_all_tags_are_trusted(wrong):
    """Agreements of right tags and of chance are hardly apart: MIRFlickr-25K lost .03 of P@10 before."""
    Gv, Gt, _ = foretold(2000, wrong, noise=6.0)
    assert trusts(split_blocks(Gv), split_blocks(Gt)) is None


@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_the_share_of_wrong_tags_is_found_whatever_the_noise(noise):
    Gv, Gt, swapped = foretold(4000, 0.3, noise)
    trust = as_one(trusts(split_blocks(Gv), split_blocks(Gt)))
    assert (trust < 0.5).mean() == pytest.approx(swapped.mean(), abs=0.08)


@pytest.mark.parametrize("wrong", [0.1, 0.3])
def test_wrong_tags_are_told_where_two_directions_have_most_of_the_variance(wrong):
    """There, tags of any two items are often alike."""
    Gv, Gt, swapped = foretold(3000, wrong)
    scale = np.append([8.0, 8.0], np.ones(30))
    trust = as_one(trusts(split_blocks(Gv * scale), split_blocks(Gt * scale)))
    assert trust[swapped].mean() < 0.1
    assert trust[~swapped].mean() > 0.8


def test_tags_of_items_whose_features_foretell_little_are_doubted_less():
    """Their agreement is chance whatever the tags: it says no more than how many tags are wrong."""
    Gv, Gt, swapped = foretold(3000, 0.2)
    Gv[:900] = 0.1 * np.random.default_rng(1).standard_normal((900, 32))
    trust = as_one(trusts(split_blocks(Gv), split_blocks(Gt)))
    assert trust[:900].mean() == pytest.approx(0.8**POWER, abs=0.1)
    assert trust[900:][swapped[900:]].mean() < 0.1
    assert trust[900:][~swapped[900:]].mean() > 0.9


@pytest.mark.parametrize("n", [8, 40, 300])
def test_trust_is_a_number_whatever_the_tags(n):
    """Of few items, of some without features or tags, of one direction alone."""
    for zeros in ("none", "features", "tags", "all but one direction"):
        Gv, Gt, _ = foretold(n, 0.5, 0.1)
        if zeros == "features":
            Gv[::2] = 0
        if zeros == "tags":
            Gt[::2] = 0
        if zeros == "all but one direction":
            Gt[:, 1:] = 0
        trust = trusts(split_blocks(Gv), split_blocks(Gt))
        if trust is not None:
            assert np.isfinite(as_one(trust)).all()
            assert (as_one(trust) > 0).all()


def test_the_past_counts_an_item_as_far_as_it_is_trusted(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 64)
    X, tags = tagged(0, n=400)
    rng = np.random.default_rng(1)
    swapped = rng.choice(400, 160, replace=False)
    wrong = list(tags)
    for one, other in zip(swapped, np.roll(swapped, 1), strict=True):
        wrong[one] = tags[other]
    counts = []
    for given in (tags, wrong):
        woh = WOH(bits=16, anchors=50, vector_size=5).partial_fit(X, given).partial_fit(X, given)
        counts.append(woh.state()["C1"][-1, -1])
    assert counts[0] == 800
    assert counts[1] < 700


def test_few_tags_leave_no_more_in_the_state_than_there_are_anchors():
    X, tags = tagged(0, n=300)
    few = [given if row % 10 == 0 else [] for row, given in enumerate(tags)]
    woh = WOH(bits=16, anchors=80, vector_size=5, min_count=1)
    for _ in range(2):
        woh.partial_fit(X, few)
    state = woh.state()
    assert len(state["adaptive_bare_x"]) == len(state["adaptive_bare_codes"]) == 80
    assert state["adaptive_bare_n"] == 540
    again = WOH.from_state(woh.config, state, woh.anchors_, woh.vocabulary_)
    assert_array_equal(again.partial_fit(X, few).codes_, woh.partial_fit(X, few).codes_)


def test_bits_of_untagged_items_follow_the_features_main_directions():
    """Oracle: PCA of the features, which φ foretells; φ's own main directions are others."""
    X, _ = tagged(0, n=600)
    x = unit_rows(X)
    kernel = Kernel.fit(x, x[:200], energy=True)
    phi, centred = kernel.map(x), x - x.mean(axis=0)
    main = centred @ np.linalg.svd(centred, full_matrices=False)[2][:5].T
    found = phi @ main_directions(phi, x, 5)
    nearest = found @ np.linalg.lstsq(found, main, rcond=None)[0]
    assert np.linalg.norm(nearest - main) < 0.1 * np.linalg.norm(main)
