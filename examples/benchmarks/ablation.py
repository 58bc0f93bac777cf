"""MAP with each choice of the adaptive preset switched off alone, beside the whole of it.

    python examples/benchmarks/ablation.py corel5k.npz --word-vectors glove.txt --seeds 0 1 2

Takes a chunk file with tags and labels (default: the shipped pictures); every row sees the same splits.
The tables in docs/results.md were printed by this.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import setting

WHOLE = "nothing"
SHIPPED = [*sorted(setting.DATA.glob("chunk-*.npz")), setting.DATA / "queries.npz"]


def switches() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What each row changes: fields of the config, and what stands in for parts of woh_faiss, by name."""
    import numpy as np
    from scipy.sparse import csr_array

    from woh_faiss.learner import estimator, kernel, semantic_start, solver, tag_targets

    rng = np.random.default_rng(0)
    start, fit = tag_targets.TagTargets.start, kernel.Kernel.fit

    def drawn(items: Any) -> Any:
        B0 = rng.choice([-1.0, 1.0], size=items.B0.shape)
        B0[: items.given] = items.B0[: items.given]
        return replace(items, B0=B0)

    def random_codes(learn: Any, items: Any, *rest: Any, **named: Any) -> Any:
        return learn(items.map(drawn), *rest, **named)

    def no_steps(learn: Any, items: Any, *rest: Any, **named: Any) -> Any:
        return learn(items.map(lambda block: replace(block, given=len(block.B0))), *rest, **named)

    def stiff(factor: Any, C: Any, ridge: Any) -> Any:
        return factor(C, ridge * 800 if len(C) > 200 else ridge)  # of P: those of V and W are r + 1 wide

    def no_constant(sparing: Any, ridge: float, C: Any) -> Any:
        return np.append(sparing(ridge, C)[:-1], 1e9 * np.trace(C))

    def halves(a: float, q: float) -> Any:
        """The two halves of T in other shares: both are weighed by the root of what they are of half."""

        def weighed(_: type, *args: Any) -> Any:
            both = start(*args)
            return replace(both, a=a * both.a, q=q * both.q)

        return classmethod(weighed)

    def wide(X: Any, A: Any, *, energy: bool) -> Any:
        half = fit(X, A, energy=energy)
        bare = kernel.Kernel(half.A, 2 * half.width, np.zeros(len(half.A)), unit=energy)
        centred = replace(bare, mean=bare.map(X).mean(axis=0))
        return replace(centred, scale=float(np.sqrt(np.square(centred.map(X)).sum(axis=1).mean())))

    def not_tfidf(self: Any, df: Any, n: int) -> Any:
        return tag_targets.TagWeights(tag_targets.shares(self.C, df), np.ones(len(df)))

    class Raw(tag_targets.TagWeights):
        def rows(self, Y: csr_array) -> csr_array:
            return Y.astype(float)

    learn, aim, keep = estimator.learn_round, semantic_start._aim, semantic_start.remembered
    factor, sparing = solver.factor, solver._sparing
    return {
        WHOLE: ({}, {}),
        "P's ridge as stiff as published (800 times)": (
            {},
            {"training_round.factor": partial(stiff, factor)},
        ),
        "ridges of P, V and W a tenth": ({"alpha": 0.001}, {}),
        "ridges of P, V and W ten times": ({"alpha": 0.1}, {}),
        "codes start at random": ({}, {"estimator.learn_round": partial(random_codes, learn)}),
        "no steps: codes are sign(G)": ({}, {"estimator.learn_round": partial(no_steps, learn)}),
        "no aim in the steps (mu = 0)": ({"mu": 0.0}, {}),
        "G of the tags alone": ({}, {"semantic_start._aim": lambda Gv, Gt: aim(Gv.map(np.zeros_like), Gt)}),
        "G of the features alone": (
            {},
            {"semantic_start._aim": lambda Gv, Gt: aim(Gv, Gt.map(np.zeros_like))},
        ),
        "frame not turned (no ITQ)": ({}, {"tag_directions.ITQ": 0}),
        "no spare directions for existing codes: r": ({}, {"semantic_start.ROOM": 1}),
        "no first items kept": ({}, {"estimator.remembered": lambda s, done, most: keep(s, done, 0)}),
        "frame's ridge 0.01, not chosen": ({}, {"semantic_start.RIDGES": (0.01,)}),
        "frame's ridge 1, not chosen": ({}, {"semantic_start.RIDGES": (1.0,)}),
        "tags not weighted (no idf)": ({}, {"tag_targets.TagTargets.weigher": not_tfidf}),
        "tags not smoothed": ({}, {"tag_targets.NEIGHBOURS": 0}),
        "tags raw: 0 and 1": ({}, {"tag_targets.TagTargets.weigher": lambda self, df, n: Raw(self.C, df)}),
        "T of the tags alone": ({}, {"tag_targets.TagTargets.start": halves(2**0.5, 0.0)}),
        "T of the word vectors alone": ({}, {"tag_targets.TagTargets.start": halves(0.0, 2**0.5)}),
        "M not fitted again": ({}, {"tag_targets.TagTargets.refitted": lambda self, sums: self}),
        "no M: tags through V and W": ({}, {"tag_targets.MOST_COLUMNS": 0}),
        "no V (theta = 0)": ({"theta": 0.0}, {}),
        "no W": ({}, {"training_round.W_of": lambda stats, config: np.zeros_like(stats.D2)}),
        "equal weights for all items": ({}, {"training_round.weights": lambda B, *rest: np.ones(len(B))}),
        "no constant column": ({}, {"solver._sparing": partial(no_constant, sparing)}),
        "kernel twice as wide": ({}, {"kernel.Kernel.fit": staticmethod(wide)}),
        "300 anchors": ({"anchors": 300}, {}),
    }


def main() -> None:
    parser = setting.learning(__doc__, SHIPPED)
    parser.add_argument("--only", help="Rows whose name holds this.", default="")
    args = parser.parse_args()
    setting.threads(args.threads)
    import numpy as np

    from woh_faiss import WOHConfig
    from woh_faiss.evaluation.streaming import stream

    chunk, vectors = setting.tagged(args)

    def at_the_end(config: WOHConfig, seed: int) -> float:
        """MAP after the last round."""
        named = {"chunks": args.chunks, "queries": args.queries, "seed": seed, "word_vectors": vectors}
        return next(islice(stream(chunk, [config], **named), args.chunks - 1, None)).map

    print("| switched off |", " | ".join(f"{bits} bits" for bits in args.bits), "|")
    print("|---|", "---|" * len(args.bits), sep="")
    whole: list[float] = []
    for name, (fields, parts) in switches().items():
        if name != WHOLE and args.only not in name:
            continue
        means = []
        for bits in args.bits:
            config = WOHConfig(bits=bits, min_count=1, **fields)
            with ExitStack() as stack:
                for part, instead in parts.items():
                    stack.enter_context(patch(f"woh_faiss.learner.{part}", instead))
                means.append(float(np.mean([at_the_end(config, seed) for seed in args.seeds])))
        whole = whole or means
        cells = [
            f"{mean:.3f}" + ("" if name == WHOLE else f" ({mean - best:+.3f})")
            for mean, best in zip(means, whole, strict=True)
        ]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
