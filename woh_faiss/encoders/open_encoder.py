"""From what a user calls an encoder to the encoder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from woh_faiss.errors import InputError, short
from woh_faiss.io.path_kind import path_kind

from .encoder import Encoder, EncoderRecord

#: Encoders that hold numbers and no code; only these are opened because an index names them.
_PLAIN = "onnx:"
#: What may be given, for messages.
EXPECTED = "onnx:MODEL or FOLDER, st:NAME or FOLDER, open-clip:MODEL/PRETRAINED, or module:factory"


def open_encoder(
    spec: str, *, side: str | None = None, note: Callable[[str], object] | None = None
) -> Encoder:
    """The encoder that a text names.

    Parameters
    ----------
    spec : str
        - ``onnx:model.onnx`` or ``onnx:folder``, with options behind a question mark:
          ``onnx:model.onnx?size=224&mean=0.5,0.5,0.5&std=0.5,0.5,0.5`` (docs/pictures.md has all of them);
        - ``st:NAME`` or ``st:folder``: a model of sentence-transformers;
        - ``open-clip:MODEL/PRETRAINED``;
        - ``module:factory``: Python, which is run.
    side : "images" or "texts", optional
        What it will be used for; of two models only that one is loaded now.
    note : callable, optional
        Gets a line about what was taken because nobody said otherwise.

    Raises
    ------
    InputError
        It names nothing of these, the model is not there or cannot be run, or a package that it needs is not
        installed.
    """
    kind, colon, rest = spec.partition(":")
    if not colon or not rest:
        raise InputError(f"the encoder is {short(spec)}, expected {EXPECTED}")
    encoder: Any
    if kind == "onnx":
        from .onnx_encoder import OnnxEncoder

        path, options = _onnx(rest, spec)
        told = urlencode(options, safe=",/")
        encoder = OnnxEncoder(path, options, f"onnx:{path.resolve()}" + (f"?{told}" if told else ""), side)
    elif kind == "st":
        from .torch_encoders import SentenceTransformerEncoder, folder_or_name

        model = folder_or_name(rest)
        encoder = SentenceTransformerEncoder(model, f"st:{model}")
    elif kind == "open-clip":
        from .torch_encoders import OpenClipEncoder

        encoder = OpenClipEncoder(rest, spec)
    elif re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", spec):
        from .python_encoder import PythonEncoder

        encoder = PythonEncoder(spec, spec)
    else:
        raise InputError(f"the encoder is {short(spec)}, expected {EXPECTED}")
    _ = encoder.dimension  # a model that cannot be run fails here, before anything is read
    for line in getattr(encoder, "guesses", []) if note is not None else []:
        note(line)  # type: ignore[misc]
    found: Encoder = encoder
    return found


def open_remembered(record: EncoderRecord, *, where: str, side: str | None = None) -> Encoder:
    """The encoder that an index names, if it is one that runs nobody's code, and the same still.

    Raises
    ------
    InputError
        It is not there any more, has changed, or has to be given, because to open it may run code.
    """
    if not record.name.startswith(_PLAIN):
        raise InputError(
            f"{where} was made with the encoder {record.name}; give it with --encoder, for to open it "
            "may run code"
        )
    try:
        encoder = open_encoder(record.name, side=side)
    except InputError as error:
        raise InputError(f"{where} was made with {record.name}, which cannot be opened: {error}") from error
    record.check(EncoderRecord.of(encoder), where, record.name)
    return encoder


def _onnx(rest: str, spec: str) -> tuple[Path, dict[str, str]]:
    """The path and options of an ONNX encoder."""
    if path_kind(Path(rest)) is not None:
        return Path(rest), {}
    path, mark, query = rest.rpartition("?")
    if not mark:
        return Path(rest), {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise InputError(f"{short(spec)}: options are name=value with & between") from None
    if len(dict(pairs)) != len(pairs):
        raise InputError(f"{short(spec)}: an option is given twice")
    return Path(path), dict(pairs)
