"""Coverage-guided fuzzing with atheris, by hand: pytest does not collect this, CI does not run it.

    python -m venv /tmp/a && /tmp/a/bin/pip install -e . atheris
    /tmp/a/bin/python tests/helpers/fuzz_with_atheris.py npz /tmp/corpus-npz -max_total_time=600

TARGET is npz, npy, vectors, catalog, codes or model; then a folder for the corpus, which gets the valid files
that damage starts from; then libFuzzer's own options. It ends at the first exception that is no WOHError, the
first message that is not one line, crash, or use of more than 2 GB, and leaves the input beside itself as
crash-... Without atheris: ``WOH_FULL=50 pytest tests/test_fuzz.py``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["woh_faiss", "zipfile", "gzip", "numpy.lib", "gensim.models.keyedvectors"]
):
    import fuzzing

#: TARGET: (what tries it, the file of an index that is damaged or None)
TARGETS = {
    "npz": ("chunk", None),
    "npy": ("chunk", None),
    "vectors": ("vectors", None),
    "catalog": ("reading", "catalog.db"),
    "codes": ("reading", "codes.faiss"),
    "model": ("reading", "model-2.npz"),
}


def seeds(target: str, index: Path | None) -> list[bytes]:
    if target == "npz":
        return [fuzzing.npz_bytes(m) for m in (fuzzing.chunk_members(), fuzzing.csr_members())]
    if target == "npy":
        return list(fuzzing.chunk_members().values())
    if target == "vectors":
        return list(fuzzing.word_files().values())
    assert index is not None
    return [(index / str(TARGETS[target][1])).read_bytes()]


def main() -> None:
    target, corpus = sys.argv[1], Path(sys.argv[2])
    kind, name = TARGETS[target]
    warnings.simplefilter("error")
    folder = Path(tempfile.mkdtemp(prefix="woh-fuzz-"))
    index = fuzzing.make_index(folder / "index.woh") if name else None
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target, index)):
        (corpus / f"seed-{number}").write_bytes(seed)
    tried = index if index is not None else folder / "file"
    damaged = index / str(name) if index is not None else tried

    def one(data: bytes) -> None:
        for log in folder.glob("index.woh/catalog.db-*"):
            log.unlink()
        damaged.write_bytes(data)
        fuzzing.attempt(kind, tried)

    atheris.Setup([sys.argv[0], *sys.argv[3:], "-rss_limit_mb=2048", "-timeout=20", str(corpus)], one)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
