"""woh-index serve: an index behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .encoders import encoder_option
from .errors import one_line_errors
from .options import index_option, say


@click.command()
@index_option
@click.option(
    "--images", type=click.Path(path_type=Path), help="The folder of the pictures that keys are paths of."
)
@encoder_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="And on which port."
)
@click.option("--writable", is_flag=True, help="Requests with the token may add, learn and remove.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="A file of one line that its owner alone may read: requests must have this token.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer."
)
@one_line_errors
def serve(index_path: Path, encoder_name: str | None, **given: Any) -> None:
    """Serve an index to programs (an API) and people (a page), on this machine unless told otherwise.

    \b
    Example:
        woh-index serve --index photos.woh
        woh-index serve --images photos --port 8000
        woh-index serve --writable --token-file token.txt
    """
    import os

    from woh_faiss.errors import InputError

    try:
        import uvicorn

        from woh_faiss.server.app import from_environment
        from woh_faiss.server.settings import VARIABLE, Settings
    except ImportError as error:
        raise InputError(
            f"serve needs {error.name}, which is not installed: pip install 'woh-faiss[serve]'"
        ) from error
    settings = Settings(index=index_path.absolute(), encoder=encoder_name, **given)
    os.environ[VARIABLE] = settings.to_json()
    say(f"serving {index_path} on http://{settings.host}:{settings.port}")
    del from_environment
    uvicorn.run(
        "woh_faiss.server.app:from_environment",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
    )
