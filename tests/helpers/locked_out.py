"""A writer that somebody's lock keeps out, run under the shim: SQLite does not sleep between its tries.

argv: an index. Prints the name of the error's class, and its message.
"""

import json
import sys
from pathlib import Path

from faults import COUNT, Shim

from woh_faiss.errors import StoreError
from woh_faiss.store import database

Shim().arm(COUNT, -1)
try:
    with database.locked(Path(sys.argv[1]), 0.2):
        pass
except StoreError as error:
    print(json.dumps([type(error).__name__, str(error)]))
