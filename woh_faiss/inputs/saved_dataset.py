"""Folders as Hugging Face's `save_to_disk` writes them: state.json says which files are the data set.

Beside those lie what `map`, `shuffle` and the like left (cache-*.arrow): rows once more, or places of rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from woh_faiss import budget
from woh_faiss.display import display_path, display_text
from woh_faiss.errors import InputError
from woh_faiss.validate import listed, short

#: The file of a data set; that of several splits, each a folder; what both have, and caches have alone.
STATE, SPLITS, INFO = "state.json", "dataset_dict.json", "dataset_info.json"
_INDICES = ("_indices_data_files", "_indices_files")


class SavedFiles(NamedTuple):
    """The files of a data set, how many others lie beside them, and the name of the split, if it has one."""

    files: list[Path]
    others: int
    split: str


def saved_files(folder: Path, names: Sequence[str]) -> SavedFiles | None:
    """The files of a data set in their order; None for a folder that is none.

    Parameters
    ----------
    folder : path
    names : sequence of str
        Its Arrow and Parquet files.

    Raises
    ------
    InputError
        It holds several splits, is the cache that `load_dataset` fills, its state.json is damaged or names
        what is not there, or its rows are chosen by a table of indices.
    """
    where = display_path(folder)
    if (folder / SPLITS).is_file():
        splits = _object(folder / SPLITS).get("splits")
        told = splits if isinstance(splits, list) and splits else ["train"]
        raise InputError(
            f"{where} is a DatasetDict with the splits {listed([*map(str, told)], 10)}, expected one data "
            f"set; give the folder of one of them, such as {display_path(folder / str(told[0]))}"
        )
    if not (folder / STATE).is_file():
        if (folder / INFO).is_file() and len(names) > 1:
            raise InputError(
                f"{where} is a cache of datasets, whose {len(names)} files may be of several splits or hold "
                "rows twice; give what save_to_disk writes, or one file of it"
            )
        return None
    state = _object(folder / STATE)
    if any(state.get(name) for name in _INDICES):
        raise InputError(
            f"{display_path(folder / STATE)} has a table of indices, by which rows are chosen; save the data "
            "set again after flatten_indices()"
        )
    entries = state.get("_data_files")
    if not isinstance(entries, list):
        return None  # a state.json of somebody else
    files = [_member(folder, entry) for entry in entries]
    others = len(set(names) - {path.name for path in files})
    return SavedFiles(files, others, str(state.get("_split") or ""))


def _member(folder: Path, entry: Any) -> Path:
    where = display_path(folder / STATE)
    name = entry.get("filename") if isinstance(entry, dict) else None
    if not isinstance(name, str) or name in ("", ".", "..") or Path(name).name != name or "\0" in name:
        raise InputError(f"{where} names {short(name)} as a file of its folder; save the data set again")
    path = folder / name
    if not path.is_file():
        raise InputError(f"{where} names {display_text(name)}, which is not there; copy or save it again")
    return path


def _object(path: Path) -> dict[str, Any]:
    where = display_path(path)
    budget.take(20 * path.stat().st_size, path.name)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputError(f"{where} is not JSON; copy it again, or save the data set again") from None
    return found if isinstance(found, dict) else {}
