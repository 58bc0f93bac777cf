"""Approximate indexes: what they find, whatever is appended, removed, damaged or killed meanwhile."""

import copy
import json
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import store_worker
from conftest import LEARNED, LENGTH, SMALL, save_chunk, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from resealed import reseal
from store_worker import ask
from test_cli import run

from woh_faiss import WOHIndex, score
from woh_faiss import codes as binary
from woh_faiss.errors import InputError, StoreError
from woh_faiss.io import npz
from woh_faiss.store import NO_ID, Store, ann, ann_search, ivf
from woh_faiss.store.ann import build_ann

D = store_worker.D
#: Learned and instance bits of stores of D bits.
HALVES = [(D, 0), (0, D), (D // 2, D // 2), (8, D - 8)]


def queries(rng, n, r, s):
    h, a = (score.normalised(rng.normal(size=(n, bits))) if bits else None for bits in (r, s))
    return h, a


def scores(codes, h, a):
    """By the definition, in float64: (n, len(codes))."""
    signs = binary.unpack(codes).astype(float)
    r = 0 if h is None else h.shape[1]
    kind = None if h is None else h.astype(float) @ signs[:, :r].T
    same = None if a is None else a.astype(float) @ signs[:, r : r + a.shape[1]].T
    return same if kind is None else kind if same is None else kind + np.maximum(same, 0) ** 8


@settings(max_examples=16, deadline=None)
@given(st.data())
def test_any_appends_removals_and_builds_against_a_naive_ranking(data):
    """Lists that are all looked into answer as all rows scored; others with live items and their scores."""
    rng = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    r, s = data.draw(st.sampled_from(HALVES), "halves")
    with tempfile.TemporaryDirectory() as folder, Store.create(folder + "/i", config={}, d=D) as store:
        live, number = {}, 0
        for step in data.draw(st.lists(st.sampled_from(["add", "remove", "build"]), max_size=6), "steps"):
            if step == "build" and live:
                given_ = {"nlist": 5, "nprobe": 5} if data.draw(st.booleans(), "everywhere") else {}
                build_ann(store, "ivf", given_, r, s, 10.0)
            elif step == "remove" and live:
                some = data.draw(st.integers(1, 25), "n")
                gone = rng.permutation(list(live))[:some].tolist()
                with store.writing() as writing:
                    writing.remove(sorted(gone))
                live = {id_: code for id_, code in live.items() if id_ not in gone}
            else:
                number += 1
                chunk = store_worker.chunk(number, n=17, kind="encoded")
                store_worker.commit(store, **chunk)
                live |= dict(zip(chunk["ids"].tolist(), chunk["codes"], strict=True))
        h, a = queries(rng, 3, r, s)
        for made in store.snapshot.ann:
            scan = store.ann_scan(store.view, made.kind, r, s)
            newer = set(store.view.ids[made.rows :].tolist())
            for k, expand in ((1, 0), (4, 3), (150, 2)):
                S, rows = scan.search(h, a, k, expand=expand)
                ids = store.view.ids_at(rows)
                if made.parameters["nprobe"] == made.parameters["nlist"]:
                    expected = store.view.score_scan(r, s).search(h, a, k, expand=expand)
                    assert_array_equal(S, expected[0])
                    assert_array_equal(rows, expected[1])
                assert (np.sort(-S, axis=1) == -S).all()
                found = min(k, len(live))
                assert (ids[:, found:] == NO_ID).all()
                if not expand and live:
                    codes = np.array(list(live.values()))
                    true = dict(zip(live, scores(codes, h, a).T, strict=True))
                    for i, row in enumerate(ids[:, :found].tolist()):
                        assert len(set(row)) == found
                        assert_allclose(S[i, :found], [true[id_][i] for id_ in row], atol=1e-5)
                        better = {id_ for id_ in live if true[id_][i] > S[i, found - 1] + 1e-5}
                        assert better & newer <= set(row)
        assert Store.verify(store.path) == []


@pytest.mark.parametrize("left", [300, 20])
@pytest.mark.parametrize(("r", "s"), HALVES)
def test_where_all_that_is_near_was_removed_all_rows_are_scored(r, s, left, tmp_path):
    rng = np.random.default_rng(0)
    with Store.create(tmp_path / "i", config={}, d=D) as store:
        chunk = store_worker.chunk(1, n=600, kind="encoded")
        chunk["codes"][:300] = 9
        chunk["codes"][300:] = rng.integers(0, 256, (300, D // 8))
        store_worker.commit(store, **chunk)
        build_ann(store, "ivf", {"nlist": 30, "nprobe": 1}, r, s, 10.0)
        with store.writing() as writing:
            writing.remove(chunk["ids"][:-left].tolist())
        signs = score.normalised(binary.unpack(np.full((1, D // 8), 9, np.uint8)))
        h, a = (score.normalised(half) if half.shape[1] else None for half in (signs[:, :r], signs[:, r:]))
        found = store.ann_scan(store.view, "ivf", r, s).search(h, a, 5)
        assert_array_equal(found, store.view.score_scan(r, s).search(h, a, 5))


def crowded(n, r, s, seed=0):
    """Codes of r + s bits: 40 learned codes, each of many rows, and instance bits around 60 codes."""
    rng = np.random.default_rng(seed)
    learned = rng.integers(0, 256, (40, r // 8), np.uint8)[rng.integers(40, size=n)]
    instance = rng.integers(0, 256, (60, s // 8), np.uint8)[rng.integers(60, size=n)]
    flips = np.packbits(rng.random((n, s)) < 0.1, axis=1)
    return np.concatenate([learned, instance ^ flips], axis=1)


@pytest.mark.parametrize(("r", "s"), [(64, 64), (64, 0), (0, 64), (16, 48), (1024, 1024)])
def test_most_of_the_best_are_found_and_an_item_finds_itself(r, s, tmp_path):
    n = 3000
    codes = binary.pad(crowded(n, r, s))
    with Store.create(tmp_path / "i", config={}, d=8 * codes.shape[1]) as store:
        chunk = {**store_worker.chunk(1, kind="encoded"), "codes": codes, "ids": np.arange(n)}
        store_worker.commit(store, **{**chunk, "keys": [None] * n, "tags": [[]] * n})
        made = build_ann(store, "ivf", {"nlist": 50, "nprobe": 10}, r, s, 10.0)
        assert made.recall > 0.8
        scan, exact = store.ann_scan(store.view, "ivf", r, s), store.view.score_scan(r, s)
        h, a = ann.numbers(codes, r, s, 60)
        # Of long codes only both halves, which take as long as all others together.
        halves = ["kind"] * bool(r) + ["instance"] * bool(s) if r < 1024 or LENGTH >= 1 else []
        for by in ("both", *halves):
            for expand in (0, 3):
                S, rows = scan.search(h, a, 10, by, expand)
                assert (exact.search(h, a, 10, by, expand)[0][:, -1:] - 1e-6 <= S).mean() > 0.85
                for i in range(5):
                    one = [half if half is None else half[i : i + 1] for half in (h, a)]
                    alone = scan.search(*one, 10, by, expand)
                    assert_array_equal(alone[0][0], S[i])
                    assert_array_equal(alone[1][0], rows[i])
            if s and by != "kind":
                signs = score.normalised(binary.unpack(codes[:40, r // 8 : (r + s) // 8]))
                kind = h if h is None else np.repeat(h[:1], 40, axis=0)
                S, rows = scan.search(kind, signs, 10, by)
                best, _ = exact.search(kind, signs, 10, by)
                all_S, all_rows = exact.search(kind, signs, n, by)
                for i in range(40):
                    own = all_S[i][all_rows[i] == i][0]
                    assert i in rows[i] or own <= best[i, -1]


def test_the_same_codes_give_the_same_file(tmp_path):
    digests = []
    for name in ("a", "b"):
        with Store.create(tmp_path / name, config={}, d=D) as store:
            store_worker.commit(store, **store_worker.chunk(1, n=400, kind="encoded"))
            digests += [build_ann(store, "ivf", {}, 16, 16, 10.0).sha256 for _ in range(2)]
    assert len(set(digests)) == 1


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("ann") / "i.woh"
    with WOHIndex.create(path, **{**SMALL, "bits": 32, "instance_bits": 16, "keep_models": 9}) as index:
        index.update(*tagged(0, n=300))
        index.build_ann("ivf", nlist=17, nprobe=17)
        index.add(tagged(1)[0])
        index.remove(np.arange(0, 340, 3))
    return path


@pytest.fixture
def with_ann(built_once, tmp_path):
    """An index of 300 items with an approximate one beside it, 40 newer items, and some of both removed."""
    shutil.copytree(built_once, tmp_path / "i.woh")
    with WOHIndex.open(tmp_path / "i.woh") as index:
        yield index


@pytest.mark.parametrize("by", ["both", "kind", "instance"])
def test_lists_that_are_all_looked_into_answer_as_the_exact_search(with_ann, by):
    xq = tagged(7, n=30)[0]
    for expand in (0, 3):
        for k in (1, 10, 300):
            expected = with_ann.search(xq, k, by=by, expand=expand)
            found = with_ann.search(xq, k, by=by, expand=expand, ann="ivf")
            assert_array_equal(found[0], expected[0])
            assert_array_equal(found[1], expected[1])


def test_what_build_ann_says_is_kept_and_shown(with_ann):
    made = with_ann.build_ann("ivf", nlist=9)
    assert (made.name, made.rows, made.round) == ("ann-ivf-2.npz", 340, 3)
    assert made.parameters == {"nlist": 9, "nprobe": 9}
    assert 0 < made.recall <= 1
    with WOHIndex.open(with_ann.path) as again:
        (known,) = again.info()["ann"]
    assert (known["parameters"], known["recall"]) == (made.parameters, made.recall)
    assert known["behind"] == 0
    assert [path.name for path in with_ann.path.glob("ann-*")] == ["ann-ivf-2.npz"]
    assert WOHIndex.verify(with_ann.path) == []


def test_the_recall_that_is_kept_is_that_of_the_default_search(with_ann):
    made = with_ann.build_ann("ivf", nlist=30, nprobe=1)
    view = with_ann._store.view
    h, a = ann.numbers(view.everything.codes, 32, 16, 256)
    assert len(h) == 226
    true = scores(view.everything.codes, h, a)
    once = view.ids[np.flatnonzero(view.ids % 3)]
    first = np.argsort(-true, axis=1)[:, :3]
    h2 = score.expanded(h, view.everything.codes[first][:, :, :4])
    tenth = np.sort(scores(view.everything.codes, h2, a), axis=1)[:, -10]
    S, rows = with_ann._store.ann_scan(view, "ivf", 32, 16).search(h, a, 10, expand=3)
    assert set(view.ids[rows].ravel().tolist()) <= set(once.tolist())
    assert made.recall == pytest.approx((tenth[:, None] - 1e-6 <= S).mean(), abs=0.01)
    assert made.recall < 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nlist": 41}, "nlist is 41, expected at most 40, the number of rows"),
        ({"nlist": 4, "nprobe": 5}, "nprobe is 5, expected at most 4, nlist"),
        ({"nlist": 0}, "nlist is 0, expected at least 1"),
        ({"M": 3}, "ivf takes no 'M'; expected nlist, nprobe"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(index, given, told):
    with pytest.raises(InputError, match=told):
        index.build_ann("ivf", **given)
    assert not list(index.path.glob("ann-*"))


def test_halves_that_are_too_wide_are_refused():
    told = "ivf takes at most 1024 learned and 1024 instance bits, the codes have 1032 and 64"
    with pytest.raises(InputError, match=told):
        ivf.complete({}, 100, 1032, 64)


@pytest.mark.parametrize("among", [{"allow": [1, 5, 33, 8]}, {"deny": [*range(20)]}, {"where": "id >= 12"}])
def test_a_filter_beside_it_misses_nothing(with_ann, index, among):
    xq = tagged(7, n=6)[0]
    exact, found = with_ann.search(xq, 30, **among), with_ann.search(xq, 30, ann="ivf", **among)
    assert_array_equal(found[0], exact[0])
    assert_array_equal(found[1], exact[1])
    with pytest.raises(StoreError, match="has no approximate index ivf"):
        index.search(xq, 3, ann="ivf", **among)


def test_what_cannot_be_asked_is_said_in_one_line(with_ann, index):
    xq = tagged(7, n=2)[0]
    with pytest.raises(StoreError, match="has no approximate index ivf; 'woh-index build-ann ivf' makes one"):
        index.search(xq, 3, ann="ivf")
    with pytest.raises(InputError, match="ann is 'hnsw', expected ivf, or None"):
        with_ann.search(xq, 3, ann="hnsw")
    with pytest.raises(InputError, match="ann answers by score, not by 'hamming', which scans all codes"):
        with_ann.search(xq, 3, ann="ivf", by="hamming")
    for work in (index.build_ann, index.drop_ann):
        with pytest.raises(InputError, match="kind is 'flat', expected ivf"):
            work("flat")
    with pytest.raises(StoreError, match="has no approximate index ivf"):
        index.drop_ann("ivf")
    assert index.drop_ann() == []
    index.remove(np.arange(40))
    with pytest.raises(InputError, match="there are no items to make ivf of"):
        index.build_ann("ivf")
    assert not list(index.path.glob("ann-*"))


@pytest.mark.parametrize("work", ["compact", "rollback", "drop"])
def test_compact_rollback_and_drop_take_it_away(with_ann, work):
    with WOHIndex.open(with_ann.path) as before:
        xq = tagged(7, n=2)[0]
        expected = before.search(xq, 5, ann="ivf")
        work_ = {"compact": with_ann.compact, "drop": with_ann.drop_ann}
        work_.get(work, lambda: with_ann.rollback(1))()
        assert not list(with_ann.path.glob("ann-*"))
        with pytest.raises(StoreError, match="'woh-index build-ann ivf' makes one"):
            with_ann.search(xq, 5, ann="ivf")
        assert_array_equal(before.search(xq, 5, ann="ivf"), expected)  # its state, its file in memory
        before._store._anns.clear()
        with pytest.raises(StoreError, match=r"ann-ivf-1\.npz is missing; open the index again"):
            before.search(xq, 5, ann="ivf")
        before.search(xq, 5)
        before.refresh()
        with pytest.raises(StoreError, match="'woh-index build-ann ivf' makes one"):
            before.search(xq, 5, ann="ivf")
    made = with_ann.build_ann("ivf")
    assert made.name == "ann-ivf-2.npz"
    assert WOHIndex.verify(with_ann.path) == []


@pytest.mark.parametrize("damage", ["bit", "cut", "gone", "folder", "another"])
def test_a_damaged_one_is_told_and_the_rest_goes_on(with_ann, damage):
    path = next(with_ann.path.glob("ann-ivf-*"))
    data = path.read_bytes()
    path.unlink()
    if damage == "bit":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "folder":
        path.mkdir()
    elif damage == "another":
        shutil.copy(next(with_ann.path.glob("model-*")), path)
    xq = tagged(7, n=2)[0]
    with WOHIndex.open(with_ann.path) as reader:
        with pytest.raises(StoreError) as caught:
            reader.search(xq, 5, ann="ivf")
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)
        assert_array_equal(reader.search(xq, 5), with_ann.search(xq, 5))
        faults = WOHIndex.verify(reader.path)
        assert len(faults) == 1
        assert path.name in faults[0]
    if damage != "folder":
        with_ann.build_ann("ivf")
        assert WOHIndex.verify(with_ann.path) == []
        with_ann.search(xq, 5, ann="ivf")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"order": np.zeros(40, np.int32)}, "does not hold each of 40 codes of 32 bits once"),
        ({"order": np.arange(-1, 39, dtype=np.int32)}, "does not hold each of 40 codes of 32 bits once"),
        ({"order": np.arange(39, dtype=np.int32)}, "does not hold each of 40 codes of 32 bits once"),
        ({"order": np.arange(40.0)}, "does not hold each of 40 codes of 32 bits once"),
        ({"sizes": np.array([41, -1])}, "does not hold each of 40 codes of 32 bits once"),
        ({"sizes": np.array([40])}, "does not hold each of 40 codes of 32 bits once"),
        ({"centroids": np.zeros((2, 64), np.float32)}, "does not hold each of 40 codes of 32 bits once"),
        ({"centroids": np.float32(1)}, "does not hold each of 40 codes of 32 bits once"),
        ({"centroids": np.zeros((2, 24), np.float32)}, "is of other learned and instance bits than 32 and 0"),
        ({"centroids": None}, "cannot be read"),
    ],
)
def test_one_that_was_written_wrong_is_refused_and_found_by_verify(tmp_path, monkeypatch, change, told):
    """The SHA-256 is right."""

    def wrong(file, clusters):
        learned = {name: getattr(clusters[0], name) for name in ivf.Clusters.__slots__} | change
        arrays = {f"learned_{name}": array for name, array in learned.items() if array is not None}
        npz.write_npz(file, arrays)

    monkeypatch.setattr(ivf, "write", wrong)
    with WOHIndex.create(tmp_path / "i", **{**LEARNED, "bits": 32}) as index:
        index.update(*tagged(0))
        index.build_ann("ivf", nlist=2)
        with pytest.raises(StoreError, match=f"{told}.*; 'woh-index build-ann ivf' makes it again") as caught:
            index.search(tagged(7, n=2)[0], 3, ann="ivf")
        assert "\n" not in str(caught.value)
        faults = WOHIndex.verify(index.path)
        assert all(told in fault for fault in faults)
        assert len(faults) == (0 if "is of other" in told else 1)


def test_what_happens_while_it_is_built(index, monkeypatch):
    """Writers need not wait: what they append is scanned; rows that they renumber are not believed."""
    honest = ivf.halves

    def meanwhile(work):
        def halves(*arguments):
            monkeypatch.setattr(ivf, "halves", honest)
            with WOHIndex.open(index.path) as writer:
                work(writer)
            return honest(*arguments)

        monkeypatch.setattr(ivf, "halves", halves)

    meanwhile(lambda writer: writer.add(tagged(3)[0]))
    assert index.build_ann("ivf", nlist=3, nprobe=3).rows == 40
    assert index.ntotal == 80
    through = index.search(tagged(3)[0], 80, ann="ivf")
    assert_array_equal(through, index.search(tagged(3)[0], 80))
    meanwhile(lambda writer: (writer.remove([3]), writer.compact()))
    with pytest.raises(StoreError, match="were rewritten while ivf was built"):
        index.build_ann("ivf")
    assert not list(index.path.glob("ann-*"))


def test_copies_of_folder_and_object_have_it_too(with_ann, tmp_path):
    xq = tagged(7, n=9)[0]
    expected = with_ann.search(xq, 5, ann="ivf")
    shutil.copytree(with_ann.path, tmp_path / "copy.woh")
    with WOHIndex.open(tmp_path / "copy.woh") as copied:
        assert_array_equal(copied.search(xq, 5, ann="ivf"), expected)
    assert WOHIndex.verify(tmp_path / "copy.woh") == []
    assert_array_equal(copy.deepcopy(with_ann).search(xq, 5, ann="ivf"), expected)
    with_ann.close()
    with pytest.raises(StoreError, match="was closed"):
        with_ann.search(xq, 5, ann="ivf")


def test_a_refresh_keeps_what_was_read(with_ann, monkeypatch):
    with WOHIndex.open(with_ann.path, auto_refresh=0) as reader:
        xq = tagged(4, n=20)[0]
        reader.search(xq, 5, ann="ivf")
        monkeypatch.setattr(ann_search, "load", None)
        ids = np.arange(1000, 1020)
        with_ann.add(xq, ids=ids)
        _, I = reader.search(xq, 50, ann="ivf")
        assert all(id_ in row for id_, row in zip(ids, I, strict=True))


@pytest.mark.disk
def test_readers_go_on_while_a_writer_appends_removes_and_derives(tmp_path):
    """Each answer is of one state, and as the scan's of that state."""
    xq = tagged(7, n=6)[0]
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as writer:
        writer.update(*tagged(0, n=100))
        writer.build_ann("ivf", nlist=4, nprobe=4)
        done, begun, faults, answered = threading.Event(), threading.Barrier(3, timeout=600), [], []

        def read():
            try:
                with WOHIndex.open(writer.path) as reader:
                    reader.search(xq, 9, ann="ivf")
                    begun.wait()
                    while not done.is_set():
                        reader.refresh()
                        expected = reader.search(xq, 9)[0]
                        assert_array_equal(reader.search(xq, 9, ann="ivf")[0], expected)
                        answered.append(reader.ntotal)
            except BaseException as error:
                faults.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        begun.wait()
        for number in range(5):
            writer.add(tagged(number + 1, n=30)[0])
            writer.remove([number * 7])
            writer.build_ann("ivf", nlist=4, nprobe=4)
        done.set()
        for reader in readers:
            reader.join(600)
        assert not faults, faults
        assert answered
        assert WOHIndex.verify(writer.path) == []


def test_of_two_states_in_one_process_each_gets_its_own_or_an_older_one(index):
    xq = tagged(7, n=5)[0]
    index.build_ann("ivf", nlist=2, nprobe=2)
    with WOHIndex.open(index.path) as reader:
        store, old = reader._store, reader._store.view
        bits = reader.config.bits, reader.instance_bits
        h, a = reader.hasher.halves(xq)
        index.add(tagged(1)[0])
        reader.refresh()
        reader.search(xq, 3, ann="ivf")  # reads the first
        middle = store.view
        index.build_ann("ivf", nlist=2, nprobe=2)
        reader.refresh()
        store._anns.clear()
        store.ann_scan(store.view, "ivf", *bits)  # reads the second
        for seen in (old, middle):  # whose file is gone
            if seen is old:
                with pytest.raises(StoreError, match="is missing; open the index again"):
                    store.ann_scan(seen, "ivf", *bits)
            else:
                found = store.ann_scan(seen, "ivf", *bits).search(h, a, 60)
                assert_array_equal(found, seen.score_scan(*bits).search(h, a, 60))


def test_a_full_disk_leaves_what_was_there(index, monkeypatch):
    def full(file, made):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    index.build_ann("ivf", nlist=2, nprobe=2)
    with monkeypatch.context() as patch:
        patch.setattr(ivf, "write", full)
        with pytest.raises(StoreError, match="No space left"):
            index.build_ann("ivf")
    assert [path.name for path in index.path.glob("ann-*")] == ["ann-ivf-1.npz"]
    assert WOHIndex.verify(index.path) == []
    index.search(tagged(7, n=2)[0], 3, ann="ivf")


@pytest.mark.disk
@pytest.mark.parametrize("name", ["again", "drop", "compact"])
def test_death_at_any_step_leaves_the_old_ones_or_the_new(name, tmp_path):
    old, new = {
        "again": (["ann-ivf-1.npz"], ["ann-ivf-2.npz"]),
        "drop": (["ann-ivf-1.npz"], []),
        "compact": (["ann-ivf-1.npz"], []),
    }[name]
    steps, *answers = ask("deriving", name, tmp_path)
    committed = steps.index("after COMMIT")
    if new and name != "drop":
        assert steps.index(f"after fsync {new[-1]}") < steps.index("after fsync folder") < committed
    assert len(answers) >= 4
    for number, killed, seen, text, after, names, faults in answers:
        step = steps[number]
        assert killed, step
        expected = old if number < committed else new
        assert seen == [[name, True] for name in expected], step
        assert text == "null", step
        assert after == seen, step
        assert (names, faults) == (expected, []), step


def test_a_forked_child_searches_through_it(tmp_path):
    with Store.create(tmp_path / "i.woh", config={}, d=D) as store:
        store_worker.commit(store, **store_worker.chunk(1, n=90))
        build_ann(store, "ivf", {}, D, 0, 10.0)
    assert ask("fork_by_ann", tmp_path / "i.woh") == ["true"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../ann-ivf-1.npz"},
        {"name": "ann-hnsw-1.npz"},
        {"kind": "flat"},
        {"rows": -1},
        {"rows": 10**6},
        {"parameters": {"nlist": "many"}},
        {"recall": None},
        {"more": 1},
    ],
)
def test_a_catalogue_that_lies_about_it_is_refused(index, change):
    index.build_ann("ivf")
    index.close()
    run_ = sqlite3.connect(index.path / "catalog.db")
    (text,) = run_.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()
    state = json.loads(text)
    state["ann"][0] |= change
    with run_:
        run_.execute("UPDATE meta SET value = ? WHERE name = 'state'", (json.dumps(state),))
        reseal(run_)
    run_.close()
    with pytest.raises(StoreError, match=r"catalog.db is damaged; .*meta.state"):
        WOHIndex.open(index.path)


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_chunk(Path("c.npz"), 0, n=200)
    np.savez("q.npz", features=tagged(8, n=3)[0])
    run("build", "c.npz", "--bits", 32, "--instance-bits", 0, "--anchors", 10)
    made = run("build-ann", "ivf", "--param", "nlist=9", "--param", "nprobe=9")
    assert made.stdout == "ivf (nlist 9, nprobe 9) of 200 codes; recall@10 1.000\n"
    record = json.loads(run("build-ann", "ivf", "--param", "nlist=9", "--json").stdout)
    assert (record["kind"], record["rows"], record["recall"]) == ("ivf", 200, 1)
    plain, through = (
        run("query", "q.npz", "-k", 9, "--json", *more).stdout for more in ((), ("--ann", "ivf"))
    )
    assert through == plain
    assert len(through.splitlines()) == 27
    text = run("info").stdout
    assert "nlist 9, nprobe 9; recall@10 1.000 after round 1" in text
    save_chunk(Path("d.npz"), 1)
    run("add", "d.npz")
    assert "after round 1; 40 newer codes are scanned" in run("info").stdout
    filtered = run("query", "q.npz", "-k", 9, "--json", "--where", "id < 150", "--ann", "ivf")
    assert filtered.stdout == run("query", "q.npz", "-k", 9, "--json", "--where", "id < 150").stdout
    assert "note: --where, --allow and --deny search all codes that are left" in filtered.stderr
    assert "ann is 'hnsw', expected ivf" in run("query", "q.npz", "--ann", "hnsw", code=1).stderr
    for more in (["--id", 3], ["q.npz", "--radius", 3], ["q.npz", "--tags", "sea"]):
        assert "--ann finds the K nearest" in run("query", *more, "--ann", "ivf", code=2).stderr
    assert "give a KIND, or --drop" in run("build-ann", code=2).stderr
    assert "--drop takes no --param" in run("build-ann", "ivf", "--drop", "--json", code=2).stderr
    assert run("build-ann", "ivf", "--drop").stderr == "dropped: ivf\n"
    assert run("build-ann", "--drop").stderr == "there was none\n"
    assert not list(Path("index.woh").glob("ann-*"))
