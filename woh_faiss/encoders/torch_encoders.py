"""Encoders of sentence-transformers and of open_clip, where they are installed; both run on PyTorch."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from woh_faiss.display import display_text
from woh_faiss.errors import InputError
from woh_faiss.io.path_kind import path_kind

from .encoder import IMAGES, TEXTS, Features, embedded, lacks, threads
from .picture import picture
from .preprocessing import SIDE


def _loaded(name: str, load: Any) -> Any:
    """What `load` gives; InputError with its first line where that model is not to be had."""
    import torch

    if threads():
        torch.set_num_threads(threads())
    if (of_transformers := sys.modules.get("transformers.utils.logging")) and not sys.stderr.isatty():
        of_transformers.disable_progress_bar()  # of the weights that are loaded
    try:
        return load()
    except Exception as error:  # of a hub, a disk, a damaged file
        why = display_text(next(iter(str(error).strip().splitlines()), type(error).__name__))[:200]
        raise InputError(f"{name} cannot be loaded: {why}") from error


def _digest(module: Any, *more: str) -> str:
    """SHA-256, in hex, of the numbers of a PyTorch module, and of what else decides the features."""
    sha = hashlib.sha256(repr(more).encode())
    for name, tensor in sorted(module.state_dict().items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return sha.hexdigest()


class SentenceTransformerEncoder:
    """An `Encoder` of a model of sentence-transformers: texts, and pictures where it is a CLIP model.

    Parameters
    ----------
    model : str
        A folder, or the name of a model as `SentenceTransformer` takes it; code that comes with one never
        runs.
    name : str
        What it is called.
    """

    def __init__(self, model: str, name: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise InputError(
                f"{name} needs sentence-transformers: pip install 'woh-faiss[sentence-transformers]'"
            ) from None
        self.name = name
        self._model = _loaded(name, lambda: SentenceTransformer(model, trust_remote_code=False))

    @cached_property
    def sides(self) -> frozenset[str]:
        """See `Encoder`."""
        first = self._model[0]
        kinds = getattr(
            first, "modalities", ["image", "text"] if type(first).__name__ == "CLIPModel" else ["text"]
        )
        return frozenset(side for side, kind in ((IMAGES, "image"), (TEXTS, "text")) if kind in kinds)

    @cached_property
    def dimension(self) -> int:
        """See `Encoder`."""
        if TEXTS in self.sides:
            return int(self._encoded(["a"]).shape[1])
        from PIL import Image

        return int(self._encoded([Image.new("RGB", (SIDE, SIDE))]).shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """See `Encoder`; of the model's numbers and its longest text."""
        return _digest(self._model, str(self._model.max_seq_length))

    def _encoded(self, items: Sequence[Any]) -> Any:
        return self._model.encode([*items], convert_to_numpy=True, show_progress_bar=False)

    def embed_images(self, images: Sequence[Any]) -> Features:
        """See `Encoder`."""
        if IMAGES not in self.sides:
            raise lacks(self.name, IMAGES)
        return embedded(
            images, lambda part: self._encoded([picture(image) for image in part]), self.name, self.dimension
        )

    def embed_texts(self, texts: Sequence[str]) -> Features:
        """See `Encoder`."""
        return embedded(texts, self._encoded, self.name, self.dimension)


class OpenClipEncoder:
    """An `Encoder` of a model of open_clip: pictures and texts in one space, rows of length 1.

    Parameters
    ----------
    model : str
        ``MODEL/PRETRAINED``, as `open_clip.create_model_and_transforms` takes them: ``ViT-B-32/openai``; the
        latter may be a file of weights.
    name : str
        What it is called.
    """

    sides = frozenset((IMAGES, TEXTS))

    def __init__(self, model: str, name: str) -> None:
        try:
            import open_clip
        except ImportError:
            raise InputError(f"{name} needs open_clip: pip install 'woh-faiss[open-clip]'") from None
        architecture, slash, pretrained = model.partition("/")
        if not slash or not pretrained:
            raise InputError(
                f"{name} has no weights; give open-clip:MODEL/PRETRAINED, such as ViT-B-32/openai"
            )
        self.name = name
        self._model, _, self._prepare = _loaded(
            name, lambda: open_clip.create_model_and_transforms(architecture, pretrained=pretrained)
        )
        self._model.eval()
        self._tokens = open_clip.get_tokenizer(architecture)

    @cached_property
    def dimension(self) -> int:
        """See `Encoder`."""
        return int(self._texts(["a"]).shape[1])

    @cached_property
    def fingerprint(self) -> str:
        """See `Encoder`; of the model's numbers and its preparation of pictures."""
        return _digest(self._model, re.sub(" at 0x[0-9a-f]+", "", repr(self._prepare)))

    def _images(self, images: Sequence[Any]) -> Any:
        import torch

        with torch.inference_mode():
            batch = torch.stack([self._prepare(picture(image)) for image in images])
            return np.asarray(self._model.encode_image(batch, normalize=True).float().cpu().numpy())

    def _texts(self, texts: Sequence[str]) -> Any:
        import torch

        with torch.inference_mode():
            return np.asarray(
                self._model.encode_text(self._tokens([*texts]), normalize=True).float().cpu().numpy()
            )

    def embed_images(self, images: Sequence[Any]) -> Features:
        """See `Encoder`."""
        return embedded(images, self._images, self.name, self.dimension)

    def embed_texts(self, texts: Sequence[str]) -> Features:
        """See `Encoder`."""
        return embedded(texts, self._texts, self.name, self.dimension)


def folder_or_name(model: str) -> str:
    """A folder that is there as its whole path, else the name of a model as it is."""
    return str(Path(model).resolve()) if path_kind(Path(model)) is not None else model
