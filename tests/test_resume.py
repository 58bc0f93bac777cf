"""What is in the index already is skipped: an update that was interrupted is given again, and goes on."""

import os
import re
import signal

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, length, save_chunk, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from test_paths import fork, run

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError
from woh_faiss.inputs import open_inputs
from woh_faiss.store import files as files_module
from woh_faiss_cli.main import main


def files_of(path):
    """Every byte and record of an index that does not tell the time."""
    found = {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith("catalog.db")}
    with WOHIndex.open(path) as index:
        timed = ("time", "seconds")
        rounds = [{n: getattr(r, n) for n in r.__slots__ if n not in timed} for r in index.rounds()]
        return found, rounds, index.items(np.frombuffer(found["ids.i64"], "<i8")), index.tags()


def extend(index, *paths, **how):
    """(items a round, numbers of the chunks that were skipped)."""
    size = how.pop("size", None)
    notes = []
    inputs = open_inputs(paths, chunk_size=size)
    done = [round_.n for round_ in index.extend(inputs, note=notes.append, **how)]
    return done, [int(re.match(r"chunk (\d+) of ", note)[1]) for note in notes]


def extend_until(rounds, index, paths, **how):
    """Extend by so many rounds, then stop."""
    run = index.extend(paths, **how)
    for _, _round in zip(range(rounds), run, strict=False):
        pass
    run.close()


@pytest.fixture
def files(tmp_path):
    return [save_chunk(tmp_path / f"{seed}.npz", seed, 20) for seed in range(4)]


# ---- the rule ------------------------------------------------------------------------------------------


def test_a_chunk_is_learned_once_unless_asked_again(tmp_path, files):
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        assert extend(index, *files[:2]) == ([20, 20], [])
        assert extend(index, *files[:3]) == ([20], [1, 2])
        assert extend(index, *files[:3]) == ([], [1, 2, 3])
        assert extend(index, files[0], skip_known=False) == ([20], [])
        assert extend(index, files[3], learn=False) == ([20], [])
        assert extend(index, files[3]) == ([], [1])
        assert index.ntotal == 100


def test_a_chunk_given_twice_at_once_is_two_chunks(tmp_path, files):
    """Of chunks that say the same, as many are skipped as the index has."""
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        assert extend(index, files[0]) == ([20], [])
        assert extend(index, files[0], files[0]) == ([20], [1])
        assert extend(index, files[0], files[0], files[0]) == ([20], [1, 2])


def test_what_was_rolled_back_is_learned_anew(tmp_path, files):
    with WOHIndex.create(tmp_path / "i.woh", **SMALL, keep_models=5) as index:
        assert extend(index, *files) == ([20] * 4, [])
        index.rollback(2)
        assert extend(index, *files) == ([20] * 2, [1, 2])


def test_chunks_that_build_joined_are_known_one_by_one(tmp_path, files):
    inputs = open_inputs(files)
    with WOHIndex.build(tmp_path / "i.woh", inputs, **SMALL) as index:
        assert [round_.n for round_ in index.rounds()] == [80]
        assert extend(index, *files) == ([], [1, 2, 3, 4])


def test_named_items_too_are_skipped_as_a_chunk(tmp_path):
    path = save_chunk(tmp_path / "k.npz", 1, 20, keys=[f"k{i}" for i in range(20)])
    part = save_chunk(tmp_path / "part.npz", 1, 10, keys=[f"k{i}" for i in range(10)])
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        assert extend(index, path) == ([20], [])
        assert extend(index, path) == ([], [1])
        for skip_known, given_ in ((False, path), (True, part)):
            with pytest.raises(InputError, match="key 'k0' is in the index already"):
                extend(index, given_, skip_known=skip_known)


def test_other_policies_look_at_named_items_one_by_one(tmp_path, files):
    """To replace a chunk by itself renews its codes; an empty round tells that all was skipped."""
    path = save_chunk(tmp_path / "k.npz", 1, 20, keys=[f"k{i}" for i in range(20)])
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        assert extend(index, path, files[2]) == ([20, 20], [])
        assert extend(index, path, files[2], on_duplicate="replace") == ([20], [2])
        assert extend(index, path, on_duplicate="skip") == ([0], [])
        assert index.ntotal == 40


@settings(max_examples=length(15), deadline=None)
@given(st.data())
def test_an_update_that_replaces_learns_each_chunk_once_however_often_it_stops(tmp_path_factory, data):
    """Chunks that share items, so that later ones replace items of those before."""
    folder = tmp_path_factory.mktemp("stops")
    first = data.draw(st.lists(st.integers(0, 20), min_size=2, max_size=4))
    paths = [
        save_chunk(folder / f"{i}.npz", i, 8, ids=np.arange(start, start + 8))
        for i, start in enumerate(first)
    ]
    found = []
    for name in ("straight", "stopped"):
        with WOHIndex.create(folder / f"{name}.woh", **SMALL) as index:
            index.update(*tagged(9, n=30), ids=np.arange(30))
            while len(index.rounds()) <= len(paths):
                stop = data.draw(st.integers(1, 3)) if name == "stopped" else len(paths)
                extend_until(stop, index, paths, on_duplicate="replace")
        found.append(files_of(folder / f"{name}.woh"))
    assert found[0] == found[1]


def test_what_replaces_is_taken_again_when_anything_came_after_it(tmp_path):
    keys = {"keys": [f"k{i}" for i in range(20)]}
    a, b, c = (save_chunk(tmp_path / f"{seed}.npz", seed, 20, **keys) for seed in range(3))
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:

        def replaced(*paths):
            return extend(index, *paths, on_duplicate="replace")

        assert replaced(a) == ([20], [])
        assert replaced(a) == ([20], [])  # it was finished: this renews the codes
        assert replaced(a, b) == ([20], [1])
        assert replaced(a, c) == ([20, 20], [])  # other inputs
        assert replaced(a) == ([20], [])
        index.remove(keys=["k3"])
        assert replaced(a, b) == ([20, 20], [])
        index.add(tagged(5)[0])
        assert replaced(a, b, c) == ([20, 20, 20], [])
        assert extend(index, a, b, c, c, on_duplicate="replace", skip_known=False) == ([20] * 4, [])
        assert replaced(a, b, c, c, a) == ([20], [1, 2, 3, 4])


@settings(max_examples=length(15), deadline=None)
@given(st.data())
def test_however_often_it_stops_the_end_is_the_same(tmp_path_factory, data):
    """Chunks of few kinds, so that some come twice; each run stops somewhere and the next goes on."""
    folder = tmp_path_factory.mktemp("stops")
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    paths = [save_chunk(folder / f"{i}.npz", kind, 8) for i, kind in enumerate(kinds)]
    found = []
    for name in ("straight", "stopped"):
        with WOHIndex.create(folder / f"{name}.woh", **SMALL) as index:
            while index.ntotal < 8 * len(kinds):
                stop = data.draw(st.integers(1, 3)) if name == "stopped" else len(kinds)
                extend_until(stop, index, paths)
        found.append(files_of(folder / f"{name}.woh"))
    assert found[0] == found[1]


def test_a_bad_file_is_found_before_the_first_new_one_is_committed(tmp_path, files):
    np.savez(tmp_path / "bad.npz", features=np.full((2, 7), np.nan), tags=["sea", "hill"])
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        extend(index, files[0])
        with pytest.raises(InputError, match="not finite"):
            extend(index, files[0], files[1], tmp_path / "bad.npz")
        assert index.ntotal == 20


def test_the_command_says_what_it_skips(tmp_path, files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = CliRunner().invoke
    names = [path.name for path in files]
    built = ask(main, ["build", *names[:2], "--max-chunks", "1", "--bits", "16", "--anchors", "10"])
    assert "round 1: 20 items appended" in built.stderr
    updated = ask(main, ["update", *names])
    assert updated.exit_code == 0
    assert updated.stdout == ""
    lines = updated.stderr.splitlines()
    assert lines[0] == "chunk 1 of 4: already learned (round 1), skipped: 0.npz"
    assert lines[-1].startswith("round 4: 20 items appended")
    skipped = ask(main, ["add", *names[:2], "--verbose"]).stderr
    assert "chunk 2 of 2: already learned (round 2), skipped: 1.npz" in skipped
    assert "round 5: 20 items appended" in ask(main, ["update", names[1], "--no-skip"]).stderr


# ---- killed --------------------------------------------------------------------------------------------


def parquet_folder(folder, named=False):
    """150 items in three files; `named`: with ids, most of them twice."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    for i in range(3):
        X, tags = tagged(i, 50)
        columns = {"embedding": list(X), "tags": tags}
        if named:
            columns["id"] = np.arange(50) + 10 * i
        pq.write_table(pa.table(columns), folder / f"part-{i}.parquet")
    return folder


def killed_later():
    """This process is killed when a fourth round is on the disk and not committed."""
    commits = 0

    def on_step(name):
        nonlocal commits
        commits += name == "after COMMIT"
        if commits == 3 and name == "before COMMIT":
            os.kill(os.getpid(), signal.SIGKILL)

    files_module.on_step = on_step


@pytest.mark.disk
@pytest.mark.parametrize("policy", ["error", "replace"])
def test_an_update_that_is_killed_goes_on_where_it_was(tmp_path, policy):
    folder = parquet_folder(tmp_path / "photos", named=policy == "replace")
    for name in ("straight.woh", "killed.woh"):
        WOHIndex.create(tmp_path / name, **SMALL).close()

    options = ["--chunk-size", 20, "--index", tmp_path / "killed.woh", "--on-duplicate", policy]
    with WOHIndex.open(tmp_path / "straight.woh") as index:
        assert extend(index, folder, size=20, on_duplicate=policy) == ([20, 20, 10] * 3, [])
    killed = fork(tmp_path, "update", folder, *options, first=killed_later)
    assert killed.returncode == -signal.SIGKILL
    resumed = run(tmp_path, "update", folder, *options)
    assert resumed.returncode == 0, resumed.stderr
    told = resumed.stderr.decode()
    assert told.count("skipped") == 1
    assert "3 chunks are in the index already, skipped (--verbose names each)" in told
    command = ["update", str(folder), "--chunk-size", "20", "--index", str(tmp_path / "killed.woh"), "-v"]
    again = CliRunner().invoke(main, command)
    skipped = re.findall(r"^chunk (\d) of 9: already learned \(round \1\), skipped: .*", again.stderr, re.M)
    assert skipped == [str(number) for number in range(1, 10)]
    assert "part-0.parquet, rows 20 to 39" in again.stderr
    assert files_of(tmp_path / "killed.woh") == files_of(tmp_path / "straight.woh")
    assert WOHIndex.verify(tmp_path / "killed.woh") == []


def test_a_folder_that_grows_is_given_again(tmp_path):
    folder = parquet_folder(tmp_path / "photos")
    late = (folder / "part-1.parquet").rename(tmp_path / "part-1.parquet")
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        assert extend(index, folder, size=20) == ([20, 20, 10] * 2, [])
        late.rename(folder / "part-1.parquet")
        assert extend(index, folder, size=20) == ([20, 20, 10], [1, 2, 3, 7, 8, 9])


def test_widths_are_compared_before_anything_is_learned(tmp_path):
    folder = parquet_folder(tmp_path / "photos")
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        index.update(*tagged(9, 20, d=8))
        with pytest.raises(InputError, match=r"part-0.parquet: features have 7 columns, the model .* with 8"):
            extend(index, folder)
