"""Input files from a stranger: bombs, pickles, headers, and text that a terminal or a browser would obey."""

from __future__ import annotations

import io
import pickle
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flips import template
from harness import Attack, Failure, command, contents, copied, removed
from life import Shim
from model import D, features
from numpy.lib import format as npy

#: What a terminal obeys, or shows elsewhere than it stands: C0 and C1 controls, and marks of direction.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ZEROS = bytes(4 << 20)
NASTY = [
    *("\x1b]0;owned\x07", "\x1b[2J\x1b[31mred", "\x1bP+q544e\x1b\\", "\x9b31m", "\u202egnp.exe", "a\x08b"),
    *("line\nError: it is sound", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\x00b"),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "'; DROP TABLE items;--",
    ),
    *("{{7*7}}", "=1+1", "\ud7ff", "e\u0301" * 200, "%s%n", "k" * 20000),
]


def run(attack: Attack, shim: Shim | None) -> None:
    """Random hostile files, each given to a random command, until the time is up."""
    sound = template(attack.folder / "sound.woh")
    given = attack.folder / "given"
    for number, rng in attack.rounds():
        folder = copied(sound, attack.folder / "index.woh")
        removed(given)
        given.mkdir()
        bait = attack.folder / "bait"
        bait.unlink(missing_ok=True)
        kind = rng.choice(sorted(MAKERS))
        story = ""
        try:
            path = MAKERS[kind](given, bait, rng)
            story = f"{kind}: {path.name}, {path.stat().st_size} bytes"
            attack.counts[f"{kind}: {tried(folder, path, bait, rng)}"] += 1
        except Failure as failure:
            failure.kind = f"{kind}: {failure.kind}"
            attack.fail(failure, number, given, story)
    removed(attack.folder)


def tried(folder: Path, path: Path, bait: Path, rng: random.Random) -> str:
    """One command with the file, then what it shows, if it was taken."""
    where = ["--index", str(folder)]
    if path.suffix in (".kv", ".vec"):
        argv = ["update", str(path.with_name("plain.npz")), "--word-vectors", str(path), *where]
    else:
        what = rng.choice(["add", "add", "update", "query", "build", "remove"])
        argv = [what, str(path), *where]
        if what == "build":
            argv = [
                "build",
                str(path),
                "--bits",
                "32",
                "--anchors",
                "20",
                "--index",
                str(path.with_name("new.woh")),
            ]
        elif what == "remove":
            argv = ["query", str(path), "--json", *where]
    before = contents(folder) if argv[0] in ("query", "build") else {}
    ran = command(*argv)
    if bait.exists():
        raise Failure("code in a file was run", " ".join(argv))
    shown(ran.out + ran.err, " ".join(argv[:1]))
    if before and {n for n, data in contents(folder).items() if data != before.get(n)} - {
        "catalog.db-shm",
        "catalog.db-wal",
        "catalog.db",
    }:
        raise Failure("a command that only reads changed files", argv[0])
    if ran.code:
        return "refused"
    index = ["--index", argv[-1]]
    queries = str(path.with_name("plain.npz"))
    page = path.with_name("page.html")
    for asked in (["query", queries, "-k", "60"], ["query", queries, "-k", "60", "--json"], ["info"]):
        shown(command(*asked, *index).out, " ".join(asked[:1]))
    command("query", queries, "-k", "60", "--html", str(page), *index)
    if page.exists():
        text = page.read_text(errors="replace")
        if (
            "<script>alert" in text
            or re.search("<img src=x", text)
            or re.search("(href|src)=.javascript:", text)
        ):
            raise Failure("markup in an answer's page", str(page))
        if "root:x:" in text:
            raise Failure("another's file in an answer's page", str(page))
    if command("verify", *index).code:
        raise Failure("taken, then verify tells faults", " ".join(argv))
    return "taken"


def shown(text: str, by: str) -> None:
    """What is printed holds nothing that a terminal obeys, and no line that a key made."""
    if found := OBEYED.search(text.replace("\r", "")):
        raise Failure("control characters are printed", f"{by}: {found[0]!r} in {text[:200]!r}")
    if re.search(r"^Error: it is sound", text, re.MULTILINE):
        raise Failure("a key makes a line of its own", by)


# ---- hostile files -----------------------------------------------------------------------------------


class _Touch:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return open, (str(self._path), "w")


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    npy.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def _plain(folder: Path, **more: Any) -> dict[str, Any]:
    X, tags = features(8, 10)
    arrays = {"features": X, "tags": np.array([";".join(row) for row in tags]), "ids": np.arange(5000, 5010)}
    np.savez(folder / "plain.npz", **arrays)
    return {**arrays, **more}


def _zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _header(shape: str, descr: str = "'<f4'", version: tuple[int, int] = (1, 0)) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(text) & 0xFFFF) + text


def _npz_bomb(folder: Path, bait: Path, rng: random.Random) -> Path:
    """A gigabyte of zeros in a megabyte, under a header that says so, or says less, or more."""
    _plain(folder)
    made = bait.with_name("gigabyte.deflated")  # once: it takes seconds
    if not made.exists():
        pack = zlib.compressobj(1, wbits=-15)
        with made.open("wb") as file:
            for _ in range(256):
                file.write(pack.compress(bytes(4 << 20)))
            file.write(pack.flush())
    rows = rng.choice([10, (1 << 30) // (4 * D), 10**9])
    head = _header(f"({rows}, {D})")
    body = bytes([0]) + struct.pack("<HH", len(head), len(head) ^ 0xFFFF) + head + made.read_bytes()
    name, size = b"features.npy", (1 << 30) + len(head)
    fields = struct.pack(
        "<HHHHHIIIHH", 20, 0, 8, 0, 33, _crc_of_a_gigabyte(head), len(body), size, len(name), 0
    )
    local = b"PK\3\4" + fields + name + body
    central = b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return _written(folder / "bomb.npz", local + central + end)


@cache
def _crc_of_a_gigabyte(head: bytes) -> int:
    crc = zlib.crc32(head)
    for _ in range(256):
        crc = zlib.crc32(ZEROS, crc)
    return crc


def _npz_text_bomb(folder: Path, bait: Path, rng: random.Random) -> Path:
    arrays = _plain(folder)
    wide = np.zeros(10, f"<U{rng.choice([1_000_000, 5_000_000])}")
    wide[:] = "sea"
    return _zip(
        folder / "wide.npz",
        {"features.npy": _npy(arrays["features"]), rng.choice(["tags.npy", "keys.npy"]): _npy(wide)},
        zipfile.ZIP_DEFLATED,
    )


def _pickle(folder: Path, bait: Path, rng: random.Random) -> Path:
    arrays = _plain(folder)
    name = rng.choice(["features", "tags", "ids", "keys"])
    objects = np.array([_Touch(bait)] * 10, dtype=object)
    return _zip(folder / "pickle.npz", {f"{n}.npy": _npy(a) for n, a in {**arrays, name: objects}.items()})


def _pickled_vectors(folder: Path, bait: Path, rng: random.Random) -> Path:
    _plain(folder)
    path = folder / "words.kv"
    evil = [_Touch(bait), np.zeros(3), {"vectors": _Touch(bait)}, [_Touch(bait)] * 3]
    path.write_bytes(pickle.dumps(rng.choice(evil), protocol=rng.choice([0, 2, 4, 5])))
    return path


def _npy_header(folder: Path, bait: Path, rng: random.Random) -> Path:
    _plain(folder)
    shapes = [
        "(True, 12)",
        "(-1, 12)",
        "(10**9, 12)",
        "(4611686018427387904, 12)",
        "(10, 12, 1)",
        "()",
        "(1e1, 12)",
    ]
    types = [
        "'<f4'",
        "'|O'",
        "'<U99999999'",
        "[('a', '<f4')]",
        "'<M8[s]'",
        "'<c16'",
        "'|V0'",
        "'>f2'",
        "(" * 200,
    ]
    head = _header(rng.choice([*shapes, "(10, 12)"]), rng.choice(types), rng.choice([(1, 0), (9, 9)]))
    path = folder / rng.choice(["header.npy", "header.npz"])
    data = head + bytes(480)
    return _zip(path, {"features.npy": data}) if path.suffix == ".npz" else _written(path, data)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _odd_zip(folder: Path, bait: Path, rng: random.Random) -> Path:
    arrays = _plain(folder)
    members = {f"{n}.npy": _npy(a) for n, a in arrays.items()}
    kind = rng.choice(["outside", "twice", "cut", "flipped", "many"])
    if kind == "outside":
        members |= {"../../bait": b"x", f"{bait}": b"x"}
    if kind == "many":
        members |= {f"{i}.npy": b"" for i in range(30_000)}
    path = _zip(folder / f"{kind}.npz", members)
    data = bytearray(path.read_bytes())
    if kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind == "flipped":
        for _ in range(rng.choice([1, 20])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "twice":
        data += bytes(data)
    return _written(path, bytes(data))


def _text(folder: Path, bait: Path, rng: random.Random) -> Path:
    """Keys and tags that a terminal, a page or a database would obey."""
    arrays = _plain(folder)
    few = rng.sample(NASTY, 3)  # with all in one file most would be refused for the NUL in one
    texts = [f"{rng.choice(few)}{i}" for i in range(10)]
    name = rng.choice(["keys", "tags"])
    return _zip(
        folder / "text.npz", {f"{n}.npy": _npy(a) for n, a in {**arrays, name: np.array(texts)}.items()}
    )


def _values(folder: Path, bait: Path, rng: random.Random) -> Path:
    arrays = _plain(folder)
    X = arrays["features"].astype(rng.choice(["f2", "f4", "f8", "i8", "?"]))
    if X.dtype.kind == "f":
        X[rng.randrange(10), rng.randrange(D)] = rng.choice([np.nan, np.inf, -np.inf, 6e4])
    ids = [
        np.arange(10) * 0,
        -np.arange(10),
        np.full(10, 2**63 - 1),
        np.arange(10) / 3,
        np.arange(10) + 2**62,
    ]
    ids += [np.arange(10, dtype=np.uint64) + np.uint64(2**63), np.array(["7"] * 10)]
    changed = {**arrays, "features": X, "ids": rng.choice(ids)}
    return _zip(folder / "values.npz", {f"{n}.npy": _npy(a) for n, a in changed.items()})


def _parquet(folder: Path, bait: Path, rng: random.Random) -> Path:
    """Text that is stored once and repeated, lists that are not of one length, bytes that are flipped."""
    _plain(folder)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return folder / "plain.npz"
    kind = rng.choice(["bomb", "flipped", "ragged"])
    path = folder / f"{kind}.parquet"
    rows = 4000 if kind == "bomb" else 10
    X = features(8, rows)[0].tolist()
    if kind == "ragged":
        X[3] = X[3][:5]
    text = ["sea " * (100_000 if kind == "bomb" else 1)] * rows
    table = pa.table({"features": X, "tags": pa.array(text).dictionary_encode()})
    pq.write_table(table, path, compression="zstd")
    if kind == "flipped":
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 5])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    return path


MAKERS: dict[str, Callable[[Path, Path, random.Random], Path]] = {
    ".npz bomb": _npz_bomb,
    ".npz text bomb": _npz_text_bomb,
    "pickle in .npz": _pickle,
    "pickle as .kv": _pickled_vectors,
    ".npy header": _npy_header,
    "odd zip": _odd_zip,
    "text": _text,
    "values": _values,
    "Parquet": _parquet,
}
