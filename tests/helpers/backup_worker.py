"""A writer that changes an index in every way. Arguments: INDEX, LOG of committed states, TIMES."""

import sys

from made_items import tagged

from woh_faiss import WOHIndex


def main(path, log, times):
    with WOHIndex.open(path) as index, open(log, "a") as states:  # noqa: PTH123

        def note():
            seen = index._store.snapshot
            print(seen.line, seen.round, seen.time, seen.ntotal, seen.ann, file=states, flush=True)

        for number in range(times):
            rounds = index.rounds()[-1].round
            index.update(*tagged(number), keys=[f"w{number}/{i}" for i in range(40)])
            note()
            index.add(tagged(number)[0])
            note()
            index.build_ann("ivf", nlist=2)
            note()
            index.remove(index.search(tagged(number)[0], 1)[1][:7, 0], ignore_missing=True)
            note()
            if number % 2:
                index.compact()
            else:
                index.rollback(rounds)
            note()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
