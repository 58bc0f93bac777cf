"""Everything an index can be asked, tried on folders that a stranger made; killed where that takes long.

Arguments: an index, and names of its files, of which but the first is tried with every kind of thing unless
all tests run at their full length; or `schema` and folders whose catalogue has another schema.
"""

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
from lengths import LENGTH
from made_items import tagged

from woh_faiss import WOHIndex
from woh_faiss.errors import WOHError

#: Seconds that one call may take, many times what it needs.
LIMIT = 30
CONTENT = b"belongs to somebody else\n" * 20
XQ = tagged(7, n=3)[0]


def link_to(target):
    return lambda path: path.symlink_to(target)


def a_socket(path):
    """Bound by a name relative to its folder: the names of sockets are short."""
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)
    os.chdir(here)


def folder_with_a_file(path):
    path.mkdir()
    (path / "kept").touch()


def opened(ask):
    def call(path):
        with WOHIndex.open(path) as index:
            ask(index)

    return call


READING = {
    "search": opened(lambda index: index.search(XQ, 3)),
    "items": opened(lambda index: (index.items([7]), index.id_of("0/7"), index.tags(), index.rounds())),
    "info": opened(lambda index: (index.info(), index.health())),
    "ann": opened(lambda index: index.search(XQ, 3, ann="ivf")),
    "export": opened(lambda index: index.export(index.path.with_name("exported"), force=True)),
    "backup": opened(lambda index: index.backup(index.path.with_name(f"copy-{time.monotonic_ns()}"))),
}
WRITING = {
    "remove": opened(lambda index: index.remove([int(index.search(XQ, 1)[1][0, 0])])),
    "update": opened(lambda index: index.update(*tagged(5))),
    "add": opened(lambda index: index.add(XQ)),
    "build-ann": opened(lambda index: index.build_ann("ivf", nlist=2)),
    "compact": opened(lambda index: index.compact()),
    "rollback": opened(lambda index: index.rollback(index.rounds()[-2].round)),
}


def limited(what, call):
    """The message it is refused with, None if it is not."""
    print(what, flush=True)
    signal.alarm(LIMIT)
    try:
        call()
        message = None
    except WOHError as error:
        message = str(error)
    finally:
        signal.alarm(0)
    assert "\n" not in (message or ""), message
    return message


def state(path):
    """Names, kinds and bytes of a folder's files, those that SQLite keeps for readers left out."""
    found = {}
    for file in sorted(path.iterdir()):
        if not file.name.endswith(("-wal", "-shm")):
            plain = file.is_file() and not file.is_symlink()
            found[file.name] = file.read_bytes() if plain else os.lstat(file).st_mode
    return found


def strange(base, name, every):
    """With a link in its place, or with every kind of thing."""
    target = base.with_name(f"target of {name}")
    target.write_bytes(CONTENT)
    os.utime(target, ns=(10**18, 10**18))
    kinds = {"link": link_to(target)}
    if every:
        kinds |= {"pipe": os.mkfifo, "folder": folder_with_a_file}
    if name in ("catalog.db-wal", "codes.faiss", "model-1.npz"):
        more = {"to nothing": link_to("nothing"), "to a device": link_to("/dev/zero"), "socket": a_socket}
        kinds |= more
    for kind, plant in kinds.items():
        path = base.with_name(f"{kind} {name}")
        shutil.copytree(base, path)
        member = path / name

        def planted(member=member, plant=plant):
            if member.is_symlink() or not member.is_dir():
                member.unlink(missing_ok=True)
                plant(member)

        planted()
        faults = []
        before = state(path)
        for ask, call in READING.items():
            message = limited(f"{name} {kind} {ask}", lambda call=call, path=path: call(path))
            assert message is None or name in message, message
            assert state(path) == before, ask
        limited(
            f"{name} {kind} verify", lambda path=path, faults=faults: faults.extend(WOHIndex.verify(path))
        )
        assert any(name in fault for fault in faults), faults
        assert not any("puts it right" in fault for fault in faults), faults
        for ask, call in WRITING.items():
            planted()
            message = limited(f"{name} {kind} {ask}", lambda call=call, path=path: call(path))
            assert message is None or name in message, message
        assert target.read_bytes() == CONTENT
        assert target.stat().st_mtime_ns == 10**18
        shutil.rmtree(path)


def schema(path):
    for ask, call in {**READING, **WRITING}.items():
        message = limited(f"{path.name} {ask}", lambda call=call: call(path))
        assert message is not None, ask
        assert "catalog.db" in message, message
    (fault,) = WOHIndex.verify(path)
    assert "in its schema is not what format 1 has" in fault or "interrupted" in fault, fault


def main(first, *others):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    np.seterr(all="raise")
    for number, given in enumerate(others):
        if first == "schema":
            schema(Path(given))
        else:
            strange(Path(first), given, LENGTH >= 1 or not number)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
