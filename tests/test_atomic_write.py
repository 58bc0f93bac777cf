"""Files that are replaced, and those that are new: modes, owners, links, names that nobody can guess."""

import os
import stat

import numpy as np
import pytest
from conftest import SMALL, save_chunk, tagged
from test_cli import BUILD, run

from woh_faiss import WOHIndex
from woh_faiss.index.code_files import valid_codes, write_codes
from woh_faiss.store import files


def mode(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def page(index, path):
    np.savez(path.with_name("q.npz"), features=tagged(8, n=3)[0])
    run("query", path.with_name("q.npz"), "--index", index.path, "--html", path)


#: Everything that writes a file of a name that people give.
WRITERS = {
    "out.faiss": lambda index, path: index.export(path, "flat", force=True),
    "hasher.npz": lambda index, path: index.hasher.save(path),
    "codes.npz": lambda index, path: write_codes(path, valid_codes(np.zeros((2, 2), np.uint8)), "m"),
    "page.html": page,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_new_file_has_the_umasks_mode_and_a_replaced_one_keeps_its_own(index, tmp_path, umask, name):
    path = tmp_path / name
    WRITERS[name](index, path)
    assert mode(path) == "0o640"
    for kept in (0o600, 0o666, 0o444):
        path.chmod(kept)
        WRITERS[name](index, path)
        assert mode(path) == oct(kept)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", WRITERS)
def test_root_keeps_a_files_owner(index, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    os.chown(path, 12345, 54321)
    WRITERS[name](index, path)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)
    assert path.stat().st_size


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_written_through(index, tmp_path, name, there):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / name
    if there:
        target.write_bytes(b"old")
    link.symlink_to("elsewhere/target")
    WRITERS[name](index, link)
    assert link.is_symlink()
    assert target.stat().st_size > 3
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert not list(tmp_path.glob(".woh-index*"))


@pytest.mark.parametrize("name", ["codes.faiss", "ids.i64"])
@pytest.mark.parametrize("work", ["compact", "rollback"])
def test_files_of_an_index_that_are_rewritten_keep_their_mode(index, umask, name, work):
    index.update(*tagged(1))
    index.remove([3])
    (index.path / name).chmod(0o660)
    index.compact() if work == "compact" else index.rollback(1)
    assert mode(index.path / name) == "0o660"
    index.update(*tagged(2))
    index.build_ann("ivf")
    made = [path for path in index.path.iterdir() if path.name.startswith(("model-", "ann-"))]
    assert {mode(path) for path in made[-2:]} <= {"0o640", "0o644"}


def test_a_link_under_a_temporary_name_is_not_written_to(index, tmp_path):
    """It may come after a writer has tidied up."""
    victim = tmp_path / "letter.txt"
    victim.write_text("dear")
    pending = ["model-2.npz.tmp", "codes.faiss.1", "ids.i64.1"]

    with index._store.writing() as update:  # the lock is held, strays are gone
        for name in pending:
            (index.path / name).symlink_to(victim)
        files.replace(index.path / "model-2.npz", lambda file: file.write(b"x"))
        files.write(index.path / "codes.faiss.1", b"x", [], index.path / "codes.faiss")
        assert update.snapshot.round == 1
    assert victim.read_text() == "dear"


def test_an_index_is_built_where_nobody_else_can_look(tmp_path, umask):
    seen = []

    def chunks():
        for seed in range(2):
            folders = list(tmp_path.glob(".woh-index-*.building"))
            seen.extend((path.name, mode(path)) for path in folders)
            yield tagged_chunk(seed)

    planted = tmp_path / f".woh-index-00000000.building-{os.getpid()}"
    planted.mkdir()
    (planted / "x").write_text("kept")
    with WOHIndex.build(tmp_path / "i", chunks(), **SMALL) as index:
        assert index.ntotal == 80
    assert {found for _, found in seen} == {"0o700"}
    assert len({name for name, _ in seen}) == 1
    assert mode(tmp_path / "i") == "0o750"
    assert {mode(path) for path in (tmp_path / "i").iterdir()} == {"0o640"}
    assert (planted / "x").read_text() == "kept"
    assert not list(tmp_path.glob(".woh-index-*.building"))


def tagged_chunk(seed):
    from woh_faiss import Chunk

    return Chunk.of(*tagged(seed))


def test_the_command_builds_with_the_umasks_modes(tmp_path, monkeypatch, umask):
    monkeypatch.chdir(tmp_path)
    save_chunk("chunk.npz", 0)
    run("build", "chunk.npz", *BUILD)
    assert mode(tmp_path / "index.woh") == "0o750"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chunk.npz", "index.woh"]
