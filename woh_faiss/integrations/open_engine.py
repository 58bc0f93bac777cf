"""From a URL to the database it names."""

from __future__ import annotations

from .engine import Address, Engine


def open_engine(url: str) -> Engine:
    """Connect to the table that `url` names, which need not be there.

    Raises
    ------
    InputError
        The URL is of no database that is known, or names no table.
    EngineError
        The library for it is not installed, or nobody answers there, or refuses.
    """
    address = Address.parse(url)
    if address.scheme == "postgresql":
        from .postgres import Postgres

        return Postgres(address)
    from .milvus import Milvus

    return Milvus(address)
