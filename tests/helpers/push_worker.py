"""Pushes in children that are killed: a line of JSON in, a line out. Imports once, forks for each push.

In: index, url, and after how many seconds to kill (null: never). Out: whether it was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from woh_faiss import WOHIndex
from woh_faiss.integrations import push as push_module


def work(index, url):
    try:
        with WOHIndex.open(index) as opened:
            push_module.push(opened, url)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def main():
    push_module.STEP, push_module.BATCH = int(sys.argv[1]), int(sys.argv[2])
    for module in sys.argv[3:]:
        __import__(module)
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        child = os.fork()
        if not child:
            work(job["index"], job["url"])
        if job["after"] is not None:
            time.sleep(max(0, began + job["after"] - time.perf_counter()))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        ended = {"killed": os.WIFSIGNALED(status), "seconds": time.perf_counter() - began}
        print(
            json.dumps({**ended, "failed": os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0}), flush=True
        )


main()
