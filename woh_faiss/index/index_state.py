"""What an index tells of itself: counts, sizes, rounds, and how well its codes do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from woh_faiss.learner.config import WOHConfig
from woh_faiss.learner.hasher import Hasher
from woh_faiss.learner.kernel import NEAR
from woh_faiss.store import Round, Store

#: Share of tags that do not fit from which a round is told about.
DOUBTED = 0.05
#: Share of items near anchors below which, chance apart, a round is told about.
COVERED = 0.8


def advice(done: Round) -> dict[str, str]:
    """What a person should know of a round, and do about it: a line by what it is about."""
    health, lines = done.health or {}, {}
    if health.get("adapted"):
        lines["adapted"] = (
            f"{health['novelty']:.0%} of the tags of round {done.round} are of kinds of items that were not "
            "there before; it adapted to them"
        )
    doubted = 1 - health.get("trusted", 1.0)
    if doubted >= DOUBTED:
        lines["trusted"] = (
            f"about {doubted:.0%} of the tags of round {done.round} do not fit the features and count less; "
            "'woh-index info' lists the items where they fit least"
        )
    covered = health.get("covered", 1.0)
    chance = 3 * (NEAR * (1 - NEAR) / max(done.trained, 1)) ** 0.5
    if covered < min(COVERED, NEAR - chance):
        lines["covered"] = (
            f"{covered:.0%} of the items of round {done.round} are near an anchor, {NEAR:.0%} of those like "
            "the first items are; if most items to come are such, build the index again, from a sample of "
            "all (build --first-sample)"
        )
    return lines


def tags(store: Store) -> list[tuple[str, int, bool]]:
    """See `WOHIndex.tags`."""
    rows = [(tag, count, column is not None) for column, tag, count, _ in store.tag_rows()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def info(
    store: Store, config: WOHConfig, instance_bits: int, hasher: Hasher | None, n_tags: int
) -> dict[str, Any]:
    """See `WOHIndex.info`; `hasher` is None where nothing was learned."""
    seen, snapshot = tags(store), store.snapshot
    return {
        "path": str(store.path),
        "ntotal": snapshot.ntotal,
        "rows": snapshot.rows,
        "removed": snapshot.rows - snapshot.ntotal,
        "rounds": snapshot.round,
        "bits": config.bits,
        "instance_bits": instance_bits,
        "stored_bits": store.d,
        "d": hasher.d if hasher else None,
        "anchors": len(hasher.P) if hasher else None,
        "preset": config.preset,
        "config": config.to_dict(),
        "model_digest": snapshot.model_digest,
        "tags_seen": len(seen),
        "tags_known": sum(known for _, _, known in seen),
        "tags_top": [(tag, count) for tag, count, _ in seen[:n_tags]],
        "metadata": store.metadata_types(),
        "ann": [{**asdict(made), "behind": snapshot.rows - made.rows} for made in snapshot.ann],
        "sizes": store.sizes(),
        "history": [asdict(round_) for round_ in store.rounds()],
    }


def health(store: Store, hasher: Hasher | None, most: int) -> dict[str, Any]:
    """See `WOHIndex.health`; `hasher` is None where nothing was learned."""
    view, drift = store.view, []
    if hasher is not None:
        for number, model in store.earlier_models():
            with model.damage():
                before = Hasher.from_arrays(model, None if "A" in model else view.anchor_rows())
                bits = hasher.drift(before)
            drift.append({"round": number, "turned": float(bits.mean()), "bits": bits.tolist()})
    doubted = store.doubted(most)
    rounds = store.rounds()
    newest = next((done for done in reversed(rounds) if done.trained), None)
    items = view.find(doubted)
    return {
        "rounds": [
            {"round": done.round, "kind": done.kind, "n": done.n, **(done.health or {})} for done in rounds
        ],
        "warnings": [*advice(newest).values()] if newest else [],
        "drift": drift,
        "doubted": [
            {"id": id_, "key": item.key, "tags": item.tags, "round": item.round, "trust": item.trust}
            for id_ in doubted
            if (item := items.get(id_)) is not None
        ],
    }
