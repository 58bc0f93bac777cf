"""The paper's numbers as they are shipped, and beside what is measured."""

import hashlib
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_benchmark import social
from test_cli import run

from woh_faiss import Chunk, WordVectors
from woh_faiss.evaluation.benchmark import paper, published_numbers, report
from woh_faiss.evaluation.benchmark.published_numbers import Reference, of_paper, orders

DATA = Path(published_numbers.__file__).parent
#: SHA-256 of the table that the numbers were handed over in: set,method,bits,map, 80 rows.
HANDED_OVER = "1e83251b413014453ba9651c81b6959703034c2435ec158d4df501bb433483c4"


def items(n=3, d=20):
    return Chunk.of(np.ones((n, d), np.float32), [["sea"]] * n)


def record(method, bits, value, *, seconds=(1.0, 2.0), hyper=None, seed=0):
    rounds = [{"round": t + 1, "map": value, "seconds": each} for t, each in enumerate(seconds)]
    return {"method": method, "bits": bits, "hyper": hyper or {}, "seed": seed, "rounds": rounds}


def test_all_80_numbers_are_those_that_were_handed_over():
    table = (DATA / "published-map.csv").read_bytes()
    assert hashlib.sha256(table).hexdigest() == HANDED_OVER
    found = {name: of_paper(name, items()).map for name in published_numbers.IMAGES}
    every = {(name, method, bits) for name in found for method, bits in found[name]}
    assert every == {
        (name, method, bits)
        for name in ("mirflickr", "nus-wide")
        for method in paper.SYSTEMS.values()
        for bits in paper.BITS
    }
    assert len(every) == 80
    rows = [line.split(",") for line in table.decode().split()[1:]]
    for name, method, bits, value in rows:
        assert found[name][paper.SYSTEMS[method.upper()], int(bits)] == float(value)


def test_seconds_are_of_mirflickr_alone():
    seconds = of_paper("mirflickr", items()).seconds
    assert seconds["osh"] == [1.0173, 1.0388, 1.0391, 1.0319, 1.0100]
    assert seconds["bosdh"] == [0.0665, 12.0278, 22.9630, 34.0123, 51.3250]
    assert seconds["hmoh-published"] == [0.2913, 0.2509, 0.2560, 0.2640, 0.2712]
    assert seconds["woh-paper"] == [1.7246, 1.7026, 1.7425, 1.7382, 1.7619]
    assert len(seconds) == 4
    assert of_paper("nus-wide", items()).seconds == {}


def test_what_is_not_as_in_the_paper_is_said(tmp_path):
    here = " ".join(of_paper("mirflickr", items()).caveats)
    assert "features are not the paper's: 20 numbers an item here, 4,096 of VGG-F there" in here
    assert "3 images are here, 17,833 there" in here
    assert "Word vectors come from the tags" in here
    (tmp_path / "v.txt").write_text(f"sea {' '.join(['0.5'] * 300)}\n")
    vectors = WordVectors.open(tmp_path / "v.txt")
    as_many = replace(items(), features=np.broadcast_to(np.float16(1), (194_541, 4096)))
    alike = of_paper("nus-wide", as_many, vectors).caveats
    assert len(alike) == 1
    assert "4,096 numbers, as the paper's; whether they are VGG-F's is not known" in alike[0]
    (tmp_path / "w.txt").write_text("sea 0.5 0.5\n")
    assert (
        "Word vectors have 2 numbers, the paper's 300."
        in of_paper("mirflickr", items(), WordVectors.open(tmp_path / "w.txt")).caveats
    )


@given(st.lists(st.floats(0.1, 0.9), min_size=2, max_size=8, unique=True))
def test_orders_agree_as_pairs_do(values):
    """Kendall's tau against its definition: pairs in the same order less pairs in another."""
    methods = list(paper.SYSTEMS.values())[: len(values)]
    numbers = {(name, 16): 0.5 + i / 100 for i, name in enumerate(methods)}
    records = [record(name, 16, value) for name, value in zip(methods, values, strict=True)]
    records += [record("woh", 16, 0.99), record("woh-paper", 16, 0.99, hyper={"alpha": 3})]
    (order,) = orders(records, numbers)
    assert order.there == methods[::-1]
    assert order.here == sorted(methods, key=lambda name: -values[methods.index(name)])
    pairs = [np.sign(b - a) for a, b in combinations(values, 2)]
    assert order.tau == pytest.approx(np.mean(pairs))


def test_equal_numbers_have_no_agreement():
    (order,) = orders([record("sh", 16, 0.5), record("osh", 16, 0.5)], {("sh", 16): 0.6, ("osh", 16): 0.1})
    assert order.agreement == "undefined"
    assert sorted(order.here) == ["osh", "sh"]


def test_one_method_has_no_order():
    assert orders([record("sh", 16, 0.5)], {("sh", 16): 0.6}) == []
    assert orders([record("sh", 16, 0.5), record("osh", 8, 0.5)], {("sh", 16): 0.6, ("osh", 8): 0.1}) == []


def test_tables_beside_published_numbers():
    took = [0.5, 0.25, 0.1, 0.1, 0.1]
    records = [
        record("osh", 16, 0.60, seconds=took),
        record("osh", 16, 0.62, seconds=took, seed=1),
        record("woh-paper", 16, 0.5, seconds=[2 * it for it in took]),
        record("woh-paper", 32, 0.51),
        record("woh", 16, 0.7, seconds=took),
    ]
    reference = Reference(
        "table", {("osh", 16): 0.642, ("woh-paper", 16): 0.683}, {"osh": [1.0] * 5, "woh-paper": [1.7] * 5},
        ("Other features.",),
    )  # fmt: skip
    scores, order, seconds = report._beside(records, reference)
    texts = [[text for text, _ in row] for row in scores.rows]
    assert texts == [
        ["osh", "published", "0.642", ""],
        ["", "here", "0.610", ""],
        ["", "difference", "-0.032", ""],
        ["woh-paper", "published", "0.683", ""],
        ["", "here", "0.500", "0.510"],
        ["", "difference", "-0.183", ""],
        ["woh", "here", "0.700", ""],
    ]
    assert scores.notes == order.notes == ("Other features.",)
    assert [[text for text, _ in row] for row in order.rows] == [
        ["1", "woh-paper", "osh"],
        ["2", "osh", "woh-paper"],
        ["Kendall's τ", "-1.00", ""],
    ]
    rows = {(row[0][0], row[1][0]): [text for text, _ in row[2:]] for row in seconds.rows}
    assert rows["woh-paper", "published"] == ["1.700 (1.70)"] * 5
    assert rows["woh-paper", "here"] == [
        "1.000 (2.00)",
        "0.500 (2.00)",
        *["0.200 (2.00)"] * 3,
    ]
    assert rows["woh", "here"][0] == "0.500 (1.00)"
    assert ("woh", "published") not in rows
    assert report._beside([record("itq", 16, 0.5)], reference) == []


def test_parts_and_constants_stand_beside_the_default_learner():
    records = [
        record("woh-paper", 16, 0.5),
        record("woh-1", 16, 0.4),
        record("woh-paper", 16, 0.45, hyper={"mu": 0}),
        record("woh-paper", 16, 0.52, hyper={"mu": 5}),
        record("woh-paper", 16, 0.51, hyper={"mu": 0.1}),
        record("woh", 16, 0.7),
        record("woh", 32, 0.71),
        record("woh-twin", 16, 0.6),
        record("sh", 16, 0.3),
    ]
    parts, constants = report._ablations(records)
    assert [row[0][0] for row in parts.rows] == [
        *("woh-paper", "woh-1", "woh-paper (mu 0)", "woh", "woh-twin"),
    ]
    assert parts.title == "MAP of woh-paper without parts of its objective"
    assert constants.head == ["method", "database", "16 bits"]
    assert [[text for text, _ in row] for row in constants.rows] == [
        ["woh-paper (mu 0.1)", "learned", "0.510"],
        ["woh-paper (mu 5)", "learned", "0.520"],
        ["woh-paper", "learned", "0.500"],
        ["woh", "learned", "0.700"],
        ["woh-twin", "learned", "0.600"],
    ]
    assert report._ablations(records[:1] + records[5:]) == []
    varied = paper.sensitivity([0])
    assert {cell.bits for cell in varied} == {16}
    assert {name for cell in varied for name in cell.hyper} == {"alpha", "beta", "theta", "mu"}
    assert {300, 400, 500} <= {cell.hyper.get("alpha") for cell in varied}
    assert {1, 10} <= {cell.hyper.get("mu") for cell in varied}


def test_convergence_is_a_share_of_the_first_iteration():
    falling = [{**record("woh-paper", 16, 0.5, seed=seed), "objective": values} for seed, values in enumerate(
        [[4.0, 2.0, 1.0], [2.0, 2.0, 1.0]]
    )]  # fmt: skip
    (made,) = report._convergence([*falling, record("sh", 16, 0.4)])
    assert made.head == ["outer iterations", "1", "2", "3"]
    assert [text for text, _ in made.rows[0]] == ["woh-paper, 16 bits", "1.0000", "0.6667", "0.3333"]
    assert report._convergence([record("sh", 16, 0.4)]) == []


@pytest.fixture
def set_file(tmp_path, monkeypatch):
    """A file of labelled items that stands for the set, 6 tags of some 120 uses and one of 3."""
    monkeypatch.chdir(tmp_path)
    chunk = social()
    tags = [";".join([*chunk.tags.of_row(i), *["rare"] * (i < 3), ""]) for i in range(len(chunk))]
    tags[5] = ""
    np.savez(
        "set.npz", features=chunk.features, tags=np.array(tags), labels=np.asarray(chunk.labels).astype(int)
    )
    return tmp_path


@pytest.mark.usefixtures("few_anchors", "few_figures")
def test_the_experiment_ends_with_the_papers_numbers_without_a_file(set_file):
    flags = ["--methods", "sh,osh,woh-paper,woh", "--bits", 16, "--seeds", 1, "--chunks", 6, "-o", "rep"]
    done = run("benchmark", "--paper", "--dataset", "mirflickr", "set.npz", "--queries", 60, *flags)
    lines = [json.loads(line) for line in (set_file / "rep" / "results.jsonl").read_text().splitlines()]
    assert {line["database"] for line in lines} == {659 - 60}  # not the one without a tag
    assert {line["min_count"] for line in lines} == {1}
    ours = {line["method"]: line["rounds"][-1]["map"] for line in lines}
    out = done.stdout.splitlines()
    assert out[0].startswith(
        "The features are not the paper's: 12 numbers an item here, 4,096 of VGG-F there."
    )
    assert f"osh, 16 bits: MAP {ours['osh']:.3f}, published 0.642 ({ours['osh'] - 0.6418:+.3f})" in out
    assert out[-1].startswith("order at 16 bits: published woh-paper > osh > sh; here ")
    page = (set_file / "rep" / "report.html").read_text()
    assert "Tags from 50 uses on, and the 659 of 660 items that have one." in page
    beside = page.index("MAP beside Zhan et al.")
    warned = page.index("The features are not the paper", beside)
    assert beside < warned < page.index("<table>", beside)
    assert "Training seconds, 16 bits, beside Zhan et al." in page
    text = (set_file / "rep" / "report.md").read_text()
    assert "## Order of the methods by MAP" in text
    assert f"|  | here | {ours['sh']:.3f} |" in text
    # the same numbers for a set whose name the command cannot know
    again = run("benchmark", "--paper", "set.npz", "--queries", 60, *flags, "--published", "mirflickr")
    assert again.stdout == done.stdout
    none = run("benchmark", "--paper", "set.npz", "--queries", 60, *flags)
    assert none.stdout == ""
    other = run("benchmark", "--paper", "--dataset", "nus-wide", "set.npz", "--queries", 60, *flags, "--json")
    assert f"osh, 16 bits: MAP {ours['osh']:.3f}, published 0.471" in other.stderr
    missing = run("benchmark", "set.npz", *flags, "--published", "nothing.csv", code=1)
    assert missing.stderr == "Error: cannot read nothing.csv: No such file or directory\n"


@pytest.mark.usefixtures("few_anchors", "few_figures")
def test_nus_wide_learns_from_a_part_and_ranks_the_whole_rest(set_file):
    flags = ["--bits", 8, "--seeds", 1, "--queries", 60, "-o", "rep"]
    run(
        *("benchmark", "--paper", "--dataset", "nus-wide", "set.npz", "--learn-from", 300, "--chunks", 3),
        *("--methods", "sh,cosdish,woh-paper,woh-twin,float-cosine", *flags),
    )
    lines = [json.loads(line) for line in (set_file / "rep" / "results.jsonl").read_text().splitlines()]
    assert {(line["queries"], line["database"], line["learned"]) for line in lines} == {(60, 599, 300)}
    assert {len(line["rounds"]) for line in lines} == {3, 1}
    page = (set_file / "rep" / "report.html").read_text()
    assert "599 items, 300 of them learned from in 3 chunks, 60 queries" in page


def test_the_papers_protocol_of_each_set():
    """What no option says: MIRFlickr as it is, NUS-WIDE with 2,000 queries, 40,000 learned in 8 x 5,000."""
    from woh_faiss.evaluation.datasets import cut
    from woh_faiss_cli.benchmark import BenchmarkOptions
    from woh_faiss_cli.main import main

    parameters = main.get_command(None, "benchmark").params
    given = {it.name: it.default for it in parameters if it.name in BenchmarkOptions.__annotations__}
    given |= {"bits": [8], "places": ["x"], "vary": (), "columns": {}, "paper": True, "output": Path("rep")}
    for name, queries, size, learned in (("mirflickr", 1000, 2000, 0), ("nus-wide", 2000, 5000, 40_000)):
        options, chunk_size = BenchmarkOptions(**{**given, "name": name}).as_in_the_paper(set(given))
        assert (options.queries, chunk_size, options.learned) == (queries, size, learned)
        assert (options.min_count, options.bits) == (50, [8, 16, 32, 64, 96])
        assert options.methods.split(",") == [*paper.SYSTEMS.values(), "woh", "woh-twin"]
    assert cut(17_833 - 1000, 2000) == [2000] * 7 + [2833]
    assert cut(40_000, 5000) == [5000] * 8
