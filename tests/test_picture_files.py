"""Picture files as strangers make them: upright, first frame, on white; what cannot be read is one line."""

import io
import os
import struct
from contextlib import suppress

import numpy as np
import pytest
from conftest import length
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_reader import saved
from PIL import Image, TiffImagePlugin
from test_thumbnails import BLUE, RED, halves, near, png_of

from woh_faiss.encoders.picture import (
    MOST_PIXELS,
    is_animated,
    is_picture,
    keywords,
    opened,
    picture,
)
from woh_faiss.errors import InputError


def fault(path):
    with pytest.raises(InputError) as refused:
        picture(path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{path}: ")
    return str(refused.value)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"), ("LA", "png"),
     ("1", "png"), ("CMYK", "tiff"), ("I;16", "png"), ("P", "gif"), ("RGB", "webp"), ("RGB", "ppm"),
     ("RGB", "bmp")],
)  # fmt: skip
def test_any_mode_becomes_rgb_in_its_own_size(tmp_path, mode, suffix):
    source = halves("L").convert("I;16") if mode == "I;16" else halves(mode)
    image = picture(saved(source, tmp_path / f"a.{suffix}"))
    assert (image.mode, image.size) == ("RGB", (300, 200))
    if mode in ("RGB", "CMYK", "RGBA"):
        assert near(image.getpixel((20, 40)), RED)
        assert near(image.getpixel((280, 40)), BLUE)
    else:
        assert image.getpixel((20, 40)) != image.getpixel((280, 40))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_says_what_is_up(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = picture(saved(halves(), tmp_path / "a.jpg", exif=exif))
    upright = [[RED, BLUE], [BLUE, RED]][orientation in (2, 3, 6, 7)] if orientation < 5 else None
    assert turned.size == ((300, 200) if orientation < 5 else (200, 300))
    if upright:
        assert near(turned.getpixel((20, 100)), upright[0])
    else:  # what was left is above or below
        first = RED if orientation in (5, 6) else BLUE
        assert near(turned.getpixel((100, 20)), first)


def test_the_first_frame_of_animated_pictures(tmp_path):
    frames = [Image.new("RGB", (30, 30), colour) for colour in (RED, BLUE)]
    for suffix in ("gif", "png", "webp"):
        path = saved(frames[0], tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
        with opened(path) as image:
            assert is_animated(image)
        assert near(picture(path).getpixel((15, 15)), RED)
        still = saved(frames[0], tmp_path / f"b.{suffix}")
        with opened(still) as image:
            assert not is_animated(image)


def test_images_of_pillow_are_pictures_too():
    assert picture(halves("P")).mode == "RGB"
    for other in (None, 3, np.zeros((3, 3, 3)), b"x"):
        with pytest.raises(InputError, match="expected a path or a Pillow image"):
            picture(other)


def test_what_cannot_be_read_says_why(tmp_path):
    whole = saved(halves(), tmp_path / "whole.png").read_bytes()
    for name, content, said in (
        ("text.png", b"no picture", "no picture that can be read"),
        ("empty.png", b"", "no picture that can be read"),
        ("cut.png", whole[: len(whole) // 2], ""),
        ("bomb.png", png_of(2**31 - 1, 2**31 - 1), "more pixels than are decoded"),
        ("nothing.png", png_of(0, 0), ""),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "no picture"),
    ):
        (tmp_path / name).write_bytes(content)
        assert said in fault(tmp_path / name), name
    vast = saved(Image.new("1", (10_001, 10_000)), tmp_path / "vast.png")
    assert f"at most {MOST_PIXELS:,} are decoded" in fault(vast)
    for size in ((1, 100_000), (100_000, 1)):
        assert "one side may be 100 times the other" in fault(
            saved(Image.new("1", size), tmp_path / "thin.png")
        )
    assert picture(saved(Image.new("1", (1, 100)), tmp_path / "narrow.png")).size == (1, 100)
    os.mkfifo(tmp_path / "pipe.png")  # opening it would wait for ever
    assert "not a plain file" in fault(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    fault(tmp_path / "folder.png")
    assert "No such file" in fault(tmp_path / "none.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    fault(tmp_path / "loop.png")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=length(60), deadline=None)
@given(suffix=st.sampled_from(["png", "jpg", "gif", "webp", "tiff", "bmp"]), data=st.data())
def test_any_damage_is_a_picture_or_one_line(tmp_path, suffix, data):
    path = tmp_path / f"a.{suffix}"
    content = bytearray(saved(halves(size=(40, 30)), path).read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        assert picture(path).mode == "RGB"
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017
    with suppress(InputError), opened(path) as image:
        keywords(image)


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "tiff", "bmp", "ppm", "jp2"])
def test_pictures_are_told_by_their_first_bytes(tmp_path, suffix):
    assert is_picture(saved(halves(), tmp_path / f"a.{suffix}").read_bytes()[:16])


@pytest.mark.parametrize(
    "start", [b"", b"P", b"PAR1", b"PK\3\4", b"P7\n", b"a line", b"\x93NUMPY", b"RIFF....WAVE", b"%PDF-1.4"]
)
def test_other_files_are_not(start):
    assert not is_picture(start)


# ---- keywords ----------------------------------------------------------------------------------------------


def iptc(*words, coding="utf-8"):
    """An APP13 segment as Photoshop writes it, with keywords."""
    data = b"".join(
        b"\x1c\x02\x19" + struct.pack(">H", len(word.encode(coding))) + word.encode(coding) for word in words
    )
    block = b"8BIM\x04\x04\0\0" + struct.pack(">I", len(data)) + data + b"\0" * (len(data) % 2)
    body = b"Photoshop 3.0\0" + block
    return b"\xff\xed" + struct.pack(">H", len(body) + 2) + body


def xmp(*words):
    items = "".join(f"<rdf:li>{word}</rdf:li>" for word in words)
    return (
        '<?xpacket begin=""?><x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF '
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag>{items}</rdf:Bag></dc:subject>'
        '</rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>'
    ).encode()


def with_segments(path, *segments, **options):
    """A JPEG with more segments behind its first bytes."""
    buffer = io.BytesIO()
    halves().save(buffer, "JPEG", **options)
    data = buffer.getvalue()
    path.write_bytes(data[:2] + b"".join(segments) + data[2:])
    return path


def keywords_of(path):
    with opened(path) as image:
        return keywords(image)


def test_keywords_of_iptc_and_xmp(tmp_path):
    assert keywords_of(with_segments(tmp_path / "a.jpg", iptc("sea", "golden gate", "Übung"))) == [
        *("sea", "golden gate", "Übung")
    ]
    assert keywords_of(with_segments(tmp_path / "b.jpg", iptc("Übung", coding="latin-1"))) == ["Übung"]
    assert keywords_of(with_segments(tmp_path / "c.jpg", xmp=xmp("sea", "new york", " "))) == [
        "sea",
        "new york",
    ]
    both = with_segments(tmp_path / "d.jpg", iptc("sea", "hill"), xmp=xmp("hill", "snow"))
    assert keywords_of(both) == ["sea", "hill", "snow"]
    assert keywords_of(saved(halves(), tmp_path / "e.webp", xmp=xmp("sea"))) == ["sea"]
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[700] = xmp("sea")
    assert keywords_of(saved(halves(), tmp_path / "f.tiff", tiffinfo=tags)) == ["sea"]
    assert keywords_of(saved(halves(), tmp_path / "g.png")) == []


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(8)
) + "]>"  # fmt: skip


@pytest.mark.parametrize(
    "packet",
    [
        b"<not",
        BOMB.encode() + xmp("&i;"),
        b'<!DOCTYPE x [<!ENTITY a "sea">]>' + xmp("&a;").split(b"?>", 1)[1],
        b"\xff\xfe\0",
        xmp("a") + b"<more/>",
        "<x>".encode("utf-16") * 9,
    ],
)
def test_xmp_that_is_hostile_is_one_line(tmp_path, packet):
    with pytest.raises(InputError, match="XMP"):
        keywords_of(with_segments(tmp_path / "a.jpg", xmp=packet))


def test_more_keywords_than_anybody_gives_are_refused(tmp_path):
    many = [iptc(*(f"k{j}{i}" for i in range(999))) for j in range(3)]
    path = with_segments(tmp_path / "a.jpg", *many, xmp=xmp(*(f"x{i}" for i in range(1500))))
    with pytest.raises(InputError, match="keywords, at most"):
        keywords_of(path)
