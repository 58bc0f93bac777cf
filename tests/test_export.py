"""to_faiss and `woh-index export`: ordinary Faiss indexes that answer as the index does, without it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest
from conftest import LEARNED, length, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from test_cli import run
from test_life import contents

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import faiss_indexes

PAGE = Path(__file__).parents[1] / "docs" / "faiss.md"
#: Runs where only faiss and numpy can be imported.
FOREIGN = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("woh_faiss", "woh_faiss_cli", "scipy", "gensim", "click"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nothing())
import faiss, numpy as np

file, queries, out = sys.argv[1:]
D, I = faiss.read_index_binary(file).search(np.load(queries), 10)
assert not any(name.startswith("woh_faiss") for name in sys.modules)
np.savez(out, D=D, I=I)
"""


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """An index of 600 items with ids of their own, some of them removed."""
    with WOHIndex.create(tmp_path_factory.mktemp("larger") / "i.woh", **{**LEARNED, "bits": 48}) as index:
        index.update(*tagged(0, n=300), ids=np.arange(300) * 3 + 1)
        index.add(tagged(1, n=300)[0], ids=np.arange(300) * 3 + 10_000)
        index.remove([1, 4, 301, 10_000, 10_003])
        yield index


def packed(index, xq):
    return codes.pad(index.encode(xq))


@pytest.mark.parametrize("kind", ["idmap2", "flat"])
def test_another_program_gets_the_same_answers_to_a_thousand_queries(larger, tmp_path, kind):
    xq = tagged(5, n=1000)[0]
    np.save(tmp_path / "q.npy", packed(larger, xq))
    larger.export(tmp_path / "out.faiss", kind)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = [sys.executable, "-I", "-c", FOREIGN, "out.faiss", "q.npy", "answers.npz"]
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, timeout=600)
    D, I = larger.search(xq, 10, by="hamming")
    with np.load(tmp_path / "answers.npz") as theirs:
        assert_array_equal(theirs["D"], D)
        alive = np.array([id_ for id_ in larger._store.view.ids if larger._store.view.find([id_])])
        assert_array_equal(theirs["I"] if kind == "idmap2" else alive[theirs["I"]], I)


def test_the_page_says_how_to_query_such_a_file(larger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    larger.export("photos.faiss")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names = {"index": larger, "features": tagged(8, n=20)[0], "np": np, "faiss": faiss}
    exec(block, names)  # noqa: S102
    expected = larger.search(names["features"], 10, by="hamming")
    assert_array_equal(names["D"], expected[0])
    assert_array_equal(names["I"], expected[1])


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("flat", faiss.IndexBinaryFlat),
        ("idmap2", faiss.IndexBinaryIDMap2),
        ("ivf", faiss.IndexBinaryIVF),
        ("hnsw", faiss.IndexBinaryIDMap2),
        ("multihash", faiss.IndexBinaryIDMap2),
    ],
)
def test_each_kind_is_what_it_says_and_finds_its_items_under_their_ids(larger, kind, type_):
    made = larger.to_faiss(kind)
    assert type(made) is type_
    assert (made.ntotal, made.d) == (595, 64)
    xq = tagged(5, n=50)[0]
    D, _ = larger.search(xq, 1, by="hamming")
    D_made, found = made.search(packed(larger, xq), 1)
    there = D_made == D  # what an approximate kind finds as near has an id at that distance
    assert there.mean() > 0.9
    if kind != "flat":
        stored = larger._store.view.codes(found[there])
        truly = np.unpackbits(stored ^ packed(larger, xq)[there.ravel()], axis=1).sum(axis=1)
        assert_array_equal(truly, D[there])


def test_an_ivf_that_looks_everywhere_and_a_wide_multihash_miss_nothing(larger):
    xq = tagged(6, n=40)[0]
    D, _ = larger.search(xq, 20, by="hamming")
    everywhere = larger.to_faiss("ivf", nlist=12, nprobe=12).search(packed(larger, xq), 20)[0]
    assert_array_equal(np.sort(everywhere), D)
    wide = larger.to_faiss("multihash", nhash=12, b=4, nflip=4).search(packed(larger, xq), 20)[0]
    assert_array_equal(np.sort(wide), D)


@settings(max_examples=length(30), deadline=None)
@given(st.data())
def test_multihash_finds_every_code_within_its_radius(data):
    nhash = data.draw(st.integers(1, 4), "nhash")
    b = data.draw(st.integers(1, 32 // nhash), "b")
    nflip = data.draw(st.integers(0, min(b, 3)), "nflip")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    C = rng.integers(0, 256, (200, 4), np.uint8)
    parameters = faiss_indexes.complete("multihash", {"nhash": nhash, "b": b, "nflip": nflip}, len(C), 32)
    index = faiss_indexes.built("multihash", C, parameters)
    radius = faiss_indexes.radius("multihash", parameters)
    assert radius == nhash * (nflip + 1) - 1
    queries = C[:20].copy()
    for row, query in enumerate(queries):  # so that some code is just at the radius
        for bit in rng.permutation(32)[: min(radius, 32)]:
            query[bit // 8] ^= np.uint8(1 << bit % 8)
        near = np.unpackbits(C ^ query, axis=1).sum(axis=1) <= radius
        found = index.search(query[None], 200)[1]
        assert set(np.flatnonzero(near)) <= set(found[0].tolist()), row


def test_a_multihash_that_faiss_would_write_without_some_codes_is_refused():
    C = np.random.default_rng(0).integers(0, 256, (64, 4), np.uint8)
    C[:, 1] = 7  # the second of four parts
    for n, lost in ((63, False), (64, True)):
        index = faiss.IndexBinaryMultiHash(32, 4, 8)
        index.add(C[:n])
        back = faiss.deserialize_index_binary(faiss.serialize_index_binary(index))
        found = back.search(C[:1], n)[1]
        assert (found == -1).any() == lost, "Faiss has mended it: check no more"
        parameters = {"nhash": 4, "b": 8, "nflip": 1}
        if lost:
            with pytest.raises(InputError, match="64 codes that are alike in bits 8 to 15"):
                faiss_indexes.built("multihash", C[:n], parameters)
        else:
            assert faiss_indexes.built("multihash", C[:n], parameters).ntotal == n


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("pq", {}, "kind is 'pq', expected one of flat, idmap2, ivf, hnsw, multihash"),
        ("flat", {"nlist": 3}, "flat takes no 'nlist'; expected no parameters"),
        ("ivf", {"M": 3}, "ivf takes no 'M'; expected nlist, nprobe"),
        ("ivf", {"nlist": 0}, "nlist is 0, expected at least 1"),
        ("ivf", {"nlist": 596}, "nlist is 596, expected at most 595, the number of items"),
        ("ivf", {"nlist": 4, "nprobe": 5}, "nprobe is 5, expected at most 4, nlist"),
        ("hnsw", {"M": 1}, "M is 1, expected at least 2"),
        ("hnsw", {"ef_search": 2**70}, "expected at most"),
        ("multihash", {"nhash": 3, "b": 17}, "b is 17, expected at most 16, what 3 parts of 48 bits allow"),
        ("multihash", {"nhash": 49}, "nhash is 49, expected at most 48, the bits of a code"),
        ("multihash", {"nflip": 1.5}, "nflip is 1.5, expected a whole number of at least 0"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(larger, tmp_path, kind, parameters, message):
    with pytest.raises(InputError) as caught:
        larger.to_faiss(kind, **parameters)
    assert message in str(caught.value)
    with pytest.raises(InputError):
        larger.export(tmp_path / "o", kind, **parameters)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("kind", [*faiss_indexes.EXACT, *faiss_indexes.SUBLINEAR])
def test_few_items(tmp_path, kind, n):
    with WOHIndex.create(tmp_path / "i.woh", **LEARNED) as index:
        index.update(*tagged(0))
        index.remove(np.arange(n, 40))
        if kind in faiss_indexes.SUBLINEAR and not n:
            with pytest.raises(InputError, match="there are no items to make"):
                index.export(tmp_path / "o.faiss", kind)
        elif kind == "multihash" and n == 1:
            with pytest.raises(InputError, match="Faiss cannot write a multihash of 1 codes"):
                index.export(tmp_path / "o.faiss", kind)
        else:
            done = index.export(tmp_path / "o.faiss", kind)
            assert (done.items, done.queries) == (n, n)
            made = faiss.read_index_binary(str(tmp_path / "o.faiss"))
            assert made.ntotal == n
            if n:
                assert made.search(packed(index, tagged(0)[0][:n]), 1)[0].tolist() == [[0]] * n


def test_the_command_prints_a_line(larger, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WOH_INDEX", str(larger.path))
    size = 595 * (8 + 8)
    done = run("export", "a.faiss")
    assert done.stdout.startswith(f"{tmp_path / 'a.faiss'}: idmap2, 595 items of 64 bits, {size // 1000},")
    assert done.stdout.endswith("recall@10 1.000 on 256 queries\n")
    done = run("export", "b.faiss", "--type", "multihash", "--param", "nhash=4", "--param", "nflip=1")
    assert "multihash (nhash 4, b 12, nflip 1), 595 items" in done.stdout
    assert done.stdout.endswith("nothing missed up to 7 bits\n")
    record = json.loads(run("export", "c.faiss", "--type", "ivf", "--param", "nprobe=24", "--json").stdout)
    assert record["parameters"] == {"nlist": 24, "nprobe": 24}
    assert (record["kind"], record["items"], record["recall"], record["radius"]) == ("ivf", 595, 1.0, None)
    assert record["bytes"] == (tmp_path / "c.faiss").stat().st_size
    assert "is not NAME=NUMBER" in run("export", "d.faiss", "--param", "nprobe", code=2).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.faiss", "b.faiss", "c.faiss"]


def test_nothing_is_overwritten_unless_forced_and_never_the_index(larger, tmp_path, monkeypatch):
    out = tmp_path / "o.faiss"
    out.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"exists already; --force \(force=True\) replaces it"):
        larger.export(out)
    assert out.read_bytes() == b"mine"
    assert larger.export(out, force=True).items == 595
    for inside in (larger.path / "codes.faiss", larger.path / "new.faiss"):
        with pytest.raises(InputError, match="is in the index folder"):
            larger.export(inside, force=True)
    (tmp_path / "link.faiss").symlink_to(larger.path / "codes.faiss")
    with pytest.raises(InputError, match="is in the index folder"):
        larger.export(tmp_path / "link.faiss", force=True)
    with pytest.raises(InputError, match="exists and is not a file"):
        larger.export(tmp_path, force=True)
    with pytest.raises(StoreError, match=r"cannot write .*No such file"):
        larger.export(tmp_path / "none" / "o.faiss")
    assert WOHIndex.verify(larger.path) == []


@pytest.mark.parametrize("kind", ["flat", "idmap2"])
@pytest.mark.parametrize("fault", ["codes", "ids"])
def test_a_file_that_answers_otherwise_is_not_put_in_place(larger, tmp_path, monkeypatch, kind, fault):
    honest = faiss_indexes.built

    def wrong(kind, codes, parameters, ids=None):
        if fault == "codes":
            return honest(kind, codes ^ np.uint8(1), parameters, ids)
        return honest(kind, codes[::-1].copy() if kind == "flat" else codes, parameters, ids[::-1].copy())

    monkeypatch.setattr(faiss_indexes, "built", wrong)
    with pytest.raises(StoreError, match="and was not kept"):
        larger.export(tmp_path / "o.faiss", kind)
    assert not any(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(larger, tmp_path, monkeypatch):
    def full(file, index):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(faiss_indexes, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        larger.export(tmp_path / "o.faiss")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["codes.faiss", "ids.i64"])
def test_damaged_codes_replace_no_file(tmp_path, name):
    """An approximate index, which has no ids, is made of the codes alone."""
    out = tmp_path / "out.faiss"
    with WOHIndex.create(tmp_path / "i", **LEARNED) as index:
        index.update(*tagged(0))
        index.export(out, "flat")
        made = index.build_ann("ivf")
        index.add(tagged(1, n=2)[0])  # of the newest round opening tells
    good = out.read_bytes(), contents(tmp_path / "i", but=("catalog.db",))
    data = bytearray((tmp_path / "i" / name).read_bytes())
    data[36] ^= 1
    (tmp_path / "i" / name).write_bytes(data)
    told = r"codes.faiss or ids.i64: the bytes of round 1 are not what was written; restore both"
    with WOHIndex.open(tmp_path / "i") as index:
        with pytest.raises(StoreError, match=told):
            index.export(out, "idmap2", force=True)
        with pytest.raises(StoreError, match=told):
            index.build_ann("ivf")
        assert index._store.snapshot.ann == (made,)
    assert (out.read_bytes(), contents(tmp_path / "i", but=("catalog.db",))) == (
        good[0],
        good[1] | {name: bytes(data)},
    )
