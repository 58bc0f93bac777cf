"""Named arrays from files that may be damaged or hostile: .npz, a folder of .npy, one .npy.

It knows bytes, not meaning: `chunk.read_chunk` names the arrays. Nothing is unpickled, and a header is
compared with the file before anything is allocated. `write_npz` writes what is read here.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from woh_faiss import budget
from woh_faiss.display import display_path, display_text
from woh_faiss.errors import InputError

from .python_literals import evaluated

#: Bytes up to which numbers are read; more of them are mapped, and take no memory of this process.
READ = 256 << 20
#: A zip member that unpacks to more than both of these is a bomb, not data: deflate ends near 1032:1.
BOMB_RATIO, BOMB_BYTES = 1000, 64 << 20
# What zipfile, zlib and numpy raise for bytes that they did not expect; encryption is a RuntimeError.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, OverflowError, RuntimeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


def read_arrays(
    path: str | os.PathLike[str], required: str, optional: Collection[str]
) -> dict[str, NDArray[Any]]:
    """The arrays of `path` called `required` and, where they exist, `optional`; others are not read.

    What `path` is, its first bytes say, not its name: an .npz, a folder of .npy files, or one .npy
    file, which is then `required`. In the last two `required` is as `numbers` has it.

    Raises
    ------
    InputError
        The path, the archive or one of the arrays is missing, damaged, encrypted, pickled or not
        the size it claims.
    """
    where = display_path(path)
    with budget.reading(where), damage(where, _DAMAGE):
        file = Path(os.fsdecode(path))
        if file.is_dir():
            return _read_folder(file, required, optional)
        if not file.is_file():
            what = "is not a regular file" if file.exists() else "does not exist"
            raise InputError(f"{display_path(file)} {what}; give an .npz file or a folder of .npy files")
        with file.open("rb") as stream:
            start = stream.read(6)
        if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            return _read_npz(file, required, optional)
        if start == npy.MAGIC_PREFIX:
            return {required: read_npy(file, display_path(file), mapped=True)}
    raise InputError(
        f"{display_path(file)} is neither an .npz nor an .npy file (it starts with {start!r}); "
        f"write it with np.savez(path, {required}=...)"
    )


def reason(error: Exception) -> str:
    """What a library said of bytes it did not expect, on one line."""
    return display_text(" ".join(f"{type(error).__name__}: {error}".split())[:160])


@contextmanager
def damage(where: str, errors: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Whatever a library raises for bytes that it did not expect as an InputError about `where`."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise budget.ran_out(where) from error
    except errors as error:
        raise InputError(f"{where} cannot be read ({reason(error)}); copy or write it again") from error


def _require(required: str, found: list[str], where: str) -> None:
    if required not in found:
        others = ", ".join(ascii(name) for name in sorted(found)[:12]) or "nothing"
        raise InputError(f"{where} has no key '{required}'; it holds {others}")


def _read_folder(folder: Path, required: str, optional: Collection[str]) -> dict[str, NDArray[Any]]:
    found = [entry.stem for entry in folder.iterdir() if entry.suffix == ".npy" and entry.is_file()]
    _require(required, found, display_path(folder))
    return {
        key: read_npy(folder / f"{key}.npy", f"{display_path(folder)}: key '{key}'", mapped=key == required)
        for key in (required, *optional)
        if key in found
    }


def read_npy(file: Path, where: str, *, mapped: bool) -> NDArray[Any]:
    """The array of one .npy file, `mapped` if it is large or read; InputError as `read_arrays`."""
    with damage(where, _DAMAGE), file.open("rb") as stream:
        return npy_of(stream, where, mapped=mapped)


def npy_of(stream: IO[bytes], where: str, *, mapped: bool) -> NDArray[Any]:
    """As `read_npy`, of a file that is open already and may be closed afterwards."""
    with damage(where, _DAMAGE):
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        shape, fortran, dtype = _check_header(stream, size, where)
        if not mapped or 0 in shape:  # an empty range cannot be mapped
            budget.take(size, "the array")
            return _read_checked(stream)
        return numbers(stream, where, dtype, shape, "F" if fortran else "C")


def numbers(
    file: IO[bytes], where: str, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"] = "C"
) -> NDArray[Any]:
    """The array, read-only, that lies in `file` from where it is: read, or memory-mapped if it is large.

    A process that cuts a mapped file ends those that read it, by SIGBUS.

    Raises
    ------
    InputError
        The file was changed while it was read.
    """
    n = math.prod(shape)
    if n * dtype.itemsize > min(READ, budget.max_memory() // 4):
        return np.memmap(file, dtype, "r", file.tell(), shape, order)
    before = os.fstat(file.fileno())
    array = np.empty(n, dtype)
    left = array.view(np.uint8).data
    while len(left) and (count := file.readinto(left)):  # type: ignore[attr-defined]
        left = left[count:]
    after = os.fstat(file.fileno())
    if len(left) or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise InputError(f"{where} was changed while it was read; give it again when it is complete")
    array.setflags(write=False)
    return array.reshape(shape, order=order)


def _read_npz(file: Path, required: str, optional: Collection[str]) -> dict[str, NDArray[Any]]:
    where = display_path(file)
    with file.open("rb") as stream:
        npz = Npz(stream, where, (required, *optional))
        _require(required, npz.names, where)
        return {key: npz.read(key) for key in (required, *optional) if key in npz.names}


class Npz:
    """An .npz archive on an open file: its directory is checked here, each array when it is read.

    Parameters
    ----------
    stream : seekable binary file
    where : str
        What a message calls the file.
    keys : collection of str, optional
        The arrays that will be read, where others may be anything.

    Raises
    ------
    InputError
        The archive is damaged, or one of the arrays is there twice, encrypted, or claims more than
        there is.
    """

    def __init__(self, stream: IO[bytes], where: str, keys: Collection[str] | None = None) -> None:
        self._stream, self._where = stream, where
        self._members: dict[str, zipfile.ZipInfo] = {}
        with damage(where, _DAMAGE):
            self._archive = zipfile.ZipFile(stream)
            size = stream.seek(0, os.SEEK_END)
            for info in self._archive.infolist():
                key = info.filename.removesuffix(".npy")
                if key in self._members and (keys is None or key in keys):
                    raise InputError(f"{where} holds key '{key}' twice; write it again with np.savez")
                self._members[key] = info
        wanted = [key for key in self._members if keys is None or key in keys]
        for key in wanted:
            _check_member(self._members[key], size, f"{where}: key '{key}'")
        budget.take(sum(self._members[key].file_size for key in wanted), "its arrays")
        # Each may be honest by itself and all of them be the same bytes.
        if sum(self._members[key].compress_size for key in wanted) > size:
            raise InputError(f"{where} stores arrays in each other's place; write it again with np.savez")

    @property
    def names(self) -> list[str]:
        """Keys of the arrays, as np.savez was given them."""
        return list(self._members)

    def digest(self) -> str:
        """SHA-256, in hex, of all bytes but those of the arrays, whose CRCs are among the others."""
        sha, at = hashlib.sha256(), 0
        with damage(self._where, _DAMAGE):
            for info in sorted(self._archive.infolist(), key=lambda info: info.header_offset):
                self._stream.seek(at)
                head = self._stream.read(max(info.header_offset - at, 0) + 30)
                sha.update(head + self._stream.read(sum(struct.unpack("<HH", head[-4:]))))
                at = self._stream.tell() + info.compress_size
            self._stream.seek(at)
            sha.update(self._stream.read())
        return sha.hexdigest()

    def check(self) -> None:
        """InputError unless every array's CRC is right."""
        with damage(self._where, _DAMAGE):
            if (name := self._archive.testzip()) is not None:
                raise InputError(
                    f"{self._where}: key '{name.removesuffix('.npy')}' has a wrong CRC; copy it again"
                )

    def read(self, key: str) -> NDArray[Any]:
        """One array, its CRC compared; InputError if it is damaged."""
        info, here = self._members[key], f"{self._where}: key '{key}'"
        with damage(here, _DAMAGE), self._archive.open(info) as stream:
            _check_header(stream, info.file_size, here)
            array = _read_checked(stream)
            stream.read(1)  # reaching the end makes zipfile compare the CRC
        return array


def _check_member(info: zipfile.ZipInfo, archive_size: int, where: str) -> None:
    if info.flag_bits & 1:
        raise InputError(f"{where} is encrypted; write it again without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{where} is compressed with zip method {info.compress_type}, expected what np.savez or "
            "np.savez_compressed writes"
        )
    if info.header_offset + info.compress_size > archive_size:
        raise InputError(f"{where} claims more bytes than the file has: it is cut short; copy it again")
    if info.file_size > max(BOMB_BYTES, BOMB_RATIO * info.compress_size):
        raise InputError(
            f"{where} unpacks {info.compress_size} bytes to {info.file_size}, more than {BOMB_RATIO} times; "
            "if this is intended, write it uncompressed with np.savez"
        )


def _check_header(stream: IO[bytes], size: int, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and dtype of an .npy `stream` of `size` bytes; refuses what is not data."""
    shape, fortran, dtype = _parse_header(stream, where)
    if dtype.hasobject:
        raise InputError(
            f"{where} is a pickled object array, which is never loaded; save text as strings: "
            "np.array([...], dtype=str), numbers as numbers"
        )
    if dtype.kind == "V" or dtype.itemsize == 0:
        raise InputError(
            f"{where} has dtype {dtype}, expected plain numbers or strings; save it with such a dtype"
        )
    if any(length < 0 for length in shape):
        raise InputError(f"{where} has a damaged header: its shape is {shape}; write it again")
    claimed, present = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if claimed != present:
        raise InputError(
            f"{where} claims shape {shape} of {dtype}, {claimed} bytes, but holds {present}; "
            "it is damaged or cut short: copy or write it again"
        )
    return shape, fortran, dtype


def _parse_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        shape, fortran, dtype = evaluated(partial(_header, stream))
    except (zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:  # numpy evaluates the header, so anything may come out of a damaged one
        raise InputError(
            f"{where} does not start with an .npy header ({reason(error)}); write it with np.save(z)"
        ) from error
    if any(isinstance(length, bool) for length in shape):  # numpy takes them, and stumbles later
        raise InputError(f"{where} has a damaged header: its shape is {shape}; write it again")
    return tuple(int(length) for length in shape), bool(fortran), dtype


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream.seek(0)
    version = npy.read_magic(stream)
    if version == (1, 0):
        return npy.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy.read_array_header_2_0(stream)
    raise ValueError(f".npy version {version}")  # 3.0 is for structured arrays alone


def _read_checked(stream: IO[bytes]) -> NDArray[Any]:
    return evaluated(partial(_array, stream))


def _array(stream: IO[bytes]) -> NDArray[Any]:
    stream.seek(0)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """An uncompressed .npz whose bytes depend on the arrays only (np.savez stamps the time)."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as member:
                array = np.asarray(arrays[name], order="C")
                npy.write_array_header_1_0(member, npy.header_data_from_array_1_0(array))
                if array.nbytes:  # npy.write_array would copy it first
                    member.write(array.reshape(-1).view(np.uint8).data)
