"""The same id or key twice, within a chunk and among chunks, when an index is built and later."""

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, tagged
from hypothesis import given, settings
from hypothesis import strategies as st

from woh_faiss import Chunk, WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.inputs import DistinctInputs, open_inputs
from woh_faiss_cli.main import main

N = 60
X, TAGS = tagged(3, n=N)
KEYS = [f"{i % 50}.jpg" for i in range(N)]  # the last ten are the first ten again
IDS = [i % 50 for i in range(N)]


def kept(policy, names=KEYS):
    """Rows, by a dictionary: a name's first, or last."""
    rows = {}
    for row, name in enumerate(names):
        if policy == "replace" or name not in rows:
            rows[name] = row
    return sorted(rows.values())


@pytest.fixture
def files(tmp_path):
    """The items in one file and in three, which have items of each other."""
    texts = np.array([";".join([*tags, ""]) for tags in TAGS])
    np.savez(tmp_path / "all.npz", features=X, tags=texts, keys=KEYS)
    for t, rows in enumerate(np.array_split(np.arange(N), 3)):
        np.savez(tmp_path / f"{t}.npz", features=X[rows], tags=texts[rows], keys=np.array(KEYS)[rows])
    return [tmp_path / "all.npz"], [tmp_path / f"{t}.npz" for t in range(3)]


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("names", [{"ids": IDS}, {"keys": KEYS}, {"ids": IDS, "keys": KEYS}])
def test_of_a_chunk_the_first_or_the_last_is_kept(policy, names):
    chunk = Chunk.of(X, TAGS, **names, groups=np.arange(N), on_duplicate=policy)
    assert chunk.groups.tolist() == kept(policy)
    assert [chunk.tags.of_row(i) for i in range(50)] == [TAGS[row] for row in kept(policy)]
    assert (len(chunk), chunk.left_out) == (50, 10)
    np.testing.assert_array_equal(chunk.features, X[kept(policy)])
    with pytest.raises(InputError, match=r"keep one \(--on-duplicate skip or replace\)"):
        Chunk.of(X, TAGS, **names)


def test_an_id_under_two_keys_is_refused_whatever_the_policy():
    for policy in ("skip", "replace"):
        with pytest.raises(InputError, match=r"row 1 has id 1 and key 'b', an earlier item \(number 0\)"):
            Chunk.of(np.eye(2), ids=[1, 1], keys=["a", "b"], on_duplicate=policy)
    with pytest.raises(InputError, match="on_duplicate is 'first', expected one of error, skip, replace"):
        Chunk.of(np.eye(2), on_duplicate="first")


NAMES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(NAMES, st.sampled_from(["skip", "replace"]), st.booleans())
def test_inputs_are_distinct_as_a_dictionary_is(tmp_path_factory, chunks, policy, one_file):
    folder = tmp_path_factory.mktemp("i")
    names = [name for chunk in chunks for name in chunk]
    features = np.arange(len(names), dtype=float)[:, None]
    parts = [names] if one_file else chunks
    ends = np.cumsum([0, *map(len, parts)])
    for t, part in enumerate(parts):
        np.savez(folder / f"{t}.npz", features=features[ends[t] : ends[t + 1]], ids=part)
    paths = [folder / f"{t}.npz" for t in range(len(parts))]
    inputs = DistinctInputs(open_inputs(paths, chunk_size=2, on_duplicate=policy), policy)
    rows = [int(x) for chunk in inputs for x in chunk.features[:, 0]]
    assert rows == kept(policy, names)
    assert (inputs.count(), inputs.left_out) == (len(rows), len(names) - len(rows))


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("sample", ["0", "20"])
@pytest.mark.parametrize("which", [0, 1])
def test_build_leaves_out_what_is_there_already(files, tmp_path, policy, sample, which):
    index = tmp_path / "i.woh"
    how = ["--bits", "16", "--anchors", "10", "--first-sample", sample, "--index", str(index)]
    paths = [str(path) for path in files[which]]
    refused = CliRunner().invoke(main, ["build", *paths, *how])
    assert refused.exit_code == 1
    assert ".jpg' " in refused.stderr
    assert "--on-duplicate skip or replace" in refused.stderr
    assert not index.exists()
    done = CliRunner().invoke(main, ["build", *paths, *how, "--on-duplicate", policy])
    assert (done.exit_code, done.stderr.count("10 skipped")) == (0, 1), done.output
    with WOHIndex.open(index) as built:
        assert built.ntotal == 50
        ids = [built.id_of(f"{i}.jpg") for i in range(50)]
        expected = {KEYS[row]: TAGS[row] for row in kept(policy)}
        assert {item.key: item.tags for item in built.items(ids)} == expected
        # Which of two items it was, its instance bits tell.
        codes = [built.reconstruct(id_)[2:] for id_ in ids]
        mine = built.encode(np.array([X[row] for row in sorted(kept(policy), key=lambda row: row % 50)]))[
            :, 2:
        ]
        assert (np.unpackbits(np.array(codes) ^ mine).mean()) < 0.2
    again = CliRunner().invoke(main, ["update", *paths, "--index", str(index), "--on-duplicate", "skip"])
    assert again.exit_code == 0, again.output
    with WOHIndex.open(index) as built:
        assert built.ntotal == 50


def test_an_update_takes_a_chunk_that_has_a_key_twice(tmp_path):
    with WOHIndex.build(tmp_path / "i.woh", [Chunk.of(*tagged(0, n=60))], **SMALL) as index:
        done = index.update(X, TAGS, keys=KEYS, on_duplicate="skip")
        assert (done.n, done.health["skipped"]) == (50, 10)
        assert index.update(X, TAGS, keys=KEYS, on_duplicate="replace").removed == 50
        assert index.ntotal == 110


def test_chunks_that_are_no_inputs_are_kept_apart_too(tmp_path):
    thirds = np.array_split(np.arange(N), 3)
    parts = [Chunk.of(X[rows], [TAGS[r] for r in rows], keys=np.array(KEYS)[rows]) for rows in thirds]
    with WOHIndex.build(tmp_path / "i.woh", parts, on_duplicate="skip", **SMALL) as index:
        assert index.ntotal == 50
    with pytest.raises(InputError, match="already"):
        WOHIndex.build(tmp_path / "j.woh", parts, **SMALL)
