"""woh-index: the group of commands. Every decision is the library's; commands parse, call it once, print.

The library is imported inside the commands, so that --help and --version answer at once.
"""

from __future__ import annotations

import click

from .benchmark import benchmark
from .build import add, build, update
from .evaluate import evaluate
from .export import derive, export
from .info import info
from .life import compact, remove, rollback, verify
from .query import query


def _version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from woh_faiss import __version__

        click.echo(f"woh-index {__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def main() -> None:
    """Learn binary codes from features and tags, chunk by chunk, and search them with Faiss.

    The index is a folder: --index PATH, else $WOH_INDEX, else ./index.woh.
    """


for command in (
    build,
    update,
    add,
    remove,
    query,
    info,
    verify,
    compact,
    rollback,
    derive,
    export,
    evaluate,
    benchmark,
):
    main.add_command(command)
