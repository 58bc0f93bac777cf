"""What is at a path, whatever its name: too long, with a zero byte, in a folder that is not to be read."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Literal


def path_kind(path: Path) -> Literal["file", "folder", "other"] | None:
    """What a path leads to; None where nothing is there, or it cannot be told."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
