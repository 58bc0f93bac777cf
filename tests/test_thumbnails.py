"""Pictures that keys name: any kind, any damage, any name."""

import base64
import io
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from conftest import length
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_reader import answer, saved, written
from PIL import Image

from woh_faiss.thumbnails import SIDE, Thumbnails, _opened


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
    small = pixels(Thumbnails(tmp_path).of(str(saved(halves(mode), tmp_path / f"a.{suffix}"))))
    assert near(small.getpixel((20, 40)), RED)
    assert near(small.getpixel((110, 40)), BLUE)


@pytest.mark.parametrize(
    ("dtype", "most"), [("uint16", 65535), ("uint16", 4095), ("int32", 10**6), ("float32", 1)]
)
def test_deep_pictures_span_black_to_white(tmp_path, dtype, most):
    ramp = np.tile(np.linspace(0, most, 256), (64, 1)).astype(dtype)
    small = pixels(Thumbnails(tmp_path).of(str(saved(Image.fromarray(ramp), tmp_path / "a.tiff"))))
    row = [small.getpixel((x, 16))[0] for x in range(0, 128, 16)]
    assert row == sorted(row)
    assert row[0] < 10
    assert 100 < row[4] < 156
    assert small.getpixel((127, 16))[0] > 240


def test_a_deep_picture_of_one_shade_is_a_picture(tmp_path):
    flat = Image.fromarray(np.full((9, 9), 500, np.uint16))
    assert Thumbnails(tmp_path).of(str(saved(flat, tmp_path / "a.png"))) is not None


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
        small = pixels(Thumbnails(tmp_path).of(str(saved(image, tmp_path / f"{number}.png", **options))))
        assert near(small.getpixel((5, 20)), WHITE)
        assert not near(small.getpixel((35, 20)), WHITE)


@pytest.mark.parametrize("suffix", ["jpg", "png", "tiff"])
def test_a_picture_taken_sideways_is_shown_upright(tmp_path, suffix):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    exif[0x010E] = "where I live"
    small = pixels(Thumbnails(tmp_path).of(str(saved(halves(), tmp_path / f"a.{suffix}", exif=exif))))
    assert small.size == (85, 128)
    assert near(small.getpixel((40, 10)), RED)
    assert near(small.getpixel((40, 118)), BLUE)


def test_the_first_of_moving_pictures(tmp_path):
    frames = [Image.new("RGB", (30, 30), colour) for colour in (RED, BLUE)]
    for suffix in ("gif", "png", "webp"):
        path = saved(frames[0], tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
        assert near(pixels(Thumbnails(tmp_path).of(str(path))).getpixel((15, 15)), RED)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (127, 129)])
def test_any_shape_keeps_its_proportions(tmp_path, size):
    small = pixels(Thumbnails(tmp_path).of(str(saved(Image.new("RGB", size, RED), tmp_path / "a.png"))))
    assert small.size == tuple(max(1, round(side * min(1, SIDE / max(size)))) for side in size)


def test_a_large_jpeg_is_read_at_a_fraction_of_its_size(tmp_path):
    large = saved(Image.new("L", (9000, 6000), 200), tmp_path / "a.jpg")  # as a large camera's
    assert pixels(Thumbnails(tmp_path).of(str(large))).size == (128, 85)


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


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=length(50),
    deadline=None,
)
@given(suffix=st.sampled_from(["png", "jpg", "gif", "webp", "tiff", "bmp"]), data=st.data())
def test_any_damage_is_a_picture_or_none(tmp_path, suffix, data):
    path = tmp_path / f"a.{suffix}"
    content = bytearray(saved(halves(size=(40, 30)), path).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    thumbnail = Thumbnails(tmp_path).of(str(path))
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
        (name, tmp_path / "my pictures"),
        (str(path), tmp_path),
        (str(path), tmp_path / "my pictures"),
    ):
        shown = written(tmp_path / "a.html", [answer(key)], folder)
        assert [image["alt"] for image in shown.images] == [key, key]
        assert shown.images[0]["src"].startswith("data:image/jpeg;base64,")


def outside(tmp_path):
    """A folder of pictures, one beside it, and every way from the first to the second."""
    folder, secret = tmp_path / "pictures", tmp_path / "secret.png"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "pictures2").mkdir()
    saved(halves(), secret)
    saved(halves(), tmp_path / "pictures2" / "a.png")
    saved(halves(), folder / "inner" / "a.png")
    (folder / "link.png").symlink_to(secret)
    (folder / "relative.png").symlink_to("../secret.png")
    (folder / "twice.png").symlink_to("link.png")
    (folder / "up").symlink_to(tmp_path)
    keys = ["../secret.png", "inner/../../secret.png", "inner/../inner/a.png", str(secret), "link.png"]
    keys += ["relative.png", "twice.png", "up/secret.png", "../pictures2/a.png", f"{folder}/../secret.png"]
    keys += [
        str(tmp_path / "pictures2" / "a.png"),
        "/proc/self/root" + str(secret),
        "up/pictures/../secret.png",
    ]
    return folder, keys


def test_nothing_outside_the_folder_is_read(tmp_path, monkeypatch):
    folder, keys = outside(tmp_path)
    monkeypatch.chdir(tmp_path)
    for where in (folder, Path("pictures"), tmp_path / "pictures" / "inner" / ".."):
        for key in keys:
            assert Thumbnails(where).of(key) is None, key
    assert Thumbnails(folder).of("inner/a.png") is not None


def test_a_file_that_changes_is_drawn_again(tmp_path):
    thumbnails, path = Thumbnails(tmp_path), tmp_path / "a.png"
    saved(Image.new("RGB", (30, 30), RED), path)
    first = thumbnails.file("a.png")
    assert near(pixels(thumbnails.drawn(first)).getpixel((15, 15)), RED)
    assert thumbnails.of("a.png") is thumbnails.of("a.png")  # drawn once
    saved(Image.new("RGB", (30, 30), BLUE), path)
    os.utime(path, ns=(1, first.modified + 1))
    assert thumbnails.file("a.png") != first
    assert near(pixels(thumbnails.of("a.png")).getpixel((15, 15)), BLUE)
    path.unlink()
    assert thumbnails.file("a.png") is None


def test_larger_ones_where_they_are_asked_for(tmp_path):
    saved(halves(size=(900, 600)), tmp_path / "a.png")
    found = Thumbnails(tmp_path, side=256).of("a.png")
    assert (found.width, found.height) == (256, 171)
    assert Image.open(io.BytesIO(found.jpeg)).size == (256, 171)


def test_without_a_folder_no_picture_is_read(tmp_path, monkeypatch):
    saved(halves(), tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    for key in ("a.png", str(tmp_path / "a.png")):
        assert Thumbnails().of(key) is None


def test_links_inside_the_folder_are_followed(tmp_path):
    folder, _ = outside(tmp_path)
    (folder / "same.png").symlink_to("inner/a.png")
    (folder / "deep").symlink_to(folder / "inner")
    (tmp_path / "way").symlink_to(folder)  # the folder itself may be a link
    for where in (folder, tmp_path / "way"):
        for key in ("same.png", "deep/a.png", str(tmp_path / "way" / "same.png")):
            assert Thumbnails(where).of(key) is not None, key


def test_a_link_put_there_after_the_look_is_not_followed(tmp_path):
    folder, _ = outside(tmp_path)
    root = os.path.realpath(folder)
    for place in ("link.png", "relative.png", "up/secret.png"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            _opened(root, place)
    os.mkfifo(folder / "pipe.png")  # nor does a pipe make anyone wait
    with pytest.raises(OSError, match="not a plain file"):
        _opened(root, "pipe.png")


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
