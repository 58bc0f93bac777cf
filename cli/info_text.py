"""What `info` shows, as cells of text: for the tables of a terminal and the lines of a pipe."""

from __future__ import annotations

from typing import Any, NamedTuple


class Cells(NamedTuple):
    """Heads of columns, and rows."""

    heads: list[str]
    rows: list[list[str]]


def summary(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the index as a whole."""
    names = ["path", "ntotal", "rounds", "bits", "instance_bits", "stored_bits", "d", "anchors", "preset"]
    if facts["removed"]:
        names[2:2] = ["rows", "removed"]
    found = [(name, str(facts[name])) for name in (*names, "model_digest")]
    if (encoder := facts["encoder"]) is not None:
        found.append(("encoder", f"{encoder['name']} ({encoder['fingerprint'][:12]})"))
    found.append(("tags", f"{facts['tags_known']:,} learned from, {facts['tags_seen']:,} seen"))
    found.append(("tags most used", ", ".join(f"{tag} ({count:,})" for tag, count in facts["tags_top"])))
    if facts["metadata"]:
        columns = [f"{name} ({type_})" for name, type_ in facts["metadata"].items()]
        found.append(("metadata", ", ".join(columns)))
    found.append(("bytes", ", ".join(f"{name} {size:,}" for name, size in facts["sizes"].items())))
    return found + [(f"approximate {made['kind']}", _ann(made)) for made in facts["ann"]]


def history(facts: dict[str, Any]) -> Cells:
    """What each round appended."""
    heads = ["round", "kind", "items", "learned", "ntotal", "seconds"]
    rows = [
        [
            *(str(row["round"]), row["kind"], f"{row['n']:,}", f"{row['trained']:,}", f"{row['ntotal']:,}"),
            f"{row['seconds']:.2f}",
        ]
        for row in facts["history"]
    ]
    return Cells(heads, rows)


def codes(facts: dict[str, Any]) -> Cells:
    """Figures of the codes of each round; empty where they are not known."""
    heads = ["round", "balance", "entropy", "correlation", "distinct"]
    return Cells(heads, [[str(row["round"]), *_figures(row["health"] or {})] for row in facts["history"]])


def learning(facts: dict[str, Any]) -> Cells:
    """What each round learned from: shares of its items and tags, and how many tags were new."""
    heads = ["round", "tagged", "tags new", "trusted", "novelty", "adapted", "covered"]
    found = ((str(row["round"]), row["health"] or {}) for row in facts["history"] if row["trained"])
    return Cells(heads, [[number, *_learned(health)] for number, health in found])


def drift(facts: dict[str, Any]) -> list[str]:
    """A line for each earlier model."""
    lines = []
    for moved in facts["drift"]:
        most = max(moved["bits"])
        lines.append(
            f"since round {moved['round']} the hash function sets {moved['turned']:.1%} of bits otherwise "
            f"(bit {moved['bits'].index(most)} most: {most:.1%})"
        )
    return lines


def doubted(facts: dict[str, Any]) -> Cells:
    """Items whose tags are trusted least."""
    rows = [
        [str(item["id"]), item["key"] or "", f"{item['trust']:.3f}", ", ".join(item["tags"])]
        for item in facts["doubted"]
    ]
    return Cells(["id", "key", "trust", "tags"], rows)


def _ann(made: dict[str, Any]) -> str:
    """An approximate index in a line."""
    text = ", ".join(f"{name} {value}" for name, value in made["parameters"].items())
    text += f"; recall@10 {made['recall']:.3f} after round {made['round']}"
    return text + (f"; {made['behind']:,} newer codes are scanned" if made["behind"] else "")


def _figures(health: dict[str, Any]) -> list[str]:
    shown = [
        f"{health[name]:.2f}" if name in health else "" for name in ("balance", "entropy", "correlation")
    ]
    shown.append(f"{health['distinct']:.0%}" if "distinct" in health else "")
    return shown


def _learned(health: dict[str, Any]) -> list[str]:
    tagged = f"{health['items_tagged'] / health['items']:.0%}" if health.get("items") else ""
    new = f"{health['tags_new']:,}" if "tags_new" in health else ""
    trusted, novelty, covered = (
        f"{health[name]:.0%}" if name in health else "" for name in ("trusted", "novelty", "covered")
    )
    return [tagged, new, trusted, novelty, "yes" if health.get("adapted") else "", covered]
