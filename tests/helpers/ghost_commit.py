"""The construction that lost an index. Run under the shim; prints how many items each look finds.

argv: folder, "killed" or "sync fails", and next writers: "no-op", "refused" or "nobody"; a line for each.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from commit_faults import Child, X, add, reader, refused, start
from faults import COUNT, FAIL, KILL, Shim

from woh_faiss import WOHIndex
from woh_faiss.errors import WOHError
from woh_faiss.store import files


def look(path):
    try:
        with WOHIndex.open(path) as index:
            index.search(X, 3)
            return index.ntotal
    except WOHError as error:
        return str(error)


def main(path, how, next_writer):
    shim, calls = Shim(), path.with_name("calls")
    path.parent.mkdir(parents=True)
    start(path)

    def interrupted(path, mode, call):
        """`add` in a child whose COMMIT meets the fault, or whose calls are written down."""
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]

        def on_step(name):
            if name == "before COMMIT":
                shim.arm(mode, call, errno.EIO)
            if name == "after COMMIT" and mode == COUNT:
                calls.write_text(" ".join(shim.names()))
                os._exit(0)  # before anything is settled: SQLite's lock and ours are free again

        files.on_step = on_step
        with suppress(WOHError), WOHIndex.open(path) as index:
            add(index)
        os._exit(0)

    looks = [look(path)]
    counted = Path(f"{path}.copy")
    shutil.copytree(path, counted)
    beside = Child(reader("idle", counted))
    interrupted(counted, COUNT, -1)
    beside.kill()
    synced = max(at for at, name in enumerate(calls.read_text().split()) if name == "fdatasync")
    beside = Child(reader("idle", path))  # keeps the index of the log alive
    interrupted(path, KILL if how == "killed" else FAIL, synced)
    looks.append(look(path))
    with suppress(WOHError), WOHIndex.open(path) as index:
        if next_writer == "no-op":
            index.remove([999999], ignore_missing=True)
        elif next_writer == "refused":
            refused(index)
    looks.append(look(path))
    beside.kill()  # it cannot fold the log in
    looks.append(look(path))
    with suppress(WOHError), WOHIndex.open(path) as index:
        add(index)
    looks.append(look(path))
    looks.append(WOHIndex.verify(path))
    print(json.dumps(looks))


if __name__ == "__main__":
    folder, how, *writers = sys.argv[1:]
    for writer in writers:
        main(Path(folder) / writer / "i", how, writer)
