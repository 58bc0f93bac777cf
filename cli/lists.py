"""Files with one id or key a line."""

from __future__ import annotations

from typing import TextIO

import click


def lines(source: TextIO) -> list[tuple[int, str]]:
    """(number, text) of the lines that are not empty, without their ends."""
    try:
        text = source.read()
    except UnicodeDecodeError:
        raise click.ClickException(f"{source.name} is not UTF-8 text; save it as that") from None
    numbered = enumerate(text.removeprefix("\ufeff").split("\n"), start=1)
    return [(number, line.removesuffix("\r")) for number, line in numbered if line.strip()]


def ids(source: TextIO, otherwise: str = "") -> list[int]:
    """The ids of a file; `otherwise` ends the message about a line that is none."""
    found = []
    for number, line in lines(source):
        try:
            if not -(2**63) <= (value := int(line)) < 2**63:
                raise ValueError
        except ValueError:
            raise click.ClickException(
                f"{source.name}: line {number} is {line[:60]!r}, expected an id{otherwise}"
            ) from None
        found.append(value)
    return found
