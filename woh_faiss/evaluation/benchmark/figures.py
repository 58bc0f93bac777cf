"""The figures of a benchmark; matplotlib is imported only when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from woh_faiss.evaluation.plots import figure

from .cells import FLOAT, VARIANTS
from .paper import ABLATIONS
from .records import Record, means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = "osD^vP*Xh<>dp"


def figures(records: Sequence[Record]) -> dict[str, tuple[str, Figure]]:
    """Title and figure by file name, those for which there is anything to draw."""
    plain = [record for record in records if not record["hyper"] and record["method"] not in VARIANTS]
    lengths = sorted({record["bits"] for record in plain if record["bits"]})
    found: dict[str, tuple[str, Figure]] = {}
    if lengths:
        found["map-by-bytes"] = "MAP at the last round against bytes an item", _by_bytes(plain)
    for bits in lengths:
        some = [record for record in plain if record["bits"] in (bits, None)]
        if max(len(record["rounds"]) for record in some) > 1:
            found[f"map-by-round-{bits}"] = f"MAP after every round, {bits} bits", _by_round(some)
        found[f"precision-recall-{bits}"] = f"Precision against recall, {bits} bits", _precision_recall(some)
        found[f"precision-at-{bits}"] = f"Precision of the first hits, {bits} bits", _precision_at(some)
    timed = [record for record in plain if record["bits"] in lengths[-1:] and len(record["rounds"]) > 1]
    if timed:
        found["seconds-by-round"] = f"Training seconds of every round, {lengths[-1]} bits", _seconds(timed)
    falling = [record for record in plain if record.get("objective")]
    if falling:
        found["objective"] = "Objective of woh-paper (Eq. 4) on the first chunk", _objective(falling)
    without = [it for it in records if it["hyper"] in ABLATIONS or it["method"] in VARIANTS]
    if without:
        whole = [record for record in plain if record["method"] == "woh-paper"]
        found["ablation"] = "MAP of woh-paper without parts of Eq. 4", _ablation(whole + without)
    for name in dict.fromkeys(name for record in records for name in record["hyper"]):
        of_name = [record for record in records if [*record["hyper"]] == [name]]
        if len({record["hyper"][name] for record in of_name}) > 1:
            found[f"sensitivity-{name}"] = f"MAP of woh-paper against {name}", _sensitivity(of_name, name)
    return found


def _drawn(draw: Callable[[Axes], None], x: str, y: str) -> Figure:
    made = figure()
    from matplotlib import colormaps

    axes = made.add_subplot()
    axes.set_prop_cycle(color=[colormaps["tab20"](n) for n in (*range(0, 20, 2), *range(1, 20, 2))])
    draw(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    made.legend(loc="outside right upper", frameon=False, fontsize=9)
    return made


def _by_bytes(records: Sequence[Record]) -> Figure:
    scores = means(records, lambda record: (record["bytes"], record["rounds"][-1]["map"]))

    def draw(axes: Axes) -> None:
        names = dict.fromkeys(name for name, _ in scores)
        for number, name in enumerate(names):
            points = sorted(tuple(point) for key, point in scores.items() if key[0] == name)
            style: dict[str, Any] = {"marker": MARKS[number % len(MARKS)], "ms": 5, "label": name}
            (line,) = axes.plot(*zip(*points, strict=True), **style, lw=2 if name == "woh" else 1)
            if name in FLOAT:
                axes.axhline(points[0][1], color=line.get_color(), ls=":", lw=1)
        axes.set_xscale("log", base=2)
        ticks = sorted({int(point[0]) for point in scores.values()})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        values = [point[1] for point in scores.values()]
        if min(values) < max(values) / 2:  # else lines that are close together would lie on each other
            axes.set_ylim(bottom=0)

    return _drawn(draw, "bytes an item", "MAP")


def _lines(records: Sequence[Record], of: Callable[[Record], tuple[Any, Any]]) -> Callable[[Axes], None]:
    curves = means(records, of)

    def draw(axes: Axes) -> None:
        for number, ((name, bits), (x, y)) in enumerate(curves.items()):
            if bits is None and len(x) == 1:
                axes.axhline(y[0], ls="--", color=f"{0.6 if 'l2' in name else 0.3}", label=name)
            else:
                mark = MARKS[number % len(MARKS)]
                axes.plot(x, y, marker=mark, ms=4, lw=2 if name == "woh" else 1, label=name)

    return draw


def _by_round(records: Sequence[Record]) -> Figure:
    draw = _lines(records, lambda r: ([it["round"] for it in r["rounds"]], [it["map"] for it in r["rounds"]]))
    return _drawn(_whole_rounds(draw), "round", "MAP")


def _whole_rounds(draw: Callable[[Axes], None]) -> Callable[[Axes], None]:
    def with_ticks(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        draw(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return with_ticks


def _seconds(records: Sequence[Record]) -> Figure:
    draw = _lines(
        records, lambda r: ([it["round"] for it in r["rounds"]], [it["seconds"] for it in r["rounds"]])
    )

    def logarithmic(axes: Axes) -> None:
        _whole_rounds(draw)(axes)
        axes.set_yscale("log")

    return _drawn(logarithmic, "round", "training seconds")


def _objective(records: Sequence[Record]) -> Figure:
    curves = means(records, lambda record: record["objective"])

    def draw(axes: Axes) -> None:
        for (_, bits), values in curves.items():
            axes.plot(range(1, len(values) + 1), values / values[0], marker="o", label=f"{bits} bits")

    return _drawn(_whole_rounds(draw), "outer iterations", "objective, as a share of that after the first")


def _precision_recall(records: Sequence[Record]) -> Figure:
    return _drawn(_lines(records, lambda r: (r["recall"], r["precision"])), "recall", "precision")


def _precision_at(records: Sequence[Record]) -> Figure:
    draw = _lines(records, lambda r: (r["first"], r["precision"]))

    def logarithmic(axes: Axes) -> None:
        draw(axes)
        axes.set_xscale("log")

    return _drawn(logarithmic, "first hits", "precision")


def _ablation(records: Sequence[Record]) -> Figure:
    scores = means(records, lambda record: record["rounds"][-1]["map"])
    names = [*dict.fromkeys(name for name, _ in scores)]
    lengths = sorted({bits for _, bits in scores if bits})

    def draw(axes: Axes) -> None:
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            at = np.arange(len(lengths)) + (number - (len(names) - 1) / 2) * width
            axes.bar(at, [scores.get((name, bits), 0) for bits in lengths], width, label=name)
        axes.set_xticks(range(len(lengths)), [str(bits) for bits in lengths])

    return _drawn(draw, "bits", "MAP")


def _sensitivity(records: Sequence[Record], name: str) -> Figure:
    scores: dict[int, dict[float, list[float]]] = {}
    for record in records:
        of_bits = scores.setdefault(record["bits"], {})
        of_bits.setdefault(record["hyper"][name], []).append(record["rounds"][-1]["map"])

    def draw(axes: Axes) -> None:
        for bits, by_value in scores.items():
            values = sorted(by_value)
            axes.plot(
                values, [np.mean(by_value[value]) for value in values], marker="o", label=f"{bits} bits"
            )
        axes.set_xscale("symlog" if min(map(min, scores.values())) <= 0 else "log")

    return _drawn(draw, name, "MAP")
