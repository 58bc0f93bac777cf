"""Answers ordered by cosine of the original features: against brute force, from every kind of input."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from conftest import SMALL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from woh_faiss import Chunk, Refine, WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.index.refine import answers_to_order
from woh_faiss_cli.main import main

N, D_ = 300, 12


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An index of 300 items whose ids and keys are in another order than their rows, and its features."""
    folder = tmp_path_factory.mktemp("refine")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D_)).astype(np.float32)
    ids = rng.permutation(N)
    keys = np.array([f"{id_}.jpg" for id_ in ids])
    chunk = Chunk.of(X, [["a", "b"][i % 2 :] for i in range(N)], ids=ids, keys=keys)
    WOHIndex.build(folder / "i", [chunk], **SMALL, instance_bits=32).close()
    by_id = np.empty_like(X)
    by_id[ids] = X
    np.save(folder / "features.npy", by_id)
    return folder, X, ids, keys, by_id


@pytest.fixture
def index(made):
    with WOHIndex.open(made[0] / "i") as opened:
        yield opened


def brute(index, by_id, xq, k, K, **how):
    """The definition: K answers, sorted by cosine, the earlier first at equal ones."""
    _, I = index.search(xq, K, **how)
    out = []
    for x, row in zip(xq, I.tolist(), strict=True):
        there = [i for i in row if i >= 0]
        unit = [by_id[i].astype(float) / np.linalg.norm(by_id[i].astype(float)) for i in there]
        cosines = [float(v @ (x.astype(float) / np.linalg.norm(x.astype(float)))) for v in unit]
        best = sorted(range(len(there)), key=lambda j, c=cosines: -c[j])[:k]
        out.append(([there[j] for j in best], [cosines[j] for j in best]))
    return out


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    k=st.integers(1, 20),
    more=st.integers(0, 400),
    by=st.sampled_from(["both", "kind", "instance", "hamming"]),
    seed=st.integers(0, 5),
)
def test_as_the_definition(index, made, k, more, by, seed):
    xq = np.random.default_rng(seed).normal(size=(3, D_)).astype(np.float32)
    D, I = index.search(xq, k, by=by, refine=made[4], refine_k=k + more)
    assert (D.shape, I.shape, D.dtype, I.dtype) == ((3, k), (3, k), np.float32, np.int64)
    for q, (ids, cosines) in enumerate(brute(index, made[4], xq, k, k + more, by=by)):
        assert I[q].tolist() == ids
        assert D[q].tolist() == pytest.approx(cosines, abs=1e-6)


def test_all_items_refined_are_float_search(index, made):
    xq = np.random.default_rng(9).normal(size=(5, D_))
    unit = made[4] / np.linalg.norm(made[4], axis=1, keepdims=True)
    want = np.argsort(-(xq / np.linalg.norm(xq, axis=1, keepdims=True)) @ unit.T, axis=1)[:, :10]
    assert (index.search(xq, 10, refine=made[4], refine_k=N)[1] == want).all()
    D, I = index.search(xq, N + 5, refine=made[4])
    assert (I[:, N:] == -1).all()
    assert (D[:, N:] == -np.inf).all()


def test_allow_and_deny_hold_and_one_query_answers_as_many(index, made):
    xq = np.random.default_rng(3).normal(size=(6, D_))
    how = {"refine": Refine(made[0] / "features.npy"), "allow": range(100), "deny": range(50)}
    D, I = index.search(xq, 5, **how)
    assert I.min() >= 50
    assert I.max() < 100
    for q in range(6):
        d, i = index.search(xq[q : q + 1], 5, **how)
        assert (d.tolist(), i.tolist()) == (D[q : q + 1].tolist(), I[q : q + 1].tolist())


def shapes(folder, X, ids, keys):
    """The same features in every kind of input, rows in another order where ids or keys pair them."""
    order = np.random.default_rng(1).permutation(N)
    X, ids, keys = X[order], ids[order], keys[order]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D_)
    parquet.write_table(pa.table({"features": lists, "id": ids}), folder / "ids.parquet", row_group_size=70)
    parquet.write_table(pa.table({"features": lists, "key": keys}), folder / "keys.parquet")
    np.savez(folder / "both.npz", features=X.astype(np.float64), ids=ids, keys=keys)
    (folder / "chunk").mkdir(exist_ok=True)
    np.save(folder / "chunk" / "features.npy", X)
    np.save(folder / "chunk" / "ids.npy", ids)
    (folder / "clip" / "img_emb").mkdir(parents=True, exist_ok=True)
    (folder / "clip" / "metadata").mkdir(exist_ok=True)
    for part in range(2):
        rows = slice(part * 150, part * 150 + 150)
        np.save(folder / "clip" / "img_emb" / f"img_emb_{part}.npy", X[rows])
        parquet.write_table(
            pa.table({"key": keys[rows]}), folder / "clip/metadata" / f"metadata_{part}.parquet"
        )
    return [folder / name for name in ("ids.parquet", "keys.parquet", "both.npz", "chunk", "clip")]


@pytest.mark.parametrize("read", [0, 1 << 40])
def test_from_every_kind_of_input(index, made, tmp_path, monkeypatch, read):
    monkeypatch.setattr("woh_faiss.io.npz.READ", read)  # mapped, or read
    folder, X, ids, keys, by_id = made
    xq = np.random.default_rng(4).normal(size=(4, D_))
    D, I = index.search(xq, 7, refine=by_id)
    for path in [folder / "features.npy", *shapes(tmp_path, X, ids, keys)]:
        refine = Refine(path)
        d, i = index.search(xq, 7, refine=refine)
        assert len(refine) == N
        assert refine.notes() == []
        assert i.tolist() == I.tolist(), path
        assert d == pytest.approx(D, abs=1e-6)


def test_an_npy_is_not_read_but_for_the_answers(index, made, monkeypatch, tmp_path):
    monkeypatch.setattr("woh_faiss.io.npz.READ", 0)
    X = made[4].copy()
    xq = np.random.default_rng(4).normal(size=(1, D_))
    _, answers = index.search(xq, 10)
    X[np.setdiff1d(np.arange(N), answers)] = np.nan  # which an error would name if it were read
    np.save(tmp_path / "x.npy", X)
    assert set(index.search(xq, 10, refine=tmp_path / "x.npy", refine_k=10)[1][0]) == set(answers[0])
    with pytest.raises(InputError, match=r"x\.npy: features of row \d+ are not finite"):
        index.search(xq, 10, refine=tmp_path / "x.npy", refine_k=11)


def test_missing_and_changed_features_are_told(index, made):
    X = made[4][:200].copy()
    X[7] *= 3  # the same direction: nothing changed
    X[8] = -X[8]
    refine = Refine(X)
    _, I = index.search(np.eye(D_)[:1], 300, refine=refine, refine_k=300)
    assert refine.missing == set(range(200, 300))
    assert refine.changed == {8}
    missing, changed = refine.notes()
    assert set(I[0].tolist()) == {*range(200), -1}
    assert missing == "refine has no row for 100 of the answers, the first of them id 200; they are left out"
    assert "other features of 1 of the answers" in changed
    assert "id 8" in changed


def test_removed_items_are_no_answers(made, tmp_path):
    with WOHIndex.open(made[0] / "i") as source:
        source.backup(tmp_path / "copy")
    with WOHIndex.open(tmp_path / "copy") as index:
        index.remove([1, 2, 3])
        _, I = index.search(np.eye(D_)[:2], N, refine=made[4])
        assert not {1, 2, 3} & set(I.ravel().tolist())
        assert (I >= 0).sum() == 2 * (N - 3)
    with WOHIndex.create(tmp_path / "empty", **SMALL) as empty:
        assert empty.search(np.eye(D_), 2, refine=made[4])[1].tolist() == [[-1, -1]] * D_


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((N, 5)), "refine has features of 5 numbers, the index takes 12"),
        (np.ones((0, D_)), "no row for any of the answers, not for id"),
        (np.ones(7), "expected 2-D"),
        (np.array([["a"] * D_]), "real numbers"),
        ("nowhere.npy", "nowhere.npy does not exist"),
    ],
)
def test_features_that_do_not_fit_are_one_line(index, features, message):
    with pytest.raises(InputError, match=message) as raised:
        index.search(np.eye(D_)[:1], 3, refine=features)
    assert "\n" not in str(raised.value)


def test_hostile_files_are_one_line(index, made, tmp_path):
    xq = np.eye(D_)[:1]
    for name, content in (
        ("a.npy", b"\x93NUMPY\x01\x00\xff\xffjunk"),
        ("b.npz", b"PK\x03\x04 then nothing"),
        ("c", b""),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=name) as raised:
            index.search(xq, 3, refine=tmp_path / name)
        assert "\n" not in str(raised.value)
    np.save(tmp_path / "objects.npy", np.array([[{}] * D_] * 3, object), allow_pickle=True)
    with pytest.raises(InputError, match="pickle"):
        index.search(xq, 3, refine=tmp_path / "objects.npy")
    parts = [{"ids": [1, 2]}, {"ids": [2, 3]}]
    (tmp_path / "clip" / "img_emb").mkdir(parents=True)
    (tmp_path / "clip" / "metadata").mkdir()
    for number, part in enumerate(parts):
        np.save(tmp_path / f"clip/img_emb/img_emb_{number}.npy", np.ones((2, D_)))
        parquet.write_table(
            pa.table({"id": part["ids"]}), tmp_path / f"clip/metadata/metadata_{number}.parquet"
        )
    with pytest.raises(InputError, match="has id 2 twice"):
        Refine(tmp_path / "clip")


def test_how_many_are_ordered():
    assert [answers_to_order(k, None) for k in (1, 10, 11)] == [100, 100, 110]
    assert answers_to_order(5, 5) == 5
    with pytest.raises(InputError, match="refine_k is 4, expected at least k, which is 5"):
        answers_to_order(5, 4)


def test_refine_k_alone_says_so(index):
    with pytest.raises(InputError, match="give the features as refine"):
        index.search(np.eye(D_)[:1], 3, refine_k=10)


# ---- the command -------------------------------------------------------------------------------------


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["query", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_the_command_answers_as_the_library(index, made, tmp_path, monkeypatch):
    folder, _, _, _, by_id = made
    monkeypatch.chdir(tmp_path)
    xq = np.random.default_rng(5).normal(size=(70, D_)).astype(np.float32)
    np.save("q.npy", xq)
    np.save("short.npy", by_id[:250])
    D, I = index.search(xq, 4, refine=by_id[:250], refine_k=50)
    where = ("q.npy", "--index", folder / "i", "-k", 4, "--refine-k", 50)
    done = run(*where, "--refine", "short.npy", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["query"], line["id"]) for line in lines] == [
        (q, i) for q in range(70) for i in I[q].tolist()
    ]
    assert [line["cosine"] for line in lines] == pytest.approx(D.ravel().tolist(), abs=1e-6)
    assert "note: short.npy has no row for" in done.stderr
    assert run(*where, "--refine", folder / "features.npy").stdout.split("\t")[4] == "cosine"
    run(*where, "--refine", "short.npy", "--html", "out.html", "--explain")
    assert "Cosines: higher is nearer." in Path("out.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q.npy", "--refine-k", "3"], "--refine-k goes with --refine"),
        (["--id", "3", "--refine", "x.npy"], "--refine orders the K nearest of QUERIES"),
        (["q.npy", "--refine", "x.npy", "--radius", "3"], "--refine orders the K nearest of QUERIES"),
    ],
)
def test_options_that_do_not_go_together(arguments, message):
    assert message in run(*arguments, code=2).output
