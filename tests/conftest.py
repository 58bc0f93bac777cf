"""How the suite runs; a small tagged stream, and an index that has learned its first chunk."""

import gc
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# What is imported and collected stays: until all of it is there, looking for garbage finds none in a second.
gc.disable()

# Before NumPy and Faiss are imported, and for child processes: on arrays as small as here more threads only
# wait for each other, up to ten times as long.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from lengths import LENGTH as LENGTH
from made_items import LEARNED as LEARNED
from made_items import SMALL, tagged
from made_items import WORDS as WORDS

from woh_faiss import WOHConfig, WOHIndex, budget
from woh_faiss.learner import blocks as rows_module
from woh_faiss.learner.blocks import Rows, block_slices
from woh_faiss.learner.training_round import Items, learn_round
from woh_faiss.tags import vocabulary

GOLDEN = Path(__file__).parent / "golden"

MEMORY, DISK = Path("/dev/shm"), Path("/var/tmp")  # noqa: S108
#: Bytes that must be free in memory before temporary files lie there.
ROOM = 2 << 30


def length(n):
    """How often a long test does what it does n times at its full length."""
    return max(1, round(n * LENGTH))


def drawn(n):
    """As `length`, of random cases each of which is slow: a tenth of them where time is short."""
    return length(n) if LENGTH >= 1 else max(1, n // 10)


def full_length_only(*values):
    """Parameters that go the same way as others do: of a test at full length, else none."""
    return list(values) if LENGTH >= 1 else []


# A loaded machine is slow, and random examples are wanted in CI, too.
settings.register_profile(
    "suite",
    max_examples=length(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
)
settings.load_profile("suite")


def pytest_configure(config):
    """Temporary files lie in memory where there is room, but for those of tests marked `disk`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in the background; children would, too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_collection_finish():
    """What was imported is here to stay: collecting garbage, and forks, need not look at it again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """All tests of a database server run in one process, which starts it once."""
    for item in items:
        given = item.callspec.params.get("server") if hasattr(item, "callspec") else None
        for server in {"postgresql", "milvus"} & {*item.fixturenames, given}:
            item.add_marker(pytest.mark.xdist_group(server))


@pytest.fixture
def tmp_path(request, tmp_path):
    """On a disk for tests marked `disk`: in memory fsync takes no time, which hides faults of a store."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="woh-", dir=DISK if DISK.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def unlimited(monkeypatch):
    """What a command that runs in this process says of memory ends with the test."""
    monkeypatch.setattr(budget, "_limit", budget.DEFAULT)
    monkeypatch.setattr(budget, "_kernel", False)


_trained, _tag_vectors = vocabulary.trained, {}


def trained_once(Y, columns, tags, **given):
    """`vocabulary.trained`, which starts a hundred threads, once for the same items."""
    items = Y.shape, Y.indptr.tobytes(), Y.indices.tobytes(), *columns, "", *tags, *given.items()
    if items not in _tag_vectors:
        _tag_vectors[items] = _trained(Y, columns, tags, **given)
    E, own = _tag_vectors[items]
    return E.copy(), own


@pytest.fixture(autouse=True)
def tag_vectors(request, monkeypatch):
    """Where time is short, tags' vectors are learned once from the same items, but where that is tested."""
    if LENGTH < 1 and request.module.__name__ not in ("test_vocabulary", "test_learner"):
        monkeypatch.setattr(vocabulary, "trained", trained_once)


@pytest.fixture
def few_anchors(monkeypatch):
    """Where nobody says how many anchors, 200: a first round is cubic in them, and slow with 1,000."""
    from woh_faiss_cli.main import main

    monkeypatch.setitem(WOHConfig.__init__.__kwdefaults__, "anchors", 200)
    for name in ("build", "import"):
        (option,) = (it for it in main.get_command(None, name).params if it.name == "anchors")
        monkeypatch.setattr(option, "default", 200)


@pytest.fixture
def example(request, tmp_path, monkeypatch, capsys):
    """What a script of examples/ prints; where time is short in this process, with few anchors."""

    def run(name):
        script = Path(__file__).parents[1] / "examples" / name
        if LENGTH >= 1:
            done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            return done.stdout
        request.getfixturevalue("few_anchors")
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def few_figures(monkeypatch):
    """Where time is short, one figure of a benchmark's report: each takes a fifth of a second."""
    from woh_faiss.evaluation.benchmark import report

    every = report.figures
    if LENGTH < 1:
        monkeypatch.setattr(report, "figures", lambda records: dict([*every(records).items()][:1]))


def golden(name):
    """The arrays of one file of golden values: see tests/golden/README.md."""
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="session")
def fixture():
    """The set that golden values were made of, in float64."""
    return {name: array.astype(np.float64) for name, array in golden("fixture").items()}


def learned(phi, Y, Z, B0, W0, past, config, *, aim=None, given=0):
    """`learn_round` of a chunk that is one array each, cut into blocks."""
    parts = [
        Items(phi[rows], Y[rows], Z[rows], B0[rows], None if aim is None else aim[rows],
              min(max(given - rows.start, 0), rows.stop - rows.start))
        for rows in block_slices(len(phi))
    ]  # fmt: skip
    return learn_round(Rows(parts), W0, past, config, semantic=aim is not None)


def save_chunk(path, seed, n=40, **more):
    X, tags = tagged(seed, n)
    np.savez(path, features=X, tags=np.array([";".join([*given, ""]) for given in tags]), **more)
    return path


@pytest.fixture(params=[5, 2048])
def any_blocks(request, monkeypatch):
    """Rows in blocks of 5, and of as many as there are."""
    monkeypatch.setattr(rows_module, "BLOCK", request.param)


@pytest.fixture(scope="session")
def learned_once(tmp_path_factory):
    """The folder that `index` is a copy of."""
    path = tmp_path_factory.mktemp("learned") / "index.woh"
    with WOHIndex.create(path, **SMALL) as index:
        index.update(*tagged(0))
    return path


@pytest.fixture
def index(learned_once, tmp_path):
    shutil.copytree(learned_once, tmp_path / "index.woh")
    with WOHIndex.open(tmp_path / "index.woh") as index:
        yield index


@pytest.fixture
def here(built, tmp_path, monkeypatch):
    """The working folder of a test of commands: a copy of `built`, which the test's module makes once."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def postgresql():
    """PostgreSQL with pgvector."""
    from databases import PostgresServer

    started = PostgresServer()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def milvus():
    """Milvus Lite on a port."""
    from databases import MilvusServer

    started = MilvusServer()
    yield started
    started.stop()


@pytest.fixture(scope="session", params=["postgresql", "milvus"])
def server(request):
    """Each database that codes can be pushed to."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def table(request):
    """A name that no other test has."""
    return "t_" + "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[:50]


@pytest.fixture
def url(server, table):
    """Where that table is."""
    return server.url(table)


@pytest.fixture(scope="session")
def tried():
    """What tries bad files in a process of its own."""
    from fuzzing import Trier

    trier = Trier()
    yield trier
    trier.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")
