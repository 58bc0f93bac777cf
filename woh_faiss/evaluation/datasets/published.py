"""The files of a published set and their lines; every fault names its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woh_faiss import budget, validate
from woh_faiss.display import display_path
from woh_faiss.errors import InputError


@dataclass(frozen=True, slots=True)
class Published:
    """A data set that others publish.

    Attributes
    ----------
    name : str
    page : str
        Where the set can be had, in words that a search finds.
    """

    name: str
    page: str

    def find(self, root: str | os.PathLike[str], *places: str) -> Path:
        """The first of `places` (paths below `root`, in any case) that is there.

        Raises
        ------
        InputError
            None is; the message says where it was looked for, and where the set can be had.
        """
        folder = Path(os.fsdecode(root))
        if (found := self.find_any(folder, *places)) is None:
            looked = " or ".join(places) + f" in {display_path(folder)}"
            raise InputError(
                f"{self.name}: {Path(places[0]).name} is missing; looked for {looked}; "
                f"the set can be had from {self.page}"
            )
        return found

    def find_any(self, root: str | os.PathLike[str], *places: str) -> Path | None:
        """As `find`; None where none is there."""
        folder = Path(os.fsdecode(root))
        try:
            if not folder.is_dir():
                raise InputError(
                    f"{self.name}: {display_path(folder)} is not a folder; give the one that the set, to "
                    f"be had from {self.page}, was unpacked in"
                )
            return next((found for place in places if (found := _below(folder, place)) is not None), None)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise InputError(f"{self.name}: {display_path(folder)} cannot be read ({error})") from error


def _below(folder: Path, place: str) -> Path | None:
    """`place` below `folder`: mirrors and unpackers disagree about capitals."""
    for part in place.split("/"):
        if (folder / part).exists():
            folder /= part
            continue
        if not folder.is_dir():
            return None
        alike = sorted(entry for entry in folder.iterdir() if entry.name.casefold() == part.casefold())
        if not alike:
            return None
        folder = alike[0]
    return folder


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """What the system says of a file that cannot be read, in one line."""
    try:
        if file.exists() and not file.is_file():  # a pipe would block forever
            raise InputError(f"{display_path(file)} is not a regular file; put the set's own file there")
        with budget.reading(display_path(file)):
            yield
    except OSError as error:
        raise InputError(f"{display_path(file)} cannot be read ({error.strerror or error})") from error


def lines(file: Path, encoding: str = "utf-8") -> list[str]:
    """Lines without their ends and outer blanks; blank ones stay, as a line may be an item's."""
    with reading(file):
        budget.take(20 * file.stat().st_size, "its lines")
        data = file.read_bytes()
    try:
        found = [line.strip() for line in data.decode(encoding).removeprefix("\ufeff").split("\n")]
    except LookupError:
        raise InputError(f"encoding is {validate.short(encoding)}, which Python does not know") from None
    except UnicodeError as error:
        at = data.count(b"\n", 0, getattr(error, "start", 0)) + 1
        raise InputError(
            f"{display_path(file)}: line {at} is not {encoding} text; copy the file again or name its "
            "encoding"
        ) from error
    return found[:-1] if found[-1] == "" else found  # the last line may have no end


def zero_one_column(file: Path, n: int) -> NDArray[np.bool_]:
    """A file of n lines, 0 or 1 each, as (n,) bool."""
    with reading(file):
        budget.take(40 * file.stat().st_size, "its lines")
        marks = [mark for line in file.read_bytes().splitlines() if (mark := line.strip())]
    if bad := set(marks) - {b"0", b"1"}:
        first = next(i for i, mark in enumerate(marks) if mark in bad)
        raise InputError(
            f"{display_path(file)}: row {first + 1} is {validate.short(marks[first])}, expected 0 or 1"
        )
    _same_rows(file, len(marks), n)
    return np.array([mark == b"1" for mark in marks], dtype=bool)


def numbered(file: Path, n: int) -> NDArray[np.bool_]:
    """A file of image numbers, one of 1 to n a line, as marks (n,) bool."""
    hot = np.zeros(n, dtype=bool)
    for at, text in enumerate(lines(file, "latin-1"), start=1):
        if not text:
            continue
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and 1 <= int(text) <= n):
            raise InputError(
                f"{display_path(file)}: line {at} is {validate.short(text)}, expected an image's "
                f"number, 1 to {n}"
            )
        hot[int(text) - 1] = True
    return hot


def number_blocks(file: Path, n: int, size: int) -> Iterator[NDArray[np.float32]]:
    """A file of n lines of d numbers between blanks, as blocks of at most `size` rows (float32).

    Raises
    ------
    InputError
        When its block is read: a line that is not numbers, of another count, or not finite (the
        message names the row); fewer or more than n lines.
    """
    with reading(file):
        stream = file.open(encoding="ascii", errors="replace")
    with stream:
        rows = (line for line in stream if not line.isspace())
        done, width = 0, None
        while done < n:
            with reading(file):  # not held while a caller has the block: callers read several files in turn
                wanted = min(size, n - done)
                texts = list(islice(rows, wanted))
                if len(texts) < wanted:
                    _same_rows(file, done + len(texts), n)
                block = _parsed(file, texts, done, width)
                done, width = done + len(block), block.shape[1]
                if done == n and next(rows, None) is not None:
                    raise InputError(f"{display_path(file)} has more than {n} rows, expected one an image")
            yield block


def _parsed(file: Path, texts: list[str], done: int, width: int | None) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # not finite then, and refused for it
            block: NDArray[np.float32] = np.loadtxt(texts, np.float32, comments=None, ndmin=2)
    except ValueError:
        block = np.empty((0, 0), np.float32)
    if len(block) == len(texts) and width in (None, block.shape[1]) and np.isfinite(block).all():
        return block
    width = len(texts[0].split()) if width is None else width
    for row, text in enumerate(texts, start=done + 1):  # slow, but the file is no good
        words = text.split()
        if len(words) != width:
            raise InputError(
                f"{display_path(file)}: row {row} has {len(words)} numbers, expected {width} as in "
                "the first; copy it again"
            )
        for word in words:
            if not _is_finite(word):
                raise InputError(
                    f"{display_path(file)}: row {row} holds {validate.short(word)}, expected a finite number"
                )
    raise InputError(
        f"{display_path(file)}: rows {done + 1} to {done + len(texts)} are not a table of numbers"
    )


def _is_finite(word: str) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(word)))
    except ValueError:
        return False


def _same_rows(file: Path, found: int, n: int) -> None:
    if found != n:
        raise InputError(
            f"{display_path(file)} has {found} rows, expected {n}, one an image; it is cut short or "
            "of another part"
        )
