"""The figures and the table of kept results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keeping import Line, read
from measuring import verdict

HEAD = ("part", "what", "median", "quartiles", "bar", "", "clock", "of what")


def table(folder: Path) -> str:
    """Every kept figure as a row of Markdown."""
    rows = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for line in read(folder):
        sign = "≥" if line["better"] == "more" else "≤"
        bar = "" if line["bar"] is None else f"{sign} {line['bar']:g}"
        alone = line["repeats"] == 1
        quartiles = "" if alone else f"{number(line['q1'])} to {number(line['q3'])} of {line['repeats']}"
        time_ = f"; {duration(line['seconds'])}" if line.get("seconds") else ""
        cells = [line["part"], line["what"], f"**{number(line['median'])}**", quartiles, bar]
        said = verdict(line["median"], line["bar"], line["better"])
        cells += [said, line["clock"], line["note"] + time_]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def number(value: float) -> str:
    """Three digits, and none after the point of large or whole numbers."""
    return f"{value:,.0f}" if value == 0 or abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Milliseconds below a second."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def draw(lines: list[Line], folder: Path) -> None:
    """growth.svg, rivals.svg and bars.svg, each if there is anything to draw."""
    growing = [line for line in lines if line["part"] == "growth"]
    rivals = [line for line in lines if line["part"] == "rivals" and line["median"] == line["median"]]
    barred = [line for line in lines if line["bar"]]
    for name, some, onto in (
        ("growth", growing, _growth),
        ("rivals", rivals, _rivals),
        ("bars", barred, _bars),
    ):
        if some:
            onto(some, folder / f"{name}.svg")


def _figure(path: Path, width: float, height: float, columns: int, onto: Any) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "woh-faiss"}):  # the same results give the same file
        figure = Figure(figsize=(width, height), layout="constrained")
        onto(figure.subplots(1, columns, squeeze=False)[0])
        figure.savefig(path, metadata={"Date": None})


def _growth(lines: list[Line], path: Path) -> None:
    def onto(axes: Any) -> None:
        for ax, line in zip(axes, lines, strict=True):
            x = line["points"]["x"]
            ax.loglog(x, line["points"]["seconds"], marker="o")
            ax.set_xticks(x, [f"{value:,.0f}" for value in x], fontsize=8)
            ax.set_xticks([], minor=True)
            ax.set_xlabel(line["what"].split()[2].rstrip(":"))
            ax.set_title(f"power {line['median']:.2f}", fontsize=10)
            ax.grid(alpha=0.3)
        axes[0].set_ylabel("processor seconds of a round")

    _figure(path, 10, 3, len(lines), onto)


def _rivals(lines: list[Line], path: Path) -> None:
    def onto(axes: Any) -> None:
        (ax,) = axes
        names = [f"{line['what'].split(' / ')[0]}\nrecall@10 {line['recall']:.2f}" for line in lines]
        ax.hlines(names, [line["q1"] for line in lines], [line["q3"] for line in lines], lw=6, alpha=0.4)
        ax.plot([line["median"] for line in lines], names, "o")
        ax.grid(axis="x", alpha=0.3)
        ax.axvline(1, color="0.3", lw=1)
        ax.set_xscale("log")
        ax.set_xlabel("processor time of a query, as a multiple of woh-faiss's on as many rows")
        ax.invert_yaxis()

    _figure(path, 8, 0.5 * len(lines) + 1, 1, onto)


def _bars(lines: list[Line], path: Path) -> None:
    """How far from its bar each figure is: right of 1 it passes."""

    def onto(axes: Any) -> None:
        (ax,) = axes
        more = [line["better"] == "more" for line in lines]
        room = [
            line["median"] / line["bar"] if up else line["bar"] / max(line["median"], 1e-9)
            for line, up in zip(lines, more, strict=True)
        ]
        room = [min(value, 3) for value in room]
        colours = ["tab:blue" if value >= 1 else "tab:red" for value in room]
        ax.barh([f"{line['part']}: {line['what']}" for line in lines], room, color=colours, height=0.6)
        ax.axvline(1, color="0.3", lw=1)
        ax.set_xlabel("room to the bar: 1 meets it, 3 and more is drawn as 3")
        ax.tick_params(axis="y", labelsize=8)
        ax.invert_yaxis()

    _figure(path, 9, 0.28 * len(lines) + 1, 1, onto)
