"""Encoders: real ONNX Runtime on small models, against naive sums; what is no encoder is one line."""

import json
import sys
import types

import numpy as np
import pytest
import toy_models
from onnx import TensorProto
from PIL import Image
from toy_models import SIDE, WORDS, convolved, filters, picture

from woh_faiss.encoders import EncoderRecord, open_encoder
from woh_faiss.encoders.open_encoder import open_remembered
from woh_faiss.encoders.preprocessing import FILTERS, MEAN, STD, Preprocessing, from_config
from woh_faiss.errors import InputError, WOHError

SIZES = [(24, 20), (16, 16), (20, 33), (7, 5)]


def images(n=5):
    return [picture(colour, i, SIZES[i % 4]) for i, colour in enumerate([*toy_models.COLOURS, "red"][:n])]


def prepared(image, resize=SIDE, filter_=3, mean=MEAN, std=STD, scale=1 / 255):
    """(3, SIDE, SIDE) numbers of a picture, a pixel at a time."""
    w, h = image.size
    size = (resize, int(resize * h / w)) if w <= h else (int(resize * w / h), resize)
    small = image.resize(size, filter_)
    left, top = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
    out = np.zeros((3, SIDE, SIDE))
    for c in range(3):
        for y in range(SIDE):
            for x in range(SIDE):
                out[c, y, x] = (small.getpixel((left + x, top + y))[c] * scale - mean[c]) / std[c]
    return out


def close(got, want):
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_a_convolution_of_pictures(tmp_path):
    path = toy_models.convolution(tmp_path / "m.onnx")
    encoder = open_encoder(f"onnx:{path}")
    assert encoder.dimension == 12
    assert encoder.sides == {"images"}
    assert encoder.name == f"onnx:{path}"
    given = images()
    want = convolved(np.array([prepared(image) for image in given]), filters())
    close(encoder.embed_images(given), want)
    for i, image in enumerate(given):
        image.save(tmp_path / f"{i}.png")
    paths = [tmp_path / "0.png", str(tmp_path / "1.png"), given[2]]
    close(encoder.embed_images(paths), want[:3])
    assert encoder.embed_images([]).shape == (0, 12)
    with pytest.raises(InputError, match="takes no texts"):
        encoder.embed_texts(["a"])


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ({"batch": 2}, ""),
        ({"batch": 4}, ""),
        ({"last": True}, ""),
        ({"pooled": False}, ""),
        ({"dtype": TensorProto.FLOAT16}, ""),
    ],
)
def test_models_of_other_shapes_give_the_same(tmp_path, model, more):
    plain = open_encoder(f"onnx:{toy_models.convolution(tmp_path / 'm.onnx')}")
    other = open_encoder(f"onnx:{toy_models.convolution(tmp_path / 'o.onnx', **model)}{more}")
    got, want = other.embed_images(images()), plain.embed_images(images())
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.02)
    assert other.fingerprint != plain.fingerprint


def test_a_model_that_takes_bytes_gets_pixels(tmp_path):
    path = toy_models.convolution(tmp_path / "m.onnx", dtype=TensorProto.UINT8)
    pixels = [prepared(image, mean=(0, 0, 0), std=(1, 1, 1), scale=1) for image in images()]
    got = open_encoder(f"onnx:{path}").embed_images(images())
    np.testing.assert_allclose(got, convolved(np.array(pixels), filters()), rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ("mean=0.5&std=0.25,0.5,0.75", {"mean": (0.5,) * 3, "std": (0.25, 0.5, 0.75)}),
        ("resize=20&resample=bilinear", {"resize": 20, "filter_": 2}),
        ("scale=1&mean=0&std=1", {"scale": 1, "mean": (0, 0, 0), "std": (1, 1, 1)}),
        ("size=16&resample=nearest", {"filter_": 0}),
    ],
)
def test_options_say_how_pictures_are_prepared(tmp_path, options, how):
    encoder = open_encoder(f"onnx:{toy_models.convolution(tmp_path / 'm.onnx')}?{options}")
    want = convolved(np.array([prepared(image, **how) for image in images()]), filters())
    np.testing.assert_allclose(encoder.embed_images(images()), want, rtol=1e-3, atol=1e-3)
    again = open_encoder(encoder.name)
    assert again.fingerprint == encoder.fingerprint


@pytest.mark.parametrize(
    ("config", "how"),
    [
        (
            {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}, "resample": 3,
             "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]},
            {"resize": 20, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)},
        ),
        ({"size": 16, "do_center_crop": True, "do_normalize": False},
         {"filter_": 2, "mean": (0, 0, 0), "std": (1, 1, 1)}),
        ({"size": {"shortest_edge": 16}, "crop_pct": 0.8, "resample": 0}, {"resize": 20, "filter_": 0}),
        ({"size": 16, "crop_size": 16, "do_rescale": False, "do_normalize": False},
         {"filter_": 2, "mean": (0, 0, 0), "std": (1, 1, 1), "scale": 1}),
    ],
)  # fmt: skip
def test_a_preprocessor_config_says_it(tmp_path, config, how):
    toy_models.convolution(tmp_path / "model.onnx")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    want = convolved(np.array([prepared(image, **how) for image in images()]), filters())
    for spec in (tmp_path, tmp_path / "model.onnx"):
        got = open_encoder(f"onnx:{spec}").embed_images(images())
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def test_pictures_are_squashed_where_that_is_said(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"size": {"height": 16, "width": 16}, "resample": 2}))
    for how in (from_config(tmp_path / "c.json"), Preprocessing(SIDE, SIDE, None, "bilinear")):
        got = how.array(images()[2])
        want = np.asarray(images()[2].resize((SIDE, SIDE), FILTERS["bilinear"]), float).transpose(2, 0, 1)
        np.testing.assert_allclose(
            got * np.reshape(STD, (3, 1, 1)) + np.reshape(MEAN, (3, 1, 1)), want / 255, atol=1e-5
        )


@pytest.mark.parametrize(
    "config",
    [
        "no json",
        "[]",
        "{" * 100_000,
        {"do_pad": True},
        {"size": {"longest_edge": 16}},
        {"size": -3, "do_center_crop": True},
        {"size": 10**9, "do_center_crop": True},
        {"size": 16, "crop_size": 32},
        {"image_std": [0, 0, 0]},
        {"image_mean": [0.5]},
        {"resample": 99},
        {"do_resize": False},
        {"size": {"shortest_edge": 16}, "do_center_crop": False},
        {"size": {"height": 20, "width": 20}, "crop_size": 16},
        {"rescale_factor": "x"},
        {"size": {"shortest_edge": 16}, "crop_pct": 0},
    ],
)
def test_a_config_that_cannot_be_followed_is_one_line(tmp_path, config):
    text = config if isinstance(config, str) else json.dumps(config)
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(InputError) as refused:
        from_config(tmp_path / "preprocessor_config.json")
    assert "\n" not in str(refused.value)
    assert "preprocessor_config.json" in str(refused.value)


# ---- texts -------------------------------------------------------------------------------------------------

TEXTS = ["red sea", "BLUE", "a hill", "white white red"]


def mean_vectors(d=12):
    known = toy_models.word_vectors(d)
    return [
        np.mean([known[WORDS.index(w) if w in WORDS else 1] for w in t.lower().split()], axis=0)
        for t in TEXTS
    ]


@pytest.mark.parametrize("how", [{}, {"length": 6}, {"mask": False, "length": 6}, {"mask": False}])
def test_a_bag_of_words(tmp_path, how):
    encoder = open_encoder(f"onnx:{toy_models.bag_of_words(tmp_path / 'm', **how)}")
    assert encoder.sides == {"texts"}
    close(encoder.embed_texts(TEXTS), mean_vectors())  # what fills the rows does not count
    with pytest.raises(InputError, match="takes no pictures"):
        encoder.embed_images(images())
    first = open_encoder(f"onnx:{tmp_path / 'm'}?pooling=cls").embed_texts(["red sea"])
    close(first, toy_models.word_vectors()[[WORDS.index("red")]])
    cut = open_encoder(f"onnx:{tmp_path / 'm'}?max_length=1").embed_texts(["red sea"])
    close(cut, toy_models.word_vectors()[[WORDS.index("red")]])


def test_a_model_that_takes_strings(tmp_path):
    encoder = open_encoder(f"onnx:{toy_models.strings(tmp_path / 'm.onnx')}")
    assert encoder.embed_texts(["red", "sea", "blue"]).tolist() == [[1], [0], [2]]


def test_both_sides_in_a_folder(tmp_path):
    encoder = open_encoder(f"onnx:{toy_models.clip(tmp_path / 'clip')}")
    assert encoder.sides == {"images", "texts"}
    X, T = encoder.embed_images(images()), encoder.embed_texts(["red", "green", "blue"])
    assert np.argmax(T @ X[:3].T, axis=1).tolist() == [0, 1, 2]
    toy_models.bag_of_words(tmp_path / "clip", d=4, name="text_model.onnx")
    mixed = open_encoder(f"onnx:{tmp_path / 'clip'}")
    with pytest.raises(InputError, match=r"gives 3 numbers, .* 4; give the two sides of one model"):
        mixed.embed_texts(["red"])
    assert open_encoder(f"onnx:{tmp_path / 'clip'}", side="texts").dimension == 4


# ---- fingerprints ------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_what_decides_the_features(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        toy_models.convolution(tmp_path / name / f"{name}.onnx", seed=seed)
    prints = [open_encoder(f"onnx:{tmp_path / name / name}.onnx").fingerprint for name in "abc"]
    assert prints[0] == prints[1] != prints[2]  # wherever it is
    assert open_encoder(f"onnx:{tmp_path / 'a' / 'a.onnx'}?mean=0.1").fingerprint != prints[0]
    (tmp_path / "a" / "preprocessor_config.json").write_text(json.dumps({"size": 16, "crop_size": 16}))
    assert open_encoder(f"onnx:{tmp_path / 'a' / 'a.onnx'}").fingerprint != prints[0]
    folder = toy_models.bag_of_words(tmp_path / "t")
    before = open_encoder(f"onnx:{folder}").fingerprint
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"red"', '"rouge"'))
    assert open_encoder(f"onnx:{folder}").fingerprint != before


def test_what_an_index_remembers_is_opened_only_if_it_holds_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = toy_models.convolution(tmp_path / "m.onnx")
    record = EncoderRecord.of(open_encoder("onnx:m.onnx"))
    assert open_remembered(record, where="i.woh").dimension == 12
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    for name in ("evil:factory", "st:evil", "open-clip:evil/x"):
        with pytest.raises(InputError, match="give it with --encoder"):
            open_remembered(EncoderRecord(name, "a" * 64, 3), where="i.woh")
    toy_models.convolution(path, seed=5)
    with pytest.raises(InputError, match="do not compare"):
        open_remembered(record, where="i.woh")
    path.unlink()
    with pytest.raises(InputError, match=r"cannot be opened: .* does not exist"):
        open_remembered(record, where="i.woh")


@pytest.mark.parametrize(
    "found",
    [None, [], {}, {"name": "a", "fingerprint": "xyz", "dimension": 3},
     {"name": "", "fingerprint": "ab" * 9, "dimension": 3},
     {"name": "a", "fingerprint": "ab" * 9, "dimension": True},
     {"name": "a", "fingerprint": "ab" * 9, "dimension": 0},
     {"name": "a", "fingerprint": "ab" * 9, "dimension": 3, "more": 1}],
)  # fmt: skip
def test_records_are_checked(found):
    for read in (EncoderRecord.from_dict, lambda it: EncoderRecord.from_json(json.dumps(it))):
        with pytest.raises(InputError, match="no record of an encoder"):
            read(found)


# ---- what is refused ---------------------------------------------------------------------------------------


def refused(spec):
    with pytest.raises(WOHError) as error:
        open_encoder(str(spec))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_encoder_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy_models.convolution(tmp_path / "m.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty").mkdir()
    for spec in ("", "m.onnx", "onnx:", "what:", "a b:c", "onnx", "../x:y"):
        assert "expected onnx:MODEL or FOLDER" in refused(spec), spec
    assert "does not exist" in refused("onnx:none.onnx")
    assert "no ONNX model that onnxruntime" in refused("onnx:text.onnx")
    assert "has none of model.onnx" in refused("onnx:empty")
    assert "expected some of size" in refused("onnx:m.onnx?colour=red")
    assert "name=value" in refused("onnx:m.onnx?size")
    assert "given twice" in refused("onnx:m.onnx?size=16&size=16")
    assert "takes pictures of 16 x 16 pixels" in refused("onnx:m.onnx?size=32")
    assert "expected 1 to 4096 pixels" in refused("onnx:m.onnx?size=0")
    assert "expected a number" in refused("onnx:m.onnx?size=big")
    assert "three numbers" in refused("onnx:m.onnx?std=1,2") or "3 numbers" in refused("onnx:m.onnx?std=1,2")
    assert "std is" in refused("onnx:m.onnx?std=0")
    assert "fit is" in refused("onnx:m.onnx?fit=pad")
    assert "resample is" in refused("onnx:m.onnx?resample=magic")
    assert "pooling" in refused("onnx:m.onnx?pooling=max")
    assert "no output 'x'" in refused("onnx:m.onnx?output=x")
    assert "expected a number of tokens" in refused(
        f"onnx:{toy_models.bag_of_words(tmp_path / 't')}?max_length=-1"
    )
    (tmp_path / "t" / "tokenizer.json").write_text("{}")
    assert "no tokenizer that tokenizers reads" in refused("onnx:t")
    (tmp_path / "t" / "tokenizer.json").unlink()
    assert "put tokenizer.json beside it" in refused("onnx:t")


def test_a_model_of_both_sides_at_once_is_refused(tmp_path):
    both = [
        ("input_ids", TensorProto.INT64, ["n", "t"]),
        ("pixel_values", TensorProto.FLOAT, ["n", 3, 16, 16]),
    ]
    node = toy_models.helper.make_node("Identity", ["pixel_values"], ["out"])
    toy_models.saved(tmp_path / "m.onnx", [node], both, [("out", TensorProto.FLOAT, ["n", 3, 16, 16])], {})
    assert "export the two sides of a model apart" in refused(f"onnx:{tmp_path / 'm.onnx'}")


@pytest.mark.parametrize(
    ("package", "spec", "extra"),
    [("onnxruntime", "onnx:m.onnx", "onnx"), ("tokenizers", "onnx:t", "onnx"),
     ("sentence_transformers", "st:x", "sentence-transformers"), ("open_clip", "open-clip:A/b", "open-clip")],
)  # fmt: skip
def test_a_package_that_is_not_there_is_named(tmp_path, monkeypatch, package, spec, extra):
    monkeypatch.chdir(tmp_path)
    toy_models.convolution(tmp_path / "m.onnx")
    toy_models.bag_of_words(tmp_path / "t")
    monkeypatch.setitem(sys.modules, package, None)
    assert f"pip install 'woh-faiss[{extra}]'" in refused(spec)


# ---- Python of users ---------------------------------------------------------------------------------------

OWN = """
import numpy as np

class Own:
    dimension, fingerprint = {dimension}, {fingerprint!r}

    def embed_images(self, images):
        return {given}

def make():
    return Own()
"""


def own(
    folder,
    name,
    dimension=3,
    fingerprint="v1",
    given="np.array([np.asarray(i).mean((0, 1)) for i in images])",
):
    (folder / f"{name}.py").write_text(OWN.format(dimension=dimension, fingerprint=fingerprint, given=given))
    return f"{name}:make"


def test_an_encoder_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoder = open_encoder(own(tmp_path, "own_encoder"))
    assert encoder.sides == {"images"}
    close(encoder.embed_images(images()), [np.asarray(image).mean((0, 1)) for image in images()])
    assert str(tmp_path) not in sys.path
    assert open_encoder("own_encoder:make").fingerprint == encoder.fingerprint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dimension": 4}, r"shape \(5, 3\)"),
        ({"given": "[[1, 2, 3]]"}, r"shape \(1, 3\)"),
        ({"given": "[['a'] * 3] * 5"}, "dtype <U1"),
        ({"given": "[[float('nan')] * 3] * 5"}, "not finite"),
    ],
)
def test_what_it_gives_is_checked(tmp_path, monkeypatch, request, given, said):
    monkeypatch.chdir(tmp_path)
    name = f"own_{abs(hash(request.node.name))}"
    with pytest.raises(InputError, match=said):
        open_encoder(own(tmp_path, name, **given)).embed_images(images())


def test_an_own_encoder_that_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "ModuleNotFoundError" in refused("there_is_no_such_module:make")
    assert "AttributeError" in refused("json:make")
    (tmp_path / "own_fails.py").write_text("def make():\n    raise RuntimeError('no\\nluck')\n")
    assert r"RuntimeError: no\nluck" in refused("own_fails:make")
    assert "has the fingerprint" in refused(own(tmp_path, "own_print", fingerprint=""))
    assert "has the dimension" in refused(own(tmp_path, "own_size", dimension=0))


# ---- sentence-transformers and open_clip, as far as they can be stood in for -------------------------------


@pytest.fixture
def torch(monkeypatch):
    """As much of torch as an encoder uses, and as the weights of a module are."""
    made = types.ModuleType("torch")

    class Tensor:
        def __init__(self, array):
            self.array, self.dtype, self.shape = np.asarray(array), "float32", np.shape(array)

        def __getattr__(self, name):
            return (lambda *_: self) if name != "numpy" else (lambda: self.array)

        def __array__(self, *_, **__):
            return self.array

    class Inference:
        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    made.Tensor, made.inference_mode = Tensor, Inference
    made.stack = lambda parts: np.stack(parts)
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


def test_sentence_transformers_by_its_calls(torch, monkeypatch):
    class Model(list):
        max_seq_length = 256

        def __init__(self, name, trust_remote_code):
            assert trust_remote_code is False
            if name == "missing":
                raise OSError("not a local folder\nand more")
            super().__init__([type("CLIPModel" if name == "clip" else "Transformer", (), {})()])

        def encode(self, items, convert_to_numpy, show_progress_bar):
            return np.array(
                [[len(it), 1.5] if isinstance(it, str) else [*it.size] for it in items], np.float32
            )

        def state_dict(self):
            return {"w": torch.Tensor([1.0, 2.0])}

    fake = types.ModuleType("sentence_transformers")
    fake.SentenceTransformer = Model
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake)
    texts = open_encoder("st:texts")
    assert texts.embed_texts(["abc", "d"]).tolist() == [[3, 1.5], [1, 1.5]]
    assert (texts.sides, texts.dimension) == ({"texts"}, 2)
    with pytest.raises(InputError, match="takes no pictures"):
        texts.embed_images(images())
    clip = open_encoder("st:clip")
    assert clip.embed_images([Image.new("L", (5, 4))]).tolist() == [[5, 4]]
    assert len(EncoderRecord.of(clip).fingerprint) == 64
    assert "st:missing cannot be loaded: not a local folder" in refused("st:missing")


def test_open_clip_by_its_calls(torch, monkeypatch):
    class Model:
        def eval(self):
            return self

        def encode_image(self, batch, normalize):
            assert normalize
            return torch.Tensor(np.asarray(batch).mean((1, 2)))

        def encode_text(self, tokens, normalize):
            assert normalize
            return torch.Tensor([[len(text), 0, 0] for text in tokens])

        def state_dict(self):
            return {"w": torch.Tensor([1.0])}

    fake = types.ModuleType("open_clip")
    fake.create_model_and_transforms = lambda name, pretrained: (
        Model(),
        None,
        lambda image: np.asarray(image, float),
    )
    fake.get_tokenizer = lambda name: list
    monkeypatch.setitem(sys.modules, "open_clip", fake)
    encoder = open_encoder("open-clip:ViT-B-32/openai")
    assert encoder.sides == {"images", "texts"}
    assert open_encoder("open-clip:ViT-B-32/openai").fingerprint == encoder.fingerprint
    assert encoder.embed_texts(["abc"]).tolist() == [[3, 0, 0]]
    assert encoder.embed_images([Image.new("RGB", (4, 4), (9, 8, 7))]).tolist() == [[9, 8, 7]]
    assert "give open-clip:MODEL/PRETRAINED" in refused("open-clip:ViT-B-32")
