"""How much of its full length a long test takes; for processes that import no pytest, too."""

import os

#: The part of their full lengths that long tests take: a quarter, or what WOH_FULL says (1 is all).
LENGTH = float(os.environ.get("WOH_FULL") or 0.25)
