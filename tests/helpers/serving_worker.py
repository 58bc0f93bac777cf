"""A process that serves queries from an index until its stdin ends, and notes what it was answered.

python serving_worker.py INDEX QUERIES.npy OUT.npz THREADS AUTO_REFRESH PAUSE
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from woh_faiss import WOHIndex

K = 10


def main(path: str, queries: str, out: str, threads: str, auto_refresh: str, pause: str) -> None:
    xq = np.load(queries)
    stop, seconds, answers = threading.Event(), [], []
    with WOHIndex.open(path, auto_refresh=float(auto_refresh)) as index:

        def serve(first: int) -> None:
            """Answers (query, D, I) that differ from the query's one before, in their order."""
            last: dict[int, bytes] = {}
            number = first
            while not stop.is_set():
                number = (number + 1) % len(xq)
                start = time.perf_counter()
                D, I = index.search(xq[number : number + 1], K, by="hamming")
                seconds.append(time.perf_counter() - start)
                if (said := D.tobytes() + I.tobytes()) != last.get(number):
                    last[number] = said
                    answers.append((first, number, *D[0].tolist(), *I[0].tolist()))
                if float(pause):
                    stop.wait(float(pause))

        workers = [threading.Thread(target=serve, args=(number,)) for number in range(int(threads))]
        for worker in workers:
            worker.start()
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        while sys.stdin.readline():  # tell how many answers there were so far
            sys.stdout.write(f"{len(seconds)}\n")
            sys.stdout.flush()
        stop.set()
        for worker in workers:
            worker.join()
        np.savez(out, answers=np.array(answers), seconds=np.array(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
