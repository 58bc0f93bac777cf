"""An encoder of ONNX models: a file, or a folder with a model for pictures, one for texts, or both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from woh_faiss.display import display_path
from woh_faiss.errors import InputError
from woh_faiss.io.path_kind import path_kind

from .encoder import IMAGES, TEXTS, Features, lacks
from .onnx_model import OPTIONS, TOKENIZER, OnnxModel
from .preprocessing import CONFIG

#: Names of the models of a folder, the likeliest first; such a folder may be that of exporters, or have one.
_NAMES = {
    IMAGES: ("vision_model.onnx", "image_model.onnx", "visual.onnx"),
    TEXTS: ("text_model.onnx", "textual.onnx"),
}
_ANY = ("model.onnx",)
_INNER = ("", "onnx")


class OnnxEncoder:
    """An `Encoder` of models at a path.

    Parameters
    ----------
    path : Path
        A model, or a folder: with ``model.onnx``, or ``vision_model.onnx`` and ``text_model.onnx``, or one of
        these; they may be in its folder ``onnx``. ``preprocessor_config.json`` and ``tokenizer.json`` are
        beside the model, or in the folder.
    options : dict of str
        See `onnx_model.OPTIONS`.
    name : str
        What it is called.
    side : "images", "texts" or None
        Which model is loaded now, where there are both; the other is when it is used.
    """

    def __init__(self, path: Path, options: Mapping[str, str], name: str, side: str | None = None) -> None:
        self.name = name
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise InputError(f"{name} has the option {unknown[0]!r}, expected some of {', '.join(OPTIONS)}")
        if options.get("pooling") not in (None, "mean", "cls"):
            raise InputError(f"{name} has pooling={options['pooling']}, expected mean or cls")
        if (kind := path_kind(path)) is None:
            raise InputError(f"{display_path(path)} does not exist; give an ONNX model, or a folder with one")
        folders = [path.parent] if kind != "folder" else [path / "onnx", path]
        config, tokenizer = (_first(folders, (file,)) for file in (CONFIG, TOKENIZER))
        self._models: dict[str, OnnxModel] = {}
        if kind == "folder":
            inner = [path / part for part in _INNER]
            for has, names in _NAMES.items():
                if (found := _first(inner, names)) is not None:
                    self._models[has] = OnnxModel(found, options, config, tokenizer)
            if not self._models:
                if (alone := _first(inner, _ANY)) is None:
                    every = [*_ANY, *(names[0] for names in _NAMES.values())]
                    raise InputError(
                        f"{display_path(path)} has none of {', '.join(every)}; give the model itself"
                    )
                path = alone
        if not self._models:
            model = OnnxModel(path, options, config, tokenizer)
            self._models[model.side] = model
        self._loaded = self._models.get(side or IMAGES) or next(iter(self._models.values()))

    @property
    def sides(self) -> frozenset[str]:
        """See `Encoder`."""
        return frozenset(self._models)

    @property
    def dimension(self) -> int:
        """See `Encoder`."""
        return self._loaded.dimension

    @cached_property
    def fingerprint(self) -> str:
        """See `Encoder`; of the bytes of its files and of its options, not of their names."""
        told = "".join(f"{side} {model.digest()}\n" for side, model in sorted(self._models.items()))
        return hashlib.sha256(told.encode()).hexdigest()

    @property
    def guesses(self) -> list[str]:
        """What was taken because nobody said otherwise, a line each."""
        return [
            f"{model.where}: {', '.join(model.guesses)}" for model in self._models.values() if model.guesses
        ]

    def embed_images(self, images: Sequence[Any]) -> Features:
        """See `Encoder`."""
        return self._model(IMAGES).embed_images(images, self.name)

    def embed_texts(self, texts: Sequence[str]) -> Features:
        """See `Encoder`."""
        return self._model(TEXTS).embed_texts(texts, self.name)

    def _model(self, side: str) -> OnnxModel:
        if side not in self._models:
            raise lacks(self.name, side)
        model = self._models[side]
        if model.dimension != self.dimension:
            raise InputError(
                f"{self._loaded.where} gives {self.dimension} numbers, {model.where} {model.dimension}; "
                "give the two sides of one model"
            )
        return model


def _first(folders: Sequence[Path], names: Sequence[str]) -> Path | None:
    return next(
        (folder / name for folder in folders for name in names if path_kind(folder / name) == "file"), None
    )
