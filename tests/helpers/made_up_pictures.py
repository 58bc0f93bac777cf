"""Drawn pictures of a few kinds with tags, an ONNX model that sees them, and an index of them."""

import numpy as np
from onnx import TensorProto, helper
from PIL import Image, ImageDraw
from toy_models import saved

from woh_faiss import Chunk, WOHIndex
from woh_faiss.encoders import EncoderRecord, open_encoder

W, H = 320, 240
SIDE = 32
WRONG = 0.18
KINDS = {
    "sea": ["sea", "beach", "sun"],
    "boat": ["sea", "boat", "golden gate"],
    "hill": ["hill", "snow"],
    "forest": ["forest", "tree"],
    "city": ["city", "tower"],
    "night": ["night", "moon", "city"],
}


def _sky(draw, top, bottom, until=H):
    for y in range(until):
        part = y / until
        draw.line(
            [(0, y), (W, y)], tuple(round(a + (b - a) * part) for a, b in zip(top, bottom, strict=True))
        )


def _disc(draw, x, y, r, colour):
    draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)


def drawing(kind, seed=0):
    """One picture of a kind; the seed decides where things are, and their colours a little."""
    rng = np.random.default_rng([seed, *kind.encode()])
    image = Image.new("RGB", (W, H))
    draw = ImageDraw.Draw(image)

    def near(*colour):
        return tuple(int(np.clip(part + rng.integers(-22, 23), 0, 255)) for part in colour)

    if kind in ("sea", "boat"):
        shore = int(rng.integers(110, 145))
        _sky(draw, near(250, 180, 110) if kind == "sea" else near(120, 185, 240), near(255, 235, 205), shore)
        if kind == "sea":
            _disc(
                draw,
                rng.integers(60, 260),
                shore - rng.integers(15, 60),
                rng.integers(18, 34),
                near(255, 240, 170),
            )
        draw.rectangle([0, shore, W, H], fill=near(30, 105, 165))
        for y in range(shore + 8, H, 13):
            x = int(rng.integers(0, 70))
            for start in range(x, W, 70):
                draw.line([(start, y), (start + 28, y)], fill=near(120, 175, 215), width=2)
        if kind == "sea":
            draw.polygon(
                [(0, H), (0, H - 45), (W, H - rng.integers(5, 30)), (W, H)], fill=near(235, 210, 150)
            )
        else:
            x, y = int(rng.integers(90, 230)), shore + int(rng.integers(20, 60))
            s = float(rng.uniform(0.8, 1.35))
            draw.polygon(
                [(x - 45 * s, y), (x + 45 * s, y), (x + 30 * s, y + 18 * s), (x - 30 * s, y + 18 * s)],
                fill=near(140, 60, 40),
            )
            draw.polygon([(x, y - 90 * s), (x, y - 5), (x + 42 * s, y - 5)], fill=near(245, 245, 240))
            draw.polygon([(x - 4, y - 75 * s), (x - 4, y - 5), (x - 34 * s, y - 5)], fill=near(225, 70, 60))
    elif kind == "hill":
        _sky(draw, near(150, 195, 240), near(225, 238, 250))
        for base, shade in ((60, near(130, 140, 165)), (110, near(95, 105, 125))):
            for x in range(int(rng.integers(-60, 0)), W + 60, int(rng.integers(95, 140))):
                peak, top = x + int(rng.integers(-15, 16)), base + int(rng.integers(-30, 20))
                draw.polygon([(x - 95, H), (peak, top), (x + 95, H)], fill=shade)
                cap = 32
                draw.polygon(
                    [
                        (peak - cap * 0.55, top + cap),
                        (peak, top),
                        (peak + cap * 0.6, top + cap),
                        (peak + 6, top + cap - 9),
                        (peak - 5, top + cap - 2),
                    ],
                    fill=(248, 250, 255),
                )
        draw.rectangle([0, H - 30, W, H], fill=near(235, 240, 248))
    elif kind == "forest":
        _sky(draw, near(190, 220, 225), near(225, 235, 205))
        draw.rectangle([0, H - 50, W, H], fill=near(85, 115, 55))
        for _ in range(15):
            x, y, s = int(rng.integers(0, W)), H - int(rng.integers(10, 60)), float(rng.uniform(0.8, 1.6))
            green = near(35, 105, 55)
            draw.rectangle([x - 4 * s, y - 18 * s, x + 4 * s, y], fill=(95, 65, 40))
            for step in range(3):
                top, wide = y - (95 - 24 * step) * s, (16 + 8 * step) * s
                draw.polygon([(x, top), (x - wide, top + 38 * s), (x + wide, top + 38 * s)], fill=green)
    else:
        dark = kind == "night"
        if dark:
            _sky(draw, near(12, 16, 45), near(50, 45, 95))
            for _ in range(40):
                draw.point([(int(rng.integers(0, W)), int(rng.integers(0, 120)))], fill=(235, 235, 215))
            x, y, r = int(rng.integers(50, 270)), int(rng.integers(35, 75)), int(rng.integers(17, 27))
            _disc(draw, x, y, r, (245, 240, 205))
            _disc(draw, x + r // 2, y - r // 4, r - 2, (20, 22, 58))
        else:
            _sky(draw, near(165, 205, 235), near(240, 225, 205))
        x = int(rng.integers(-30, 0))
        while x < W:
            wide, tall = int(rng.integers(32, 62)), int(rng.integers(70, 175))
            draw.rectangle([x, H - tall, x + wide, H], fill=near(28, 30, 50) if dark else near(155, 125, 110))
            for wy in range(H - tall + 10, H - 12, 19):
                for wx in range(x + 7, x + wide - 10, 14):
                    lit = rng.random() < (0.55 if dark else 0.8)
                    draw.rectangle(
                        [wx, wy, wx + 7, wy + 10],
                        fill=near(250, 215, 110) if dark and lit else (60, 70, 95) if lit else (90, 85, 85),
                    )
            x += wide + int(rng.integers(2, 10))
    return image


def model(path):
    """(n, 3, 32, 32) pictures → the means of 64 squares in three colours, (n, 192)."""
    cell = SIDE // 8
    nodes = [
        helper.make_node(
            "AveragePool", ["pixel_values"], ["pool"], kernel_shape=[cell, cell], strides=[cell, cell]
        ),
        helper.make_node("Flatten", ["pool"], ["features"]),
    ]
    shapes = (
        [("pixel_values", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [("features", TensorProto.FLOAT, ["n", 192])],
    )
    return saved(path, nodes, *shapes, {})


def pictures(folder, each=40):
    """`each` pictures of every kind in its folder; (key, tags) of all, WRONG of them of others."""
    rng = np.random.default_rng(0)
    found, kinds = [], list(KINDS)
    for number in range(each):
        for place, kind in enumerate(kinds):
            key = f"{kind}/{number:02}.jpg"
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            drawing(kind, number).save(path, quality=88)
            tags = KINDS[kind]
            if rng.random() < WRONG:
                tags = KINDS[kinds[(place + rng.integers(2, 5)) % len(kinds)]]
            found.append((key, [tag for tag in tags if tag == tags[0] or rng.random() < 0.8]))
    return [found[i] for i in rng.permutation(len(found))]


def index_of(path, folder, encoder, items, *, rounds=5, **more):
    """An index of pictures in `folder`, their features by the encoder, with years and cameras."""
    opened = open_encoder(encoder)
    X = opened.embed_images([folder / key for key, _ in items])
    n = len(items)
    rng = np.random.default_rng(1)
    metadata = {"year": rng.integers(2015, 2026, n), "camera": rng.choice(["Nikon", "Canon", "Leica"], n)}
    parts = np.array_split(np.arange(n), [n * (5 + i) // (4 + rounds) for i in range(rounds - 1)])
    hyper = {"bits": 32, "anchors": 60, "vector_size": 8, "instance_bits": 64, **more}
    index = WOHIndex.create(path, encoder=EncoderRecord.of(opened), **hyper)
    for rows in parts:
        index.update(
            Chunk.of(
                X[rows],
                [items[i][1] for i in rows],
                keys=[items[i][0] for i in rows],
                metadata={name: column[rows] for name, column in metadata.items()},
            )
        )
    return index


def all_in(folder):
    """`folder`, with pictures in photos, the model that sees them, and their index, pictures.woh."""
    items = pictures(folder / "photos")
    model(folder / "model.onnx")
    encoder = f"onnx:{folder}/model.onnx?mean=0.5&std=0.5"
    index_of(folder / "pictures.woh", folder / "photos", encoder, items).close()
    return folder
