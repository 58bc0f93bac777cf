"""Methods that WOH is compared with, each as its paper and its published code have it.

Deviations are named in each module. Not needed by an index.
"""

from __future__ import annotations

from .base import Baseline
from .bosdh import BOSDH
from .cosdish import COSDISH
from .hmoh import HMOH, PublishedHMOH
from .osh import OSH
from .rptwoh import RPTWOH
from .sdh import SDH
from .sh import SH
from .wdh import WDHStyle
from .yardsticks import ITQ, PCASign, RandomProjection

#: Every method by the name that tables have; `METHODS[name].of` is a `make` for `streaming.stream`.
METHODS: dict[str, type[Baseline]] = {
    method.name: method
    for method in (
        RandomProjection,
        PCASign,
        ITQ,
        SH,
        SDH,
        COSDISH,
        WDHStyle,
        OSH,
        BOSDH,
        HMOH,
        PublishedHMOH,
        RPTWOH,
    )
}

__all__ = ["METHODS", "Baseline"]
