"""A catalogue whose checksums fit what is in it: whoever wrote the values wrote those, too."""

import zlib

from woh_faiss.store import cell_types, table_checksums
from woh_faiss.store.table_checksums import crc


def reseal(connection):
    """Renew the checksums of rows and of tables, of an open connection; the caller commits."""
    for table, key in (("items", "id"), ("removed", "row")):
        rows = connection.execute(
            f"SELECT {table}.{key}, id, key, tags, round, trust, metadata.* "  # noqa: S608
            f"FROM {table} LEFT JOIN metadata ON metadata.row = {table}.row"
        ).fetchall()
        connection.executemany(
            f"UPDATE {table} SET crc = ? WHERE {key} = ?",  # noqa: S608
            [(crc((*row[1:6], *row[7:])), row[0]) for row in rows],
        )
    columns = [name for name in cell_types.ROUND_ROW if name != "crc"]
    rows = connection.execute(f"SELECT {', '.join(columns)} FROM rounds").fetchall()  # noqa: S608
    connection.executemany("UPDATE rounds SET crc = ? WHERE round = ?", [(crc(row), row[0]) for row in rows])
    rows = connection.execute("SELECT block, count, bits FROM dead").fetchall()
    made = [(zlib.crc32(bits, zlib.crc32(b"%d;%d;" % (block, count))), block) for block, count, bits in rows]
    connection.executemany("UPDATE dead SET crc = ? WHERE block = ?", made)
    found = table_checksums.TableChecksums(connection)
    found.renew(*table_checksums.SELECTS)
    found.store()
