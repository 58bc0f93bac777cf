"""The page of answers: well formed, self-contained, safe whatever keys and tags are."""

import json
import os
import re
import unicodedata

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, length, tagged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from page_reader import Page, answer, saved, written
from PIL import Image

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss_cli.answers import BATCH, Answer, Query
from woh_faiss_cli.main import main

RED = (200, 20, 20)

# ---- text ---------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(), min_size=1, max_size=40)
NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</style></title><!-- &lt; &#60; &amp",
    "javascript:alert(1)",
    "http://example.com/a.png",
    "\u202egnp.exe \u2069\u2066",
    "שלום/تمونة.png",
    "\0\x07\r\n\t\ud800\ufffe\U0010ffff",
    "a/" * 300,
]


#: Format characters that stay: joiners, and those that scripts are written with.
KEPT = {0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
KEPT |= {*range(0x13430, 0x13440), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)}


def in_plain_sight(text):
    """What a page is to show for a text, said another way: the characters that are odd as \\uXXXX."""

    def odd(c):
        o, kind = ord(c), unicodedata.category(c)
        return kind in ("Cc", "Cs", "Zl", "Zp") or (kind == "Cf" and o not in KEPT) or o == 0x2065 \
            or 0xFDD0 <= o <= 0xFDEF or o & 0xFFFE == 0xFFFE  # fmt: skip

    return "".join(ascii(c)[1:-1] if odd(c) else c for c in text)


@pytest.mark.parametrize("nasty", NASTY)
def test_nasty_texts_are_shown_as_text(tmp_path, nasty):
    shown = written(tmp_path / "a.html", [answer(nasty, [nasty], [(nasty, 0.25)], [nasty])], about=nasty)
    label = shown.pieces.pop(1)  # the placeholder has the name of the file
    assert label in in_plain_sight(nasty)
    assert shown.pieces[:1] == [in_plain_sight(nasty)]
    assert shown.pieces.count(in_plain_sight(nasty)) >= 6
    assert shown.images == []


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=length(60),
    deadline=None,
)
@given(key=ANY_TEXT, tag=ANY_TEXT, name=ANY_TEXT)
@example(key="/", tag="\ud83d", name="&")
def test_any_text_is_shown_as_it_is(tmp_path, key, tag, name):
    given_ = answer(key, [tag], [(tag, 0.25)], [tag], name)
    shown = written(tmp_path / "a.html", [given_])
    expected = ["1 query", name, tag, key, tag, tag]
    texts = [piece for i, piece in enumerate(shown.pieces) if i not in (1, 4)]  # without the placeholders
    assert texts == [in_plain_sight(text) for text in expected]


def test_nothing_is_fetched_and_nothing_runs(tmp_path):
    saved(Image.new("RGB", (9, 9)), tmp_path / "a.png")
    written(tmp_path / "a.html", [answer("a.png")], tmp_path)
    source = (tmp_path / "a.html").read_text()
    assert source.count('src="data:image/jpeg;base64,') == source.count("src=") == 2
    source = re.sub(r'"data:image/jpeg;base64,[A-Za-z0-9+/=]*"', "", source)
    for word in ("http:", "https:", "//", "url(", "@import", "<link", "<script", "<a ", "href"):
        assert word not in source, word
    assert "default-src 'none'" in source


def test_bare_lists_are_said(tmp_path):
    shown = written(tmp_path / "a.html", [Answer(Query("row 0", None, None), [], {}), answer(None, [], [])])
    source = (tmp_path / "a.html").read_text()
    assert "No neighbours." in source
    assert source.count(">none<") == 2
    assert len(shown.cards) == 1
    assert shown.ids == ["query-1", "query-2"]


@pytest.mark.parametrize(
    ("measure", "distance", "words"),
    [("distance", 1, ">1 bit<"), ("distance", 0, ">0 bits<"), ("score", -0.123456, ">score -0.1235<")],
)
def test_how_near_is_written(tmp_path, measure, distance, words):
    written(tmp_path / "a.html", [answer("k", distance=distance)], measure=measure)
    assert words in (tmp_path / "a.html").read_text()


# ---- the file -----------------------------------------------------------------------------------------


def names(folder):
    return [path.name for path in folder.iterdir()]


def failing(error):
    yield answer("a")
    raise error


@pytest.mark.parametrize("error", [StoreError("damaged"), KeyboardInterrupt()])
def test_a_page_is_there_whole_or_as_it_was(tmp_path, error):
    path = tmp_path / "a.html"
    for before in (None, b"old"):
        if before:
            path.write_bytes(before)
        with pytest.raises(type(error)):
            written(path, failing(error))
        assert (path.read_bytes() if path.exists() else None) == before
        assert [name for name in names(tmp_path) if name != "a.html"] == []


def test_a_full_disk_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*a.html: No space left on device; choose another"):
        written(tmp_path / "a.html", failing(OSError(28, "No space left on device")))
    assert names(tmp_path) == []


def test_a_link_is_followed_and_others_may_read(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "a.html").symlink_to("there/b.html")
    old = os.umask(0o022)
    try:
        written(tmp_path / "a.html", [])
    finally:
        os.umask(old)
    assert (tmp_path / "a.html").is_symlink()
    assert (tmp_path / "there" / "b.html").stat().st_mode & 0o777 == 0o644
    assert names(tmp_path / "there") == ["b.html"]


def test_answers_are_written_as_they_come(tmp_path):
    """Each is let go before the next is asked for: the file grows while the generator runs."""
    seen = []

    def many():
        for _ in range(300):
            (unfinished,) = tmp_path.glob(".woh-index-page-*.tmp")
            seen.append(unfinished.stat().st_size)
            yield answer("k" * 500)

    written(tmp_path / "a.html", many())
    assert seen[-1] > 300_000


# ---- the command --------------------------------------------------------------------------------------


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An index of 40 items, pictures for half of their keys, and three queries."""
    monkeypatch.chdir(tmp_path)
    X, tags = tagged(0)
    with WOHIndex.create("index.woh", **SMALL) as index:
        index.update(X, tags, keys=[f"{i}.png" for i in range(40)])
    (tmp_path / "pictures").mkdir()
    for i in range(0, 40, 2):
        saved(Image.new("RGB", (20, 10 + i), RED), f"pictures/{i}.png")
    features, tags = tagged(1, n=3)
    np.savez(
        "q.npz", features=features, keys=["0.png", "q/1", "<b>2"], tags=[f"{given[0]};" for given in tags]
    )
    np.savez("bare.npz", features=features)
    return tmp_path


WAYS = [["q.npz"], ["bare.npz"], ["--id", 3], ["--key", "3.png"], ["--tags", "sea"],
        ["q.npz", "--tags", "sea;hill"], ["q.npz", "--by", "kind"]]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(map(str, way)))
def test_the_page_says_what_json_says(here, way):
    both = run("query", *way, "-k", 4, "--html", "a.html", "--images", "pictures", "--json", "--explain")
    lines = [json.loads(line) for line in both.stdout.splitlines()]
    shown = Page((here / "a.html").read_text())
    assert len(shown.cards) == len(lines) > 0
    for card, line in zip(shown.cards, lines, strict=True):
        near_ = f"score {line['score']:.4g}" if "score" in line else f"{line['distance']} bit"
        predicted = [f"{tag} {score:.2f}" for tag, score in line["predicted"]]
        for words in (f"{line['rank']} ", f"id {line['id']}", line["key"], near_, *line["tags"], *predicted):
            assert words in card, (words, card)
    pictures = [line["key"] for line in lines if int(line["key"].removesuffix(".png")) % 2 == 0]
    assert sorted(image["alt"] for image in shown.images) == sorted(
        pictures + (["0.png"] if way[0] == "q.npz" else [])
    )
    assert both.stderr.startswith("note: a.html is the page, ")
    assert both.stderr.count("\n") == 1


def test_the_query_is_shown_with_its_tags(here):
    run("query", "--id", 3, "-k", 1, "--html", "a.html")
    with WOHIndex.open("index.woh") as index:
        item = index.items([3])[0]
    pieces = Page((here / "a.html").read_text()).pieces
    assert pieces[:3] == ["1 query: the 1 nearest of 40 items in index.woh", "3", "3.png"]
    assert pieces[3 : 3 + len(item.tags)] == item.tags
    run("query", "bare.npz", "-k", 1, "--html", "a.html")
    assert "row 2" in Page((here / "a.html").read_text()).pieces
    run("query", "q.npz", "-k", 1, "--html", "a.html", "--tags", "sea hill")
    pieces = Page((here / "a.html").read_text()).pieces
    assert pieces[0] == "3 queries from q.npz with the tags sea hill: the 1 nearest of 40 items in index.woh"
    assert "<b>2" in pieces


def test_the_page_takes_the_table_s_place(here):
    result = run("query", "q.npz", "--html", "a.html")
    assert result.stdout == ""
    assert "; no key is a picture's path here: --images FOLDER says where pictures are" in result.stderr


def test_more_queries_than_a_batch(here):
    np.savez("many.npz", features=np.tile(tagged(1, n=3)[0], (BATCH, 1)))
    run("query", "many.npz", "-k", 2, "--html", "a.html")
    shown = Page((here / "a.html").read_text())
    assert len(shown.cards) == 2 * 3 * BATCH
    assert [piece for piece in shown.pieces if piece.startswith("row ")][::2] == [
        f"row {i}" for i in range(3 * BATCH)
    ]
    assert shown.cards[:6] == shown.cards[-6:]


def test_an_empty_index_has_a_page_too(here):
    WOHIndex.create("empty.woh").close()
    result = run("query", "q.npz", "--index", "empty.woh", "--html", "a.html")
    assert "empty.woh is empty" in result.stderr
    assert (here / "a.html").read_text().count("No neighbours.") == 3


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("a.txt", "expected a name ending in .html or .htm"),
        ("none/a.html", "its folder does not exist; make it first"),
        ("q.npz/a.html", "its folder does not exist; make it first"),
        ("folder.html", "it is no file"),
        ("pipe.html", "it is no file"),
        ("x" * 300 + "/a.html", "its folder does not exist; make it first"),
        ("x" * 300 + ".html", "File name too long; choose another name"),
    ],
)
def test_bad_targets_are_refused_before_the_search(here, monkeypatch, target, words):
    (here / "folder.html").mkdir()
    os.mkfifo(here / "pipe.html")
    monkeypatch.setattr(WOHIndex, "open", lambda _: pytest.fail("searched"))
    result = run("query", "q.npz", "--html", target, code=1)
    assert words in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_written_to_is_refused(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    assert "is not yours to write to" in run("query", "q.npz", "--html", "a.html", code=1).stderr


def test_images_must_be_a_folder_and_go_with_html(here):
    refused = run("query", "q.npz", "--html", "a.html", "--images", "none", code=1).stderr
    assert refused == "Error: --images none is no folder; give the one that the keys are paths in\n"
    assert not (here / "a.html").exists()
    assert "--images goes with --html" in run("query", "q.npz", "--images", "pictures", code=2).stderr
