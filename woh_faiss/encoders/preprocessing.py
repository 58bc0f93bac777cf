"""A picture as the numbers that a model was trained on: size, crop, scale, mean and deviation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woh_faiss.display import display_path
from woh_faiss.errors import InputError, short

if TYPE_CHECKING:
    from PIL.Image import Image

#: Of a file that says how pictures are prepared.
CONFIG = "preprocessor_config.json"
#: Means and deviations of ImageNet's pixels from 0 to 1, red, green and blue: usual where nothing else is
#: said.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Pixels of a side where neither the model nor anybody says it.
SIDE = 224
#: Most pixels of a side.
MOST = 4096
#: Filters by name; the numbers are Pillow's, which preprocessor_config.json has.
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
#: What such a file may ask for that is not done here.
_OTHERS = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order", "do_reduce_labels")


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a picture becomes (3, height, width) numbers.

    Attributes
    ----------
    height, width : int
        Pixels that the model takes.
    resize : int or None
        The shorter side before the middle is cut out; None squashes the picture to height and width.
    resample : str
        One of `FILTERS`.
    scale : float
        What a pixel, 0 to 255, is multiplied by.
    mean, std : 3 floats
        Taken away then, and divided by.
    """

    height: int = SIDE
    width: int = SIDE
    resize: int | None = SIDE
    resample: str = "bicubic"
    scale: float = 1 / 255
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        for name in ("height", "width", "resize"):
            value = getattr(self, name)
            if not (name == "resize" and value is None) and not 0 < value <= MOST:
                raise InputError(f"{name} is {value}, expected 1 to {MOST} pixels")
        if self.resize is not None and self.resize < max(self.height, self.width):
            raise InputError(
                f"resize is {self.resize}, expected at least the {max(self.height, self.width)} pixels "
                "that are cut out"
            )
        for name in ("mean", "std"):
            value = getattr(self, name)
            if len(value) != 3 or not np.isfinite(value).all() or (name == "std" and min(value) <= 0):
                raise InputError(f"{name} is {short(value)}, expected three numbers: red, green, blue")
        if not np.isfinite(self.scale) or self.scale <= 0:
            raise InputError(f"scale is {self.scale}, expected a number above 0, such as {1 / 255:.5f}")

    def array(self, image: Image) -> NDArray[np.float32]:
        """An RGB image as (3, height, width) float32."""
        box = None
        if self.resize is None:
            size = self.width, self.height
        else:
            short_side = min(image.size)
            width, height = (
                self.resize if side == short_side else int(self.resize * side / short_side)
                for side in image.size
            )
            left, top = (width - self.width) // 2, (height - self.height) // 2
            size, box = (width, height), (left, top, left + self.width, top + self.height)
        image = image.resize(size, FILTERS[self.resample])
        pixels = np.asarray(image if box is None else image.crop(box), np.float32)
        scaled = (pixels * np.float32(self.scale) - np.array(self.mean, np.float32)) / np.array(
            self.std, np.float32
        )
        return np.ascontiguousarray(scaled.transpose(2, 0, 1), np.float32)

    def told(self) -> str:
        """All of it as text, the same for the same preprocessing."""
        return json.dumps(asdict(self), sort_keys=True)


def from_config(path: Path) -> Preprocessing:
    """What a preprocessor_config.json of Hugging Face's says.

    Raises
    ------
    InputError
        It is damaged, or asks for what is not done here.
    """
    where = display_path(path)
    try:
        if path.stat().st_size > 1 << 20:
            raise ValueError
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON that says how pictures are prepared; save it again") from error
    if others := [name for name in _OTHERS if found.get(name)]:
        raise InputError(
            f"{where} asks for {others[0]}, which is not done here; give an encoder of your own "
            "(module:factory)"
        )
    try:
        return _from_config(found)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except (TypeError, ValueError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise InputError(f"{where} is not as transformers write it: {short(str(error))}") from error


def _from_config(found: Mapping[str, Any]) -> Preprocessing:
    size, crop = _size(found.get("size", SIDE)), _size(found.get("crop_size", found.get("size", SIDE)))
    cropped = bool(found.get("do_center_crop", "crop_size" in found))
    resized = bool(found.get("do_resize", True))
    resize: int | None = size if isinstance(size, int) else None
    if "crop_pct" in found and isinstance(size, int) and not cropped:  # as ConvNeXt means it
        crop, resize = size, int(size / float(found["crop_pct"])) if size < 384 else None
    elif cropped and not isinstance(size, int):
        raise InputError("a picture is squashed and then cut; give an encoder of your own (module:factory)")
    elif not cropped:
        crop = size
        # One number without a crop is the shorter side for some models, both for others: tell by its form.
        resize = None if not isinstance(found.get("size"), dict) or isinstance(size, tuple) else size
        if resize is not None:
            raise InputError("pictures keep their shape, and a batch needs one; say do_center_crop in it")
    if not resized:
        raise InputError("pictures are not resized, and a batch needs one shape; say do_resize in it")
    height, width = crop if isinstance(crop, tuple) else (crop, crop)
    number = int(found.get("resample", FILTERS["bilinear"]))
    named = {value: name for name, value in FILTERS.items()}
    if number not in named:
        raise InputError(f"resample is {number}, expected one of {sorted(named)}")
    rescaled, normalised = found.get("do_rescale", True), found.get("do_normalize", True)
    return Preprocessing(
        height,
        width,
        resize,
        named[number],
        float(found.get("rescale_factor", 1 / 255)) if rescaled else 1.0,
        tuple(map(float, found.get("image_mean") or MEAN)) if normalised else (0.0, 0.0, 0.0),
        tuple(map(float, found.get("image_std") or STD)) if normalised else (1.0, 1.0, 1.0),
    )


def _size(value: Any) -> int | tuple[int, int]:
    """One number, or height and width; an object names them, or the shorter side."""
    if isinstance(value, dict):
        if "shortest_edge" in value:
            return int(value["shortest_edge"])
        return int(value["height"]), int(value["width"])
    return int(value)


def from_options(options: Mapping[str, str], height: int, width: int) -> Preprocessing:
    """What options of an encoder's name say: size, resize, fit, resample, scale, mean, std.

    Raises
    ------
    InputError
        A value is not what the option takes.
    """
    given: dict[str, Any] = {"height": height, "width": width}
    if "size" in options:
        given["height"] = given["width"] = int(_numbers(options, "size", 1)[0])
    if (fit := options.get("fit", "crop")) not in ("crop", "squash"):
        raise InputError(f"fit is {short(fit)}, expected crop or squash")
    given["resize"] = max(given["height"], given["width"])
    if fit == "squash":
        given["resize"] = None
    elif "resize" in options:
        given["resize"] = int(_numbers(options, "resize", 1)[0])
    if "resample" in options:
        given["resample"] = options["resample"]
        if options["resample"] not in FILTERS:
            raise InputError(
                f"resample is {short(options['resample'])}, expected one of {', '.join(FILTERS)}"
            )
    if "scale" in options:
        given["scale"] = _numbers(options, "scale", 1)[0]
    for name in ("mean", "std"):
        if name in options:
            given[name] = _numbers(options, name, 3)
    return Preprocessing(**given)


#: Options that `from_options` takes.
OPTIONS = ("size", "resize", "fit", "resample", "scale", "mean", "std")


def _numbers(options: Mapping[str, str], name: str, n: int) -> tuple[float, ...]:
    try:
        found = tuple(map(float, options[name].split(",")))
    except ValueError:
        found = ()
    found = found * n if len(found) == 1 else found
    if len(found) != n or not np.isfinite(found).all():
        expected = "a number" if n == 1 else f"{n} numbers with commas between, or one"
        raise InputError(f"{name} is {short(options[name])}, expected {expected}")
    return found
