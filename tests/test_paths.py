"""Paths of every kind, given to the commands in processes: an answer, or one line and nothing left."""

import contextlib
import functools
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import LENGTH, WORDS, save_chunk

from woh_faiss_cli.main import COMMANDS, main

MEMORY, SECONDS = 4 << 30, 600

pytestmark = pytest.mark.slow  # a process a command

BUILD = ["--bits", "16", "--anchors", "10"]
VECTORS = "".join(f"{word} {i} 1 -{i}\n" for i, word in enumerate(WORDS))


def process(folder, *arguments):
    """A command in a process of its own that may not hang, eat memory or show a traceback."""
    limited = f'ulimit -v {MEMORY >> 10}; exec "$0" -m woh_faiss_cli "$@"'
    return subprocess.run(
        ["bash", "-c", limited, sys.executable, *map(os.fsencode, map(str, arguments))],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # a thread maps memory, too
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


@functools.cache
def imported():
    """Everything that a command imports when it first needs it: once here, not in every fork."""
    import encodings.cp437  # noqa: F401 - what zipfile reads names with

    import gensim.models  # noqa: F401
    import rich.table  # noqa: F401

    for name in (
        "woh_faiss.index.writer",
        "woh_faiss.evaluation.plots",
        "woh_faiss.evaluation.streaming",
        "woh_faiss_cli.tables",
    ):
        importlib.import_module(name)
    for name in COMMANDS:
        main.get_command(None, name)


def fork(folder, *arguments, first=lambda: None, command=lambda given: main(given, "woh-index")):
    """The same in a fork of this process, which need not start an interpreter and import everything.

    It does `first` before anything else, then `command` of the arguments, as texts.
    """
    imported()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            status = 70
            try:
                signal.alarm(SECONDS)
                mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY,) * 2)
                os.chdir(folder)
                for number, file, name, errors in (
                    (1, out, "stdout", "strict"),
                    (2, err, "stderr", "backslashreplace"),
                ):
                    os.dup2(file.fileno(), number)
                    setattr(sys, name, open(number, "w", closefd=False, errors=errors))  # noqa: SIM115
                first()
                command([str(argument) for argument in arguments])
                status = 0
            except SystemExit as ended:
                status = ended.code
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


def run(folder, *arguments):
    """A process of its own at full length, else a fork, for the time."""
    return (process if LENGTH >= 1 else fork)(folder, *arguments)


def inside(folder, *arguments):
    """The same in this process, for what ends well: neither a fork nor limits."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout_bytes, done.stderr_bytes)


def works(folder, *arguments):
    done = (process if LENGTH >= 1 else inside)(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done


def refused(folder, *arguments):
    """The one line on stderr; the folder holds what it held before."""
    before = listing(folder)
    done = run(folder, *arguments)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == b""
    assert done.stderr.startswith(b"Error: ")
    assert done.stderr.count(b"\n") == 1
    assert listing(folder) == before
    return done.stderr.decode()


def listing(folder):
    return sorted(
        (os.fsencode(path), path.lstat().st_size if not path.is_dir() else 0)
        for path in folder.rglob("*")
        if not path.name.startswith("catalog.db-")  # SQLite's own, made and removed by any reader
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A chunk, queries, vectors and an index."""
    folder = tmp_path_factory.mktemp("made")
    save_chunk(folder / "chunk.npz", 0, labels=np.arange(40) % 3)
    save_chunk(folder / "more.npz", 1)
    (folder / "words.txt").write_text(VECTORS)
    works(folder, "build", "chunk.npz", *BUILD, "--word-vectors", "words.txt")
    return folder


@pytest.fixture
def here(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


NAMES = {
    "spaces": " a  b ",
    "Chinese": "索引",
    "emoji": "🖼️📷",
    "not UTF-8": os.fsdecode(b"caf\xe9\xff"),
    "a line end": "a\nb\tc",
    "a dash": "-x",
    "markup": "[bold]x[bold] {y} %s",
    "a long name": "n" * 200,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_name_a_file_may_have(here, name):
    """For the index, the chunk, a folder of arrays and the vectors; a refusal shows it on one line."""
    place = here / name
    place.mkdir()
    for old, new in (("more.npz", "c"), ("words.txt", "w")):
        (here / old).rename(place / (name[:100] + new))
    chunk, words = place / (name[:100] + "c"), place / (name[:100] + "w")
    index = ["--index", place / name]
    works(here, "build", chunk, *index, *BUILD, "--word-vectors", words)
    shown = works(here, "info", *index, "--json").stdout
    assert shown.count(b"\n") == 1
    works(here, "info", *index)
    works(here, "update", here / "chunk.npz", *index)
    arrays = place / "arrays"
    arrays.mkdir()
    np.save(arrays / "features.npy", np.ones((2, 7)))
    works(here, "add", arrays, *index)
    works(here, "query", chunk, "-k", 2, *index)
    chunk.write_bytes(b"PK\x03\x04")
    words.write_bytes(b"a 1 x\n")
    for command in ("update", "add", "query", "evaluate"):
        refused(here, command, chunk, *([] if command == "evaluate" else index))
    refused(here, "build", here / "chunk.npz", "--index", place / "new", "--word-vectors", words)
    refused(here, "build", here / "chunk.npz", *index)


def test_the_longest_name_a_file_may_have(here):
    longest = "é" * 127 + "x"  # 255 bytes
    assert "File name too long" in refused(here, "build", "chunk.npz", "--index", longest + "x")
    works(here, "build", "chunk.npz", "--index", longest)
    works(here, "info", "--index", longest)
    shutil.rmtree(here / longest)
    (here / "more.npz").rename(here / longest)
    works(here, "update", longest)
    assert "File name too long" in refused(here, "update", longest + "x")
    assert "File name too long" in refused(here, "info", "--index", longest + "x")
    assert "File name too long" in refused(
        here, "build", "chunk.npz", "--index", "b", "--word-vectors", longest + "x"
    )


def test_links_are_followed_and_broken_ones_named(here):
    (here / "real").mkdir()
    (here / "index.woh").rename(here / "real" / "index.woh")
    for link, to in {
        "index.woh": "real/index.woh",
        "chunk": "more.npz",
        "words": "words.txt",
        "dangling": "nowhere",
        "loop": "pool",
        "pool": "loop",
    }.items():
        (here / link).symlink_to(to)
    works(here, "update", "chunk", "--word-vectors", "words")
    works(here, "query", "chunk", "-k", 1)
    works(here, "info")
    assert (here / "index.woh").is_symlink()
    for bad in ("dangling", "loop"):
        for command in ("update", "add", "query", "evaluate"):
            assert f"{bad} does not exist" in refused(here, command, bad)
        assert f"{bad}: the file does not exist" in refused(
            here, "update", "chunk.npz", "--word-vectors", bad
        )
        assert "no index at" in refused(here, "info", "--index", bad)
        assert f"{bad} exists already" in refused(here, "build", "chunk.npz", "--index", bad)


def odd_things(here):
    os.mkfifo(here / "pipe")
    (here / "empty").touch()
    (here / "folder").mkdir()
    return ["pipe", "empty", "folder", "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem"]


@pytest.mark.parametrize("command", ["build", "update", "add", "query", "evaluate"])
def test_what_is_no_chunk_file(here, command):
    target = ["--index", "new.woh"] if command == "build" else []
    for thing in odd_things(here):
        message = refused(here, command, thing, *target)
        assert thing in message


def test_what_is_no_file_of_vectors(here):
    for thing in odd_things(here):
        message = refused(here, "update", "more.npz", "--word-vectors", thing)
        assert thing in message


def test_what_is_no_index(here):
    for thing in odd_things(here):
        for command in (["info"], ["query", "chunk.npz"], ["update", "more.npz"], ["add", "more.npz"]):
            assert thing in refused(here, *command, "--index", thing)
        if thing != "folder":  # an empty one, which may become an index
            assert "exists already" in refused(here, "build", "chunk.npz", "--index", thing)


ODD = ["pipe", "folder", "/dev/zero", "loop", "dangling"]
MEMBERS = ["codes.faiss", "ids.i64", "anchors.npy", "model-1.npz"]
#: At less than full length two odd things in place of each file but the catalogue.
SOME = product(MEMBERS, ODD) if LENGTH >= 1 else zip(MEMBERS * 2, ODD * 2, strict=False)


@pytest.mark.parametrize(("name", "odd"), [*product(["catalog.db"], ODD), *SOME])
def test_something_else_in_place_of_a_file_of_the_index(here, name, odd):
    target = here / "index.woh" / name
    target.unlink()
    if odd == "pipe":
        os.mkfifo(target)
    elif odd == "folder":
        target.mkdir()
    else:
        target.symlink_to({"loop": target, "dangling": "nowhere"}.get(odd, odd))
    for command in ("query", "update"):
        assert "index.woh" in refused(here, command, "more.npz")


def test_a_pipe_in_a_folder_of_arrays_is_not_waited_for(here):
    (here / "arrays").mkdir()
    os.mkfifo(here / "arrays" / "features.npy")
    assert "has no key 'features'" in refused(here, "query", "arrays")


def unprivileged(folder, *arguments):
    """The same, by a user who may do no more than the permissions say."""
    if os.geteuid() != 0:
        return refused(folder, *arguments)

    def nobody():
        os.setgid(65534)
        os.setuid(65534)

    before = listing(folder)
    # A fork, which has imported everything: what is imported later may lie where that user may not read.
    done = fork(folder, *arguments, first=nobody)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stderr.startswith(b"Error: ")
    assert done.stderr.count(b"\n") == 1
    assert listing(folder) == before
    return done.stderr.decode()


@pytest.fixture
def open_tmp():
    """A folder that other users can reach, which pytest's own is not."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="woh-open-"))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


def test_what_may_not_be_read_or_written(made, open_tmp):
    shutil.copytree(made, open_tmp, dirs_exist_ok=True)
    for path in open_tmp.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    open_tmp.chmod(0o555)
    assert "ermission" in unprivileged(open_tmp, "build", "chunk.npz", "--index", "new.woh")
    for command in ("update", "add"):
        assert "permission" in unprivileged(open_tmp, command, "more.npz")
    for name in ("more.npz", "words.txt"):
        (open_tmp / name).chmod(0)
    for command in ("query", "update", "add", "evaluate"):
        assert "Permission denied" in unprivileged(open_tmp, command, "more.npz")
    assert "Permission denied" in unprivileged(
        open_tmp, "build", "chunk.npz", "--index", "new.woh", "--word-vectors", "words.txt"
    )
    for name in ("catalog.db", "codes.faiss", "ids.i64", "model-1.npz", "anchors.npy", ""):
        path = open_tmp / "index.woh" / name
        path.chmod(0)
        assert "index.woh" in unprivileged(open_tmp, "query", "chunk.npz")
        path.chmod(0o555)
