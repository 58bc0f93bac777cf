"""Every method on one data set: measured cell by cell, saved, drawn, and reported on one page."""

from __future__ import annotations

from . import paper, published_numbers
from .cells import NAMES, Cell, Setting, cells
from .measuring import check_cells, measure
from .records import Records
from .report import write

__all__ = [
    "NAMES",
    "Cell",
    "Records",
    "Setting",
    "cells",
    "check_cells",
    "measure",
    "paper",
    "published_numbers",
    "write",
]
