"""How the command line fails: one line for what a person can mend, a traceback for a bug."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Show the package's own errors as ``Error: ...`` and exit 1; end quietly where a pipe is closed."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        from woh_faiss.errors import WOHError

        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except WOHError as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            # The reader has seen enough (`| head`); Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return run
