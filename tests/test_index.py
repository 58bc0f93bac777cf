"""WOHIndex against a trainer run beside it and a naive scan."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import faiss
import numpy as np
import pytest
from conftest import SMALL, save_chunk, tagged
from numpy.testing import assert_array_equal

from woh_faiss import WOH, Chunk, WOHIndex, codes
from woh_faiss.errors import ConfigError, InputError, LockedError, NotFittedError, StoreError, WOHError


def naive_search(stored, ids, query, k):
    """No Faiss, no packing tricks: Hamming distance by counting, ties by row, Faiss's marks for nothing."""
    D, I = [], []
    for q in query:
        distances = np.unpackbits(stored ^ q, axis=1).sum(axis=1)
        rows = sorted(range(len(stored)), key=lambda row: (distances[row], row))[:k]
        D.append([int(distances[row]) for row in rows] + [2**31 - 1] * (k - len(rows)))
        I.append([int(ids[row]) for row in rows] + [-1] * (k - len(rows)))
    return np.array(D), np.array(I)


def files_of(path):
    """Bytes of everything that must not change when nothing is committed."""
    return {
        file.name: file.read_bytes()
        for file in sorted(path.iterdir())
        if not file.name.startswith("catalog.db-")
    }


@pytest.mark.parametrize("bits", [8, 16, 48, 64, 96])
@pytest.mark.parametrize("k", [1, 5, 200])
def test_three_rounds_equal_a_trainer_and_a_naive_scan(tmp_path, bits, k):
    hyper = {**SMALL, "bits": bits}
    woh, packed = WOH(**hyper), []
    with WOHIndex.create(tmp_path / "i.woh", instance_bits=0, **hyper) as index:
        for seed in range(2):
            X, tags = tagged(seed)
            assert index.update(X, tags).trained == 40
            packed.append(woh.partial_fit(X, tags).codes_)
        rest, _ = tagged(7, n=30)
        assert index.add(rest, ids=np.arange(500, 530)).kind == "encoded"
        packed.append(woh.encode(rest))
        stored, ids = np.concatenate(packed), np.r_[np.arange(80), np.arange(500, 530)]
        xq, _ = tagged(9, n=6)
        D, I = index.search(xq, k, by="hamming")
        expected = naive_search(stored, ids, woh.encode(xq), k)
        assert_array_equal(D, expected[0])
        assert_array_equal(I, expected[1])
        assert (D.dtype, I.dtype) == (np.int32, np.int64)
        assert index.ntotal == 110
    plain = faiss.read_index_binary(str(tmp_path / "i.woh" / "codes.faiss"))
    assert plain.ntotal == 110
    assert plain.d == codes.stored_bits(bits)
    if k <= 110:
        D_plain, rows = plain.search(codes.pad(woh.encode(xq)), k)
        assert_array_equal(D, D_plain)
        assert_array_equal(I, ids[rows])


def test_search_takes_any_real_array(index):
    xq = np.round(tagged(3, n=4)[0], 2).astype(np.float16)
    expected = index.search(xq, 3)
    for same in (
        xq.astype(float),
        np.asfortranarray(xq),
        np.repeat(xq, 2, axis=0)[::2],
        xq.astype(">f4"),
        xq.tolist(),
    ):
        for got, want in zip(index.search(same, np.int64(3)), expected, strict=True):
            assert_array_equal(got, want)
    assert index.search(xq[:0], 3)[1].shape == (0, 3)
    assert index.d == 7


def test_many_queries_equal_one_at_a_time(index):
    xq, _ = tagged(4, n=500)
    _, I = index.search(xq, 7)
    for row in range(0, 500, 50):
        assert_array_equal(index.search(xq[row : row + 1], 7)[1][0], I[row])


@pytest.mark.parametrize(
    ("xq", "k", "message"),
    [
        (np.ones((2, 6)), 1, "features have 6 columns, the model was fitted with 7"),
        (np.ones(7), 1, "for one item pass"),
        (np.full((1, 7), np.nan), 1, "row 0 are not finite"),
        (np.ones((1, 7)), 0, "k is 0"),
        (np.ones((1, 7)), 1.5, "k is 1.5"),
        (np.array([["a"] * 7]), 1, "dtype"),
    ],
)
def test_bad_queries_are_refused(index, xq, k, message):
    with pytest.raises(InputError, match=message):
        index.search(xq, k)


def test_an_empty_index_answers_as_faiss_does(tmp_path):
    with WOHIndex.create(tmp_path / "i.woh", bits=8) as index:
        D, I = index.search(np.ones((2, 3)), 4, by="hamming")
        assert_array_equal(D, np.full((2, 4), 2**31 - 1))
        assert_array_equal(I, np.full((2, 4), -1))
        D, I = index.search(np.ones((2, 3)), 4)
        assert_array_equal(D, np.full((2, 4), -np.inf, np.float32))
        assert D.dtype == np.float32
        assert_array_equal(I, np.full((2, 4), -1))
        assert index.ntotal == 0
        assert index.info()["d"] is None
        assert not index.is_trained
        for ask in (
            lambda: index.d,
            lambda: index.encode(np.ones((1, 3))),
            lambda: index.add(np.ones((1, 3))),
        ):
            with pytest.raises(NotFittedError, match="has learned nothing yet"):
                ask()
    with WOHIndex.open(tmp_path / "i.woh") as index:
        assert index.update(*tagged(0)).round == 1


def test_neighbours_of_an_indexed_item_leave_it_out(index):
    D, I = index.search_ids([3, 17], 5, by="hamming")
    for row, item in enumerate((3, 17)):
        stored = index._store.view.codes(np.arange(40))
        expected = naive_search(np.delete(stored, item, 0), np.delete(np.arange(40), item), stored[[item]], 5)
        assert_array_equal(D[row], expected[0][0])
        assert_array_equal(I[row], expected[1][0])
    assert index.search_ids(3, 60)[1].shape == (1, 60)
    assert index.search_ids(np.array([], np.int64), 4)[0].shape == (0, 4)
    for missing in (99, -1, 2**63, np.uint64(2**63 + 5)):
        with pytest.raises(StoreError, match=f"id {missing} is not in"):
            index.search_ids([missing], 1)
    for wrong in (2.7, 2**64, "3"):  # never the item of another id
        with pytest.raises(InputError, match="expected integers"):
            index.search_ids([wrong], 1)


def test_an_item_behind_more_duplicates_than_k_is_still_left_out(index):
    X = np.repeat(tagged(0)[0][:1], 9, axis=0)
    index.add(X)
    _, I = index.search_ids([48], 3)
    assert 48 not in I
    assert I.shape == (1, 3)


def test_describe_gives_keys_and_tags_and_no_empty_places(index):
    index.add(tagged(1, n=2)[0], [["New_York"], []], keys=["a b", "ключ"])
    found = index.describe(*index.search(tagged(1, n=2)[0], 50))
    assert [len(hits) for hits in found] == [42, 42]
    by_id = {hit.id: hit for hit in found[0]}
    assert (by_id[40].key, by_id[40].tags) == ("a b", ["New_York"])
    assert (by_id[41].key, by_id[41].tags) == ("ключ", [])
    assert by_id[0].key is None
    assert by_id[0].tags == tagged(0)[1][0]
    assert index.id_of("ключ") == 41
    with pytest.raises(StoreError, match="has the key 'nobody'"):
        index.id_of("nobody")
    with pytest.raises(InputError, match="not UTF-8 text"):
        index.id_of("\udcff")


def test_ids_continue_from_the_largest_ever_used(index):
    index.add(tagged(1, n=2)[0], ids=[2**62, 1000])
    index.add(tagged(2, n=1)[0])
    assert index.items([2**62 + 1])[0].row == 42
    index.add(tagged(3, n=1)[0], ids=[2**63 - 1])
    with pytest.raises(InputError, match="do not fit in 64 signed bits"):
        index.add(tagged(4, n=1)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i.update(*tagged(1), ids=np.arange(39, 79)), "id 39 is in the index already"),
        (lambda i: i.add(tagged(1, n=2)[0], keys=["new", "old"]), "key 'old' is in the index already"),
        (lambda i: i.add(tagged(1, n=2)[0], ids=[77, 77]), "id 77 of row 1 is given twice"),
        (lambda i: i.update(tagged(1)[0]), "has no tags to learn from"),
        (lambda i: i.update(tagged(1)[0][:, :4], tagged(1)[1]), "4 columns, the model was fitted with 7"),
        (lambda i: i.add(np.ones((2, 3))), "3 columns"),
        (lambda i: i.update(Chunk.of(*tagged(1)), ids=np.arange(100, 140)), "a Chunk brings its own"),
        (lambda i: i.add(tagged(1, n=2)[0], ids=[0, 77]), "id 0 is in the index already"),
        (lambda i: i.add(tagged(1, n=2)[0], ids=[77, -1]), "id -1 of row 1 is negative"),
        (lambda i: i.update(np.full((1, 7), np.inf), ["sea"]), "not finite"),
    ],
)
def test_a_refused_chunk_changes_no_file(index, change, message):
    index.add(tagged(5, n=1)[0], keys=["old"])
    before, rounds = files_of(index.path), index.rounds()
    with pytest.raises(InputError, match=message):
        change(index)
    assert files_of(index.path) == before
    assert index.rounds() == rounds
    index.update(*tagged(1))  # and the lock was given back
    assert index.ntotal == 81


def test_reopening_between_rounds_changes_nothing(tmp_path):
    for name in ("stay", "reopen"):
        index = WOHIndex.create(tmp_path / name, **SMALL)
        for seed in range(3):
            index.update(*tagged(seed))
            if name == "reopen":
                index.close()
                index = WOHIndex.open(tmp_path / name)
        index.close()
    stay, reopen = (files_of(tmp_path / name) for name in ("stay", "reopen"))
    assert stay.keys() == reopen.keys()
    for name in stay.keys() - {"catalog.db"}:  # which holds the times
        assert stay[name] == reopen[name], name


def test_an_update_in_a_process_of_its_own_gives_the_same_bytes(tmp_path):
    """Each process orders its hashes anew; nothing on disk may depend on that."""
    script = (
        "import sys\nfrom made_items import tagged\nfrom woh_faiss import WOHIndex\n"
        "with WOHIndex.open(sys.argv[1]) as index:\n    index.update(*tagged(int(sys.argv[2])))\n"
    )
    for name in ("stay", "leave"):
        with WOHIndex.create(tmp_path / name, **SMALL) as index:
            for seed in range(3 if name == "stay" else 1):
                index.update(*tagged(seed))
    for seed in (1, 2):
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "leave"), str(seed)],
            env={
                **os.environ,
                "PYTHONHASHSEED": str(seed),
                "PYTHONPATH": str(Path(__file__).parent / "helpers"),
            },
            check=True,
        )
    stay, leave = (files_of(tmp_path / name) for name in ("stay", "leave"))
    assert stay.keys() == leave.keys()
    for name in stay.keys() - {"catalog.db"}:
        assert stay[name] == leave[name], name


def test_two_writers_in_turn_learn_from_the_newest_state(tmp_path):
    """Each keeps a trainer in memory; it must not be used when the other has moved the index on."""
    with WOHIndex.create(tmp_path / "a", **SMALL) as one, WOHIndex.open(tmp_path / "a") as two:
        for seed, writer in enumerate((one, two, two, one, two)):
            writer.update(*tagged(seed))
    with WOHIndex.create(tmp_path / "b", **SMALL) as alone:
        for seed in range(5):
            alone.update(*tagged(seed))
    assert (tmp_path / "a" / "codes.faiss").read_bytes() == (tmp_path / "b" / "codes.faiss").read_bytes()


def test_a_failed_commit_does_not_leave_the_trainer_ahead(tmp_path, monkeypatch):
    from woh_faiss.store.write_transaction import WriteTransaction

    with WOHIndex.create(tmp_path / "a", **SMALL) as index:
        index.update(*tagged(0))
        with monkeypatch.context() as patch:
            patch.setattr(
                WriteTransaction, "commit", lambda *_, **__: (_ for _ in ()).throw(OSError("no space"))
            )
            with pytest.raises(OSError, match="no space"):
                index.update(*tagged(1))
        index.update(*tagged(1))
    with WOHIndex.create(tmp_path / "b", **SMALL) as straight:
        straight.update(*tagged(0))
        straight.update(*tagged(1))
    assert (tmp_path / "a" / "codes.faiss").read_bytes() == (tmp_path / "b" / "codes.faiss").read_bytes()


def test_a_reader_keeps_its_snapshot_until_refresh(index):
    with WOHIndex.open(index.path) as reader:
        xq, _ = tagged(8, n=3)
        before = reader.search(xq, 50)
        index.update(*tagged(1))
        for got, want in zip(reader.search(xq, 50), before, strict=True):
            assert_array_equal(got, want)
        assert reader.refresh()
        assert not reader.refresh()
        assert reader.ntotal == 80
        for got, want in zip(reader.search(xq, 90), index.search(xq, 90), strict=True):
            assert_array_equal(got, want)


def test_a_reader_outlives_the_model_file_it_reads(index):
    """Only the newest two models are kept; who came before that goes on with the one he opened."""
    xq, _ = tagged(8, n=3)
    expected = index.search(xq, 50)
    with WOHIndex.open(index.path) as reader:  # has read nothing of its model yet
        for seed in range(1, 4):
            index.update(*tagged(seed))
        assert not (index.path / "model-1.npz").exists()
        for got, want in zip(reader.search(xq, 50), expected, strict=True):
            assert_array_equal(got, want)


def test_a_second_writer_waits_then_says_so(index):
    with (
        index._store.writing(),
        WOHIndex.open(index.path) as other,
        pytest.raises(LockedError, match=rf"this process {os.getpid()} since 20\d\d-"),
    ):
        other.update(*tagged(1), timeout=0.05)


def test_searches_in_threads_while_a_writer_appends(index):
    """A reader object of its own: every answer equals the one of its snapshot."""
    xq, _ = tagged(8, n=3)
    with WOHIndex.open(index.path) as reader:
        expected = reader.search(xq, 10)
        wrong, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                D, I = reader.search(xq, 10)
                if not (np.array_equal(D, expected[0]) and np.array_equal(I, expected[1])):
                    wrong.append((D, I))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for seed in range(10):
            index.add(tagged(seed)[0])
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_chunk_without_known_tags_is_an_encoded_round(index):
    X, _ = tagged(1, n=3)
    digest = index.info()["model_digest"]
    done = index.update(X, [["unheard"], ["of"], []])
    assert (done.kind, done.trained, done.n) == ("encoded", 0, 3)
    assert index.info()["model_digest"] == digest
    assert ("unheard", 1, False) in index.tags()
    index.update(*tagged(2))  # and learning goes on
    assert index.update(X + 1, [["unheard"], ["sea"], []]).trained == 2


def test_build_learns_all_or_leaves_nothing(tmp_path):
    chunks = [Chunk.of(*tagged(seed)) for seed in range(2)]
    with WOHIndex.build(tmp_path / "a.woh", chunks, **SMALL) as index:
        assert index.ntotal == 80
    with pytest.raises(StoreError, match=r"a\.woh exists already; 'woh-index update' extends it"):
        WOHIndex.build(tmp_path / "a.woh", chunks, **SMALL)
    bad = Chunk.of(tagged(0)[0][:, :3], tagged(0)[1])
    with pytest.raises(InputError, match="3 columns"):
        WOHIndex.build(tmp_path / "b.woh", [chunks[0], bad], **SMALL)
    with pytest.raises(ConfigError, match="bits is 12"):
        WOHIndex.build(tmp_path / "b.woh", chunks, bits=12)
    assert [path.name for path in tmp_path.iterdir()] == ["a.woh"]


def test_build_takes_back_all_of_it_whatever_stops_it(tmp_path):
    def chunks(error):
        yield Chunk.of(*tagged(0))
        raise error

    for error in (KeyboardInterrupt, MemoryError, InputError("a third file that cannot be read")):
        with pytest.raises(error if isinstance(error, type) else InputError):
            WOHIndex.build(tmp_path / "a.woh", chunks(error), **SMALL)
        assert list(tmp_path.iterdir()) == []


def test_build_is_not_in_the_way_of_what_is_there(tmp_path):
    """A dead link is something."""
    (tmp_path / "link.woh").symlink_to("nowhere")
    with pytest.raises(StoreError, match=r"link\.woh exists already"):
        WOHIndex.build(tmp_path / "link.woh", [Chunk.of(*tagged(0))], **SMALL)
    WOHIndex.build(tmp_path / "a.woh", [Chunk.of(*tagged(0))], **SMALL).close()
    assert {path.name for path in tmp_path.iterdir()} == {"link.woh", "a.woh"}
    with pytest.raises(StoreError, match="File name too long"):
        WOHIndex.build(tmp_path / ("a" * 300), [], **SMALL)


def test_an_empty_folder_becomes_the_index_and_keeps_its_mode(tmp_path, monkeypatch):
    folder = tmp_path / "a.woh"
    folder.mkdir(mode=0o750)
    with pytest.raises(ConfigError):
        WOHIndex.build(folder, [], bits=12)
    assert list(folder.iterdir()) == []
    with WOHIndex.build(folder, [Chunk.of(*tagged(0))], **SMALL) as index:
        assert index.ntotal == 40
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    other = tmp_path / "other"
    other.mkdir()
    (other / "photo.jpg").touch()
    with pytest.raises(StoreError, match=r"other exists already; it holds something else, so choose"):
        WOHIndex.build(other, [Chunk.of(*tagged(0))], **SMALL)
    (other / "photo.jpg").unlink()
    monkeypatch.setattr("os.path.ismount", lambda path: path == other)
    with pytest.raises(StoreError, match=r"other is a mount point; choose a folder in it"):
        WOHIndex.build(other, [Chunk.of(*tagged(0))], **SMALL)


def test_extend_checks_every_file_before_the_first_is_committed(index, tmp_path):
    good = save_chunk(tmp_path / "good.npz", 1)
    before = files_of(index.path)
    np.savez(tmp_path / "narrow.npz", features=np.ones((2, 3)), tags=["sea", "hill"])
    np.savez(tmp_path / "untagged.npz", features=np.ones((2, 7)))
    one = save_chunk(tmp_path / "one.npz", 2, n=1, ids=[90])
    twin = save_chunk(tmp_path / "twin.npz", 3, n=1, ids=[90])
    taken = save_chunk(tmp_path / "taken.npz", 3, n=1, ids=[5])
    named = save_chunk(tmp_path / "named.npz", 3, n=1, keys=["x"])
    again = save_chunk(tmp_path / "again.npz", 4, n=1, keys=["x"])
    next_free = save_chunk(tmp_path / "next_free.npz", 4, n=2, ids=[200, 60])
    largest = save_chunk(tmp_path / "largest.npz", 4, n=1, ids=[2**63 - 1])
    for paths, message in (
        ([good, tmp_path / "narrow.npz"], r"narrow\.npz: features have 3 columns"),
        ([good, tmp_path / "untagged.npz"], r"untagged\.npz has no tags to learn from"),
        ([one, good, twin], r"id 90 is both in .*one\.npz and in .*twin\.npz"),
        ([good, taken], r"taken\.npz: id 5 is in the index already"),
        ([named, again], r"key 'x' is both in"),
        ([good, next_free], r"next_free\.npz: id 60 is what an item of .*good\.npz, which has no ids, gets"),
        ([largest, good], "do not fit in 64 signed bits"),
        ([good, tmp_path / "none.npz"], r"none\.npz"),
    ):
        with pytest.raises(InputError, match=message):
            list(index.extend(paths))
        assert files_of(index.path) == before
    assert [done.n for done in index.extend([good, one, named])] == [40, 1, 1]
    assert [done.kind for done in index.extend([twin.parent / "untagged.npz"], learn=False)] == ["encoded"]


def test_vectors_of_known_tags_stay_when_the_file_is_gone(tmp_path):
    from woh_faiss import WordVectors

    words = tmp_path / "words.txt"
    lines = [
        f"{word} {i}.5 {-i} 1" for i, word in enumerate(["sea", "beach", "hill", "snow", "city", "night"])
    ]
    words.write_text("\n".join(lines) + "\n")
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        index.update(*tagged(0), word_vectors=WordVectors.open(words))
        first = index._store.tag_rows()
        words.unlink()
        X, tags = tagged(1)
        index.update(X, [[*given, "pier"] for given in tags])
    with WOHIndex.open(tmp_path / "i.woh") as index:
        rows = {tag: vector for _, tag, _, vector in index._store.tag_rows()}
    assert len(rows["pier"]) == 3 * 8
    for _, tag, _, vector in first:
        assert rows[tag] == vector


def test_info_says_what_is_there(index):
    index.add(tagged(1, n=10)[0])
    info = index.info(n_tags=2)
    assert (info["ntotal"], info["rounds"], info["bits"], info["stored_bits"], info["d"]) == (
        50,
        2,
        16,
        128,
        7,
    )
    assert info["instance_bits"] == 64
    assert info["tags_known"] == info["tags_seen"] == 6
    assert len(info["tags_top"]) == 2
    assert info["sizes"]["codes.faiss"] == 33 + 50 * 16
    assert [row["kind"] for row in info["history"]] == ["trained", "encoded"]
    assert 0 < info["history"][0]["health"]["balance"] <= 0.5


def test_a_closed_index_says_so(index):
    index.close()
    with pytest.raises(StoreError, match="was closed"):
        index.search(np.ones((1, 7)), 1)


def test_nothing_relies_on_assert_statements(index):
    """Faiss checks widths with assert, which python -O removes: it would read beyond the array."""
    script = (
        "import sys, numpy as np\nfrom woh_faiss import WOHIndex, WOHError\n"
        "index = WOHIndex.open(sys.argv[1])\n"
        "try:\n    index.search(np.ones((1, 6)), 1)\nexcept WOHError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-O", "-c", script, str(index.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "features have 6 columns, the model was fitted with 7\n"


def test_a_folder_that_is_no_index(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(WOHError, match="no index at"):
            WOHIndex.open(path)


@pytest.mark.parametrize("preset", ["adaptive", "paper"])
def test_build_gathers_the_first_chunks_for_a_semantic_start(tmp_path, monkeypatch, preset):
    monkeypatch.setattr("woh_faiss.index.index.FIRST_ROUND", 100)
    chunks = [Chunk.of(*tagged(seed)) for seed in range(5)]
    bare = {"preset": preset, "instance_bits": 0, **SMALL}
    with WOHIndex.build(tmp_path / "a", chunks, **bare) as index:
        assert [done.n for done in index.rounds()] == ([120, 40, 40] if preset == "adaptive" else [40] * 5)
        assert index.ntotal == 200
    named = [Chunk.of(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)]) for seed in range(2)]
    with WOHIndex.build(tmp_path / "b", named, **bare) as index:
        assert index.id_of("1/39") == 79
    with WOHIndex.build(tmp_path / "c", [named[0], chunks[1]], preset=preset, **SMALL) as index:
        assert [done.n for done in index.rounds()] == [40, 40]  # only one of them has keys


def test_a_name_too_long_for_the_file_system_is_one_line(tmp_path):
    with pytest.raises(StoreError, match=r"cannot open .*File name too long"):
        WOHIndex.open(tmp_path / ("x" * 300))


def test_the_round_that_a_write_returns_is_the_one_on_record(tmp_path):
    X, tags = tagged(0)
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        writes = (
            lambda: index.update(X, tags, keys=[f"k{i}" for i in range(len(X))]),
            lambda: index.add(tagged(1)[0]),
            lambda: index.add(X[:2], keys=["k0", "k1"], on_duplicate="replace"),
            lambda: index.add(X[:2], keys=["k0", "k1"], on_duplicate="skip"),
        )
        for write in writes:
            done = write()
            assert done == index.rounds()[-1]
