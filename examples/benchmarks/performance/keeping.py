"""Results as they are kept, and what got worse since."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
#: What others' work does not change; a figure by the wall clock is no reason to call something worse.
STEADY = ("cpu", "bytes", "count")


def read(folder: Path) -> list[Line]:
    """The lines of a run; none where nothing was kept."""
    path = folder / "results.jsonl"
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def write(folder: Path, lines: Iterable[Line], kept: Iterable[Line], parts: Sequence[str]) -> None:
    """Keep the lines of these parts, and of other parts those that there were."""
    others = [line for line in kept if line["part"] not in parts]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line | {"machine": machine()}) + "\n" for line in lines)
    text = "".join(json.dumps(line) + "\n" for line in others) + text
    (folder / "results.jsonl").write_text(text)


def machine() -> str:
    """What a figure was taken on, and how busy it was."""
    return f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.0f}"


def regressions(lines: Iterable[Line], kept: Iterable[Line], tolerance: float) -> list[str]:
    """A line for each figure that is worse than the kept one by more than a share of it."""
    before = {(line["part"], line["what"]): line for line in kept}
    found = []
    for line in lines:
        known = before.get((line["part"], line["what"]))
        if known is None or not line["better"] or line["clock"] not in STEADY:
            continue
        now, then = line["median"], known["median"]
        worse = now < then * (1 - tolerance) if line["better"] == "more" else now > then * (1 + tolerance)
        if worse:
            found.append(f"WORSE {line['part']}: {line['what']} {now:.3f}, kept {then:.3f}")
    return found
