"""The page of answers: well formed, self-contained, safe whatever keys, tags and pictures are."""

import base64
import io
import json
import os
import re
import struct
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, tagged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.reading import Neighbour
from woh_faiss_cli import page
from woh_faiss_cli.answers import BATCH, Answer, Asked
from woh_faiss_cli.main import main
from woh_faiss_cli.thumbnails import SIDE, Thumbnails

VOID = {"meta", "img", "wbr"}
ATTRIBUTES = {
    "html": {"lang"},
    "meta": {"charset", "name", "content", "http-equiv"},
    "img": {"src", "width", "height", "dir", "alt"},
    "section": {"aria-labelledby"},
    "h2": {"id"},
    "span": {"class", "aria-hidden"},
    "ol": {"class", "role"},
    "ul": {"class", "role"},
    "p": {"class"},
    "div": {"class"},
    "li": {"class"},
}
PLAIN = {"head", "title", "style", "body", "header", "main", "h1", "bdi", "b", "dl", "dt", "dd", "wbr"}


class Page(HTMLParser):
    """The page as a tree flattened: text by enclosing element, images, ids; fails on anything not nested."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.pieces, self.images, self.ids, self.cards = [], [], [], [], []
        assert source.startswith("<!DOCTYPE html>\n")
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert set(names) <= (set() if tag in PLAIN else ATTRIBUTES[tag])
        assert len(set(names)) == len(names)
        values = dict(attributes)
        if tag == "img":
            self.images.append(values)
        if "id" in values:
            self.ids.append(values["id"])
        if values.get("class") == "card":
            self.cards.append("")
        if tag not in VOID:
            self.open.append(tag)
            if tag == "bdi":
                self.pieces.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "bdi" in self.open:
            self.pieces[-1] += data
        if "li" in self.open and self.cards:
            self.cards[-1] += data

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_pi = unknown_decl = handle_comment


def written(path, answers, folder=None, measure="distance", about="1 query"):
    page.write(path, answers, about=about, measure=measure, thumbnails=Thumbnails(folder))
    return Page(path.read_bytes().decode("utf-8"))  # strictly


def answer(key, tags=("tag",), predicted=(("tag", 0.5),), tags_asked=None, name=None, distance=3):
    asked = Asked(name or key or "row 0", key, tags_asked)
    return Answer(asked, [Neighbour(7, key, distance, list(tags))], {7: list(predicted)})


def saved(image, path, **options):
    image.save(path, **options)
    return path


def pixels(thumbnail):
    """The thumbnail as a Pillow image, read back from what the page would hold."""
    head, _, data = thumbnail.uri.partition(",")
    assert head == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert image.size == (thumbnail.width, thumbnail.height)
    assert max(image.size) <= SIDE
    assert image.mode == "RGB"
    assert not image.getexif()
    return image


def near(pixel, colour):
    return all(abs(a - b) < 30 for a, b in zip(pixel, colour, strict=True))


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


def in_plain_sight(text):
    """What a page is to show for a text, said another way: the characters that are odd as \\uXXXX."""

    def odd(c):
        o = ord(c)
        return o < 32 or 127 <= o < 160 or 0x202A <= o <= 0x202E or 0x2066 <= o <= 0x2069 \
            or 0xD800 <= o < 0xE000 or 0xFDD0 <= o <= 0xFDEF or o & 0xFFFE == 0xFFFE  # fmt: skip

    return "".join(ascii(c)[1:-1] if odd(c) else c for c in text)


@pytest.mark.parametrize("nasty", NASTY)
def test_nasty_texts_are_shown_as_text(tmp_path, nasty):
    shown = written(tmp_path / "a.html", [answer(nasty, [nasty], [(nasty, 0.25)], [nasty])], about=nasty)
    label = shown.pieces.pop(1)  # the placeholder has the name of the file
    assert label in in_plain_sight(nasty)
    assert shown.pieces[:1] == [in_plain_sight(nasty)]
    assert shown.pieces.count(in_plain_sight(nasty)) >= 6
    assert shown.images == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
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
    shown = written(tmp_path / "a.html", [Answer(Asked("row 0", None, None), [], {}), answer(None, [], [])])
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


# ---- pictures -----------------------------------------------------------------------------------------

RED, BLUE, WHITE = (200, 20, 20), (20, 20, 200), (255, 255, 255)


def halves(mode="RGB", size=(300, 200)):
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, *size))
    return image.convert(mode)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp", "a.bmp", "a.tiff", "a.ppm"])
def test_pictures_of_usual_formats(tmp_path, name):
    thumbnail = Thumbnails(tmp_path).of(saved(halves(), tmp_path / name).name)
    small = pixels(thumbnail)
    assert small.size == (128, 85)
    assert near(small.getpixel((20, 40)), RED)
    assert near(small.getpixel((110, 40)), BLUE)


@pytest.mark.parametrize(
    ("mode", "suffix"), [("CMYK", "jpg"), ("CMYK", "tiff"), ("P", "png"), ("RGBA", "png")]
)
def test_pictures_of_other_modes(tmp_path, mode, suffix):
    small = pixels(Thumbnails().of(str(saved(halves(mode), tmp_path / f"a.{suffix}"))))
    assert near(small.getpixel((20, 40)), RED)
    assert near(small.getpixel((110, 40)), BLUE)


@pytest.mark.parametrize(
    ("dtype", "most"), [("uint16", 65535), ("uint16", 4095), ("int32", 10**6), ("float32", 1)]
)
def test_deep_pictures_span_black_to_white(tmp_path, dtype, most):
    ramp = np.tile(np.linspace(0, most, 256), (64, 1)).astype(dtype)
    small = pixels(Thumbnails().of(str(saved(Image.fromarray(ramp), tmp_path / "a.tiff"))))
    row = [small.getpixel((x, 16))[0] for x in range(0, 128, 16)]
    assert row == sorted(row)
    assert row[0] < 10
    assert 100 < row[4] < 156
    assert small.getpixel((127, 16))[0] > 240


def test_a_deep_picture_of_one_shade_is_a_picture(tmp_path):
    flat = Image.fromarray(np.full((9, 9), 500, np.uint16))
    assert Thumbnails().of(str(saved(flat, tmp_path / "a.png"))) is not None


def test_what_is_clear_is_white(tmp_path):
    clear = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    clear.paste((*RED, 255), (20, 0, 40, 40))
    palette = Image.new("P", (40, 40), 0)
    palette.putpalette([0, 0, 0, *RED])
    palette.paste(1, (20, 0, 40, 40))
    keyed = Image.new("RGB", (40, 40), (0, 0, 0))
    keyed.paste(RED, (20, 0, 40, 40))
    grey = clear.convert("LA")
    images = [(clear, {}), (palette, {"transparency": 0}), (keyed, {"transparency": (0, 0, 0)}), (grey, {})]
    for number, (image, options) in enumerate(images):
        small = pixels(Thumbnails().of(str(saved(image, tmp_path / f"{number}.png", **options))))
        assert near(small.getpixel((5, 20)), WHITE)
        assert not near(small.getpixel((35, 20)), WHITE)


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff"])
def test_a_picture_taken_sideways_is_shown_upright(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    exif[0x010E] = "where I live"
    small = pixels(Thumbnails().of(str(saved(halves(), tmp_path / f"a.{suffix}", exif=exif))))
    assert small.size == (85, 128)
    assert near(small.getpixel((40, 10)), RED)
    assert near(small.getpixel((40, 118)), BLUE)


def test_the_first_of_moving_pictures(tmp_path):
    frames = [Image.new("RGB", (30, 30), colour) for colour in (RED, BLUE)]
    for suffix in ("gif", "png", "webp"):
        path = saved(frames[0], tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
        assert near(pixels(Thumbnails().of(str(path))).getpixel((15, 15)), RED)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (127, 129)])
def test_any_shape_keeps_its_proportions(tmp_path, size):
    small = pixels(Thumbnails().of(str(saved(Image.new("RGB", size, RED), tmp_path / "a.png"))))
    assert small.size == tuple(max(1, round(side * min(1, SIDE / max(size)))) for side in size)


def test_a_large_jpeg_is_read_at_a_fraction_of_its_size(tmp_path):
    large = saved(Image.new("L", (9000, 6000), 200), tmp_path / "a.jpg")  # as a large camera's
    assert pixels(Thumbnails().of(str(large))).size == (128, 85)


def png_of(width, height):
    """A PNG file that says it is that large, and is a few bytes."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + part(b"IDAT", zlib.compress(b"\0" * 99))
        + part(b"IEND", b"")
    )


def test_what_is_no_readable_picture_gets_a_box(tmp_path):
    whole = saved(halves(), tmp_path / "whole.png").read_bytes()
    jpeg = saved(halves(), tmp_path / "whole.jpg").read_bytes()
    files = {
        "text.png": b"no picture",
        "empty.png": b"",
        "cut.png": whole[: len(whole) // 2],
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "damaged.png": whole[:60] + bytes(100) + whole[160:],
        "bomb.png": png_of(2**31 - 1, 2**31 - 1),
        "nothing.png": png_of(0, 0),
        "a.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        "a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.png").mkdir()
    saved(Image.new("1", (9000, 6000)), tmp_path / "huge.png")  # sound, but 54 megapixels in 7 kB
    saved(Image.new("1", (9500, 9500)), tmp_path / "vast.png")
    saved(halves(), tmp_path / "a.pcx")  # sound, but of a kind that is not asked for
    os.mkfifo(tmp_path / "pipe.png")  # opening it would wait for ever
    (tmp_path / "loop.png").symlink_to("loop.png")
    keys = [
        *files,
        "huge.png",
        "vast.png",
        "a.pcx",
        "folder.png",
        "pipe.png",
        "loop.png",
        "missing.png",
        "x" * 5000,
        "a\0b",
        "\ud800",
        "/dev/zero",
        ".",
    ]
    shown = written(tmp_path / "a.html", [answer(key) for key in keys], tmp_path)
    assert shown.images == []
    assert len(shown.cards) == len(keys)
    assert "hold no picture that can be read" in note_of(tmp_path, "text.png")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(suffix=st.sampled_from(["png", "jpg", "gif", "webp", "tiff", "bmp"]), data=st.data())
def test_any_damage_is_a_picture_or_none(tmp_path, suffix, data):
    path = tmp_path / f"a.{suffix}"
    content = bytearray(saved(halves(size=(40, 30)), path).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    thumbnail = Thumbnails().of(str(path))
    assert thumbnail is None or max(pixels(thumbnail).size) <= SIDE


@pytest.mark.parametrize(
    "name", ["a b.png", "日本/絵.png", "100%41.png", "a#b?c.png", "&amp;'\".png", "-k.png"]
)
def test_names_are_paths_not_addresses(tmp_path, monkeypatch, name):
    path = tmp_path / "my pictures" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    saved(halves(), path)
    monkeypatch.chdir(path.parents[name.count("/")])
    for key, folder in (
        (str(path), None),
        (name, None),
        (name, tmp_path / "my pictures"),
        (str(path), tmp_path),
    ):
        shown = written(tmp_path / "a.html", [answer(key)], folder)
        assert [image["alt"] for image in shown.images] == [key, key]
        assert shown.images[0]["src"].startswith("data:image/jpeg;base64,")


def test_a_picture_in_the_folder_comes_before_one_from_here(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    saved(Image.new("RGB", (9, 9), RED), tmp_path / "a.png")
    saved(Image.new("RGB", (9, 9), BLUE), tmp_path / "there" / "a.png")
    saved(Image.new("RGB", (9, 9), RED), tmp_path / "b.png")
    monkeypatch.chdir(tmp_path)
    thumbnails = Thumbnails(Path("there"))
    assert near(pixels(thumbnails.of("a.png")).getpixel((4, 4)), BLUE)
    assert near(pixels(thumbnails.of("b.png")).getpixel((4, 4)), RED)


def note_of(folder, key):
    thumbnails = Thumbnails(folder)
    thumbnails.of(key)
    return thumbnails.note()


def test_without_pillow_there_are_boxes_and_a_way_out(tmp_path, monkeypatch):
    saved(halves(), tmp_path / "a.png")
    assert note_of(tmp_path, "a.png") == ""
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert written(tmp_path / "a.html", [answer("a.png")], tmp_path).images == []
    assert "pip install 'woh-faiss[html]'" in note_of(tmp_path, "a.png")
    assert "--images" in note_of(tmp_path, "b.png")


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
        ["q.npz", "--tags", "sea;hill"], ["q.npz", "--rerank", 20]]  # fmt: skip


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
    assert "--images FOLDER says where pictures are" in result.stderr


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
