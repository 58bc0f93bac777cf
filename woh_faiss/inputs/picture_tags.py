"""Tags of pictures: from a file of paths and tags, sidecars, names of folders, or their own keywords."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.encoders.picture import keywords, opened, plain_file
from woh_faiss.errors import InputError, short
from woh_faiss.io.npz import damage
from woh_faiss.io.path_kind import path_kind
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists

from .arrow_values import tags_of
from .columns import USUAL, Columns
from .picture_files import PictureFile
from .source import CHUNK_SIZE
from .tag_file import open_side
from .text_table import read_metadata

#: What may be said in a file's place.
SIDECARS, FOLDERS, KEYWORDS = "sidecars", "folders", "keywords"
#: Ends of the files beside pictures.
BESIDE = (".txt", ".json")
#: Bytes of the largest of them.
_LARGEST = 1 << 20
#: What is wrong with a picture's tags, by its place; it is then without.
Faults = list[tuple[int, str]]


class PictureTags:
    """Where the tags of pictures are.

    Parameters
    ----------
    source : str or path
        ``sidecars``: ``cat.txt``, ``cat.jpg.txt``, ``cat.json`` or ``cat.jpg.json`` beside ``cat.jpg``;
        ``folders``: the names of the folders that a picture is in, below the one that was given;
        ``keywords``: IPTC and XMP in the picture; else a file with a row a picture, its path and its tags.
    split_as : TagTexts
        How texts become tags.
    columns : Columns, optional
        Those of the file, where they have other names than usual: its key is the path.
    metadata : sequence of str
        Columns of the file that go along.

    Attributes
    ----------
    metadata : dict of Arrow arrays
        Those columns, of the rows of the file, by name.
    """

    def __init__(
        self,
        source: str,
        split_as: TagTexts,
        columns: Columns | None = None,
        metadata: Sequence[str] = (),
    ) -> None:
        self.source, self._split_as = source, split_as
        self._rows: dict[str, list[str]] = {}
        self._places: dict[str, int] = {}
        self._used: set[str] = set()
        self.metadata: dict[str, Any] = {}
        self._folder = Path()
        self.without = 0
        self._beside = source == SIDECARS
        if source not in (SIDECARS, FOLDERS, KEYWORDS):
            self._read(Path(source), columns or Columns())
            if metadata:
                self._read_metadata(Path(source), metadata)
        elif metadata:
            raise InputError(f"--metadata goes with a file of --tags-from; {source} has no columns")

    @property
    def beside(self) -> tuple[str, ...]:
        """Ends of names of files that lie beside pictures because of it."""
        return BESIDE if self._beside else (Path(self.source).suffix.lower(),) if self._rows else ()

    def _read(self, path: Path, columns: Columns) -> None:
        if path_kind(path) is None:
            raise InputError(
                f"--tags-from {display_path(path)} does not exist; give a file of paths and tags, or "
                f"{SIDECARS}, {FOLDERS} or {KEYWORDS}"
            )
        wanted = columns._replace(id="")
        with budget.reading(display_path(path)):
            side = open_side(path, wanted, self._split_as)
            if side.columns.key is None:
                raise InputError(
                    f"{side.where} has no column of paths under a usual name "
                    f"({', '.join(USUAL['key'][2])}); say which with --key-column"
                )
            for part in side.read(CHUNK_SIZE):
                for row, key in enumerate(part["keys"]):
                    name = os.path.normpath(key)
                    if name in self._rows:
                        raise InputError(f"{side.where} has {short(key)} twice; give each picture one row")
                    self._places[name] = len(self._rows)
                    self._rows[name] = part["tags"].of_row(row)
        self._folder = path.parent

    def _read_metadata(self, path: Path, names: Sequence[str]) -> None:
        where = display_path(path)
        with budget.reading(where), damage(where):
            table = read_metadata(path, where, names, len(self._rows))
            self.metadata = {name: table.column(name).combine_chunks() for name in names}

    def metadata_of(self, files: Sequence[PictureFile]) -> dict[str, list[Any]]:
        """The metadata of pictures, None for one that the file does not name."""
        import pyarrow as pa

        places = [self._places.get(self._name(file) or "") for file in files]
        rows = pa.array(places, pa.int64())
        return {name: array.take(rows).to_pylist() for name, array in self.metadata.items()}

    def of(self, files: Sequence[PictureFile]) -> tuple[list[list[str]], Faults]:
        """The tags of pictures, a list each, and what is wrong with some; all files are given, in order."""
        faults: Faults = []
        if self.source == SIDECARS:
            found = self._of_sidecars(files, faults)
        elif self.source == FOLDERS:
            found = [[*Path(file.key).parts[:-1]] for file in files]
        elif self.source == KEYWORDS:
            found = [_keywords(file, place, faults) for place, file in enumerate(files)]
        else:
            found = [self._of_rows(file) for file in files]
        lists = TagLists.from_lists(found)
        tidy = [lists.of_row(row) for row in range(len(lists))]
        self.without += tidy.count([])
        return tidy, faults

    def _of_rows(self, file: PictureFile) -> list[str]:
        if (name := self._name(file)) is None:
            return []
        self._used.add(name)
        return self._rows[name]

    def _name(self, file: PictureFile) -> str | None:
        """What the file of tags calls it: its key, its path as it was given, or its path from there."""
        names = (file.key, os.path.normpath(file.path), os.path.relpath(file.path, self._folder))
        return next((name for name in names if name in self._rows), None)

    def check(self, files: Sequence[PictureFile]) -> None:
        """Before hours of encoding: InputError where no picture can have a tag, as far as names tell."""
        if self.source == KEYWORDS:
            return
        if self.source == FOLDERS:
            some, why = any(Path(file.key).parent.name for file in files), "they are in no folder below it"
        elif self.source == SIDECARS:
            beside = (name for file in files for name in _beside(file.path))
            some, why = any(path_kind(name) is not None for name in beside), "no such file is beside one"
        else:
            some = any(self._rows.get(self._name(file) or "") for file in files)
            why = f"it names {short(next(iter(self._rows)))}, ..." if self._rows else "it has no rows"
        if not some:
            raise InputError(f"--tags-from {display_path(self.source)} gives no picture a tag: {why}")

    def notes(self, n: int) -> list[str]:
        """What to say of the tags of n pictures."""
        lines = [f"pictures without tags: {self.without:,} of {n:,}"] if self.without else []
        if unused := len(self._rows) - len(self._used):
            lines.append(
                f"rows of {display_path(self.source)} that name no picture that was given: {unused:,}"
            )
        return lines

    # ---- files beside pictures ---------------------------------------------------------------------------

    def _of_sidecars(self, files: Sequence[PictureFile], faults: Faults) -> list[list[str]]:
        texts, lists = [""] * len(files), {}
        for place, file in enumerate(files):
            try:
                found = _sidecar(file.path)
                if isinstance(found, str):
                    texts[place] = found
                else:
                    lists[place] = found
            except InputError as error:
                faults.append((place, str(error)))
        split_texts = TagLists.from_strings(texts, self._split_as)
        return [lists[place] if place in lists else split_texts.of_row(place) for place in range(len(files))]


def _sidecar(path: Path) -> str | list[str]:
    """The text or the tags beside a picture; "" where nothing is."""
    for name in _beside(path):
        try:
            with plain_file(name) as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{display_path(name.name)}: {error.strerror or error}") from None
        if len(data) > _LARGEST:
            raise InputError(f"{display_path(name.name)} is larger than {_LARGEST >> 20} MiB")
        try:
            text = data.decode("utf-8-sig")
            return _of_json(json.loads(text)) if name.suffix == ".json" else " ".join(text.split())
        except (ValueError, RecursionError):
            raise InputError(
                f"{display_path(name.name)} is not {name.suffix[1:]} in UTF-8 with tags"
            ) from None
    return ""


def _beside(path: Path) -> list[Path]:
    """The files that may say something of a picture, the first of which does."""
    return [name for end in BESIDE for name in (path.with_suffix(end), path.with_name(path.name + end))]


def _of_json(found: Any) -> str | list[str]:
    """A text, a list of text, or the first of an object's fields that are usually tags, a caption's words."""
    name = "tags"
    if isinstance(found, dict):
        by_name = {str(field).casefold(): value for field, value in found.items()}
        usual = [field for step in USUAL["tags"] for field in step if by_name.get(field)]
        name = usual[0] if usual else name
        found = by_name.get(name, [])
    if isinstance(found, str):
        return found if name in USUAL["tags"][0] else tags_of([found], name).of_row(0)
    if isinstance(found, list) and all(isinstance(tag, str) for tag in found):
        return found
    raise ValueError("no tags")


def _keywords(file: PictureFile, place: int, faults: Faults) -> list[str]:
    try:
        with opened(file.path) as image:
            try:
                return keywords(image)
            except InputError as error:
                faults.append((place, str(error)))
    except InputError:  # told of where it is encoded
        pass
    return []


def open_tags(
    source: str | os.PathLike[str] | None,
    *,
    separator: str | None = None,
    columns: Columns | None = None,
    metadata: Sequence[str] = (),
    note: Callable[[str], object] | None = None,
) -> PictureTags | None:
    """Where tags are, None for nowhere; arguments as of `PictureTags` and `TagTexts`."""
    if source is None:
        if metadata:
            raise InputError("--metadata of pictures are columns of a file; --tags-from says which")
        return None
    return PictureTags(os.fsdecode(source), TagTexts(separator, note), columns, metadata)
