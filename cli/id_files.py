"""Files with one id or key a line."""

from __future__ import annotations

from typing import TextIO

import click

#: Letters of the longest line.
LONGEST = 1 << 20


def lines(source: TextIO) -> list[tuple[int, str]]:
    """(number, text) of the lines that are not empty, without their ends."""
    from woh_faiss import budget

    found = []
    with budget.reading(source.name):
        try:
            for number, line in enumerate(iter(lambda: source.readline(LONGEST), ""), start=1):
                if len(line) == LONGEST:
                    raise click.ClickException(
                        f"{source.name}: line {number} has {LONGEST} letters or more, expected an id or a key"
                    )
                text = line.removeprefix("\ufeff") if number == 1 else line
                text = text.removesuffix("\n").removesuffix("\r")
                if text.strip():
                    budget.take(4 * len(text) + 250, "the list")
                    found.append((number, text))
        except UnicodeDecodeError:
            raise click.ClickException(f"{source.name} is not UTF-8 text; save it as that") from None
    return found


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
