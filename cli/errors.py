"""Errors and interrupts of the command line: one line for what a user can repair, a traceback for a bug."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import click

#: What a write says when its disk, not the program, is at fault.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


#: Names in a context's `meta`: no notes; a note for each of many; a function of what an interrupt left.
QUIET, VERBOSE, STATE = "woh.quiet", "woh.verbose", "woh.state"


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Show the package's own errors as ``Error: ...`` and exit 1; end quietly where a pipe is closed.

    The command also gets --quiet and --verbose.
    """

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        from woh_faiss.errors import WOHError

        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except WOHError as error:
            raise click.ClickException(str(error)) from error

    for name, short, told in (
        (VERBOSE, "-v", "Say more: a line for each chunk that is skipped."),
        (QUIET, "-q", "Say nothing on stderr but errors."),
    ):
        long = f"--{name.removeprefix('woh.')}"
        run = click.option(short, long, is_flag=True, expose_value=False, callback=_kept(name), help=told)(
            run
        )
    return run


def _kept(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def keep(context: click.Context, _parameter: click.Parameter, given: bool) -> None:
        context.meta[name] = given

    return keep


def is_set(name: str) -> bool:
    """Whether `QUIET` or `VERBOSE` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(name))


def on_interrupt(state: Callable[[], str]) -> None:
    """What to say of this command if it is interrupted from now on."""
    click.get_current_context().meta[STATE] = state


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def interrupts(context: click.Context) -> Iterator[None]:
    """Ctrl-C and SIGTERM say what is committed, and exit as a shell expects: 130 and 143."""
    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )

    def terminate(*_: Any) -> None:
        raise Terminated

    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        state = context.meta.get(STATE)
        told = "stopped"
        with suppress(Exception):  # whatever keeps it from looking is not what stopped it
            told += f"; {state()}" if state is not None else ""
        click.echo(told, err=True)
        raise SystemExit(143 if isinstance(stop, Terminated) else 130) from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def stdout_failures() -> Iterator[None]:
    """End quietly where nobody reads the results any more, with one line where they cannot be written."""
    try:
        yield
    except BrokenPipeError:
        _drop_stdout()  # the reader has seen enough (`| head`)
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in _DISK or error.filename is not None:
            raise
        _drop_stdout()
        raise click.ClickException(
            f"cannot write the results: {error.strerror}; send them to another disk, or free space"
        ) from error


class _Notes(io.RawIOBase):
    """Standard error; what it does not take is lost, since a note is no reason to stop."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                left = left[os.write(2, left) :]
        except OSError:
            pass
        return size


def prepare_streams() -> None:
    """The null device in the place of streams that a shell closed (`>&-`); no failure on standard error."""
    while (handle := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(handle, True)  # as what it stands for; else a file of ours would get its number
    os.close(handle)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        encoding = getattr(sys.stderr, "encoding", "utf-8")
        sys.stderr = io.TextIOWrapper(_Notes(), encoding, "backslashreplace", write_through=True)


def _drop_stdout() -> None:
    """Drop what is still to be written: Python would fail again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
