"""woh-index: the group of commands. Every decision is the library's; commands parse, call it once, print.

The library is imported inside the commands, so that --help and --version answer at once.
"""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from .errors import interrupts, prepare_streams, stdout_failures

#: Commands by the module they are in; one is imported when it is called, all of them for --help.
COMMANDS = {
    "embed": "embed",
    "build": "build",
    "update": "build",
    "add": "build",
    "import": "import_faiss",
    "remove": "maintenance",
    "query": "query",
    "serve": "serve",
    "info": "info",
    "items": "items",
    "verify": "maintenance",
    "backup": "maintenance",
    "compact": "maintenance",
    "rollback": "maintenance",
    "merge": "merge",
    "build-ann": "export",
    "export": "export",
    "evaluate": "evaluate",
    "benchmark": "benchmark",
    "push": "push",
}


class Commands(click.Group):
    """A group that imports a command when it is needed, and bears any state of the standard streams."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click has it; --help and --version print here."""
        prepare_streams()
        with stdout_failures():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """The command; what goes wrong is told with names in it shown as text."""
        try:
            with interrupts(ctx), stdout_failures():
                return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:  # whose message is the help
            raise
        except click.ClickException as error:
            from woh_faiss.display import display_text

            vars(error)["message"] = display_text(error.message)  # file names of click.File are in some
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of --help."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name]}", __package__)
        command: click.Command = getattr(module, cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name))
        return command


def _version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from woh_faiss import __version__

        click.echo(f"woh-index {__version__}")
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def main() -> None:
    """Learn binary codes from features and tags, chunk by chunk, and search them with Faiss.

    The index is a folder: --index PATH after the command, else $WOH_INDEX, else
    ./index.woh.
    """
