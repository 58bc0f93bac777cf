"""Untrusted text for a terminal, a pipe, a page or a message: control characters are escaped."""

from __future__ import annotations

import os
import re

#: Control characters (C0, DEL, C1), what turns or hides the text around it, ends of lines and paragraphs, and
#: what is no character. Joiners (U+200C, U+200D) stay: words and emoji are spelt with them.
UNSAFE = re.compile(
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufdd0-\ufdef"
    "\ufeff\ufff9-\ufffb\U000e0001\U000e0020-\U000e007f"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)


def display_text(value: object) -> str:
    r"""The text of a value on one line: what is `UNSAFE` is written as in Python, \x1b, \u202e, \n."""
    text = str(value)
    if text.isprintable():  # a third of the time; nothing UNSAFE is
        return text
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def display_path(path: str | os.PathLike[str]) -> str:
    """A path as `display_text`; bytes of it that are no UTF-8 are escaped, too."""
    return display_text(os.fsdecode(path))


def display_json(text: str) -> str:
    """JSON text that means the same and has nothing `UNSAFE` in it: json.dumps lets some through."""

    def escaped(found: re.Match[str]) -> str:
        units = found[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    return UNSAFE.sub(escaped, text)
