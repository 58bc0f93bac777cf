"""What the figures of an index's health are worth: drift, encoding anew, and finding wrong tags.

    python examples/benchmarks/health.py corel5k.npz --word-vectors glove.txt --seeds 0 1 2

Prints, per code length: the share of bits of the anchors that each round turned; MAP with the codes as they
were learned and with every code made anew by the last hash function; and how well wrong tags are found (area
under the ROC curve, 0.5 is chance) when every twentieth item carries the tags of another: by how far they are
trusted (`trust_`), and by the residual of the l2,1 norm; how many there are, and how many are doubted.
"""

from __future__ import annotations

from dataclasses import replace

import setting


def main() -> None:
    parser = setting.learning(__doc__, sorted(setting.DATA.glob("chunk-*.npz")))
    args = parser.parse_args()
    setting.threads(args.threads)
    import numpy as np
    from scipy.stats import mannwhitneyu

    from woh_faiss import WOH, codes
    from woh_faiss.evaluation.metrics import mean_average_precision
    from woh_faiss.evaluation.streaming import split
    from woh_faiss.index.tag_queries import TagQueries
    from woh_faiss.inputs.chunk import TagLists

    chunk, vectors = setting.tagged(args)

    def learned(bits, stream, parts):
        """The trainer after each part, and the part's codes."""
        woh = WOH(bits=bits, min_count=1)
        for part in parts:
            some = stream.rows(part)
            woh.partial_fit(some.features, some.tags, word_vectors=vectors)
            yield woh, woh.codes_

    def area(scores, wrong):
        return mannwhitneyu(scores[wrong], scores[~wrong]).statistic / (wrong.sum() * (~wrong).sum())

    for bits in args.bits:
        turned, kept, anew, by_trust, by_residual, doubted = [], [], [], [], [], []
        for seed in args.seeds:
            held_out, rest = split(chunk, args.queries, seed)
            parts, before, stored, turns = np.array_split(rest, args.chunks), None, [], []
            for woh, packed in learned(bits, chunk, parts):
                if before is not None:
                    turns.append(woh.hasher_.drift(before).mean())
                before = woh.hasher_
                stored.append(packed)
            turned.append(turns)
            queries = woh.encode(chunk.features[held_out])
            labels = chunk.labels[held_out], chunk.labels[rest]
            for maps, database in (kept, np.vstack(stored)), (anew, woh.encode(chunk.features[rest])):
                maps.append(mean_average_precision(queries, database, *labels))

            rng = np.random.default_rng(seed)
            wrong = np.zeros(len(chunk), bool)
            swapped = rng.choice(len(chunk), len(chunk) // 20, replace=False)
            wrong[swapped] = True
            lists = [chunk.tags.of_row(i) for i in range(len(chunk))]
            for i, tags in zip(swapped, [lists[i] for i in np.roll(swapped, 1)], strict=True):
                lists[i] = tags
            noisy = replace(chunk, tags=TagLists.from_lists(lists))
            *_, (woh, packed) = learned(bits, noisy, parts)
            last = noisy.rows(parts[-1])
            meaning = TagQueries.of(woh.config, woh.state(), woh.vocabulary_)
            Y, _, _ = woh.vocabulary_.matrices(last.tags)
            y = meaning.side.y(Y, woh.vocabulary_.df, meaning.n).toarray()
            Bp = np.column_stack([codes.unpack(packed), np.ones(len(packed))])
            here = wrong[parts[-1]]
            by_trust.append(area(-woh.trust_, here))
            doubted.append((here.sum(), (woh.trust_ < 0.5).sum(), (woh.trust_[here] < 0.5).sum()))
            by_residual.append(area(np.linalg.norm(y - Bp @ meaning.W, axis=1), here))
        print(f"{bits} bits, {len(args.seeds)} splits of {len(chunk):,} items, {args.chunks} chunks")
        print("  bits turned by rounds 2, 3, ...:", *(f"{share:.1%}" for share in np.mean(turned, axis=0)))
        print(f"  MAP with codes as learned {np.mean(kept):.3f}, made again {np.mean(anew):.3f}")
        print(
            f"  wrong tags found by trust {np.mean(by_trust):.2f}, residual {np.mean(by_residual):.2f};"
            " wrong, doubted, both:",
            *np.mean(doubted, axis=0),
        )


if __name__ == "__main__":
    main()
