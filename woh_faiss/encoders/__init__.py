"""Pictures and texts as features, by models of other people: ONNX, sentence-transformers, open_clip, Python.

No model is shipped, and none is imported before it is asked for.
"""

from __future__ import annotations

from .encoder import Encoder, EncoderRecord
from .open_encoder import open_encoder

__all__ = ["Encoder", "EncoderRecord", "open_encoder"]
