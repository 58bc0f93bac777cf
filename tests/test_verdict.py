"""Whether codes pay without labels: gains by tags, nDCG, the rule, and real comparisons."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import LENGTH
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from woh_faiss.errors import InputError
from woh_faiss.evaluation import comparison
from woh_faiss.evaluation.comparison import (
    FLOAT,
    INSTANCE,
    LEARNED,
    Measured,
    Method,
    Trial,
    compare,
    measure,
)
from woh_faiss.evaluation.datasets import fine_tags, random_tags, synthetic
from woh_faiss.evaluation.metrics import average_precision, cosine, ndcg
from woh_faiss.evaluation.relevance import Relevance
from woh_faiss.evaluation.verdict import Bootstrap, verdict
from woh_faiss.inputs.chunk import Chunk, concatenate
from woh_faiss_cli.evaluate import evaluate

# ---- measures ----------------------------------------------------------------------------------------


@given(st.data())
def test_ndcg_is_that_of_its_definition(data):
    n, k = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    k = min(n, k)
    gains = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=n, max_size=n))
    first = data.draw(st.permutations(range(n)))[:k]

    def dcg(values):
        return sum(gain / math.log2(1 + rank) for rank, gain in enumerate(values, start=1))

    most = dcg(sorted(gains, reverse=True)[:k])
    found = ndcg(np.array([first]), np.array([gains]))[0]
    if most == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(dcg([gains[place] for place in first]) / most)


LISTS = [["sea", "Beach"], ["sea"], ["beach", "rare"], ["SEA", "hill"], [], ["hill", "all"], ["all"], ["one"]]


def test_gains_are_cosines_of_informative_tags():
    lists = [[*tags, "common"] for tags in LISTS] * 3
    chunk = Chunk.of(np.eye(len(lists), 4) + 1, lists)
    held_out, rest = np.array([0, 3, 4, 9]), np.setdiff1d(np.arange(24), [0, 3, 4, 9])
    found = Relevance.of_tags(chunk, held_out, rest)
    folded = [{tag.lower() for tag in tags} for tags in lists]
    count = {tag: sum(tag in tags for tags in folded) for tags in folded for tag in tags}
    weight = {tag: math.log(24 / n) for tag, n in count.items() if 2 <= n <= 0.2 * 24}
    assert set(weight) == {"rare", "one"}, "the rest is in more than a fifth of the items"

    def vector(row):
        return {tag: weight[tag] for tag in folded[row] if tag in weight}

    def gain(q, i):
        a, b = vector(q), vector(i)
        length = math.dist(a.values(), [0] * len(a)) * math.dist(b.values(), [0] * len(b))
        return sum(a[tag] * b[tag] for tag in a.keys() & b.keys()) / length if length else 0

    wanted = [[gain(q, i) for i in rest] for q in held_out]
    assert found.gains(slice(None)) == pytest.approx(np.array(wanted))
    assert found.known.tolist() == [any(row) for row in np.array(wanted) > 0]


def test_gains_by_several_tags_against_a_naive_oracle():
    rng = np.random.default_rng(0)
    lists = [[f"t{t}" for t in rng.choice(40, rng.integers(0, 5), replace=False)] for _ in range(80)]
    chunk = Chunk.of(rng.normal(size=(80, 3)), lists)
    held_out, rest = np.arange(20), np.arange(20, 80)
    found = Relevance.of_tags(chunk, held_out, rest).gains(np.array([3, 5, 0]))
    names = sorted({tag for tags in lists for tag in tags})
    T = np.array([[tag in tags for tag in names] for tags in lists], float)
    n = T.sum(axis=0)
    W = T * np.where((n >= 2) & (n <= 16), np.log(80 / n), 0)
    W /= np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-12)
    assert found == pytest.approx(W[[3, 5, 0]] @ W[rest].T, abs=1e-6)
    places = rng.integers(0, 60, (3, 4))
    at = Relevance.of_tags(chunk, held_out, rest).gains_at(np.array([3, 5, 0]), places)
    assert at == pytest.approx(np.take_along_axis(found, places, axis=1), abs=1e-6)


def test_gains_by_labels_are_shared_labels():
    labels = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], bool)
    chunk = Chunk.of(np.eye(4), labels=labels)
    found = Relevance.of_labels(chunk, np.array([0, 3]), np.array([1, 2]))
    assert found.gains(slice(None)).tolist() == [[0, 1], [0, 0]]
    assert found.known.tolist() == [True, False]
    with pytest.raises(InputError, match="no tags"):
        Relevance.of_tags(chunk, np.array([0]), np.array([1]))
    with pytest.raises(InputError, match="no labels"):
        Relevance.of_labels(Chunk.of(np.eye(4)), np.array([0]), np.array([1]))


def test_measures_of_a_ranking_against_naive_ones(monkeypatch):
    monkeypatch.setattr(comparison, "CELLS", 3000)  # several blocks
    rng = np.random.default_rng(1)
    lists = [[f"t{t}" for t in rng.choice(30, rng.integers(0, 4), replace=False)] for _ in range(400)]
    chunk = Chunk.of(rng.normal(size=(400, 6)).astype(np.float32), lists)
    trial = Trial(chunk, queries=60, seed=3)
    relevance = Relevance.of_tags(chunk, trial.held_out, trial.rest)
    ranking = lambda Q: cosine(Q, trial.X).round(1)  # noqa: E731 - with ties
    found = measure(Method("float", 24), ranking, trial, relevance)
    G, D, near = relevance.gains(slice(None)), ranking(trial.Xq), cosine(trial.Xq, trial.X)
    known = [q for q in range(60) if G[q].any()]
    for q in range(60):
        first = sorted(range(340), key=lambda i, q=q: (D[q, i], i))[:10]
        assert found.first[q].tolist() == first
        nearest = sorted(range(340), key=lambda i, q=q: (near[q, i], i))[:10]
        assert found.recall[q] == pytest.approx(len({*first} & {*nearest}) / 10)
        if q not in known:
            assert all(np.isnan([found.ndcg[q], found.chance[q], found.p10[q], found.ap[q]]))
            continue
        others = [known[known.index(q) - shift] for shift in range(1, 9)]
        assert found.ndcg[q] == pytest.approx(ndcg(np.array([first]), G[[q]])[0])
        chance = [ndcg(np.array([first]), G[[other]])[0] for other in others]
        assert found.chance[q] == pytest.approx(np.mean(chance))
        assert found.p10[q] == pytest.approx((G[q, first] > 0).mean())
        assert found.ap[q] == pytest.approx(average_precision(D[[q]], G[[q]] > 0)[0])
    assert 0 < len(known) < 60
    assert found.means()["ndcg"] == pytest.approx(np.nanmean(found.ndcg))


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    boot = Bootstrap(200, 0)
    held = 0
    for _ in range(300):
        interval = boot.interval(rng.normal(0.1, 1, 200))
        assert interval.low < interval.mean < interval.high
        held += interval.low <= 0.1 <= interval.high
    assert 0.9 < held / 300 < 0.985
    assert boot.interval(np.full(200, 0.3)) == pytest.approx((0.3, 0.3, 0.3))


# ---- the rule ----------------------------------------------------------------------------------------


def made(name, n_bytes, ndcg10, *, recall=0.5, chance=0.1, self10=1.0, queries=400, noise=0.02, seed=0):
    """One method of which nothing but these means is known."""
    rng = np.random.default_rng((seed, n_bytes, len(name)))
    values = np.clip(ndcg10 + rng.normal(0, noise, queries), 0, 1)
    values += ndcg10 - values.mean()
    bits = {LEARNED: (4 * n_bytes, 4 * n_bytes), INSTANCE: (0, 8 * n_bytes)}.get(name, (None, None))
    flat = np.full(queries, 0.5)
    return Measured(
        method=Method(name, n_bytes, *bits),
        ndcg=values,
        chance=np.full(queries, chance),
        p10=flat,
        ap=flat,
        recall=np.full(queries, recall),
        self1=0.9,
        self10=self10,
        first=np.zeros((queries, 10), int),
        seconds=0.0,
    )


def measured(learned, pq, itq=0.2, float_=0.5, **more):
    """Measurements of lengths 8 and 16; learned and pq have a value a length."""
    found = [made(FLOAT, 512, float_, recall=1.0, **more)]
    for n_bytes, ours, theirs in zip((8, 16), learned, pq, strict=True):
        found += [
            made(LEARNED, n_bytes, ours, recall=0.3, **more),
            made(INSTANCE, n_bytes, itq, recall=0.4, **more),
            made("itq", n_bytes, itq, recall=0.4, **more),
            made("pq", n_bytes, theirs, recall=n_bytes / 18, **more),
        ]
    return found


@pytest.mark.parametrize(
    ("learned", "pq", "float_", "choice", "method", "n_bytes"),
    [
        ((0.60, 0.70), (0.50, 0.52), 0.5, "learned codes", LEARNED, 8),
        ((0.45, 0.70), (0.40, 0.52), 0.5, "learned codes", LEARNED, 16),  # 8 bytes lose to float
        ((0.495, 0.70), (0.40, 0.52), 0.5, "learned codes", LEARNED, 8),  # by less than counts
        ((0.30, 0.40), (0.25, 0.30), 0.5, "learned codes", LEARNED, 16),  # the best, but worse than float
        ((0.30, 0.40), (0.495, 0.50), 0.5, "another index", "pq", 8),
        ((0.30, 0.40), (0.45, 0.50), 0.5, "another index", "pq", 16),
        ((0.505, 0.505), (0.50, 0.50), 0.5, "another index", "pq", 8),  # no difference that counts
        ((0.30, 0.30), (0.45, 0.46), 0.5, "another index", "pq", 16),  # none is as good as float
        ((0.105, 0.105), (0.10, 0.10), 0.105, "features alone", "pq", 16),
    ],
)
def test_the_rule(learned, pq, float_, choice, method, n_bytes):
    found = verdict(measured(learned, pq, float_=float_, itq=0.1))
    assert (found.choice, found.method.name, found.method.n_bytes) == (choice, method, n_bytes)
    pays = choice == "learned codes"
    assert found.headline.startswith("Learned codes pay") == pays
    assert "do not pay" in found.headline or pays
    assert f"{n_bytes} bytes" in found.headline
    if method == LEARNED:
        assert f"--bits {4 * n_bytes} --instance-bits {4 * n_bytes}" in found.headline


def test_noise_is_no_difference():
    noisy = measured((0.53, 0.53), (0.50, 0.50), queries=60, noise=0.4)
    assert verdict(noisy).choice == "another index"
    assert verdict(measured((0.53, 0.53), (0.50, 0.50))).choice == "learned codes"


def test_few_queries_with_shared_tags_judge_nothing():
    few = measured((0.60, 0.70), (0.50, 0.52))
    for each in few:
        for values in (each.ndcg, each.chance, each.p10, each.ap):
            values[49:] = np.nan
    found = verdict(few)
    assert found.choice == "features alone"
    assert found.reasons[0].startswith("Only 49 of 400 queries")
    for each in few:
        each.ndcg[:] = np.nan
    assert np.isnan(verdict(few).lift.mean)


def test_an_item_that_does_not_find_itself_is_told():
    told = verdict(measured((0.60, 0.70), (0.50, 0.52), self10=0.7)).reasons
    assert any("Careful" in reason and "0.70" in reason for reason in told)


def test_a_verdict_needs_the_whole_comparison():
    with pytest.raises(InputError, match="give all that compare yields"):
        verdict([made("pq", 8, 0.5)])


# ---- comparisons -------------------------------------------------------------------------------------


def chosen(chunk, codes, queries=250):
    trial = Trial(chunk, queries=queries)
    relevance = Relevance.of_tags(trial.chunk, trial.held_out, trial.rest)
    return verdict(list(compare(trial, relevance, codes)))


def labelled(n):
    return concatenate(list(synthetic(n, 64, noise=2.0, missing=0.1, size=n)))


@pytest.mark.usefixtures("few_anchors")
def test_verdicts_on_made_up_sets():
    n = 1200 if LENGTH >= 1 else 800
    assert chosen(labelled(n), [(16, 16)]).choice == "learned codes"
    random = chosen(random_tags(n), [(16, 16), (32, 32)])
    assert random.choice == "features alone"
    assert "say nothing" in random.headline
    fine = chosen(fine_tags(n), [(16, 16)])
    assert (fine.choice, fine.method.name) == ("another index", "pq")


def test_lengths_are_those_below_the_features():
    found = comparison.methods(8, [(64, 64), (16, 16), (8, 24), (128, 128)])
    assert [m.n_bytes for m in found if m.name == LEARNED] == [4, 16]
    assert found[1] == Method(LEARNED, 4, 16, 16)
    assert [m.n_bytes for m in found if m.name == "rabitq"] == [16]
    with pytest.raises(InputError, match="the shortest code 16"):
        comparison.methods(4, [(64, 64)])


def test_a_sample_is_drawn_and_few_items_are_refused():
    chunk = random_tags(600)
    trial = Trial(chunk, sample=500, seed=2)
    assert (len(trial.chunk), len(trial.held_out), len(trial.rest)) == (500, 125, 375)
    other = Trial(chunk, sample=500, seed=2)
    assert (trial.Xq == other.Xq).all()
    with pytest.raises(InputError, match="225 items are left beside 75 queries"):
        Trial(random_tags(300))


# ---- made-up sets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [random_tags, fine_tags])
def test_made_up_sets_are_the_same_again(make):
    a, b = make(50, seed=3), make(50, seed=3)
    assert (a.digest(), a.labels.tolist()) == (b.digest(), b.labels.tolist())
    assert a.digest() != make(50, seed=4).digest()
    assert a.features.dtype == np.float32
    assert (a.labels.sum(axis=1) == 1).all()
    with pytest.raises(InputError, match="n is 0"):
        make(0)


def test_fine_tags_of_many_items_are_refused():
    with pytest.raises(InputError, match="n is 20001, expected at most 20000"):
        fine_tags(20_001)


def test_fine_tags_are_shared_by_neighbours():
    chunk = fine_tags(2000)
    X = chunk.features / np.linalg.norm(chunk.features, axis=1, keepdims=True)
    tags = [set(chunk.tags.of_row(row)) for row in range(2000)]
    assert {len(own) for own in tags} == {2}
    sharing = [(X[a] @ X[b]) for a in range(300) for b in range(a) if tags[a] & tags[b]]
    assert np.mean(sharing) > 0.6
    assert abs(np.mean(X[:300] @ X[300:600].T)) < 0.05


# ---- the command -------------------------------------------------------------------------------------

pytestmark = pytest.mark.filterwarnings("error")


def invoke(*arguments):
    return CliRunner().invoke(evaluate, [str(a) for a in arguments], env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """400 items without labels in two files, keys are paths of pictures, three of which are there."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(2):
        classes, words = rng.integers(0, 8, 200), rng.integers(0, 50, 200)
        np.savez(
            folder / f"{number}.npz",
            features=rng.normal(size=(200, 16)) + 2 * np.eye(16)[classes],
            tags=[f"kind{c};<b>{c % 2}</b>;word{w}" for c, w in zip(classes, words, strict=True)],
            keys=np.array([f"pictures/{number}/{row}.png" for row in range(200)]),
        )
    for number in range(2):
        (folder / "pictures" / str(number)).mkdir(parents=True)
        for row in range(200):
            Image.new("RGB", (8, 8), (row, 0, 0)).save(folder / f"pictures/{number}/{row}.png")
    return folder


@pytest.mark.usefixtures("few_anchors")
def test_without_labels_there_is_a_verdict(photos, tmp_path):
    files = photos / "0.npz", photos / "1.npz"
    page = tmp_path / "page.html"
    result = invoke(*files, "--bits", "8", "--html", page, "--images", photos)
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    assert "note: there are no labels of all items" in result.stderr
    assert "100 queries held out with their tags, 300 items searched" in told
    assert "Verdict: " in told
    for name in ("float", "woh 8 + 8", "woh 0 + 16", "itq", "pq"):
        assert name in told
    html = page.read_text()
    assert html.count("<section") == 21
    assert html.count("data:image/jpeg") > 100
    assert "<b>0</b>" not in html
    assert "&lt;b&gt;0&lt;" in html
    assert "Does it pay?" in html


@pytest.mark.usefixtures("few_anchors")
def test_json_lines_end_with_the_verdict(photos):
    arguments = (photos / "0.npz", photos / "1.npz", "--json", "--bits", "8,16", "--seed", 3)
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    *lines, last = [json.loads(line) for line in result.stdout.splitlines()]
    data = concatenate([Chunk.of(**dict(np.load(photos / f"{n}.npz"))) for n in range(2)])
    trial = Trial(data, seed=3)
    relevance = Relevance.of_tags(data, trial.held_out, trial.rest)
    expected = list(compare(trial, relevance, [(8, 8), (16, 16)]))
    assert [line["method"] for line in lines] == [m.method.name for m in expected]
    for line, m in zip(lines, expected, strict=True):
        means = m.means()
        assert (line["n_bytes"], line["bits"]) == (m.method.n_bytes, m.method.bits)
        assert line["ndcg10"] == pytest.approx(means["ndcg"], abs=1e-6)
        assert line["map"] == pytest.approx(means["ap"], abs=1e-6)
        assert line["self1"] == pytest.approx(m.self1, abs=1e-6)
    found = verdict(expected, 3)
    assert (last["verdict"], last["method"], last["n_bytes"]) == (
        found.choice,
        found.method.name,
        found.method.n_bytes,
    )
    assert last["reasons"] == list(found.reasons)
    assert last["difference"] == pytest.approx(list(found.difference), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--by", "hamming"], 2, "--by is for data with labels, and the data have none"),
        (["--chunks", "3"], 2, "--chunks is for data with labels"),
        (["--wrong-tags", ".1"], 2, "--wrong-tags is for data with labels"),
        (["--bits", "0"], 2, "--bits are learned bits, at least 8"),
        (["--bits", "512"], 1, "the shortest code 128"),
        (["--images", "."], 2, "--images goes with --html"),
        (["--html", "page.txt"], 1, "expected a name ending in"),
        (["--sample", "40"], 1, "30 items are left beside 10 queries"),
        (["--key-column", "nothing", "--html", "page.html"], 1, "fixed names"),
        (["--key-column", "path"], 2, "--key-column goes with --html"),
    ],
)
def test_mistakes_are_one_line(photos, arguments, code, message):
    result = invoke(photos / "0.npz", photos / "1.npz", *arguments)
    assert result.exit_code == code, result.output
    assert message in result.output
    if code == 1:
        assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_what_is_only_for_data_without_labels(photos, tmp_path):
    chunk = Chunk.of(**dict(np.load(photos / "0.npz")))
    np.savez(tmp_path / "a.npz", features=chunk.features, tags=["x", "y"] * 100, labels=[0, 1] * 100)
    result = invoke(tmp_path / "a.npz", "--sample", 100)
    assert result.exit_code == 2
    assert "--sample is for data without labels; --labels-column '' leaves them out" in result.output


@pytest.mark.usefixtures("few_anchors")
def test_one_key_may_be_there_twice_and_long_codes_are_told(photos, tmp_path):
    same = photos / "0.npz"
    result = invoke(same, same, "--bits", "8,256", "--html", tmp_path / "a.html", "--sample", 380)
    assert result.exit_code == 0, result.output
    assert "a random sample of 380 of 400 items" in result.stderr
    assert "codes of 64 bytes are left out: features take 64" in result.stderr
