"""Which picture files paths hold, in a fixed order, and the keys of their items."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from woh_faiss import budget
from woh_faiss.display import display_path
from woh_faiss.encoders.picture import SUFFIXES, is_picture, plain_file
from woh_faiss.errors import InputError
from woh_faiss.io.path_kind import path_kind
from woh_faiss.validate import listed

from .arrow import has_tables
from .columns import natural
from .embeddings import is_embeddings

#: Bytes that a picture takes while they are put in order.
_BYTES = 1000


class PictureFile(NamedTuple):
    """A file that may hold a picture: the key of its item, and the folder that the key is a path in."""

    root: Path
    key: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.root / self.key


def is_text(key: str) -> bool:
    """Whether a name can be written as UTF-8, which a key must."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def holds_pictures(path: Path) -> bool:
    """Whether a path is a picture, or a folder with pictures and no data that are read otherwise."""
    try:
        if path.is_dir():
            if is_embeddings(path) or (path / "features.npy").exists() or has_tables(path):
                return False
            return any(_is_named(name) for _, _, names in _walk(path) for name in names)
        with plain_file(path) as file:
            return is_picture(file.read(16))
    except (OSError, ValueError):  # whatever it is, reading it will say so
        return False


def _is_named(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith((".", "_"))


def _walk(folder: Path) -> Any:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        yield root, folders, names


def list_pictures(
    paths: Sequence[Path], beside: Sequence[str] = (), note: Callable[[str], object] | None = None
) -> list[PictureFile]:
    """The picture files of folders, those in their folders too, and of single files, in natural order.

    The key of a file in a folder is its path in it, of a file that was given by itself its name. Names that
    begin with ``.`` or ``_`` are passed over.

    Parameters
    ----------
    paths : sequence of Path
    beside : sequence of str
        Ends of names that are expected beside pictures, and not told of.
    note : callable, optional
        Gets a line about other files.

    Raises
    ------
    InputError
        A path is missing, holds no pictures, or two files would have one key.
    """
    found: dict[str, PictureFile] = {}
    others: Counter[str] = Counter()
    for path in paths:
        if (kind := path_kind(path)) is None:
            raise InputError(f"{display_path(path)} does not exist; give pictures, or folders of them")
        files = [PictureFile(path.parent, path.name)]
        if kind == "folder":
            with budget.reading(display_path(path)):
                files = _of_folder(path, others)
            if not files:
                raise InputError(
                    f"{display_path(path)} holds no pictures: no name ends in {', '.join(SUFFIXES[:6])}, ..."
                )
        for file in files:
            before = found.setdefault(file.key, file)
            if before is not file:
                raise InputError(
                    f"{display_path(before.path)} and {display_path(file.path)} would have one key, "
                    f"{display_path(file.key)}: keys are paths in the folder that is given; give the "
                    "folder above"
                )
    for end in {*beside} & {*others}:
        del others[end]
    if others and note is not None:
        kinds = [f"{end or 'no ending'} ({n:,})" for end, n in others.most_common()]
        note(f"files that are left out, for their names are no pictures': {listed(kinds)}")
    return [*found.values()]


def _of_folder(folder: Path, others: Counter[str]) -> list[PictureFile]:
    found: list[str] = []
    for root, _, names in _walk(folder):
        for name in names:
            if not _is_named(name):
                if not name.startswith((".", "_")):
                    others[Path(name).suffix.lower()] += 1
                continue
            budget.take(_BYTES, "the list of pictures")
            found.append(str(Path(root, name).relative_to(folder)))
    found.sort(key=lambda key: [*map(natural, Path(key).parts)])
    return [PictureFile(folder, key) for key in found]
