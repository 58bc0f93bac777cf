"""Tags as text: the form in which they are compared, and the words of sentences.

Texts keep their own form wherever they are shown; only comparisons use `normalise`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from woh_faiss import budget
from woh_faiss.validate import TEXT

if TYPE_CHECKING:
    import regex

#: White space, underscores, hyphens and the dashes that phones and word processors put in their place.
_SEPARATORS = re.compile(r"[\s_\-\u2010-\u2015\u2212]+")
#: A hash sign before a tag is how people mark one. Before a mark it is part of a character: a keycap.
_HASHES = r"[# ]+(?!\p{M})"
#: Characters that show nothing by themselves: soft hyphens, zero-width characters, variation selectors. The
#: tag characters behind a black flag say whose flag it is.
_INVISIBLE = r"(\U0001F3F4[\U000E0020-\U000E007F]+)|\p{DI}+"
_JOINED = frozenset("\u00ad\u200b\u200c\u200d\ufe0f")
#: As UAX 29 has words, with marks and joiners; in scripts without blanks between words, Han and Hiragana are
#: characters and others (Thai) runs, of which nothing is lost. A point or comma ends a word: captions often
#: have no blank behind one. Pictographs are words too, but not the signs among letters (©, ™) and arrows.
_LETTER = r"[\w\p{N}--[\p{Han}\p{Hiragana}]]"
_WORDS = rf"""
    [\p{{Han}}\p{{Hiragana}}]\p{{M}}*
  | {_LETTER}+ (?: ['’\-·‧\u05BE\u05F3\u05F4\u00AD\u2060\uFEFF] {_LETTER}+ )* \u20E3?
  | \p{{RI}}\p{{RI}}
  | (?=[\p{{ExtPict}}--[\x00-\u21FF]])\X
"""


@lru_cache(1 << 16)  # a stream repeats its tags
def normalise(tag: str) -> str:
    """The form in which tags are compared: ``New_York``, ``#new-york`` and ``ｎｅｗ  york`` are ``new york``.

    Unicode NFKC and casefolding without characters that show nothing (NFKC_Casefold), repeated until nothing
    changes (one can undo the other), then runs of white space, underscores and hyphens as one space, none at
    the ends, and no hash sign before; '' if nothing is left. Applying it twice changes nothing.
    """
    if tag.isascii():
        return _SEPARATORS.sub(" ", tag.lower()).strip(" ").lstrip("# ")
    while (folded := unicodedata.normalize("NFKC", _visible(tag.casefold()))) != tag:
        tag = folded
    return spaced(tag)


def spaced(tag: str) -> str:
    """A tag with one space in place of its separators and without a hash sign before it, its case kept."""
    text = _SEPARATORS.sub(" ", tag).strip(" ")
    return _compiled(_HASHES).sub("", text, 1) if text.startswith("#") else text


def found_as_it_is(word: str) -> bool:
    """Whether a word of a file is one of the forms in which a tag that folds to the same is looked up."""
    if word.isascii():
        return word in (word.lower(), word.upper(), word.title(), word.capitalize())
    return word.casefold() == word and unicodedata.is_normalized("NFKC", word) and _JOINED.isdisjoint(word)


def words(sentence: str) -> list[str]:
    """The words of a sentence, in lower case and in Unicode NFC, without what stands between them."""
    if len(sentence) > 1 << 20:  # no sentence
        budget.take(TEXT * (len(sentence) // 2), "the words of an item")
    if sentence.isascii():
        return re.findall(r"\w+(?:['\-]\w+)*", sentence.lower())
    found: list[str] = _compiled(_WORDS).findall(unicodedata.normalize("NFC", sentence.lower()))
    return found


def _visible(text: str) -> str:
    return text if text.isascii() else str(_compiled(_INVISIBLE).sub(lambda found: found[1] or "", text))


@lru_cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex  # where it is needed: most tags and captions are ASCII

    return regex.compile(pattern, regex.V1 | regex.X) if "\n" in pattern else regex.compile(pattern, regex.V1)
