"""The columns of features, tags, ids and keys: given, or guessed from common names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from woh_faiss.display import display_text
from woh_faiss.errors import InputError
from woh_faiss.validate import listed, short


class Columns(NamedTuple):
    """Names of columns: None means guessed, or (once chosen) absent; '' means none."""

    features: str | None = None
    tags: str | None = None
    id: str | None = None
    key: str | None = None

    def with_those_of(self, first: Columns) -> Columns:
        """What is wanted of the other files of a folder: columns of the first one are in each of them."""
        return Columns(*(found or given for found, given in zip(first, self, strict=True)))

    @property
    def named(self) -> list[str]:
        """Those that are there, each once."""
        return list(dict.fromkeys(name for name in self if name is not None))


class Offer(NamedTuple):
    """A column that a file has: its name, one of `KINDS`' kinds (or "other"), and its type in words."""

    name: str
    kind: str
    told: str


#: What a column must hold to be taken for something, and how a message says so.
KINDS: dict[str, Mapping[str, str]] = {
    "features": {"vectors": "lists of numbers, all of one length"},
    "tags": {"words": "lists of text", "text": "text"},
    "id": {"ints": "whole numbers", "floats": "whole numbers", "decimals": "whole numbers"},
    "key": {"text": "text", "uuids": "UUIDs", "ints": "numbers", "floats": "numbers", "decimals": "numbers"},
    "labels": {
        "ints": "class numbers",
        "vectors": "lists of 0 and 1",
        "text": "text",
        "words": "lists of text",
    },
}

_IDS = ("id", "ids", "item_id", "image_id", "photo_id", "picture_id")
_CAPTIONS = ("caption", "captions", "text", "title", "description", "alt", "alt_text", "alttext")
_VECTORS = ("features", "feature", "embedding", "embeddings", "emb", "embs", "vector", "vectors")

#: Usual names, in steps: the first step of which the file has one decides; of which it has two, nothing does.
USUAL: dict[str, tuple[tuple[str, ...], ...]] = {
    "features": (_VECTORS,),
    "tags": (("tags", "tag", "keywords", "keyword", "user_tags", "hashtags"), _CAPTIONS),
    "id": (_IDS,),
    "key": (
        ("key", "keys"),
        _IDS,
        ("path", "image_path", "file_path", "file", "filename", "file_name", "image_file"),
        ("url", "image_url", "uri", "link"),
    ),
    "labels": (("labels", "label"), ("class", "classes", "category", "categories")),
}


def choose(
    where: str,
    offers: Sequence[Offer],
    wanted: Columns,
    needed: Collection[str] = (),
    kinds: Mapping[str, Mapping[str, str]] = KINDS,
) -> Columns:
    """The columns of a file that are meant.

    Raises
    ------
    InputError
        One that was named is not there or holds something else; one that is needed is not there under a
        usual name; or two might be meant. The message lists the columns.
    """
    found: dict[str, str | None] = {}
    for role in Columns._fields:
        # A column of numbers that are ids is no column of keys.
        rest = [o for o in offers if role != "key" or wanted.key is not None or o.name != found["id"]]
        found[role] = choose_one(where, role, rest, getattr(wanted, role), kinds[role])
    if wanted.id is None and wanted.key is None:
        for offer in offers:
            if _folded(offer.name) in _IDS and not {offer.kind} & (kinds["id"].keys() | kinds["key"].keys()):
                raise InputError(
                    f"{where}: column {short(offer.name)} is {offer.told}, expected whole numbers for ids or "
                    "text for keys; --id-column '' leaves it out"
                )
    for role in needed:
        if found[role] is None:
            usual = ", ".join(USUAL[role][0])
            raise InputError(
                f"{where} has no column of {role} under a usual name ({usual}, ...); it has {told(offers)}; "
                f"say which with --{role}-column"
            )
    return Columns(**found)


def passed_over(
    where: str, offers: Sequence[Offer], wanted: Columns, columns: Columns, kinds: Any = KINDS
) -> str | None:
    """A line about columns that have a usual name and cannot be what it says; None where there are none.

    `columns` are those that were chosen; parameters are those of `choose`.
    """
    lost = []
    for role in ("id", "tags", "key"):
        if getattr(wanted, role) is None and getattr(columns, role) is None:
            names = [name for step in USUAL[role] for name in step if role != "key" or name not in _IDS]
            expected = " or ".join(dict.fromkeys(kinds[role].values()))
            lost += [
                f"column {short(offer.name)} is {offer.told}, expected {expected} for {role}"
                for offer in offers
                if _folded(offer.name) in names and offer.name not in columns
            ]
    return f"{where}: {'; '.join(lost)}; not taken" if lost else None


#: Kinds of columns that may be metadata.
_SINGLE = ("ints", "floats", "decimals", "text", "uuids", "bools", "times")


def check_metadata(where: str, offers: Sequence[Offer], names: Sequence[str]) -> None:
    """InputError where a column of metadata is not there, or holds no single values."""
    by_name = {offer.name: offer for offer in offers}
    for name in names:
        if name not in by_name:
            raise InputError(f"{where} has no column {short(name)} for --metadata; it has {told(offers)}")
        if by_name[name].kind not in _SINGLE:
            raise InputError(
                f"{where}: column {short(name)} is {by_name[name].told}, expected numbers, text, true and "
                f"false, dates or times for --metadata; it has {told(offers)}"
            )


def told(offers: Sequence[Offer]) -> str:
    """The columns there are, for a message."""
    return listed([f"{display_text(offer.name)} ({offer.told})" for offer in offers], 20) or "no columns"


def usual(role: str, names: Sequence[str]) -> bool:
    """Whether one of the names is usual for a role."""
    return any(_folded(name) in step for name in names for step in USUAL[role])


def is_caption(name: str) -> bool:
    """Whether a column of this name holds sentences, of which the words are the tags."""
    return _folded(name) in _CAPTIONS


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key by which part-2 comes before part-10."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)
    ]


def choose_one(
    where: str, role: str, offers: Sequence[Offer], name: str | None, kinds: Mapping[str, str] | None = None
) -> str | None:
    """The column of one role of `USUAL`, None for none there; `name` and errors as in `choose`."""
    kinds = KINDS[role] if kinds is None else kinds
    if name == "":
        return None
    if name is not None:
        offer = next((offer for offer in offers if offer.name == name), None)
        if offer is None:
            raise InputError(f"{where} has no column {short(name)}; it has {told(offers)}")
        if offer.kind not in kinds:
            expected = " or ".join(dict.fromkeys(kinds.values()))
            raise InputError(
                f"{where}: column {short(name)} is {offer.told}, expected {expected} "
                f"for --{role}-column; it has {told(offers)}"
            )
        return name
    fitting = [offer for offer in offers if offer.kind in kinds]
    for same in _steps(role, fitting):
        if len(same) > 1:
            raise InputError(
                f"{where} has several columns that may be the {role}: {', '.join(map(display_text, same))}; "
                f"say which with --{role}-column (it has {told(offers)})"
            )
        if same:
            return same[0]
    return None


def _steps(role: str, offers: Sequence[Offer]) -> Iterator[list[str]]:
    for names in USUAL[role]:
        yield [offer.name for offer in offers if _folded(offer.name) in names]
    if role == "features":  # image_embedding, clip_features
        yield [offer.name for offer in offers if set(_folded(offer.name).split("_")) & set(_VECTORS)]


def _folded(name: str) -> str:
    return re.sub(r"[\s\-.]+", "_", name).casefold()
