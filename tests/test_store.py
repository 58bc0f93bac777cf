"""The store against plain lists and dictionaries, against Faiss's own file, and against bad input."""

from __future__ import annotations

import hashlib
import threading
import zipfile

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from store_worker import chunk, commit, dump, faiss_bytes

from woh_faiss.errors import InputError, LockedError, StoreError
from woh_faiss.store import Item, Model, NewRound, Snapshot, Store, catalog, database, files


def naive_search(codes, ids, queries, k):
    """Oracle: no Faiss; ties by row."""
    out = []
    for query in queries:
        distances = np.unpackbits(codes ^ query, axis=1).sum(axis=1)
        order = sorted(range(len(codes)), key=lambda row: (distances[row], row))[:k]
        pairs = [(int(distances[row]), int(ids[row])) for row in order]
        out.append(pairs + [(2147483647, -1)] * (k - len(pairs)))
    return out


def pairs(answer):
    D, I = answer
    assert D.dtype == np.int32
    assert I.dtype == np.int64
    return [list(zip(d.tolist(), i.tolist(), strict=True)) for d, i in zip(D, I, strict=True)]


@pytest.fixture
def store(tmp_path):
    with Store.create(tmp_path / "i.woh", config={"bits": 12}, d=32) as made:
        yield made


# ---- what is stored is what is found ---------------------------------------------------------------


@st.composite
def chunk_sizes(draw):
    return draw(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=6))


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sizes=chunk_sizes(), d=st.sampled_from([8, 16, 40]), k=st.integers(1, 40), seed=st.integers(0, 2**32 - 1)
)
def test_any_sequence_of_chunks_equals_a_list_and_a_dictionary(tmp_path_factory, sizes, d, k, seed):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("p") / "i"
    codes, ids, items, tag_rows = [np.empty((0, d // 8), np.uint8)], [], {}, {}
    pool = rng.permutation(200)
    store = Store.create(path, config={}, d=d)
    rounds = 0
    for n, abandoned, reopened in sizes:
        new = rng.integers(0, 3, size=(n, d // 8), dtype=np.uint8)
        names, pool = pool[:n], pool[n:]
        keys = [f"k{i}" if rng.random() < 0.5 else None for i in names]
        tags = [[f"t{t}" for t in rng.integers(0, 3, rng.integers(0, 3))] for _ in names]
        changed = [(int(t), f"t{t}", int(rng.integers(9)), None) for t in range(rng.integers(3))]
        what = {"kind": "encoded", "trained": 0, "seconds": 0.0, "tag_rows": changed}
        if abandoned:
            with store.writing() as writing:
                assert writing.next_id == max(ids, default=-1) + 1
        else:
            rounds += 1
            commit(store, codes=new, ids=names, keys=keys, tags=tags, **what)
            row = len(ids)
            codes.append(new)
            ids += names.tolist()
            for i, (id_, key, entry) in enumerate(zip(names.tolist(), keys, tags, strict=True)):
                items[id_] = Item(id_, row + i, key, entry, rounds)
            tag_rows |= {tag: (column, tag, count, vector) for column, tag, count, vector in changed}
        if reopened:
            store.close()
            store = Store.open(path)
        everything = np.concatenate(codes)
        queries = rng.integers(0, 3, size=(3, d // 8), dtype=np.uint8)
        assert pairs(store.view.search(queries, k)) == naive_search(everything, ids, queries, k)
        assert store.ntotal == len(ids)
        asked = [int(i) for i in rng.permutation(ids)] + ids[:1]
        assert store.view.items(asked) == [items[i] for i in asked]
        assert_array_equal(store.view.codes(asked), everything[[items[i].row for i in asked]])
        assert store.tag_rows() == sorted(tag_rows.values())
        for item in items.values():
            if item.key is not None:
                assert store.view.id_of_key(item.key) == item.id
        assert [r.round for r in store.rounds()] == list(range(1, rounds + 1))
    assert (path / "codes.faiss").read_bytes() == faiss_bytes(codes, d)
    assert (path / "ids.i64").read_bytes() == np.array(ids, "<i8").tobytes()
    store.close()


@pytest.mark.parametrize("d", [8, 16, 32, 64, 128])
def test_the_codes_file_is_what_faiss_writes(tmp_path, d):
    path = tmp_path / "i"
    with Store.create(path, config={}, d=d) as store:
        codes = []
        for number in range(4):
            faiss.write_index_binary(
                faiss.deserialize_index_binary(np.frombuffer(faiss_bytes(codes, d), np.uint8)),
                str(tmp_path / "x"),
            )
            assert (path / "codes.faiss").read_bytes() == (tmp_path / "x").read_bytes()
            codes.append(chunk(number, d=d, n=3 * number)["codes"])
            commit(store, **chunk(number, d=d, n=3 * number))
        plain = faiss.read_index_binary(str(path / "codes.faiss"))
        assert (plain.ntotal, plain.d) == (store.ntotal, d)


@pytest.mark.parametrize("d", [8, 24, 32, 64, 128, 256])
@pytest.mark.parametrize("n_queries", [1, 2, 100])
@pytest.mark.parametrize("n", [700, 3000])
def test_search_breaks_ties_by_row_for_every_kernel_of_faiss(tmp_path, d, n_queries, n):
    rng = np.random.default_rng(d)
    codes = rng.integers(0, 2, size=(n, d // 8), dtype=np.uint8)
    ids = rng.permutation(n)
    queries = rng.integers(0, 2, size=(n_queries, d // 8), dtype=np.uint8)
    with Store.create(tmp_path / "i", config={}, d=d) as store:
        nothing = {"kind": "encoded", "keys": [None] * n, "tags": [[]] * n, "trained": 0, "seconds": 0}
        commit(store, codes=codes, ids=ids, **nothing)
        got = pairs(store.view.search(queries, 150))
        assert got[:3] == naive_search(codes, ids, queries[:3], 150)
        assert got == pairs(store.view.search(np.asfortranarray(queries), np.int64(150)))
        backwards = pairs(store.view.search(queries[::-1], 150))
        assert backwards == got[::-1]


def test_one_thread_and_many_answer_alike_and_the_setting_is_put_back(store, monkeypatch):
    commit(store, **chunk(1, n=300))
    queries = np.random.default_rng(0).integers(0, 4, size=(70, 4), dtype=np.uint8)
    threads = faiss.omp_get_max_threads()
    alone = pairs(store.view.search(queries, 20))
    assert faiss.omp_get_max_threads() == threads
    monkeypatch.setattr("woh_faiss.store.scan._SMALL", 0)
    assert pairs(store.view.search(queries, 20)) == alone


def test_an_empty_index_answers_nothing(store):
    assert pairs(store.view.search(np.zeros((2, 4), np.uint8), 3)) == [[(2147483647, -1)] * 3] * 2
    assert store.view.search(np.zeros((0, 4), np.uint8), 3)[0].shape == (0, 3)
    assert store.view.items([]) == []
    assert store.view.codes([]).shape == (0, 4)
    assert store.rounds() == []
    assert store.tag_rows() == []
    assert store.view.id_of_key("x") is None
    assert (store.snapshot.round, store.snapshot.next_id, store.snapshot.model) == (0, 0, None)
    with pytest.raises(StoreError, match="has no model yet"):
        store.view.learned()
    with pytest.raises(StoreError, match="has no model yet"):
        store.view.anchor_rows()


def test_everything_a_round_was_given_comes_back(store):
    commit(store, **chunk(1, anchors=True))
    commit(store, **chunk(2, kind="encoded"))
    first, second = store.rounds()
    assert (first.kind, first.n, first.removed, first.ntotal, first.trained) == ("trained", 5, 0, 5, 5)
    assert (first.first_row, first.end_row) == (0, 5)
    assert (first.chunk_hash, first.seconds, first.health, first.model) == (
        "hash1",
        0.25,
        {"balance": 0.5},
        "model-1.npz",
    )
    assert (second.kind, second.first_row, second.model, second.model_digest) == (
        "encoded",
        5,
        "model-1.npz",
        first.model_digest,
    )
    assert first.time <= second.time
    anchors = hashlib.sha256((store.path / "anchors.npy").read_bytes()).hexdigest()
    known = {"anchors": anchors, "time": second.time, "checksum": second.checksum}
    named = {name: getattr(store.snapshot, name) for name in ("identity", "line")}
    assert store.snapshot == Snapshot(2, 10, 10, "model-1.npz", first.model_digest, 2013, **known, **named)
    assert store.view.learned().digest == first.model_digest
    assert_array_equal(store.view.anchor_rows(), np.arange(6.0).reshape(3, 2))
    assert not store.view.anchor_rows().flags.writeable
    assert sorted(store.view.learned()) == ["P", "round"]
    assert len(store.view.learned()) == 2
    assert_array_equal(store.view.learned()["P"], chunk(1)["model"]["P"])
    with pytest.raises(KeyError, match="Q"):
        store.view.learned()["Q"]
    assert store.tag_rows() == [(0, "ä", 1, b"v"), (None, "tag1", 1, None)]
    assert store.config == {"bits": 12}
    assert sum(store.sizes().values()) > 33 + 40 + 80


def test_checksum_and_fingerprint_are_of_the_bytes_on_disk(store):
    import hashlib

    commit(store, **chunk(1))
    commit(store, **chunk(2, n=3))
    last = store.rounds()[-1]
    appended = (store.path / "codes.faiss").read_bytes()[33 + 20 :] + (store.path / "ids.i64").read_bytes()[
        40:
    ]
    assert last.checksum == hashlib.sha256(appended).hexdigest()
    rest = (store.path / "model-2.npz").read_bytes()
    with zipfile.ZipFile(store.path / "model-2.npz") as archive:
        for name in archive.namelist():  # each array occurs once
            before, found, after = rest.partition(archive.read(name))
            assert found
            rest = before + after
    assert last.model_digest == hashlib.sha256(rest).hexdigest()


def test_every_byte_of_a_model_is_covered_by_its_fingerprint_or_a_crc(store):
    commit(store, **chunk(1))
    path, digest = store.path / "model-1.npz", store.snapshot.model_digest
    sound = path.read_bytes()
    Model(path).check(digest)
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :])
        with pytest.raises(StoreError, match=r"model-1.npz is damaged \("):
            Model(path).check(digest)


def test_the_same_arrays_give_the_same_model_file(tmp_path):
    prints = set()
    for name in "ab":
        with Store.create(tmp_path / name, config={}, d=32) as store:
            arguments = chunk(1)
            if name == "b":
                arguments["model"] = dict(reversed(arguments["model"].items()))
            commit(store, **arguments)
            prints.add(store.snapshot.model_digest)
            with np.load(store.path / "model-1.npz", allow_pickle=False) as plain:
                assert_array_equal(plain["P"], arguments["model"]["P"])
    assert len(prints) == 1


@pytest.mark.parametrize(("keep", "kept"), [(None, [3, 4]), (1, [4]), (3, [2, 3, 4])])
def test_old_models_go_and_a_reader_keeps_the_one_it_has(tmp_path, keep, kept):
    config = {} if keep is None else {"keep_models": keep}
    with Store.create(tmp_path / "i", config=config, d=32) as store:
        commit(store, **chunk(1))
        with Store.open(store.path) as reader:
            for number in (2, 3, 4):
                commit(store, **chunk(number))
            commit(store, **chunk(5, kind="encoded"))
            assert sorted(p.name for p in store.path.glob("model-*")) == [f"model-{i}.npz" for i in kept]
            assert_array_equal(reader.view.learned()["P"], chunk(1)["model"]["P"])
            assert reader.refresh()
            assert_array_equal(reader.view.learned()["P"], chunk(4)["model"]["P"])


# ---- readers beside a writer -----------------------------------------------------------------------


def test_a_reader_serves_its_snapshot_until_it_refreshes(store):
    commit(store, **chunk(1))
    reader = Store.open(store.path)
    tags = reader.tag_rows()
    before = dump(reader)
    with store.writing() as writing:
        assert dump(reader) == before
        writing.commit(NewRound(**chunk(2, kind="encoded")))
        assert dump(reader) == before
    assert dump(reader) == before
    assert reader.tag_rows() == tags
    assert reader.view.id_of_key("photo-2-0") is None
    with pytest.raises(StoreError, match="id 2000 is not in"):
        reader.view.items([2000])
    assert reader.refresh() is True
    assert reader.refresh() is False
    assert dump(reader) == dump(store)
    assert reader.view.id_of_key("photo-2-0") == 2012


def test_searching_threads_see_whole_rounds_only_while_a_writer_appends(store):
    """Every round adds 5 codes at distance 0: an answer is a multiple of 5 or it is torn."""
    queries = np.zeros((3, 4), np.uint8)
    done, seen = threading.Event(), []

    def search():
        with Store.open(store.path) as reader:
            while not done.is_set():
                reader.refresh()
                distances, _ = reader.view.search(queries, 200)
                seen.append(int((distances[0] == 0).sum()))

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 21):
        commit(store, **{**chunk(number, kind="encoded"), "codes": np.zeros((5, 4), np.uint8)})
    done.set()
    for thread in threads:
        thread.join()
    assert seen
    assert all(count % 5 == 0 for count in seen)


def test_opening_follows_a_writer_that_removes_the_model_just_read_about(store, monkeypatch):
    commit(store, **chunk(1))
    stale = [store.snapshot]
    for number in (2, 3, 4):
        commit(store, **chunk(number))
    read = catalog.snapshot
    monkeypatch.setattr(catalog, "snapshot", lambda connection: stale.pop() if stale else read(connection))
    with Store.open(store.path) as reader:
        assert reader.snapshot == store.snapshot
        assert stale == []


def test_a_closed_store_says_so(store):
    store.close()
    with pytest.raises(StoreError, match="was closed; open it again"):
        store.view.search(np.zeros((1, 4), np.uint8), 1)
    with pytest.raises(StoreError, match="was closed"), store.writing():
        pass


# ---- writing: all or nothing -----------------------------------------------------------------------


def with_(**changes):
    return {**chunk(2), **changes}


BAD = {
    "width": (with_(codes=np.zeros((5, 3), np.uint8)), r"shape \(5, 3\).*\(n, 4\) bytes of uint8"),
    "dtype": (with_(codes=np.zeros((5, 4), np.int8)), "dtype int8"),
    "number of ids": (with_(ids=[1, 2]), "2 ids for 5 items"),
    "repeated id": (with_(ids=[7, 8, 7, 9, 10]), "id 7 of row 2 is given twice"),
    "negative id": (with_(ids=[7, 8, -7, 9, 10]), "negative"),
    "known id": (with_(ids=[7, 8, 1003, 9, 1000]), r"id 1003 is already in .* \(2 of this chunk's 5 ids\)"),
    "number of keys": (with_(keys=["a"]), "1 keys for 5 items"),
    "repeated key": (with_(keys=["a", None, None, "b", "a"]), "key 'a' is given twice"),
    "known key": (with_(keys=["a", None, None, "photo-1-2", None]), "key 'photo-1-2' is already in"),
    "key that is no text": (with_(keys=[1, None, None, None, None]), "keys: row 0 is 1, expected a str"),
    "key beyond UTF-8": (with_(keys=["\ud800", None, None, None, None]), "not UTF-8 text"),
    "number of tags": (with_(tags=[[]]), "1 tag lists for 5 items"),
    "kind": (with_(kind="other"), "kind is 'other'"),
    "object array": (with_(model={"P": np.array([{}])}), "'P' is object"),
    "no array": (with_(model={"P": [1]}), "'P' is list"),
    "second anchors": (with_(anchors=np.ones(3)), "has its anchors already"),
    "tag": (with_(tag_rows=[(0, 7, 1, None)]), "tags: row 0 is 7, expected a str"),
    "early dtype": (with_(early=np.ones((5, 2))), r"early features have .* dtype float64, expected float32"),
    "number of early": (with_(early=np.ones((4, 2), "f4")), r"\(4, 2\) .* a row for each of 5 items"),
    "early shape": (with_(early=np.ones(5, "f4")), r"early features have shape \(5,\), expected 2-D"),
    "early NaN": (with_(early=np.full((5, 2), np.nan, "f4")), "early features of row 0 are not finite"),
    "no early columns": (with_(early=np.ones((5, 0), "f4")), "early features have no columns"),
    "recoded dtype": (with_(recoded=np.ones((5, 4), "i1")), r"dtype int8, expected \(5, 4\) bytes of uint8"),
    "recoded rows": (with_(recoded=np.ones((4, 4), "u1")), r"recoded has shape \(4, 4\) .* for each row of"),
    "recoded width": (with_(recoded=np.ones((5, 5), "u1")), r"recoded has shape \(5, 5\) .* code of 32 bits"),
    "recoded and early": (
        with_(recoded=np.ones((5, 4), "u1"), early=np.ones((5, 2), "f4")),
        "early and recoded are both given",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_changes_nothing_and_keeps_the_lock(store, case):
    arguments, message = BAD[case]
    commit(store, **chunk(1, anchors=True))
    before, contents = dump(store), {p.name: p.read_bytes() for p in store.path.glob("*[!lmr]")}
    with store.writing() as writing:
        with pytest.raises(InputError, match=message) as caught:
            writing.commit(NewRound(**arguments))
        assert "\n" not in str(caught.value)
        assert {p.name: p.read_bytes() for p in store.path.glob("*[!lmr]")} == contents
        assert dump(store) == before
        writing.commit(NewRound(**chunk(2)))
    assert store.ntotal == 10


def test_known_ids_and_keys(store):
    commit(store, **chunk(1))
    with store.writing() as writing:
        assert writing.known_ids([5, 1003, 9999, 1000]).tolist() == [1003, 1000]
        assert writing.known_ids([]).tolist() == []
        assert writing.known_ids(np.arange(3000)).tolist() == [1000, 1003, 1006, 1009, 1012]
        assert writing.known_keys(["a", None, "photo-1-4", "photo-1-0"]) == ["photo-1-4", "photo-1-0"]
        assert writing.next_id == 1013


def test_the_largest_id_ever_is_remembered_and_int64s_end_is_no_obstacle(store):
    commit(store, **{**chunk(1), "ids": [2**63 - 1, 3, 2, 1, 0]})
    commit(store, **chunk(2))
    with store.writing() as writing:
        assert writing.next_id == 2**63
        assert writing.known_ids([2**63 - 1]).tolist() == [2**63 - 1]
    assert store.view.search(np.zeros((1, 4), np.uint8), 9)[1].max() == 2**63 - 1
    assert store.view.items(np.array([2**63 - 1], np.uint64))[0].row == 0
    with pytest.raises(StoreError, match=rf"id {2**64 - 1} is not in"):
        store.view.items(np.array([2**64 - 1], np.uint64))
    with pytest.raises(InputError, match="expected integers"):
        store.view.items([1.5])


def test_one_update_is_one_commit(store):
    with store.writing() as writing:
        writing.commit(NewRound(**chunk(1)))
        assert writing.snapshot.round == 1
        with pytest.raises(StoreError, match="has ended"):
            writing.commit(NewRound(**chunk(2)))
    with pytest.raises(StoreError, match="has ended"):
        writing.commit(NewRound(**chunk(2)))
    assert store.snapshot.round == 1


def test_an_error_of_the_caller_leaves_no_trace(store):
    commit(store, **chunk(1))
    before = dump(store)
    with pytest.raises(ZeroDivisionError), store.writing():
        raise ZeroDivisionError
    assert dump(store) == before


def steps_of_a_commit(tmp_path, monkeypatch):
    log = []
    with Store.create(tmp_path / "log", config={}, d=32) as store, monkeypatch.context() as patch:
        commit(store, **chunk(1, anchors=True))
        commit(store, **chunk(2))
        patch.setattr(files, "on_step", log.append)
        commit(store, **chunk(3))
    return log


def test_a_disk_that_fails_at_any_step_leaves_the_old_state_and_files(tmp_path, monkeypatch):
    log = steps_of_a_commit(tmp_path, monkeypatch)
    assert len(log) >= 20
    for number, step in enumerate(log):
        if step == "after COMMIT":  # nothing of the disk's happens there
            continue
        store = Store.create(tmp_path / str(number), config={}, d=32)
        commit(store, **chunk(1, anchors=True))
        commit(store, **chunk(2))
        before, contents = dump(store), {p.name: p.read_bytes() for p in store.path.glob("*[!lmr]")}
        seen = []

        def fail(name, seen=seen, number=number):
            seen.append(name)
            if len(seen) == number + 1:
                raise OSError(28, "No space left on device")

        committed = number > log.index("after COMMIT")
        with monkeypatch.context() as patch:
            patch.setattr(files, "on_step", fail)
            if committed:
                commit(store, **chunk(3))
            else:
                with pytest.raises(
                    StoreError, match=r"No space left.*check free space.*the index is as before"
                ):
                    commit(store, **chunk(3))
        if not committed:
            assert dump(store) == before, step
            after = {p.name: p.read_bytes() for p in store.path.glob("*[!lmr]")}
            if step == "before COMMIT":  # it may have happened: another COMMIT of the same content decides
                assert after.pop("catalog.db") != contents.pop("catalog.db")
            assert after == contents, step
            commit(store, **chunk(3))
        assert store.ntotal == 15
        assert store.snapshot.round == 3
        with store.writing():  # whatever was left is put right here
            pass
        codes = [chunk(i)["codes"] for i in (1, 2, 3)]
        assert (store.path / "codes.faiss").read_bytes() == faiss_bytes(codes, 32), step
        assert not (store.path / "model-1.npz").exists()
        store.close()


def test_a_file_that_cannot_grow_is_cut_back(store):
    """The operating system's own refusal, in the middle of a write."""
    import resource

    commit(store, **chunk(1))
    before = dump(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(StoreError, match=r"cannot write .*: File too large; check free space"):
            commit(store, **chunk(2, n=20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert dump(store) == before
    assert (store.path / "codes.faiss").stat().st_size == 33 + 20
    commit(store, **chunk(2))
    assert store.ntotal == 10


def test_a_commit_that_sqlite_refuses_is_taken_back(store):
    commit(store, **chunk(1))
    before = dump(store)
    with pytest.raises(StoreError, match=r"catalog.db cannot be used.*SQLite: "):
        commit(store, **{**chunk(2), "trained": 2, "seconds": float("nan")})  # NaN is NULL, and refused
    assert dump(store) == before
    commit(store, **chunk(2))


@pytest.mark.parametrize("torn", [b"x", b"torn code bytes" * 99])
def test_bytes_behind_the_committed_end_are_nobodys(store, torn):
    commit(store, **chunk(1))
    before = dump(store)
    for name in ("codes.faiss", "ids.i64"):
        with (store.path / name).open("ab") as file:
            file.write(torn)
    (store.path / "model-7.npz").write_bytes(torn)
    (store.path / "model-2.npz.tmp").write_bytes(torn)
    (store.path / "model-notes.txt").write_bytes(b"the user's own")
    with (store.path / "codes.faiss").open("r+b") as file:  # and a header torn in the middle
        file.seek(12)
        file.write(b"\xff" * 5)
    with Store.open(store.path) as reader:
        assert dump(reader) == before
    commit(store, **chunk(2))
    codes = [chunk(1)["codes"], chunk(2)["codes"]]
    assert (store.path / "codes.faiss").read_bytes() == faiss_bytes(codes, 32)
    assert not (store.path / "model-7.npz").exists()
    assert not (store.path / "model-2.npz.tmp").exists()
    assert (store.path / "model-notes.txt").exists()


def test_nobody_writes_between_a_commit_and_the_patch_of_the_header(store):
    other, refused = Store.open(store.path), []

    def overtake(name):
        if name == "after COMMIT":
            with pytest.raises(LockedError) as caught, other.writing(timeout=0):
                pass
            refused.append(caught.value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "on_step", overtake)
        commit(store, **chunk(1))
    assert len(refused) == 1
    commit(other, **chunk(2))
    codes = [chunk(1)["codes"], chunk(2)["codes"]]
    assert (store.path / "codes.faiss").read_bytes() == faiss_bytes(codes, 32)


def test_no_statement_of_an_update_walks_the_items_or_the_tags(store, monkeypatch):
    """The cost is the chunk's: SQLite looks rows up, it never scans a table that grows."""
    commit(store, **chunk(1))
    statements = []
    connect = database.connect

    def traced(*arguments):
        connection = connect(*arguments)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(database, "connect", traced)
    with store.writing() as writing:
        writing.known_ids([1000, 5])
        writing.known_keys(["a", "b"])
        writing.commit(NewRound(**chunk(2)))
    store.view.items([1000])
    store.view.id_of_key("a")
    monkeypatch.undo()
    explained = [s for s in statements if s.startswith(("SELECT", "INSERT"))]
    assert sum("items" in s for s in explained) >= 6
    for statement in explained:
        plan = database.read(
            store.path, lambda c, s=statement: c.execute(f"EXPLAIN QUERY PLAN {s}").fetchall()
        )
        for *_, detail in plan:
            assert not ("SCAN" in detail and ("items" in detail or "tags" in detail)), (statement, detail)


# ---- folders and files that are not an index -------------------------------------------------------


def test_what_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpg").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "codes.faiss").write_bytes(faiss_bytes([chunk(1)["codes"]], 32))
    Store.create(tmp_path / "index", config={}, d=32).close()
    cases = {
        "file": "is a file",
        "full": r"not empty \(photo.jpg\)",
        "foreign": "not empty",
        "index": "an index already",
    }
    for name, message in cases.items():
        with pytest.raises(StoreError, match=message):
            Store.create(tmp_path / name, config={}, d=32)
    with pytest.raises(StoreError, match="cannot create"):
        Store.create(tmp_path / "file" / "below", config={}, d=32)
    for d in (0, -8, 12):
        with pytest.raises(InputError, match=f"d is {d} bits"):
            Store.create(tmp_path / "new", config={}, d=d)
    with pytest.raises(InputError, match="config cannot be stored"):
        Store.create(tmp_path / "new", config={"x": object()}, d=8)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    Store.create(tmp_path / "empty", config={}, d=32).close()
    Store.create(str(tmp_path / "a" / "b"), config={}, d=32).close()


def float_index(path):
    index = faiss.IndexFlatL2(8)
    index.add(np.zeros((3, 8), np.float32))
    faiss.write_index(index, str(path))


def rewrite(path, at, value):
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)


def sql(path, text):
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text)


DAMAGE = {
    "no codes": (lambda p: (p / "codes.faiss").unlink(), "codes.faiss is missing"),
    "no ids": (lambda p: (p / "ids.i64").unlink(), "ids.i64 is missing"),
    "no catalogue": (lambda p: (p / "catalog.db").unlink(), "catalog.db is missing; 'woh-index build'"),
    "no model": (lambda p: (p / "model-1.npz").unlink(), "model-1.npz is missing"),
    "short codes": (
        lambda p: (p / "codes.faiss").write_bytes((p / "codes.faiss").read_bytes()[:-1]),
        "52 bytes.*53",
    ),
    "empty codes": (lambda p: (p / "codes.faiss").write_bytes(b""), "codes.faiss starts with b''"),
    "short ids": (
        lambda p: (p / "ids.i64").write_bytes(b"1234567"),
        "ids.i64 has 7 bytes, the catalogue counts 40",
    ),
    "foreign codes": (lambda p: (p / "codes.faiss").write_bytes(b"\x89PNG" * 99), "starts with .*PNG"),
    "float index": (lambda p: float_index(p / "codes.faiss"), "starts with b'IxF.', expected a flat binary"),
    "other width": (
        lambda p: (p / "codes.faiss").write_bytes(faiss_bytes([chunk(1, d=64)["codes"]], 64)),
        "64 bits",
    ),
    "unknown layout": (lambda p: rewrite(p / "codes.faiss", 20, b"\x00"), "unknown layout"),
    "foreign catalogue": (
        lambda p: (p / "catalog.db").write_bytes(b"something else" * 999),
        "is not a catalogue",
    ),
    "foreign database": (
        lambda p: sql(p / "catalog.db", "PRAGMA application_id = 1"),
        "no woh-faiss catalogue",
    ),
    "broken catalogue": (lambda p: rewrite(p / "catalog.db", 100, b"\x07" * 3000), "catalog.db is damaged"),
    "no table": (
        lambda p: sql(p / "catalog.db", "DROP TABLE rounds"),
        "is damaged: 'rounds' in its schema is not what format 1 has",
    ),
    "newer": (
        lambda p: sql(p / "catalog.db", "PRAGMA user_version = 9"),
        "format 9.*up to 1: upgrade woh-faiss",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_index_is_refused_in_one_line(store, case):
    commit(store, **chunk(1))
    store.close()
    for name in ("catalog.db-wal", "catalog.db-shm"):
        (store.path / name).unlink(missing_ok=True)
    damage, message = DAMAGE[case]
    damage(store.path)
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(store.path)
    assert str(store.path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["codes.faiss", "ids.i64"])
def test_a_writer_refuses_a_cut_file_too(store, name):
    commit(store, **chunk(1))
    (store.path / name).write_bytes((store.path / name).read_bytes()[:35])
    with pytest.raises(StoreError, match=f"{name} has 35 bytes"), store.writing():
        pass


def test_a_file_faiss_itself_refuses_is_a_store_error(store, monkeypatch):
    def refuse(*_):
        raise RuntimeError("Error in faiss\nsecond line")

    monkeypatch.setattr(faiss, "read_index_binary", refuse)
    with pytest.raises(StoreError, match=r"Faiss .* reads: Error in faiss$"):
        Store.open(store.path)


def test_what_cannot_be_opened(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"no index at .*none; 'woh-index build' makes one"):
        Store.open(tmp_path / "none")
    with pytest.raises(StoreError, match="is a file, expected an index folder"):
        Store.open(tmp_path / "file")
    with pytest.raises(StoreError, match=r"catalog.db is missing"):
        Store.open(tmp_path / "empty")


def test_a_flipped_byte_of_a_model_or_the_anchors_is_found_when_read(store):
    commit(store, **chunk(1, anchors=True))
    data = (store.path / "model-1.npz").read_bytes()
    at = data.index(chunk(1)["model"]["P"].tobytes())
    rewrite(store.path / "model-1.npz", at, bytes([data[at] ^ 1]))
    (store.path / "anchors.npy").write_bytes((store.path / "anchors.npy").read_bytes()[:-1])
    with Store.open(store.path) as reader:
        assert_array_equal(reader.view.learned()["round"], 1)
        with pytest.raises(StoreError, match=r"model-1.npz is damaged \(.*Bad CRC-32"):
            reader.view.learned()["P"]
        with pytest.raises(StoreError, match=r"anchors.npy cannot be read"):
            reader.view.anchor_rows()
    (store.path / "model-1.npz").write_bytes(b"no zip")
    with Store.open(store.path) as reader, pytest.raises(StoreError, match=r"model-1.npz is damaged"):
        reader.view.learned()["P"]


@pytest.mark.parametrize("k", [0, -1, 1.5, "3"])
def test_k_that_is_no_count_is_refused(store, k):
    with pytest.raises(InputError, match="k is"):
        store.view.search(np.zeros((1, 4), np.uint8), k)


@pytest.mark.parametrize(
    "queries", [np.zeros((1, 5), np.uint8), np.zeros(4, np.uint8), np.zeros((1, 4), np.int8)]
)
def test_queries_of_another_shape_or_type_are_refused(store, queries):
    with pytest.raises(InputError, match=r"expected \(n, 4\) bytes of uint8 for codes of 32 bits"):
        store.view.search(queries, 1)


@pytest.mark.parametrize("k", [199, 200, 900])
def test_many_neighbours_come_in_the_same_order_as_few(tmp_path, k):
    """From some k on candidates are counted instead of kept in a heap; ties must not notice."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, size=(700, 4), dtype=np.uint8)  # few values: many ties
    queries = rng.integers(0, 4, size=(6, 4), dtype=np.uint8)
    with Store.create(tmp_path / "s", config={}, d=32) as store:
        with store.writing() as writing:
            writing.commit(
                NewRound(
                    kind="encoded",
                    codes=codes,
                    ids=np.arange(700),
                    keys=[None] * 700,
                    tags=[[]] * 700,
                    trained=0,
                    seconds=0.0,
                )
            )
        D, I = store.view.search(queries, k)
    distances = np.unpackbits(codes[None] ^ queries[:, None], axis=2).sum(axis=2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    n = order.shape[1]
    assert_array_equal(I[:, :n], order)
    assert_array_equal(D[:, :n], np.take_along_axis(distances, order, axis=1))
