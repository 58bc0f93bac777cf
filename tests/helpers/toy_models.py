"""Small ONNX models, made here: a convolution for pictures, a bag of words for texts; and pictures."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

SIDE = 16
CELL = 8
WORDS = ["[PAD]", "[UNK]", "red", "green", "blue", "white", "sea", "hill"]
COLOURS = {"red": (220, 40, 30), "green": (40, 180, 60), "blue": (30, 60, 210), "white": (240, 240, 235)}


def saved(path, nodes, inputs, outputs, weights):
    """A model of one graph; inputs and outputs are (name, type, shape)."""
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info(*given) for given in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def filters(d=12, seed=0):
    """The weights of `convolution`: (d, 3, CELL, CELL)."""
    return np.random.default_rng(seed).normal(size=(d, 3, CELL, CELL)).astype(np.float32)


def convolution(path, *, d=12, seed=0, batch="n", last=False, pooled=True, dtype=TensorProto.FLOAT):
    """(n, 3, SIDE, SIDE) pictures → ReLU of a convolution, pooled to (n, d); `last`: channels come last."""
    shape = [batch, SIDE, SIDE, 3] if last else [batch, 3, SIDE, SIDE]
    nodes, name = [], "pixel_values"
    if dtype != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [name], ["cast"], to=TensorProto.FLOAT))
        name = "cast"
    if last:
        nodes.append(helper.make_node("Transpose", [name], ["first"], perm=[0, 3, 1, 2]))
        name = "first"
    nodes.append(helper.make_node("Conv", [name, "W"], ["map"], strides=[CELL, CELL]))
    out = "features" if pooled else "relu"
    nodes.append(helper.make_node("Relu", ["map"], ["relu"]))
    if pooled:
        nodes.append(helper.make_node("GlobalAveragePool", ["relu"], ["pool"]))
        nodes.append(helper.make_node("Flatten", ["pool"], ["features"]))
    grid = SIDE // CELL
    end = [batch, d] if pooled else [batch, d, grid, grid]
    return saved(
        path,
        nodes,
        [("pixel_values", dtype, shape)],
        [(out, TensorProto.FLOAT, end)],
        {"W": filters(d, seed)},
    )


def convolved(pixels, W):
    """What `convolution` gives for (n, 3, SIDE, SIDE) numbers, by loops."""
    grid = SIDE // CELL
    out = np.zeros((len(pixels), len(W)))
    for n, x in enumerate(pixels.astype(np.float64)):
        for j, w in enumerate(W.astype(np.float64)):
            cells = [
                max(0.0, float((x[:, a * CELL : (a + 1) * CELL, b * CELL : (b + 1) * CELL] * w).sum()))
                for a in range(grid)
                for b in range(grid)
            ]
            out[n, j] = sum(cells) / len(cells)
    return out


def colours(path):
    """Pictures → the mean of each channel, less that of all: colours, which `bag_of_words` names."""
    flat = helper.make_node("ReduceMean", ["pixel_values"], ["mean"], axes=[2, 3], keepdims=0)
    grey = helper.make_node("ReduceMean", ["mean"], ["grey"], axes=[1], keepdims=1)
    clear = helper.make_node("Sub", ["mean", "grey"], ["image_embeds"])
    return saved(
        path,
        [flat, grey, clear],
        [("pixel_values", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [("image_embeds", TensorProto.FLOAT, ["n", 3])],
        {},
    )


def word_vectors(d=12, seed=1):
    """The vectors of `WORDS` in `bag_of_words`; of three numbers, the colours that words name."""
    if d != 3:
        return np.random.default_rng(seed).normal(size=(len(WORDS), d)).astype(np.float32)
    rgb = np.array([COLOURS.get(word, (128, 128, 128)) for word in WORDS], np.float32) / 255
    return rgb - rgb.mean(axis=1, keepdims=True)


def bag_of_words(folder, *, d=12, name="model.onnx", length="t", mask=True, tokenizer=True):
    """input_ids (n, t) → the vectors of tokens (n, t, d); and a tokenizer.json of words beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = [("input_ids", TensorProto.INT64, ["n", length])]
    nodes = [helper.make_node("Gather", ["E", "input_ids"], ["last_hidden_state"])]
    if mask:
        inputs.append(("attention_mask", TensorProto.INT64, ["n", length]))
    saved(
        folder / name,
        nodes,
        inputs,
        [("last_hidden_state", TensorProto.FLOAT, ["n", length, d])],
        {"E": word_vectors(d)},
    )
    if tokenizer:
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))  # noqa: S106
        words.normalizer = normalizers.Lowercase()
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.save(str(folder / "tokenizer.json"))
    return folder


def strings(path):
    """Texts as strings (n, 1) → whether they are "red" or "blue": no tokenizer is needed."""
    nodes = [
        helper.make_node(
            "LabelEncoder", ["flat"], ["codes"], domain="ai.onnx.ml",
            keys_strings=["red", "blue"], values_floats=[1.0, 2.0], default_float=0.0,
        ),
        helper.make_node("Unsqueeze", ["codes", "one"], ["features"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "strings",
        [helper.make_tensor_value_info("flat", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(np.array([1]), "one")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def clip(folder):
    """A folder with both sides in one space of colours, prepared as its preprocessor_config.json says."""
    bag_of_words(folder, d=3, name="text_model.onnx")
    colours(folder / "vision_model.onnx")
    config = {"do_normalize": False, "size": {"shortest_edge": SIDE}, "crop_size": SIDE, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def picture(colour, seed=0, size=(24, 20)):
    """A picture of about one colour, as an array."""
    noise = np.random.default_rng(seed).normal(scale=25, size=(size[1], size[0], 3))
    return Image.fromarray(np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8))


def photos(folder, n=8):
    """n pictures of each colour in a folder of its name."""
    for number, colour in enumerate(COLOURS):
        (folder / colour).mkdir(parents=True)
        for i in range(n):
            picture(colour, 100 * number + i).save(folder / colour / f"{i}.png")
    return folder
