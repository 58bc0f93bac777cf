"""The one figure the package draws; matplotlib is imported only here, and only when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from woh_faiss.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .streaming import Result


def check(path: Path) -> None:
    """Refuse, before hours of work, what `map_by_round` could not write at the end.

    Raises
    ------
    InputError
        matplotlib is not installed, it does not write files with that ending, or the folder is missing.
    """
    drawn = figure()
    known = sorted(drawn.canvas.get_supported_filetypes())
    if path.suffix.lower().removeprefix(".") not in known:
        raise InputError(f"cannot draw to {path}: expected a name ending in one of {', '.join(known)}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"cannot draw to {path}: its folder does not exist; make it first")


def map_by_round(results: Sequence[Result], path: Path) -> None:
    """Draw MAP against rounds to `path`: a line per method and bits, dashed for uncompressed search.

    Raises
    ------
    InputError
        As `check`, or the file cannot be written.
    """
    check(path)
    from matplotlib.ticker import MaxNLocator

    drawn = figure()
    axes = drawn.add_subplot()
    lines = dict.fromkeys((r.method, r.preset, r.bits) for r in results)
    for method, preset, bits in lines:
        of_line = [r for r in results if (r.method, r.preset, r.bits) == (method, preset, bits)]
        if bits is None:
            axes.axhline(of_line[-1].map, color=f"{0.6 if 'l2' in method else 0.3}", ls="--", label=method)
        else:
            name = f"{method} {preset}" if preset else method
            rounds, scores = [r.round for r in of_line], [r.map for r in of_line]
            axes.plot(rounds, scores, marker="o", ms=4, label=f"{name}, {bits} bits")
    axes.set_xlabel("round (chunks streamed)")
    axes.set_ylabel(f"mean average precision, {results[-1].queries} queries")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    # Below the axes: it hides no line, however many there are.
    drawn.legend(loc="outside lower center", ncols=2, frameon=False)
    try:
        drawn.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another name") from error


def figure() -> Figure:
    """An empty figure; InputError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "plots need matplotlib, which is not installed: pip install 'woh-faiss[plot]'"
        ) from None
    return Figure(figsize=(7, 5), layout="constrained")
