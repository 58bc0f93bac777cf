"""woh-index serve: an index behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .encoders import encoder_option
from .errors import one_line_errors
from .options import index_option, say, word_vectors_option

#: Connections of one process; more are told to come again.
_CONNECTIONS = 1000


@click.command()
@index_option
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The folder of the pictures that keys are paths of; no other is read.",
)
@encoder_option
@word_vectors_option
@click.option(
    "--refine",
    type=click.Path(path_type=Path, readable=False),
    metavar="FEATURES",
    help="Original features of the items, for searches that ask for refine: as of query.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where it listens; others need --token-file."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0: any that is free."
)
@click.option("--writable", is_flag=True, help="Requests with the token may add, learn and remove items.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="One line that its owner alone may read: every request must then have this token.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address that clients reach it by, beside --host and localhost. May be given many times.",
)
@click.option(
    "--allow-origin",
    "allow_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Web pages of another server that may use this one, e.g. https://photos.example. Many times.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer."
)
@click.option(
    "--max-body", type=int, default=32 << 20, show_default=True, metavar="BYTES", help="Of a request."
)
@click.option("--max-queries", type=int, default=1000, show_default=True, help="Queries of a request.")
@click.option("--max-items", type=int, default=10_000, show_default=True, help="Items to add of a request.")
@click.option("--max-k", type=int, default=1000, show_default=True, help="Answers a query.")
@click.option(
    "--timeout",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="For a body to arrive, for an answer, and for another writer to end.",
)
@click.option("--access-log", is_flag=True, help="Write a line on stderr for each request.")
@one_line_errors
def serve(index_path: Path, encoder_name: str | None, access_log: bool, **given: Any) -> None:
    """Serve an index by HTTP: an API under /v1, described by /openapi.json; docs/server.md has more.

    It listens to this machine alone unless --host says otherwise, and follows what other processes commit
    within a second. SIGTERM and Ctrl-C end it when it has answered what it was asked.

    \b
    Example:
        woh-index serve --index photos.woh
        woh-index serve --images photos --port 8000 --workers 2
        woh-index serve --writable --token-file token.txt
    """
    import os
    from importlib import import_module

    from woh_faiss.errors import InputError

    try:
        import uvicorn

        import_module("woh_faiss.server.app")
        from woh_faiss.server.service import Service
        from woh_faiss.server.settings import VARIABLE, Settings
    except ImportError as error:
        raise InputError(
            f"serve needs {error.name}, which is not installed: pip install 'woh-faiss[serve]'"
        ) from error
    settings = Settings(index=index_path.absolute(), encoder=encoder_name, **given)
    service = Service(settings)
    service.prepare()  # what cannot be opened is told now, and not by the first request
    held = len(service.current())
    service.close()
    port = _free_port(settings.host, settings.port)
    os.environ[VARIABLE] = settings.to_json()  # without the token, whose file each process reads
    where = f"[{settings.host}]" if ":" in settings.host else settings.host
    say(f"serving {index_path}, {held:,} items, on http://{where}:{port}; Ctrl-C ends it")
    with _figures(settings.workers):
        uvicorn.run(
            "woh_faiss.server.app:from_environment",
            factory=True,
            host=settings.host,
            port=port,
            workers=settings.workers,
            access_log=access_log,
            log_level="info" if access_log else "warning",
            log_config=_logging(uvicorn.config.LOGGING_CONFIG),
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=int(settings.timeout) + 1,
        )


def _free_port(host: str, port: int) -> int:
    """The port, or one that is free for 0; InputError where nothing can listen there."""
    import socket

    from woh_faiss.errors import InputError

    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family) as listener:
            return int(listener.getsockname()[1])
    except OSError as error:
        told = error.strerror or str(error)
        raise InputError(
            f"cannot listen on {host} port {port}: {told}; give another --host or --port"
        ) from error


def _logging(theirs: dict[str, Any]) -> dict[str, Any]:
    """uvicorn's way of logging, whose lines about requests go to stderr, too."""
    handlers = theirs["handlers"]
    access = {**handlers["access"], "stream": "ext://sys.stderr"}
    return {**theirs, "handlers": {**handlers, "access": access}}


def _figures(workers: int) -> Any:
    """A folder in which several processes put their figures together; nothing for one."""
    import os
    import tempfile
    from contextlib import contextmanager, nullcontext

    @contextmanager
    def shared() -> Any:
        with tempfile.TemporaryDirectory(prefix="woh-metrics-") as folder:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
            try:
                yield
            finally:
                del os.environ["PROMETHEUS_MULTIPROC_DIR"]

    return shared() if workers > 1 else nullcontext()
