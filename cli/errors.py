"""How the command line fails: one line for what a person can mend, a traceback for a bug."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

#: What a write says when its disk, not the program, is at fault.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Show the package's own errors as ``Error: ...`` and exit 1; end quietly where a pipe is closed."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        from woh_faiss.errors import WOHError

        try:
            command(*args, **kwargs)
            if sys.stdout is not None:  # as it is where a shell closed it (`>&-`)
                sys.stdout.flush()
        except WOHError as error:
            raise click.ClickException(str(error)) from error
        except BrokenPipeError:
            _drop_stdout()  # the reader has seen enough (`| head`)
        except OSError as error:
            if error.errno not in _DISK or error.filename is not None:
                raise
            _drop_stdout()
            raise click.ClickException(
                f"cannot write the results: {error.strerror}; send them to another disk, or free space"
            ) from error

    return run


def _drop_stdout() -> None:
    """Let go of what is still to be written: Python would fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
