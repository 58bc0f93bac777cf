"""Approximate indexes: what they find, whatever is appended, removed, damaged or killed meanwhile."""

import copy
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import store_worker
from conftest import LEARNED, SMALL, save_chunk, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_cli import run

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import NO_DISTANCE, NO_ID, Store, ann_search, faiss_indexes
from woh_faiss.store.ann import build_ann

#: Parameters with which a kind looks at all codes, of 15 or more.
EVERYWHERE = {
    "ivf": {"nlist": 5, "nprobe": 5},
    "multihash": {"nhash": 8, "b": 4, "nflip": 4},
}
D = store_worker.D


def ask(*arguments):
    command = [sys.executable, store_worker.__file__, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def naive(live, query, k):
    """Distances and ids by counting bits, ties by place, padded."""
    found = [(int(np.unpackbits(code ^ query).sum()), place, id_) for place, (id_, code) in enumerate(live)]
    found = sorted(found)[:k]
    rest = k - len(found)
    return [d for d, _, _ in found] + [NO_DISTANCE] * rest, [i for _, _, i in found] + [NO_ID] * rest


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_appends_removals_and_derivations_against_a_naive_scan(data):
    """A kind that looks everywhere answers as the scan; any kind answers with live items, truly as near."""
    rng = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    with tempfile.TemporaryDirectory() as folder, Store.create(folder + "/i", config={}, d=D) as store:
        live, number = [], 0
        for step in data.draw(st.lists(st.sampled_from(["add", "remove", "derive"]), max_size=6), "steps"):
            if step == "derive" and live:
                kind = data.draw(st.sampled_from(faiss_indexes.SUBLINEAR), "kind")
                exact = data.draw(st.booleans(), "everywhere") and len(live) >= 5
                build_ann(store, kind, EVERYWHERE.get(kind, {}) if exact else {}, D, 10.0)
            elif step == "remove" and live:
                gone = {live[i][0] for i in rng.permutation(len(live))[: data.draw(st.integers(1, 25), "n")]}
                with store.writing() as writing:
                    writing.remove(sorted(gone))
                live = [(id_, code) for id_, code in live if id_ not in gone]
            else:
                number += 1
                chunk = store_worker.chunk(number, n=17, kind="encoded")
                store_worker.commit(store, **chunk)
                live += list(zip(chunk["ids"].tolist(), chunk["codes"], strict=True))
        known = dict(live)
        queries = rng.integers(0, 5, (3, D // 8), np.uint8)
        for made in store.snapshot.ann:
            through = store.ann_searcher(store.view, made.kind)
            newer = {int(id_) for id_ in store.view.ids[made.rows :]}
            looks_everywhere = made.parameters.items() >= EVERYWHERE.get(made.kind, {"": 0}).items()
            for k in (1, 4, 150):
                D_, I = store.view.search(queries, k, searcher=through)
                for query, distances, ids in zip(queries, D_.tolist(), I.tolist(), strict=True):
                    true_D, true_I = naive(live, query, k)
                    if looks_everywhere:
                        assert distances == true_D
                        assert k < 150 or ids == true_I
                    found = [(d, i) for d, i in zip(distances, ids, strict=True) if i != NO_ID]
                    assert all(d == np.unpackbits(known[i] ^ query).sum() for d, i in found)
                    assert len({i for _, i in found}) == len(found)
                    assert distances == sorted(distances)
                    assert ids[len(found) :] == [NO_ID] * (k - len(found))
                    nearer = {i for d, i in zip(true_D, true_I, strict=True) if d < distances[-1]}
                    assert nearer & newer <= set(ids)
        assert Store.verify(store.path) == []


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_where_all_that_is_near_was_removed_more_is_asked_for(kind, tmp_path):
    rng = np.random.default_rng(0)
    with Store.create(tmp_path / "i", config={}, d=D) as store:
        chunk = store_worker.chunk(1, n=200, kind="encoded")
        chunk["codes"][:100] = 9
        chunk["codes"][100:] = rng.integers(0, 256, (100, D // 8))
        store_worker.commit(store, **chunk)
        build_ann(store, kind, EVERYWHERE[kind], D, 10.0)
        with store.writing() as writing:
            writing.remove(chunk["ids"][:100].tolist())
        queries = np.array([[9] * (D // 8), chunk["codes"][150].tolist()], np.uint8)
        found = store.view.search(queries, 5, searcher=store.ann_searcher(store.view, kind))
        assert_array_equal(found[0], store.view.search(queries, 5)[0])


@pytest.fixture(scope="module")
def derived_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("derived") / "i.woh"
    with WOHIndex.create(path, **{**LEARNED, "bits": 32, "keep_models": 9}) as index:
        index.update(*tagged(0, n=300))
        index.build_ann("ivf", nlist=17, nprobe=17)
        index.build_ann("hnsw", ef_search=512)
        index.build_ann("multihash", nhash=8, nflip=4)
        index.add(tagged(1)[0])
        index.remove(np.arange(0, 340, 3))
    return path


@pytest.fixture
def with_ann(derived_once, tmp_path):
    """An index of 300 items with all kinds beside it, 40 newer items, and some of both removed."""
    shutil.copytree(derived_once, tmp_path / "i.woh")
    with WOHIndex.open(tmp_path / "i.woh") as index:
        yield index


@pytest.mark.parametrize("kind", faiss_indexes.SUBLINEAR)
def test_search_through_each_kind(with_ann, kind):
    xq = tagged(7, n=30)[0]
    for by in ("hamming", "both", "kind"):
        D_, I = with_ann.search(xq, 10, by=by, expand=0)
        through, found = with_ann.search(xq, 10, by=by, ann=kind)
        if by == "hamming":
            assert faiss_indexes.recall(through, D_) > (0.99 if kind == "hnsw" else 0.9999)
        assert (found % 3 != 0).all()
        assert through.dtype == D_.dtype
    assert (found == I).mean() > 0.9


def test_what_derive_says_is_kept_and_shown(with_ann):
    made = with_ann.build_ann("multihash", nhash=4, b=8, nflip=1)
    assert (made.name, made.rows, made.round, made.radius) == ("ann-multihash-4.faiss", 340, 3, 7)
    assert 0 < made.recall <= 1
    with WOHIndex.open(with_ann.path) as again:
        known = {it["kind"]: it for it in again.info()["ann"]}
    assert known["multihash"]["parameters"] == {"nhash": 4, "b": 8, "nflip": 1}
    assert known["multihash"]["recall"] == made.recall
    assert [known[kind]["behind"] for kind in ("ivf", "hnsw", "multihash")] == [40, 40, 0]
    assert sorted(path.name for path in with_ann.path.glob("ann-*")) == [
        "ann-hnsw-2.faiss", "ann-ivf-1.faiss", "ann-multihash-4.faiss",
    ]  # fmt: skip
    assert WOHIndex.verify(with_ann.path) == []


def test_the_recall_that_is_kept_is_what_a_naive_look_measures(with_ann):
    made = with_ann.build_ann("ivf", nlist=30, nprobe=1)
    view = with_ann._store.view
    alive = np.flatnonzero(view.ids % 3)
    live = list(zip(view.ids[alive].tolist(), view.mapped.codes[alive], strict=True))
    queries = faiss_indexes.probes(view.mapped.codes[alive], 32, 256)
    distance = np.unpackbits(queries[:, None] ^ view.mapped.codes[alive][None, :], axis=2).sum(axis=2)
    differ = distance.min(axis=1)
    assert set(differ) <= {0, 1, 2}  # a sixteenth of 32 bits was flipped
    D_, _ = view.search(queries, 10, searcher=with_ann._store.ann_searcher(view, "ivf"))
    tenth = [naive(live, query, 10)[0][-1] for query in queries]
    assert made.recall == pytest.approx(np.mean(np.array(tenth)[:, None] >= D_))
    assert made.recall < 1


def test_what_cannot_be_asked_is_said_in_one_line(with_ann, index):
    xq = tagged(7, n=2)[0]
    with pytest.raises(StoreError, match="has no approximate index ivf; 'woh-index build-ann ivf' makes one"):
        index.search(xq, 3, ann="ivf")
    with pytest.raises(InputError, match="ann is 'flat', expected one of ivf, hnsw, multihash, or None"):
        with_ann.search(xq, 3, ann="flat")
    for among in ({"allow": [1]}, {"deny": [1]}):
        with pytest.raises(InputError, match="ann goes without allow and deny"):
            with_ann.search(xq, 3, ann="ivf", **among)
    for work in (index.build_ann, index.drop_ann):
        with pytest.raises(InputError, match="kind is 'flat', expected one of ivf, hnsw, multihash"):
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
        with pytest.raises(StoreError, match=r"ann-multihash-3\.faiss is missing; open the index again"):
            before.search(xq, 5, ann="multihash")
        before.search(xq, 5)
        before.refresh()
        with pytest.raises(StoreError, match="'woh-index build-ann ivf' makes one"):
            before.search(xq, 5, ann="ivf")
    made = with_ann.build_ann("ivf")
    assert made.name == "ann-ivf-4.faiss"
    assert WOHIndex.verify(with_ann.path) == []


@pytest.mark.parametrize("kind", faiss_indexes.SUBLINEAR)
@pytest.mark.parametrize("damage", ["bit", "cut", "gone", "folder", "another"])
def test_a_damaged_one_is_told_and_the_rest_goes_on(with_ann, kind, damage):
    path = next(with_ann.path.glob(f"ann-{kind}-*"))
    data = path.read_bytes()
    path.unlink()
    if damage == "bit":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif damage == "cut":
        path.write_bytes(data[:-1])
    elif damage == "folder":
        path.mkdir()
    elif damage == "another":
        shutil.copy(next(it for it in with_ann.path.glob("ann-*")), path)
    xq = tagged(7, n=2)[0]
    with WOHIndex.open(with_ann.path) as reader:
        with pytest.raises(StoreError) as caught:
            reader.search(xq, 5, ann=kind)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)
        assert_array_equal(reader.search(xq, 5), with_ann.search(xq, 5))
        faults = WOHIndex.verify(reader.path)
        assert len(faults) == 1
        assert path.name in faults[0]
    if damage != "folder":
        with_ann.build_ann(kind)
        assert WOHIndex.verify(with_ann.path) == []
        with_ann.search(xq, 5, ann=kind)


def test_one_that_lacks_codes_is_found_by_verify(index, monkeypatch):
    honest = faiss_indexes.built
    monkeypatch.setattr(
        faiss_indexes, "built", lambda kind, C, p, ids=None: honest(kind, C ^ np.uint8(2), p, ids)
    )
    for kind in faiss_indexes.SUBLINEAR:
        index.build_ann(kind)
    faults = WOHIndex.verify(index.path)
    assert len(faults) == 3
    for kind, fault in zip(("hnsw", "ivf", "multihash"), sorted(faults), strict=True):
        assert f"ann-{kind}-" in fault
        assert (
            f"lacks codes of the index, or has others; 'woh-index build-ann {kind}' makes it again" in fault
        )


def test_what_happens_while_it_is_built(index, monkeypatch):
    """Writers need not wait: what they append is scanned; rows that they renumber are not believed."""
    honest = faiss_indexes.built

    def meanwhile(work):
        def built(*arguments):
            monkeypatch.setattr(faiss_indexes, "built", honest)
            with WOHIndex.open(index.path) as writer:
                work(writer)
            return honest(*arguments)

        monkeypatch.setattr(faiss_indexes, "built", built)

    meanwhile(lambda writer: writer.add(tagged(3)[0]))
    assert index.build_ann("ivf", nlist=3, nprobe=3).rows == 40
    assert index.ntotal == 80
    for by in ("hamming", "both"):
        through = index.search(tagged(3)[0], 80, ann="ivf", by=by)
        assert_array_equal(through, index.search(tagged(3)[0], 80, by=by, expand=0))
    meanwhile(lambda writer: (writer.remove([3]), writer.compact()))
    with pytest.raises(StoreError, match="were rewritten while hnsw was built"):
        index.build_ann("hnsw")
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
                        expected = reader.search(xq, 9, expand=0)[0]
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
        query = old.mapped.codes[:5]
        index.add(tagged(1)[0])
        reader.refresh()
        reader.search(xq, 3, ann="ivf")  # reads the first
        middle = store.view
        index.build_ann("ivf", nlist=2, nprobe=2)
        reader.refresh()
        store._anns.clear()
        store.view.search(query, 60, searcher=store.ann_searcher(store.view, "ivf"))  # reads the second
        for seen in (old, middle):  # whose file is gone
            if seen is old:
                with pytest.raises(StoreError, match="is missing; open the index again"):
                    store.ann_searcher(seen, "ivf")
            else:
                found = seen.search(query, 60, searcher=store.ann_searcher(seen, "ivf"))
                assert_array_equal(found, seen.search(query, 60))


def test_a_full_disk_leaves_what_was_there(index, monkeypatch):
    def full(file, made):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    index.build_ann("ivf", nlist=2, nprobe=2)
    with monkeypatch.context() as patch:
        patch.setattr(faiss_indexes, "write", full)
        with pytest.raises(StoreError, match="No space left"):
            index.build_ann("ivf")
    assert [path.name for path in index.path.glob("ann-*")] == ["ann-ivf-1.faiss"]
    assert WOHIndex.verify(index.path) == []
    index.search(tagged(7, n=2)[0], 3, ann="ivf")


@pytest.mark.disk
@pytest.mark.parametrize("name", ["again", "another", "drop", "compact"])
def test_death_at_any_step_leaves_the_old_ones_or_the_new(name, tmp_path):
    old, new = {
        "again": (["ann-ivf-1.faiss"], ["ann-ivf-2.faiss"]),
        "another": (["ann-ivf-1.faiss"], ["ann-ivf-1.faiss", "ann-multihash-2.faiss"]),
        "drop": (["ann-ivf-1.faiss"], []),
        "compact": (["ann-ivf-1.faiss"], []),
    }[name]
    answers = ask("deriving", name, tmp_path)
    steps = [step for step, *_ in answers]
    committed = steps.index("after COMMIT")
    if new and name != "drop":
        assert steps.index(f"after fsync {new[-1]}") < steps.index("after fsync folder") < committed
    for number, (step, killed, seen, text, after, names, faults) in enumerate(answers):
        assert killed, step
        expected = old if number < committed else new
        assert seen == [[name, True] for name in expected], step
        assert text == "null", step
        assert after == seen, step
        assert (names, faults) == (expected, []), step


def test_a_forked_child_searches_through_it(tmp_path):
    with Store.create(tmp_path / "i.woh", config={}, d=D) as store:
        store_worker.commit(store, **store_worker.chunk(1, n=90))
        build_ann(store, "ivf", {}, D, 10.0)
        build_ann(store, "hnsw", {}, D, 10.0)
    assert ask("fork_by_ann", tmp_path / "i.woh") == ["true"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../ann-ivf-1.faiss"},
        {"name": "ann-hnsw-1.faiss"},
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
    record = json.loads(run("build-ann", "multihash", "--param", "nhash=4", "--json").stdout)
    assert (record["kind"], record["rows"], record["radius"]) == ("multihash", 200, 11)
    assert "nothing missed up to 11 bits" in run("build-ann", "multihash", "--param", "nhash=4").stdout
    plain, through = (
        run("query", "q.npz", "-k", 9, "--by", "hamming", "--json", *more).stdout.splitlines()
        for more in ((), ("--ann", "ivf"))
    )
    assert [json.loads(line)["distance"] for line in through] == [
        json.loads(line)["distance"] for line in plain
    ]
    assert len(through) == 27
    text = run("info").stdout
    assert "nlist 9, nprobe 9; recall@10 1.000 after round 1" in text
    assert "nothing missed up to 11 bits" in text
    save_chunk(Path("d.npz"), 1)
    run("add", "d.npz")
    assert "after round 1; 40 newer codes are scanned" in run("info").stdout
    assert "build-ann hnsw" in run("query", "q.npz", "--ann", "hnsw", code=1).stderr
    for more in (["--id", 3], ["q.npz", "--radius", 3], ["q.npz", "--tags", "sea"]):
        assert "--ann finds the K nearest" in run("query", *more, "--ann", "ivf", code=2).stderr
    assert "give a KIND, or --drop" in run("build-ann", code=2).stderr
    assert "--drop takes no --param" in run("build-ann", "ivf", "--drop", "--json", code=2).stderr
    assert run("build-ann", "ivf", "--drop").stderr == "dropped: ivf\n"
    assert run("build-ann", "--drop").stderr == "dropped: multihash\n"
    assert run("build-ann", "--drop").stderr == "there was none\n"
    assert not list(Path("index.woh").glob("ann-*"))
