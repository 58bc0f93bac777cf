"""Hyper-parameters: one frozen object, checked once, saved beside what it made."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from woh_faiss.errors import ConfigError, short

#: What each preset sets. "paper": Zhan et al. 2021, section 4.1, with the constants of the published code.
#: "adaptive": this project's; docs/adaptive.md has the difference in one table, and what each part is worth.
PRESETS: dict[str, dict[str, Any]] = {
    "adaptive": {
        "start": "semantic",
        "alpha": 0.01,
        "beta": 0.0,
        "theta": 1.0,
        "mu": 0.5,
        "iterations": 3,
        "sweeps": 3,
        "refresh_statistics": True,
    },
    "paper": {
        "start": "random",
        "alpha": 300.0,
        "beta": 0.1,
        "theta": 0.1,
        "mu": 10.0,
        "iterations": 7,
        "sweeps": 3,
        "refresh_statistics": False,
    },
}

#: A float's largest; an int may be larger.
_LARGEST = sys.float_info.max

STARTS = ("random", "semantic")

#: Default of a field that the preset decides; `__post_init__` replaces it, so no reader ever meets it.
_PRESET: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WOHConfig:
    """Everything a model is made from, besides its data.

    Attributes
    ----------
    bits : int
        Learned bits r of a code, a multiple of 8 (Faiss stores whole bytes). 0 is for an index that learns
        nothing from tags.
    preset : str
        Where the fields marked * come from unless they are given: a name in `PRESETS`.
    anchors : int
        Size m of the kernel map. A random start takes rows of the first chunk, fewer if it is smaller; a
        semantic start means of such rows, m in any case.
    start : str
        * "random": codes start at random and are measured in the raw units of Eq. 4. "semantic": they
        start from what features and tags agree on, and every block is measured in units of its own energy.
    alpha : float
        * Weight of the ridges on W, U, V, P, > 0 (Eq. 4); with a semantic start on W and V only, as a share
        of a bit's energy.
    beta, theta, mu : float
        * Weights of the feature, word-vector and hash-function blocks (Eq. 4); 0 leaves a block out.
    iterations : int
        * Outer iterations T a round.
    sweeps : int
        * Sweeps g of the discrete coordinate descent an iteration (Eq. 16).
    weighted : bool
        Whether items whose tags fit their codes badly have less weight, as in the ℓ2,1 norm of Eq. 4, or all
        items have equal weights.
    refresh_statistics : bool
        * Whether the statistics and P are computed again from the codes after the last sweep (what the
        algorithm means) or kept from before it (what the published code does).
    min_count : int
        Times a tag must have been seen in the stream so far before it is learned from. The paper uses
        50 on MIRFlickr; 2 leaves out only tags that relate no two items.
    vector_size : int
        Width f of the word vectors learned from tags when no word-vector file is given.
    keep_models : int
        How many of the newest model files stay on disk.
    seed : int
        Decides every random draw; round t draws from ``default_rng((seed, t))``.
    overrides : frozenset of str
        Names of the fields marked * that were given, so that `merged` keeps them under another preset; not a
        parameter. Where all of them are given at once, as `dataclasses.replace` and `from_dict` of a
        `to_dict` give them, those that have the preset's own value do not count.
    """

    bits: int = 64
    preset: str = "adaptive"
    anchors: int = 1000
    start: str = _PRESET
    alpha: float = _PRESET
    beta: float = _PRESET
    theta: float = _PRESET
    mu: float = _PRESET
    iterations: int = _PRESET
    sweeps: int = _PRESET
    refresh_statistics: bool = _PRESET
    weighted: bool = True
    min_count: int = 2
    vector_size: int = 100
    keep_models: int = 2
    seed: int = 0
    overrides: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Fill in the preset's values, then refuse what no model can be made from."""
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            raise ConfigError(f"preset is {short(self.preset)}, expected one of {', '.join(PRESETS)}")
        preset = PRESETS[self.preset]
        given = {name for name in preset if getattr(self, name) is not None}
        for name in preset.keys() - given:
            object.__setattr__(self, name, preset[name])
        self._plain_numbers()
        self._check()
        if given == preset.keys():
            given = {name for name in preset if getattr(self, name) != preset[name]}
        object.__setattr__(self, "overrides", frozenset(given))

    def _plain_numbers(self) -> None:
        """NumPy's numbers, which come with grids of hyper-parameters, as Python's, which JSON can hold."""
        for name in PARAMETERS:
            value = getattr(self, name)
            if isinstance(value, numbers.Real) and not isinstance(value, (int, float)):
                plain = int(value) if isinstance(value, numbers.Integral) else float(value)
                object.__setattr__(self, name, plain)

    def _check(self) -> None:
        for name, least, most in (
            ("bits", 0, 4096), ("anchors", 1, 100_000), ("iterations", 1, 10_000), ("sweeps", 1, 10_000),
            ("min_count", 1, 2**31), ("vector_size", 1, 100_000), ("keep_models", 1, 2**31),
            ("seed", 0, 2**63),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} is {short(value)}, expected a whole number of at least {least}")
            if value > most:  # memory and time grow with their squares
                raise ConfigError(f"{name} is {short(value)}, expected at most {most}")
        if self.bits % 8:
            raise ConfigError(f"bits is {self.bits}, expected a multiple of 8 (Faiss stores whole bytes)")
        for name in ("alpha", "beta", "theta", "mu"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _LARGEST:
                raise ConfigError(f"{name} is {short(value)}, expected a finite number of at least 0")
        if not self.alpha > 0:
            raise ConfigError(f"alpha is {self.alpha}, expected more than 0 (it keeps every system solvable)")
        if not isinstance(self.start, str) or self.start not in STARTS:
            raise ConfigError(f"start is {short(self.start)}, expected one of {', '.join(STARTS)}")
        if self.start == "semantic" and self.beta:
            raise ConfigError(
                f"beta is {self.beta}, expected 0 with a semantic start, which has no feature block"
            )
        for name in ("refresh_statistics", "weighted"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {short(getattr(self, name))}, expected true or false")
        if self.start == "semantic" and not self.refresh_statistics:
            raise ConfigError("refresh_statistics is False, expected true with a semantic start")

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, as JSON can hold it."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def given(self) -> dict[str, Any]:
        """What makes it again if `WOHConfig` is called with it: `to_dict`, None where the preset decides."""
        from_preset = PRESETS[self.preset].keys() - self.overrides
        return {name: None if name in from_preset else getattr(self, name) for name in PARAMETERS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WOHConfig:
        """The inverse of `to_dict`.

        Raises
        ------
        ConfigError
            A name is unknown or a value out of range.
        """
        unknown = sorted(values.keys() - set(PARAMETERS))
        if unknown:
            raise ConfigError(
                f"unknown hyper-parameters {', '.join(unknown)}; known: {', '.join(PARAMETERS)}"
            )
        return cls(**values)


#: What a model is made from, by name.
PARAMETERS = tuple(each.name for each in fields(WOHConfig) if each.init)


def merged(config: WOHConfig | None, hyper: Mapping[str, Any]) -> WOHConfig:
    """The one rule for whatever takes both a config and hyper-parameters by name.

    A keyword wins over the config's value, and that over the preset's. The preset is the keyword's, else the
    config's; of the fields that a preset decides, the config keeps those it was given (its `overrides`) and
    takes the others from that preset. A keyword of None takes the preset's value.

    Parameters
    ----------
    config : WOHConfig, optional
        None for the defaults.
    hyper : mapping of str
        Fields of `WOHConfig` by name.

    Raises
    ------
    ConfigError
        config is something else, a name is unknown, or what results is out of range.

    Examples
    --------
    >>> both = merged(WOHConfig(bits=16, iterations=5), {"preset": "paper", "mu": 1.0})
    >>> both == WOHConfig(bits=16, preset="paper", iterations=5, mu=1.0)
    True
    """
    if config is not None and not isinstance(config, WOHConfig):
        raise ConfigError(
            f"config is {config!r}, expected a WOHConfig; give single hyper-parameters by name, as bits=64"
        )
    return WOHConfig.from_dict({**({} if config is None else config.given()), **hyper})
