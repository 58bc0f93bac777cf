"""What a server is told: where the index is, who may reach it and write, what a request may ask for."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from woh_faiss.display import display_path
from woh_faiss.errors import ConfigError, short

#: Where the processes of a server find its settings: a JSON object.
VARIABLE = "WOH_SERVER_SETTINGS"
#: Hosts that only programs of this machine reach.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Fewest characters of a token: 16 random ones cannot be guessed over a network.
_TOKEN = 16
_MOST_TOKEN = 4096


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What one server does, checked.

    Attributes
    ----------
    index : Path
        The index folder.
    images : Path, optional
        The folder of the pictures that keys are paths of.
    encoder : str, optional
        What makes features of pictures and texts; without it what the index remembers.
    refine : Path, optional
        Original features of the items, for requests that ask for `refine`.
    word_vectors : Path, optional
        Vectors for tags that the index does not know.
    writable : bool
        Whether requests with the token may change the index.
    token_file : Path, optional
        A file of one line, which its owner alone may read. Requests must then have this token.
    host, port
        Where the server listens. Other hosts than loopback need a token.
    allow_hosts : tuple of str
        Names that clients may reach the server by, beside loopback and `host`.
    allow_origins : tuple of str
        Origins of other web pages that may use it, such as ``https://photos.example``.
    workers : int
        Processes.
    max_body : int
        Bytes of a request's body.
    max_queries : int
        Queries of one request.
    max_items : int
        Items to add of one request.
    max_k : int
        Answers a query, those that are passed over among them.
    timeout : float
        Seconds that a request's body may take to arrive, that a request waits for its turn, and that a
        writer waits for another.

    Raises
    ------
    ConfigError
        A value is out of range, a host needs a token, or the token file cannot be used.
    """

    index: Path
    images: Path | None = None
    encoder: str | None = None
    refine: Path | None = None
    word_vectors: Path | None = None
    writable: bool = False
    token_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8765
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    workers: int = 1
    max_body: int = 32 << 20
    max_queries: int = 1000
    max_items: int = 10_000
    max_k: int = 1000
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, least in (
            ("max_body", 1024),
            ("max_queries", 1),
            ("max_items", 1),
            ("max_k", 1),
            ("workers", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least {least}")
        if not 0 < self.timeout < float("inf"):
            raise ConfigError(f"timeout is {self.timeout}, expected seconds above 0")
        if not self.is_local and self.token_file is None:
            raise ConfigError(
                f"host {short(self.host)} can be reached by others, which needs a token: give --token-file"
            )
        if self.writable and self.token_file is None:
            raise ConfigError("a server that can be written to needs a token: give --token-file")
        if _is_any(self.host) and not self.allow_hosts:
            raise ConfigError(
                f"host {self.host} is every address of this machine; say with --allow-host by which name or "
                "address clients reach it"
            )
        for origin in self.allow_origins:
            scheme, found, rest = origin.partition("://")
            if scheme not in ("http", "https") or not found or not rest or set(rest) & set("/?#@* "):
                raise ConfigError(
                    f"origin {short(origin)} is none, expected one such as https://photos.example"
                )
        if self.token_file is not None:
            self.token()

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine reach it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> list[str]:
        """Names that clients may call it by, as `TrustedHostMiddleware` takes them."""
        named = [*LOOPBACK, *([] if _is_any(self.host) else [self.host]), *self.allow_hosts]
        return [*dict.fromkeys(f"[{name}]" if ":" in name else name for name in named)]

    def token(self) -> bytes | None:
        """The token that requests must have, read from its file; None where there is none."""
        return None if self.token_file is None else _token(self.token_file)

    def to_json(self) -> str:
        """As `from_json` takes it; the token is not in it, its file's path is."""
        return json.dumps(
            {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        )

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` gave."""
        found: dict[str, Any] = json.loads(text)
        paths = {each.name for each in fields(cls) if "Path" in str(each.type)}
        for name, value in found.items():
            if isinstance(value, list):
                found[name] = tuple(value)
            elif name in paths and value is not None:
                found[name] = Path(value)
        return cls(**found)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _token(path: Path) -> bytes:
    """The one line of a token file; ConfigError if others may read it, or it is no token."""
    where = display_path(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{where} is no plain file; give a file of one line")
            if found.st_mode & 0o077:
                raise ConfigError(f"{where} may be read or written by others: chmod 600 it")
            text = file.read(_MOST_TOKEN + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the token in {where}: {error.strerror}") from error
    token = text.removesuffix(b"\n").removesuffix(b"\r")
    if not _TOKEN <= len(token) <= _MOST_TOKEN or not all(33 <= letter <= 126 for letter in token):
        raise ConfigError(
            f"{where} has no token: expected one line of at least {_TOKEN} ASCII characters without blanks, "
            "such as 'openssl rand -hex 32' prints"
        )
    return token
