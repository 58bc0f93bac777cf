"""One ONNX model of pictures or of texts: what goes in, which output is the features, how they are pooled.

onnxruntime and tokenizers are imported in the functions that need them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.display import display_path, display_text
from woh_faiss.errors import InputError, short
from woh_faiss.io.path_kind import path_kind
from woh_faiss.validate import listed

from .encoder import BATCH, IMAGES, TEXTS, Features, embedded, threads
from .picture import picture
from .preprocessing import CONFIG, SIDE, Preprocessing, from_config, from_options
from .preprocessing import OPTIONS as PREPROCESSING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: The file of a tokenizer, and tokens of a text where nothing says how many.
TOKENIZER, LENGTH = "tokenizer.json", 512
#: Options of a model's name: those of pictures, which output, how tokens become one row, tokens of a text.
OPTIONS = (*PREPROCESSING, "output", "pooling", "max_length")
#: Outputs that are features, the likeliest first; else the first output is.
_OUTPUTS = {
    IMAGES: ("image_embeds", "image_embeddings", "embeddings", "embedding", "features", "pooler_output"),
    TEXTS: (
        "text_embeds",
        "sentence_embedding",
        "text_embeddings",
        "embeddings",
        "embedding",
        "pooler_output",
    ),
}
_TOKENS = ("input_ids", "attention_mask", "token_type_ids")
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
#: Files beside a model that hold its numbers, by what is put to its name.
_DATA = ("_data", ".data")


class OnnxModel:
    """A model file that takes pictures, (n, 3, h, w) or (n, h, w, 3) numbers, or texts, as tokens or strings.

    Parameters
    ----------
    path : Path
        Of the model.
    options : dict of str
        Those of `OPTIONS` that were given.
    config, tokenizer : Path or None
        The files of preprocessing and of a tokenizer, where there are any.

    Attributes
    ----------
    guesses : list of str
        What was taken because nobody said otherwise, for a person; complete once a model was loaded.
    """

    def __init__(
        self, path: Path, options: Mapping[str, str], config: Path | None, tokenizer: Path | None
    ) -> None:
        self.path, self._options, self._config, self._tokenizer_path = path, options, config, tokenizer
        self.where = display_path(path)
        self.guesses: list[str] = []

    def digest(self) -> str:
        """SHA-256, in hex, of the model, its numbers, tokenizer and preprocessing, wherever they are."""
        sha = hashlib.sha256()
        files = [self.path, *(self.path.with_name(self.path.name + end) for end in _DATA)]
        for path in (*files, self._config, self._tokenizer_path):
            if path is not None and path_kind(path) == "file":
                with path.open("rb") as file:
                    sha.update(hashlib.file_digest(file, "sha256").digest())
            else:
                sha.update(b"none")
        sha.update(repr(sorted(self._options.items())).encode())
        return sha.hexdigest()

    @cached_property
    def _session(self) -> Any:
        try:
            import onnxruntime as ort
        except ImportError:
            raise InputError(
                f"{self.where} is an ONNX model, which onnxruntime runs: pip install 'woh-faiss[onnx]'"
            ) from None
        options = ort.SessionOptions()
        options.log_severity_level = 4  # what is wrong is raised
        if threads():
            options.intra_op_num_threads = options.inter_op_num_threads = threads()
        here = ort.get_available_providers()
        providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in here]
        try:
            return ort.InferenceSession(str(self.path), options, providers=providers)
        except Exception as error:  # its errors have no common class
            raise InputError(
                f"{self.where} is no ONNX model that onnxruntime {ort.__version__} runs: {_first_line(error)}"
            ) from error

    @cached_property
    def side(self) -> str:
        """What it takes: "images" or "texts"."""
        inputs = self._session.get_inputs()
        names = [node.name for node in inputs]
        if len(inputs) == 1 and len(inputs[0].shape) == 4 and inputs[0].type in _DTYPES:
            return IMAGES
        if (len(inputs) == 1 and inputs[0].type == "tensor(string)" and len(inputs[0].shape) in (1, 2)) or (
            "input_ids" in names and set(names) <= set(_TOKENS)
        ):
            return TEXTS
        told = listed([f"{node.name} {node.type} {node.shape}" for node in inputs])
        raise InputError(
            f"{self.where} takes {display_text(told)}; expected one input of pictures (n, 3, height, "
            f"width), or texts as {', '.join(_TOKENS)} or strings; export the two sides of a model apart"
        )

    @cached_property
    def _output(self) -> str:
        names = [node.name for node in self._session.get_outputs()]
        if (wanted := self._options.get("output")) is not None:
            if wanted not in names:
                raise InputError(
                    f"{self.where} has no output {short(wanted)}; it has {display_text(listed(names))}"
                )
            return wanted
        found = next((name for name in _OUTPUTS[self.side] if name in names), names[0])
        self.guesses.append(f"features from output {found!r}")
        return found

    @cached_property
    def dimension(self) -> int:
        """Numbers of a row of features."""
        if self.side == IMAGES:
            from PIL import Image

            return int(self._run_images([Image.new("RGB", (SIDE, SIDE))]).shape[1])
        return int(self._run_texts(["a"]).shape[1])

    def embed_images(self, images: Sequence[Any], name: str) -> Features:
        """See `Encoder`."""
        return embedded(images, self._run_images, name, self.dimension, self._batch or BATCH)

    def embed_texts(self, texts: Sequence[str], name: str) -> Features:
        """See `Encoder`."""
        return embedded(texts, self._run_texts, name, self.dimension, self._batch or BATCH)

    @cached_property
    def _batch(self) -> int | None:
        """Items that it takes at once, where its shape says so."""
        size = self._session.get_inputs()[0].shape[0]
        return size if isinstance(size, int) and size > 0 else None

    def _filled(self, values: NDArray[Any]) -> NDArray[Any]:
        """Rows up to the number it takes: the last one again."""
        if self._batch is None or len(values) == self._batch:
            return values
        return np.concatenate([values, np.repeat(values[-1:], self._batch - len(values), axis=0)])

    def _run(self, feeds: dict[str, NDArray[Any]], n: int) -> NDArray[Any]:
        try:
            (found,) = self._session.run([self._output], {name: self._filled(x) for name, x in feeds.items()})
        except Exception as error:  # its errors have no common class
            raise InputError(f"{self.where} could not be run: {_first_line(error)}") from error
        return np.asarray(found)[:n]

    # ---- pictures ----------------------------------------------------------------------------------------

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How pictures are prepared: as the file says, else as options and the model's own shape do."""
        fixed = {name: value for name, value in self._options.items() if name in PREPROCESSING}
        if not np.issubdtype(self._dtype, np.floating):  # it does the arithmetic itself
            fixed = {"scale": "1", "mean": "0", "std": "1", **fixed}
        if self._config is not None and not fixed:
            found = from_config(self._config)
        else:
            sides = [side if isinstance(side, int) else None for side in self._sides]
            found = from_options(fixed, sides[0] or SIDE, sides[1] or SIDE)
            if missing := [name for name in ("mean", "std") if name not in fixed]:
                self.guesses.append(
                    f"{' and '.join(missing)} of ImageNet; ?mean=...&std=... or {CONFIG} says others"
                )
        for side, size in zip(self._sides, (found.height, found.width), strict=True):
            if isinstance(side, int) and side != size:
                raise InputError(
                    f"{self.where} takes pictures of {self._sides[0]} x {self._sides[1]} pixels, prepared "
                    f"are {found.height} x {found.width}; say the size that it takes"
                )
        return found

    @cached_property
    def _dtype(self) -> Any:
        return _DTYPES[self._session.get_inputs()[0].type]

    @cached_property
    def _last(self) -> bool:
        """Whether channels come last: (n, h, w, 3)."""
        shape = self._session.get_inputs()[0].shape
        return bool(shape[3] == 3 and shape[1] != 3)

    @cached_property
    def _sides(self) -> tuple[Any, Any]:
        _, a, b, c = self._session.get_inputs()[0].shape
        return (a, b) if self._last else (b, c)

    def _run_images(self, images: Sequence[Any]) -> NDArray[Any]:
        node = self._session.get_inputs()[0]
        values = np.stack([self.preprocessing.array(picture(image)) for image in images])
        if self._last:
            values = values.transpose(0, 2, 3, 1)
        if not np.issubdtype(self._dtype, np.floating):
            values = values.round()
        found = self._run({node.name: np.ascontiguousarray(values, self._dtype)}, len(images))
        if found.ndim == 4:  # a map of features: (n, d, h, w), or (n, h, w, d)
            return np.asarray(found.mean((1, 2) if self._last else (2, 3), dtype=np.float32))
        if found.ndim == 3:  # a row for each patch, the first of which stands for all
            return found.mean(1, dtype=np.float32) if self._options.get("pooling") == "mean" else found[:, 0]
        return found

    # ---- texts -------------------------------------------------------------------------------------------

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self._tokenizer_path is None:
            raise InputError(f"{self.where} takes tokens; put {TOKENIZER} beside it")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError(
                f"{self.where} takes tokens, which tokenizers makes: pip install 'woh-faiss[onnx]'"
            ) from None
        where = display_path(self._tokenizer_path)
        try:
            tokenizer = Tokenizer.from_file(str(self._tokenizer_path))
        except Exception as error:  # a plain Exception is what it raises
            raise InputError(
                f"{where} is no tokenizer that tokenizers reads: {_first_line(error)}"
            ) from error
        fixed = next(node.shape[1] for node in self._session.get_inputs() if node.name == "input_ids")
        padding = tokenizer.padding or {}
        how = {
            name: padding[name]
            for name in ("pad_id", "pad_type_id", "pad_token", "direction")
            if name in padding
        }
        if not how:
            known = [token for token in ("[PAD]", "<pad>") if tokenizer.token_to_id(token) is not None]
            how = {"pad_id": tokenizer.token_to_id(known[0]), "pad_token": known[0]} if known else {}
        tokenizer.enable_padding(**how, length=fixed if isinstance(fixed, int) else None)
        most = (tokenizer.truncation or {}).get("max_length", LENGTH)
        if "max_length" in self._options:
            given = self._options["max_length"]
            if not given.isdecimal() or not 0 < int(given) <= 1 << 16:
                raise InputError(f"max_length is {short(given)}, expected a number of tokens")
            most = int(given)
        tokenizer.enable_truncation(min(most, fixed) if isinstance(fixed, int) else most)
        return tokenizer

    def _run_texts(self, texts: Sequence[str]) -> NDArray[Any]:
        nodes = self._session.get_inputs()
        if nodes[0].type == "tensor(string)":
            strings = np.array([*texts], dtype=object).reshape((-1,) + (1,) * (len(nodes[0].shape) - 1))
            return self._pooled(self._run({nodes[0].name: strings}, len(texts)), None)
        tokens = self._tokenizer.encode_batch([*texts])
        parts = dict(zip(_TOKENS, ("ids", "attention_mask", "type_ids"), strict=True))
        feeds = {
            node.name: np.array(
                [getattr(found, parts[node.name]) for found in tokens], _DTYPES.get(node.type, np.int64)
            )
            for node in nodes
        }
        mask = np.array([found.attention_mask for found in tokens], np.float32)
        return self._pooled(self._run(feeds, len(texts)), mask)

    def _pooled(self, found: NDArray[Any], mask: NDArray[np.float32] | None) -> NDArray[Any]:
        """A row for each text: of tokens the mean of its own, or with pooling=cls the first."""
        if found.ndim != 3:
            return found
        if self._options.get("pooling") == "cls":
            return found[:, 0]
        if mask is None or mask.shape[1] != found.shape[1]:
            return np.asarray(found.mean(1, dtype=np.float32))
        total = (found.astype(np.float32) * mask[:, :, None]).sum(1)
        return np.asarray(total / np.maximum(mask.sum(1), 1)[:, None])


def _first_line(error: Exception) -> str:
    return display_text(next(iter(str(error).strip().splitlines()), type(error).__name__))[:200]
