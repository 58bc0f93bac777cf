"""woh-index export and build-ann: other Faiss indexes of the same codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .errors import one_line_errors
from .options import (
    index_option,
    json_option,
    print_json,
    print_line,
    say,
    timeout_option,
    where_option,
)

#: The library checks them; they are here so that --help answers at once.
KINDS = ("flat", "idmap2", "ivf", "hnsw", "multihash")


def _parameters(_context: click.Context, _parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, int]:
    """NAME=NUMBER of --param, for a click callback."""
    found = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        try:
            found[name] = int(number)
        except ValueError:
            raise click.BadParameter(f"{pair!r} is not NAME=NUMBER, such as nprobe=32") from None
    return found


def _param_option(names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--param, for an index that takes parameters of these names."""
    return click.option(
        "--param",
        "parameters",
        multiple=True,
        metavar="NAME=NUMBER",
        callback=_parameters,
        help=f"A parameter: {names}. May be given many times.",
    )


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "kind",
    type=click.Choice(KINDS),
    default="idmap2",
    show_default=True,
    help="flat and idmap2 answer exactly, the others search a part of the codes only; flat has positions "
    "for ids.",
)
@_param_option("nlist, nprobe (ivf); M, ef_construction, ef_search (hnsw); nhash, b, nflip (multihash)")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@where_option
@index_option
@json_option
@one_line_errors
def export(
    out: Path,
    kind: str,
    parameters: dict[str, int],
    force: bool,
    where: str | None,
    index_path: Path,
    as_json: bool,
) -> None:
    """Write the codes to OUT, a file that any program with Faiss reads; removed items are not in it.

    Before it gets its name the file is read back and compared with the index, on stored codes with flipped
    bits. flat and idmap2 must answer alike; of the others the recall among the 10 nearest is printed.

    \b
    Example:
        woh-index export photos.faiss
        woh-index export photos-ivf.faiss --type ivf --param nprobe=32
    """
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        done = index.export(out, kind, where=where, force=force, **parameters)
    if as_json:
        print_json(asdict(done))
        return
    items = "1 item" if done.items == 1 else f"{done.items:,} items"
    print_line(
        f"{done.path}: {done.kind}{_settings(done.parameters)}, {items} of {done.d} bits, "
        f"{done.bytes:,} bytes; {_quality(done)}"
    )


@click.command()
@click.argument("kind", required=False, type=click.Choice(("ivf",)))
@_param_option("nlist, lists of each half of the code; nprobe, those that a search scans")
@click.option("--drop", is_flag=True, help="Remove the approximate index of KIND, or all of them.")
@index_option
@timeout_option
@json_option
@one_line_errors
def build_ann(
    kind: str | None,
    parameters: dict[str, int],
    drop: bool,
    index_path: Path,
    timeout: float,
    as_json: bool,
) -> None:
    """Make an index of KIND for query --ann, which searches a part of the codes only.

    It is faster among millions of items, and may miss some of the best: the recall of the 10 best answers is
    measured and printed. Later items are scanned beside it. compact and rollback drop it.

    \b
    Example:
        woh-index build-ann ivf
        woh-index build-ann ivf --param nprobe=64
        woh-index build-ann --drop
    """
    if kind is None and not drop:
        raise click.UsageError("give a KIND, or --drop")
    if drop and (parameters or as_json):
        raise click.UsageError("--drop takes no --param and no --json")
    from woh_faiss import WOHIndex

    with WOHIndex.open(index_path) as index:
        if drop:
            gone = index.drop_ann(kind, timeout=timeout)
            say(f"dropped: {', '.join(gone)}" if gone else "there was none")
            return
        made = index.build_ann(str(kind), timeout=timeout, **parameters)
    if as_json:
        print_json(asdict(made))
        return
    print_line(f"{made.kind}{_settings(made.parameters)} of {made.rows:,} codes; recall@10 {made.recall:.3f}")


def _settings(parameters: dict[str, int]) -> str:
    """In brackets, nothing for none."""
    text = ", ".join(f"{name} {value}" for name, value in parameters.items())
    return f" ({text})" if text else ""


def _quality(done: Any) -> str:
    text = f"recall@10 {done.recall:.3f} on {done.queries} queries"
    return text if done.radius is None else f"{text}, nothing missed up to {done.radius} bits"
