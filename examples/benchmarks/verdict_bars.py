"""Whether the verdict without labels is that of labels: a row a set and split.

    python examples/benchmarks/verdict_bars.py openclipart.npz corel5k.npz debtags-a.npz mirflickr25k.npz

The two made-up sets, on which learned codes cannot pay, are measured as well. The verdict by labels is by the
same rule over the same rankings; only what is relevant differs. A row is wrong where one says that learned
codes pay and the other that they do not.
"""

import argparse
import time
from pathlib import Path

from woh_faiss import read_chunk
from woh_faiss.evaluation.comparison import Trial, measure, methods, ranking
from woh_faiss.evaluation.datasets import fine_tags, random_tags
from woh_faiss.evaluation.relevance import Relevance
from woh_faiss.evaluation.verdict import verdict
from woh_faiss_cli.verdict import BITS, SAMPLE

MADE_UP = {"random tags": random_tags, "fine tags": fine_tags}


def verdicts(chunk, seed, sample):
    """By tags and by labels, each method learned once."""
    trial = Trial(chunk, sample=sample, seed=seed)
    made = (Relevance.of_tags, Relevance.of_labels)
    by = [make(trial.chunk, trial.held_out, trial.rest) for make in made]
    found = ([], [])
    for method in methods(trial.X.shape[1], [(r, r) for r in BITS]):
        ranked = ranking(method, trial)
        for each, relevance in zip(found, by, strict=True):
            each.append(measure(method, ranked, trial, relevance))
    return [verdict(each, seed) for each in found]


def told(found):
    """A verdict as two cells."""
    low, high = found.difference.low, found.difference.high
    name = f"{found.method.name}, {found.method.n_bytes} bytes"
    return f"{found.choice}: {name} | {found.difference.mean:+.3f} [{low:+.3f}, {high:+.3f}]"


def main():
    """Print the table, then how many verdicts are right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", type=Path)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    given = parser.parse_args()
    sets = {path.stem: lambda path=path: read_chunk(path) for path in given.sets}
    sets |= {name: lambda make=make: make(given.sample) for name, make in MADE_UP.items()}
    print("| set | split | without labels | difference | by labels | difference | seconds |\n|" + "---|" * 7)
    right = total = 0
    for name, read in sets.items():
        for seed in range(given.splits):
            start = time.perf_counter()
            tags, labels = verdicts(read(), seed, given.sample)
            agree = (tags.choice == "learned codes") == (labels.choice == "learned codes")
            right, total = right + agree, total + 1
            seconds = time.perf_counter() - start
            row = f"| {name} | {seed} | {told(tags)} | {told(labels)} | {seconds:.0f} |"
            print(row + ("" if agree else " WRONG"), flush=True)
    print(f"\n{right} of {total} verdicts are right")


if __name__ == "__main__":
    main()
