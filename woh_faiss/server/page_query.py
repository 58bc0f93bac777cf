"""What the page is asked: its address, taken apart and put together, so that links keep what they leave."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from woh_faiss.errors import InputError, short
from woh_faiss.index.neighbours import By
from woh_faiss.tags.splitting import TagTexts
from woh_faiss.tags.tag_lists import TagLists

#: Answers a page, where nobody says otherwise, and at most.
K, MOST_K = 24, 200
#: What the words of a query are.
WORDS = ("tags", "text")
#: Letters of a text that is asked, and of the name of a picture.
LONGEST, LONGEST_NAME = 10_000, 200


@dataclass(frozen=True, kw_only=True)
class PageQuery:
    """One address of the page, or one form.

    Attributes
    ----------
    q : str
        Tags or a text, as typed; beside a picture, tags.
    words : "tags" or "text"
        Which of them `q` is.
    like : int, optional
        The item that answers are to be like, where there is no `q`.
    tags : tuple of str
        Tags that all answers must have.
    where : str
        A filter, or nothing.
    by : str
        What answers are ordered by.
    k, offset : int
        Answers of a page, and those before it.
    vector : (d,) float32, optional
        Features of the picture that was sent. No address has them.
    name : str
        What its file is called.
    """

    q: str = ""
    words: str = "tags"
    like: int | None = None
    tags: tuple[str, ...] = ()
    where: str = ""
    by: By = "both"
    k: int = K
    offset: int = 0
    vector: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    name: str = ""

    @classmethod
    def of(cls, given: Iterable[tuple[str, Any]]) -> Self:
        """The query of names and values, those of an address or of a form; other names are ignored.

        A tag of `without` is none of the tags.

        Raises
        ------
        InputError
            A number is none or out of range, or a value is none of those there are.
        """
        pairs = [(name, value) for name, value in given if isinstance(value, str)]
        last = dict(pairs)
        tags = dict.fromkeys(value for name, value in pairs if name == "tag" and value)
        by: Any = _one_of(last, "by", get_args(By), "both")
        q = last.get("q", "").strip()
        if len(q) > LONGEST:
            raise InputError(f"q has {len(q):,} letters, expected at most {LONGEST:,}")
        return cls(
            q=q,
            words=_one_of(last, "as", WORDS, "tags"),
            like=_number(last, "like", 0, 2**63 - 1, None),
            tags=tuple(tag for tag in tags if ("without", tag) not in pairs),
            where=last.get("where", "").strip(),
            by=by,
            k=_number(last, "k", 1, MOST_K, K) or K,
            offset=_number(last, "offset", 0, 2**31, 0) or 0,
            vector=_vector(last.get("vector", "")),
            name=last.get("name", "")[:LONGEST_NAME],
        )

    def but(self, **changed: Any) -> PageQuery:
        """The same with other values; from the first answer on, where `offset` is not among them."""
        return replace(self, **{"offset": 0, **changed})

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """As an address has it: what is not as usual."""
        usual = PageQuery()
        found = [("q", self.q), ("like", "" if self.like is None or self.q else str(self.like))]
        found += [("as", self.words)] if self.q and self.words != usual.words else []
        found += [("tag", tag) for tag in self.tags]
        found += [("where", self.where)]
        found += [
            (name, str(value))
            for name in ("by", "k", "offset")
            if (value := getattr(self, name)) != getattr(usual, name)
        ]
        return [(name, value) for name, value in found if value]

    @property
    def address(self) -> str:
        """The address, without the picture."""
        return f"/?{urlencode(self.pairs)}" if self.pairs else "/"

    @property
    def vector_text(self) -> str:
        """The features as a form carries them."""
        return "" if self.vector is None else base64.b64encode(self.vector.astype("<f4").tobytes()).decode()

    @property
    def filter(self) -> str | None:
        """`where` and the tags as one filter."""
        has = ["'{}' in tags".format(tag.replace("'", "''")) for tag in self.tags]
        if not has:  # as it was typed, so that errors count its letters
            return self.where or None
        return " and ".join([f"({self.where})", *has] if self.where else has)

    def asked_tags(self, notes: list[str]) -> list[str] | None:
        """`q` split into tags as texts of tags are, with notes on how; None where it has none."""
        if not self.q:
            return None
        found = TagLists.from_strings([self.q], TagTexts(note=notes.append)).of_row(0)
        return [*found] or None


def _number(given: Mapping[str, str], name: str, least: int, most: int, usual: int | None) -> int | None:
    text = given.get(name, "").strip()
    if not text:
        return usual
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= most:
        raise InputError(f"{name} is {short(text)}, expected a whole number from {least:,} to {most:,}")
    return value


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...], usual: str) -> str:
    value = given.get(name) or usual
    if value not in known:
        raise InputError(f"{name} is {short(value)}, expected one of {', '.join(known)}")
    return value


def _vector(text: str) -> NDArray[np.float32] | None:
    if not text:
        return None
    try:
        data = base64.b64decode(text, validate=True)
        return np.frombuffer(data, "<f4").astype(np.float32)
    except (binascii.Error, ValueError):
        raise InputError("vector is no base64 of float32 numbers; drop the picture again") from None


def completions(text: str, tags: Any, most: int = 8) -> list[dict[str, Any]]:
    """Tags that what is being typed may become: each with its count, and the text that then stands there.

    `tags` is `Service.tags`. The last tag is completed; where blanks are between tags, also the last words
    together, as one tag of several.
    """
    head, begun = _last(text)
    found: dict[str, dict[str, Any]] = {}
    several = head.endswith(" ") and not any(mark in text for mark in ';,"')
    options = [("", text)] if several else []
    for before, prefix in [*options, (head, begun)]:
        named = tags(prefix.strip(), most) if prefix.strip() else []
        for tag, count in named:
            if several and not before and " " not in tag:
                continue
            gap = " " if before and not before[-1].isspace() and before[-1] in ";," else ""
            whole = before + gap + _written(tag, before)
            if tag not in map(str.strip, PageQuery(q=whole).asked_tags([]) or []):
                continue  # no text beside what is typed already asks for it
            found.setdefault(tag, {"tag": tag, "count": count, "text": whole})
    return list(found.values())[:most]


def _last(text: str) -> tuple[str, str]:
    """A text as what is before its last tag, and that tag as far as it is typed."""
    if text.count('"') % 2:
        at = text.rindex('"')
        return text[:at], text[at + 1 :]
    for mark in (";", ","):
        if mark in text:
            at = text.rindex(mark) + 1
            return text[:at], text[at:].lstrip()
    begun = text.split(" ")[-1]
    return text[: len(text) - len(begun)], begun


def _written(tag: str, before: str) -> str:
    """A tag in a text of tags: in quotes, or before a semicolon, where it would be cut."""
    if "," in tag and not before.strip():
        return f"{tag};"
    if '"' in tag or ";" in before or ("," in before and "," not in tag and ";" not in tag):
        return tag
    return f'"{tag}"' if any(mark.isspace() or mark in ";," for mark in tag) else tag
