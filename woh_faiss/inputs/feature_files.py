"""Features of pictures and texts as Parquet files of one folder, which `open_inputs` reads.

A file holds a chunk of items. It is written whole, and says of which items and by which encoder it is. So
work that was killed goes on with the first file that is missing, and gives the same bytes.

pyarrow is imported in the functions that need it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from woh_faiss.display import display_path
from woh_faiss.encoders import Encoder, EncoderRecord, open_encoder
from woh_faiss.encoders.encoder import BATCH, FEATURES, IMAGES, METADATA, TEXTS, lacks, set_threads
from woh_faiss.encoders.picture import is_animated, opened, upright_rgb
from woh_faiss.errors import InputError
from woh_faiss.io.atomic_write import write_whole
from woh_faiss.io.npz import damage
from woh_faiss.io.path_kind import path_kind

from .arrow import SUFFIXES
from .picture_files import PictureFile, is_text
from .picture_tags import PictureTags
from .source import CHUNK_SIZE
from .text_files import Texts

#: The name of what a file says of the items that were encoded, in its metadata.
PART = b"woh_faiss.part"
#: The list of what was left out, a JSON line each.
REPORT = "report.jsonl"
#: Pixels of pictures that are decoded at once, 190 MB as RGB: the next picture after so many waits.
_PIXELS = 64_000_000
#: Batches that wait for each worker.
_AHEAD = 3
#: What is known of every picture, in pixels.
SIZES = ("width", "height")
_NAME = "part-{:05d}.parquet"


@dataclass
class Encoded:
    """Features of the items of a batch or a chunk that can be used.

    Attributes
    ----------
    X : (m, d) float32
    kept : list of int
        Places of its m items.
    columns : dict of list
        What else is known of each of the m items.
    faults : list of (int, str)
        Places of the others, and what is wrong.
    animated : int
        Pictures of several frames, the first of which was taken.
    """

    X: NDArray[np.float32]
    kept: list[int]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    faults: list[tuple[int, str]] = field(default_factory=list)
    animated: int = 0


class Work(Protocol):
    """Items to be encoded; `len` is their number.

    Attributes
    ----------
    side : str
        "images" or "texts".
    metadata : dict of Arrow arrays
        Columns of metadata, for their types.
    """

    side: str

    @property
    def metadata(self) -> dict[str, Any]:
        """See above."""

    def __len__(self) -> int: ...

    def given(self, rows: slice) -> list[Any]:
        """What `encode` takes of some items; plain values, for another process."""

    def identity(self, rows: slice) -> list[Any]:
        """What tells these items from others, as JSON takes it."""

    def known(self, rows: slice) -> tuple[dict[str, list[Any]], list[tuple[int, str]]]:
        """Columns of these items that need no encoder, and faults by place; called for all rows in order."""

    def name(self, place: int) -> str:
        """What a report calls an item."""


class PictureWork:
    """Pictures to be encoded, and where their tags are."""

    side = IMAGES

    def __init__(self, files: Sequence[PictureFile], tags: PictureTags | None) -> None:
        self.files, self.tags = files, tags

    @property
    def metadata(self) -> dict[str, Any]:
        """Those of the file of tags."""
        return {} if self.tags is None else self.tags.metadata

    def __len__(self) -> int:
        return len(self.files)

    def given(self, rows: slice) -> list[Any]:
        """Paths; None for a file whose key is no text."""
        return [str(file.path) if is_text(file.key) else None for file in self.files[rows]]

    def identity(self, rows: slice) -> list[Any]:
        """Keys, sizes and times of the files."""
        return [[os.fsencode(file.key).hex(), *_stamp(file.path)] for file in self.files[rows]]

    def known(self, rows: slice) -> tuple[dict[str, list[Any]], list[tuple[int, str]]]:
        """Keys, tags and metadata."""
        files = self.files[rows]
        columns: dict[str, list[Any]] = {"path": [file.key for file in files]}
        faults: list[tuple[int, str]] = []
        if self.tags is not None:
            columns["tags"], faults = self.tags.of(files)
            columns |= self.tags.metadata_of(files) if self.metadata else {}
        return columns, faults

    def name(self, place: int) -> str:
        """The path."""
        return display_path(self.files[place].path)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


class TextWork:
    """Texts to be encoded."""

    side = TEXTS

    def __init__(self, texts: Texts, where: str) -> None:
        self.texts, self.where = texts, where

    @property
    def metadata(self) -> dict[str, Any]:
        """Those of their table."""
        return self.texts.metadata

    def __len__(self) -> int:
        return len(self.texts.texts)

    def given(self, rows: slice) -> list[Any]:
        """The texts."""
        return self.texts.texts[rows]

    def identity(self, rows: slice) -> list[Any]:
        """The texts."""
        return self.texts.texts[rows]

    def known(self, rows: slice) -> tuple[dict[str, list[Any]], list[tuple[int, str]]]:
        """The texts, and keys, ids, tags and metadata where there are any."""
        found = {
            "key": self.texts.keys,
            "id": self.texts.ids,
            "text": self.texts.texts,
            "tags": self.texts.tags,
        }
        columns: dict[str, list[Any]] = {
            name: column[rows] for name, column in found.items() if column is not None
        }
        for name, array in self.metadata.items():
            columns[name] = array.slice(rows.start, rows.stop - rows.start).to_pylist()
        return columns, []

    def name(self, place: int) -> str:
        """The file, and which of its texts."""
        return f"{self.where}, text {place}"


class Written(NamedTuple):
    """What `write_features` wrote, in numbers.

    Items; items that were left out, and those whose tags could not be read; pictures of several frames;
    files, and those of them that were there already.
    """

    items: int
    left_out: int
    untagged: int
    animated: int
    files: int
    kept: int


def write_features(
    work: Work,
    encoder: Encoder,
    folder: Path,
    *,
    chunk_size: int = CHUNK_SIZE,
    workers: int = 1,
    step: Callable[[int, int], object] = lambda _done, _new: None,
) -> Written:
    """Encode items and write them as ``part-00000.parquet``, ... of `folder`, a chunk each.

    Files of the same items that are there are kept. Items that cannot be used are left out and listed in
    ``report.jsonl``.

    Parameters
    ----------
    work : Work
    encoder : Encoder
        With several workers each opens it again, by its name.
    folder : Path
        Made where it is not there.
    chunk_size : int
        Items of a file.
    workers : int
        Processes that encode; 1 is this one.
    step : callable
        Called with a number of items that are done, and how many of them were encoded just now.

    Raises
    ------
    InputError
        The encoder does not take such items or fails, the folder holds something else, no item can be used,
        or it cannot be written.
    """
    if work.side not in encoder.sides:
        raise lacks(encoder.name, work.side)
    rows = [slice(at, min(at + chunk_size, len(work))) for at in range(0, len(work), chunk_size)]
    record = EncoderRecord.of(encoder)
    if taken := sorted({*_TYPES, FEATURES} & {*work.metadata}):
        raise InputError(
            f"metadata {taken[0]!r} is what such files have anyway; give the column another name"
        )
    held = _held(folder, record, len(rows))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _write(work, encoder, record, folder, rows, held, workers, step)
    except OSError as error:
        raise InputError(
            f"cannot write features to {display_path(folder)}: {error.strerror or error}; the same "
            "command goes on"
        ) from error
    except BrokenProcessPool as error:
        raise InputError(
            "a worker died, perhaps for want of memory; the same command goes on, with fewer --workers"
        ) from error


def _write(
    work: Work,
    encoder: Encoder,
    record: EncoderRecord,
    folder: Path,
    rows: list[slice],
    held: dict[int, dict[str, Any]],
    workers: int,
    step: Callable[[int, int], object],
) -> Written:
    works = [_digest([record.fingerprint, work.side, work.identity(at)]) for at in rows]
    ready = [held.get(number, {}).get("work") == mark for number, mark in enumerate(works)]
    batches = [
        slice(start, min(start + BATCH, at.stop))
        for number, at in enumerate(rows)
        for start in range(at.start, at.stop, BATCH)
        if not ready[number]
    ]
    told: list[dict[str, str]] = []
    items = untagged = animated = kept = 0
    with _encoding(work, encoder, batches, workers) as results:
        for number, at in enumerate(rows):
            path = folder / _NAME.format(number)
            known, faults = work.known(at)
            mark = _digest([works[number], known])
            part = held.get(number, {})
            if not (ready[number] and part.get("known") == mark):
                n = at.stop - at.start
                done = _features_of(path, part) if ready[number] else _gathered(results, n, step)
                part = {
                    "work": works[number],
                    "known": mark,
                    "faults": done.faults,
                    "animated": done.animated,
                }
                part["items"] = len(done.kept)
                types = {name: array.type for name, array in work.metadata.items()}
                _write_part(path, done, known, types, record, part)
            else:
                kept += 1
            if ready[number]:
                step(at.stop - at.start, 0)
            items += part["items"]
            animated += part["animated"]
            bad = dict(part["faults"])
            without = {place: f"no tags: {why}" for place, why in faults if place not in bad}
            untagged += len(without)
            every = sorted((bad | without).items())
            told += [{"file": work.name(at.start + place), "fault": why} for place, why in every]
    _write_report(folder / REPORT, told)
    if not items:
        raise InputError(f"no item can be used: {told[0]['file']}: {told[0]['fault']}")
    return Written(items, len(work) - items, untagged, animated, len(rows), kept)


def _digest(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, default=str).encode(errors="surrogatepass")
    ).hexdigest()


# ---- files -----------------------------------------------------------------------------------------------


def _held(folder: Path, record: EncoderRecord, n: int) -> dict[int, dict[str, Any]]:
    """What the files of a folder say of themselves, by number.

    Raises
    ------
    InputError
        The folder has files of another encoder, of more items, or not of ours.
    """
    if (kind := path_kind(folder)) is None:
        return {}
    if kind != "folder":
        raise InputError(f"{display_path(folder)} is a file; give a folder for features")
    names = {_NAME.format(number): number for number in range(n)}
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.lower().endswith(SUFFIXES) or path.name.startswith((".", "_")):
            continue
        known = _metadata(path)
        if known is None or path.name not in names:
            what = "is not of this" if known is None else "is of more items than are given now"
            raise InputError(
                f"{display_path(path)} {what}; take it away, or give another folder for features"
            )
        record.check(known[0], "the encoder", display_path(folder))
        found[names[path.name]] = known[1]
    return found


def _metadata(path: Path) -> tuple[EncoderRecord, dict[str, Any]] | None:
    from pyarrow import parquet

    try:
        held = parquet.read_schema(path).metadata or {}
        part = json.loads(held[PART])
        kinds = {"work": str, "known": str, "faults": list, "animated": int, "items": int}
        sound = all(isinstance(part.get(name), kind) for name, kind in kinds.items())
        if sound and all(isinstance(place, int) and isinstance(why, str) for place, why in part["faults"]):
            return EncoderRecord.from_json(held[METADATA]), part
    except Exception:  # whatever it is, it is not one of ours
        return None
    return None


def _features_of(path: Path, part: dict[str, Any]) -> Encoded:
    """What was encoded already, of a file whose other columns have changed."""
    from pyarrow import parquet

    with damage(display_path(path)):
        table = parquet.read_table(path)
    bad = {place for place, _ in part["faults"]}
    n = table.num_rows + len(bad)
    X = table.column(FEATURES).combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
    sizes = {name: table.column(name).to_pylist() for name in SIZES if name in table.column_names}
    kept = [place for place in range(n) if place not in bad]
    return Encoded(X, kept, sizes, [(place, why) for place, why in part["faults"]], part["animated"])


#: Types of the columns of a file, as Arrow names them, but for features and metadata.
_TYPES = {
    "path": "string",
    "key": "string",
    "id": "int64",
    "text": "string",
    "tags": "list",
    "width": "int32",
    "height": "int32",
}


def _write_part(
    path: Path,
    done: Encoded,
    known: dict[str, list[Any]],
    types: dict[str, Any],
    record: EncoderRecord,
    part: dict[str, Any],
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def type_of(name: str) -> Any:
        if name in types:
            return types[name]
        return pa.list_(pa.string()) if name == "tags" else pa.type_for_alias(_TYPES[name])

    columns = {name: [values[place] for place in done.kept] for name, values in known.items()} | done.columns
    arrays = {name: pa.array(values, type_of(name)) for name, values in columns.items()}
    flat = pa.array(np.ascontiguousarray(done.X, np.float32).reshape(-1), pa.float32())
    arrays[FEATURES] = pa.FixedSizeListArray.from_arrays(flat, record.dimension)
    table = pa.table(arrays).replace_schema_metadata(
        {METADATA: json.dumps(asdict(record), sort_keys=True), PART: json.dumps(part, sort_keys=True)}
    )
    with write_whole(path, "part") as file:  # as they are: features do not compress
        parquet.write_table(table, file, compression="NONE", use_dictionary=False)


def _write_report(path: Path, left_out: list[dict[str, str]]) -> None:
    if not left_out:
        path.unlink(missing_ok=True)
        return
    with write_whole(path, "report") as file:
        file.writelines(json.dumps(record).encode() + b"\n" for record in left_out)


# ---- encoding --------------------------------------------------------------------------------------------

#: The encoder of a worker.
_own: Encoder | None = None


def encode_batch(encoder: Encoder, side: str, given: list[Any]) -> Encoded:
    """The features of a batch of texts, or of pictures at paths."""
    if side == TEXTS:
        return Encoded(encoder.embed_texts(given), [*range(len(given))])
    parts: list[NDArray[np.float32]] = []
    done = Encoded(np.empty((0, encoder.dimension), np.float32), [], {"width": [], "height": []})
    images: list[Any] = []
    for place, path in enumerate(given):
        if path is None:
            done.faults.append((place, "its name is not UTF-8; rename it"))
            continue
        try:
            with opened(Path(path)) as found:
                animated = is_animated(found)
                images.append(upright_rgb(found))
        except InputError as error:
            done.faults.append((place, str(error)))
            continue
        done.animated += animated
        done.kept.append(place)
        done.columns["width"].append(images[-1].width)
        done.columns["height"].append(images[-1].height)
        if sum(image.width * image.height for image in images) > _PIXELS:
            parts.append(encoder.embed_images(images))
            images = []
    if images:
        parts.append(encoder.embed_images(images))
    done.X = np.concatenate([done.X, *parts])
    return done


def _gathered(results: Iterator[tuple[int, Encoded]], n: int, step: Callable[[int, int], object]) -> Encoded:
    """The batches of a chunk of n items as one."""
    whole: list[Encoded] = []
    at = 0
    while at < n:
        size, done = next(results)
        done.kept = [at + place for place in done.kept]
        done.faults = [(at + place, why) for place, why in done.faults]
        whole.append(done)
        at += size
        step(size, size)
    names = whole[0].columns
    return Encoded(
        np.concatenate([done.X for done in whole]),
        [place for done in whole for place in done.kept],
        {name: [value for done in whole for value in done.columns[name]] for name in names},
        [fault for done in whole for fault in done.faults],
        sum(done.animated for done in whole),
    )


@contextmanager
def _encoding(
    work: Work, encoder: Encoder, batches: list[slice], workers: int
) -> Iterator[Iterator[tuple[int, Encoded]]]:
    """The batches in order, each with its number of items, encoded here or by other processes."""
    with ExitStack() as stack:
        if workers == 1 or len(batches) < 2:
            yield ((at.stop - at.start, encode_batch(encoder, work.side, work.given(at))) for at in batches)
            return
        spare = max(1, (os.cpu_count() or 1) // workers)
        pool = ProcessPoolExecutor(
            min(workers, len(batches)),
            multiprocessing.get_context("spawn"),  # a fork would share the threads' locks of models
            _start_worker,
            (encoder.name, encoder.fingerprint, work.side, spare),
        )
        stack.callback(pool.shutdown, cancel_futures=True)
        yield _from_pool(pool, work, batches, _AHEAD * workers)


def _from_pool(
    pool: ProcessPoolExecutor, work: Work, batches: list[slice], ahead: int
) -> Iterator[tuple[int, Encoded]]:
    waiting: deque[tuple[int, Future[Encoded]]] = deque()
    for at in batches:
        waiting.append((at.stop - at.start, pool.submit(_work, work.side, work.given(at))))
        if len(waiting) >= ahead:
            size, done = waiting.popleft()
            yield size, done.result()
    for size, done in waiting:
        yield size, done.result()


def _start_worker(name: str, fingerprint: str, side: str, threads: int) -> None:
    global _own
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for this one ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_threads(threads)
    _own = open_encoder(name, side=side)
    if _own.fingerprint != fingerprint:
        raise InputError(f"the encoder {name} changed while it was used")


def _end_with_parent() -> None:
    """A killed process does not leave its workers behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(side: str, given: list[Any]) -> Encoded:
    assert _own is not None  # noqa: S101 - `_start_worker` opened it
    return encode_batch(_own, side, given)
