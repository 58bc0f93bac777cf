"""What is made of a file stays within --max-memory, whatever it says: the peaks of real commands."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from conftest import LENGTH, SMALL, WORDS, tagged

from woh_faiss import WOHIndex, WordVectors, budget
from woh_faiss.errors import InputError, MemoryBudgetError

MB = 1 << 20
#: The budget of hostile files; what a command may take besides: its libraries; and, where only the system
#: knows how much is made of a file, what it allows for libraries that are loaded meanwhile.
BUDGET, BESIDES, BY_SYSTEM = 64 * MB, 160 * MB, 640 * MB
N = 60
X = tagged(0, n=N)[0].astype(np.float32)
TAGS = [[WORDS[i % 6], WORDS[i % 2]] for i in range(N)]
LINES = [" ".join(row) for row in TAGS]


#: Of a child of this process Linux would tell the peak of this process, if that was higher.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(process.returncode, usage.ru_maxrss)
"""


def run(folder, *args):
    """(exit code, stderr, peak bytes) of a command of its own."""
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", "woh_faiss_cli", *map(str, args)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, check=True)
    code, peak = done.stdout.split()
    return int(code), done.stderr, int(peak) * 1024


def sparse_zeros(shape, dtype):
    """Zeros with so much noise that they shrink to a few hundredths, not further than deflate can."""
    array = np.zeros(shape, dtype)
    flat = array.reshape(-1).view(np.uint8)
    flat[::499] = 1
    return array


def save_compressed(path, **arrays):
    """As `np.savez_compressed`, in half the time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array))


def texts(size):
    """A column of text whose first is `size` bytes long, without a conversion of it, which takes seconds."""
    rest = "".join(LINES[1:]).encode()
    data = np.resize(np.frombuffer(b"ab " * MB, np.uint8), size + len(rest))  # one allocation: more take long
    data[size:] = np.frombuffer(rest, np.uint8)
    ends = np.cumsum([0, size, *map(len, LINES[1:])]).astype(np.int32)
    return pa.StringArray.from_buffers(N, pa.py_buffer(ends), pa.py_buffer(data))


def npz_features(folder):
    features = sparse_zeros((400, 160 * 1024), np.float32)
    save_compressed(folder / "a.npz", features=features, tags=["a b"] * 400)
    return ["build", "a.npz"]


def npz_text(folder):
    tags = sparse_zeros((N, 400_000), np.uint32).view("<U400000")[:, 0]
    save_compressed(folder / "a.npz", features=X, tags=tags)
    return ["build", "a.npz"]


def npz_labels(folder):
    n = 20_000
    labels = np.zeros(n, np.int64)
    labels[0] = 65_535
    np.savez_compressed(
        folder / "a.npz", features=np.eye(n, 8, dtype=np.float32), tags=["a b"] * n, labels=labels
    )
    return ["evaluate", "a.npz"]


def npz_marks(folder):
    save_compressed(folder / "a.npz", features=X, tags=np.ones((N, 800_000), bool))
    return ["build", "a.npz"]


def parquet_text(folder):
    """Every row the same megabyte, stored once."""
    text = "ab " * 350_000
    table = pa.table(
        {
            "embedding": list(X) * 40,
            "tags": pa.DictionaryArray.from_arrays(pa.array(np.zeros(2400, np.int8)), [text]),
        }
    )
    pq.write_table(table, folder / "a.parquet", compression="zstd")
    return ["build", "a.parquet"]


def parquet_lists(folder):
    """A row of twelve million tags, all of them one."""
    flat = pa.DictionaryArray.from_arrays(pa.array(np.zeros(12_000_000, np.int8)), ["sea"])
    lists = pa.ListArray.from_arrays(np.r_[0, np.full(N, 12_000_000)].astype(np.int32), flat.cast("string"))
    pq.write_table(pa.table({"embedding": list(X), "tags": lists}), folder / "a.parquet", compression="zstd")
    return ["build", "a.parquet"]


def parquet_page(folder):
    """One value of 650 MB in a page of 65 kB: more than the system lets a command have."""
    table = pa.table({"embedding": list(X), "tags": texts(650 * MB)})
    pq.write_table(
        table, folder / "a.parquet", compression="zstd", use_dictionary=False, write_statistics=False
    )
    return ["build", "a.parquet"]


def parquet_keys(folder):
    """NumPy would give every key the room of the longest."""
    table = pa.table(
        {"embedding": list(X) * 40, "tags": LINES * 40, "key": ["x" * MB, *map(str, range(2399))]}
    )
    pq.write_table(table, folder / "a.parquet", compression="zstd")
    return ["build", "a.parquet", "--chunk-size", "2400"]


def arrow_compressed(folder):
    table = pa.table({"embedding": list(X), "tags": texts(650 * MB)})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
    return ["build", "a.arrow"]


def arrow_dictionary(folder):
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2400, np.int8)), ["ab " * 350_000])
    table = pa.table({"embedding": list(X) * 40, "tags": text})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return ["build", "a.arrow"]


def embeddings(folder):
    for name in ("img_emb", "metadata"):
        (folder / "out" / name).mkdir(parents=True)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2400, np.int8)), ["ab " * 350_000])
    table = pa.table({"caption": text})
    np.save(folder / "out" / "img_emb" / "img_emb_0.npy", np.tile(X, (40, 1)))
    pq.write_table(table, folder / "out" / "metadata" / "metadata_0.parquet", compression="zstd")
    return ["build", "out"]


def hdf5_chunk(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        data = sparse_zeros((N, 1_000_000), np.float32)
        file.create_dataset(
            "features", data=data, chunks=(N, 1_000_000), compression="gzip", compression_opts=1
        )
        file["tags"] = LINES
    return ["build", "a.h5"]


def hdf5_text(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["features"] = X
        tags = sparse_zeros((N, 4_000_000), np.uint8).view("S4000000")[:, 0]
        file.create_dataset("tags", data=tags, chunks=(1,), compression="gzip")
    return ["build", "a.h5"]


def mat5(folder):
    scipy.io.savemat(
        folder / "a.mat",
        {"features": sparse_zeros((N, 2_000_000), np.int8), "tags": np.eye(N)},
        do_compression=True,
    )
    return ["build", "a.mat"]


def words_gz(folder):
    """Few letters a number: float32 and gensim make twenty times as much of them."""
    row = " ".join(map(str, np.random.default_rng(0).integers(10, size=4200)))
    text = "".join(
        f"w{i} {row[2 * (i % 64) :]} {row[: 2 * (i % 64)]}".rstrip() + "\n" for i in range(4200)
    ).encode()
    (folder / "w.gz").write_bytes(gzip.compress(text, 1))
    small(folder)
    return ["build", "small.npz", "--word-vectors", "w.gz"]


def words_saved(folder):
    arrays = {"words": np.frombuffer(b"ab", np.uint8), "offsets": np.array([0, 1, 2])}
    save_compressed(folder / "w.npz", **arrays, vectors=sparse_zeros((2, 30_000_000), np.float32))
    small(folder)
    return ["build", "small.npz", "--word-vectors", "w.npz"]


def side(name, *parts):
    """A file that holds these texts, each so often."""

    def make(folder):
        import faiss

        index = faiss.IndexFlatL2(X.shape[1])
        index.add(X)
        faiss.write_index(index, str(folder / "a.faiss"))
        (folder / name).write_text("".join(piece * times for piece, times in parts))
        return ["import", "a.faiss", "--tags", name]

    return make


def allowed(folder):
    small(folder)
    with WOHIndex.create(folder / "index.woh", **SMALL) as index:
        index.update(X, TAGS)
    (folder / "allow.txt").write_text("5\n" * 4_000_000)
    return ["query", "small.npz", "--index", "index.woh", "--allow", "allow.txt"]


def small(folder):
    np.savez(folder / "small.npz", features=X, tags=LINES)


HOSTILE = {
    "npz, features": npz_features,
    "npz, text": npz_text,
    "npz, class numbers": npz_labels,
    "npz, 0/1 tags": npz_marks,
    "Parquet, a text many times": parquet_text,
    "Parquet, a list of one word": parquet_lists,
    "Parquet, a page": parquet_page,
    "Parquet, a long key": parquet_keys,
    "Arrow, compressed": arrow_compressed,
    "Arrow, dictionary": arrow_dictionary,
    "embeddings": embeddings,
    "HDF5, a chunk": hdf5_chunk,
    "HDF5, text": hdf5_text,
    "mat": mat5,
    "words, gzipped": words_gz,
    "words, saved": words_saved,
    "JSON of brackets": side("t.jsonl", ("[", 1), ("[],", 8_000_000), ("[]]\n", 1), ("[]\n", N - 1)),
    "a line of words": side("t.txt", ("a b ", 8_000_000), ("\n", 1), ("a b\n", N - 1)),
    "a list of ids": allowed,
}
#: What is made of these before anybody can count it.
LARGE = [HOSTILE["Parquet, a list of one word"], HOSTILE["JSON of brackets"]]


@pytest.mark.slow
@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_within_the_budget(tmp_path, make):
    args = make(tmp_path)
    pa.default_memory_pool().release_unused()  # which later tests, that fork, would carry along
    index = [] if "--index" in args or args[0] == "evaluate" else ["--index", "new.woh"]
    code, said, peak = run(tmp_path, *args, *index, "--max-memory", BUDGET)
    assert code == 1, said
    assert said.splitlines()[-1].startswith("Error: ")
    assert said.count("Error") == 1
    assert "more than the 64 MiB of memory that input may take" in said
    assert "--max-memory" in said
    assert peak < BUDGET + (BY_SYSTEM if make in LARGE else BESIDES), peak / MB
    assert not (tmp_path / "new.woh").exists()


def honest(folder):
    """Files of every format that unpack to a good part of the budget, and what is to be said of each."""
    n, d = 6000, 256
    features = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    tags = [f"{WORDS[i % 6]} {WORDS[i % 5]} tag{i % 50}" for i in range(n)]
    keys = [f"photos/{i}.jpg" for i in range(n)]
    np.savez_compressed(folder / "a.npz", features=features, tags=tags, keys=keys)
    table = pa.table({"embedding": list(features), "tags": [t.split() for t in tags], "key": keys})
    pq.write_table(table, folder / "a.parquet", compression="zstd")
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("features", data=features, chunks=True, compression="gzip", compression_opts=1)
        file["tags"], file["key"] = tags, keys
    marks = np.array([[word in t.split() for word in WORDS] for t in tags], float)
    scipy.io.savemat(folder / "a.mat", {"features": features, "tags": marks}, do_compression=True)
    return ["a.npz", "a.parquet", "a.arrow", "a.h5", "a.mat"]


@pytest.mark.slow
def test_honest_files_within_the_budget_are_taken(tmp_path):
    """6 MB of features, 64 MB of budget: no estimate may be ten times too high."""
    # With word vectors none are learned, which would take most of the time; saved ones need no gensim.
    (tmp_path / "words.txt").write_text("".join(f"{word} {i} 1\n" for i, word in enumerate(WORDS)))
    WordVectors.open(tmp_path / "words.txt").save(tmp_path / "words.npz")
    more = ["--max-memory", BUDGET, "--anchors", 50, "--bits", 16, "--word-vectors", "words.npz"]
    with WOHIndex.create(tmp_path / "learned.woh", **SMALL) as index:
        index.update(np.random.default_rng(1).normal(size=(N, 256)), TAGS)
    for number, name in enumerate(honest(tmp_path)):
        if number == 0 or LENGTH >= 1:
            args = ["build", name, "--index", f"{number}.woh", *more]
        else:  # where time is short nothing is learned from the other formats
            shutil.copytree(tmp_path / "learned.woh", tmp_path / f"{number}.woh")
            args = ["add", name, "--index", f"{number}.woh", "--max-memory", BUDGET]
        code, said, _ = run(tmp_path, *args)
        assert code == 0, (name, said)
        with WOHIndex.open(tmp_path / f"{number}.woh") as index:
            assert index.ntotal >= 6000


@pytest.mark.slow
def test_what_is_mapped_does_not_count(tmp_path):
    (tmp_path / "chunk").mkdir()
    features = np.lib.format.open_memmap(tmp_path / "chunk" / "features.npy", "w+", np.float32, (800, 24_000))
    features[:] = np.random.default_rng(0).normal(size=(1, 24_000))
    features[:, :6] += np.eye(6)[np.arange(800) % 6]
    del features  # 77 MB
    np.save(tmp_path / "chunk" / "tags.npy", np.array([WORDS[i % 6] for i in range(800)]))
    more = ["--anchors", 20, "--bits", 8, "--instance-bits", 0]
    code, said, _ = run(tmp_path, "build", "chunk", "--index", "i.woh", "--max-memory", BUDGET, *more)
    assert code == 0, said


# ---- the accounts themselves ------------------------------------------------------------------------------


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(budget, "_limit", 10 * MB)


def test_a_file_has_one_account_however_many_readers(limit):
    with budget.reading("a.npz"):
        budget.take(6 * MB, "features")
        with (
            budget.reading("inner"),
            pytest.raises(MemoryBudgetError, match=r"inner: tags would need more than"),
        ):
            budget.take(6 * MB, "tags")
    with budget.reading("next"):
        budget.take(9 * MB, "features")
    budget.take(9 * MB, "alone")
    budget.take(9 * MB, "alone again")
    with pytest.raises(MemoryBudgetError):
        budget.take(11 * MB, "alone")


def test_memory_that_ran_out_is_said_in_one_line(limit):
    with (
        pytest.raises(
            MemoryBudgetError, match=r"^b needs more memory than there is; give less at once$"
        ) as caught,
        budget.reading("b"),
    ):
        raise MemoryError
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500M", 500 * MB),
        ("8 GiB", 8 << 30),
        ("1.5g", 3 << 29),
        ("1048576", MB),
        (1 << 21, 1 << 21),
        ("2tb", 2 << 40),
    ],
)
def test_sizes(text, size):
    assert budget.parsed(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1G", "1K", "lots", "1 G B", "1e9", "nan", True, 4.5, "٣G", 10**30]
)
def test_what_is_no_size(text):
    with pytest.raises(InputError, match="expected at least 1M"):
        budget.parsed(text)


SET = """
import resource, sys
import numpy as np
from woh_faiss import read_chunk, set_max_memory
from woh_faiss.errors import MemoryBudgetError
before = resource.getrlimit(resource.RLIMIT_DATA)
set_max_memory("64M")
try:
    read_chunk(sys.argv[1])
except MemoryBudgetError as error:
    print(error)
assert resource.getrlimit(resource.RLIMIT_DATA) == before
set_max_memory("2G")
print(read_chunk(sys.argv[1]).features.nbytes)
"""


def test_in_python_one_call_sets_it(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones((1000, 20_000), np.float32))
    done = subprocess.run(
        [sys.executable, "-c", SET, tmp_path / "a.npz"], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "a.npz: its arrays would need more than the 64 MiB of memory" in first
    assert second == "80000000"


def test_an_option_that_is_no_size_is_a_usage_error(tmp_path):
    code, said, _ = run(tmp_path, "build", "a.npz", "--max-memory", "lots")
    assert code == 2
    assert "'lots' is not a size of at least 1M, such as 500M or 8G" in said


def test_every_command_that_reads_files_has_the_option():
    from woh_faiss_cli.main import COMMANDS, main

    readers = {"build", "update", "add", "embed", "import", "remove", "query", "evaluate", "benchmark"}
    for name in COMMANDS:
        options = {option for parameter in main.get_command(None, name).params for option in parameter.opts}
        assert ("--max-memory" in options) == (name in readers), name


def test_json_of_an_honest_side_file_is_cheap(tmp_path):
    """A chunk of two thousand captions takes a few megabytes of the account, not hundreds."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"caption": f"a dog at sea {i} " * 10}) + "\n" for i in range(2000)))
    from woh_faiss.inputs.columns import Columns
    from woh_faiss.inputs.tag_file import open_side
    from woh_faiss.tags.splitting import TagTexts

    with budget.reading("t"):
        assert len(next(open_side(Path(path), Columns(), TagTexts()).read(2000))["tags"]) == 2000
        assert budget._account.get().taken < 40 * MB
