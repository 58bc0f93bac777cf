"""Names of strangers on terminals, in pipes, in JSON and in messages: as text, whatever they hold."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import unicodedata
from contextlib import closing

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, WORDS, tagged
from hypothesis import given
from hypothesis import strategies as st
from resealed import reseal

from woh_faiss import WOHIndex
from woh_faiss.display import UNSAFE, display_json, display_path, display_text
from woh_faiss.errors import WOHError
from woh_faiss_cli.main import main

#: What a terminal obeys, what turns text around, what ends a line: of each kind one at least.
ATTACKS = [
    "\x1b]0;pwned\x07",
    "\x1b[2J\x1b[1;1Hindex.woh is sound",
    "\x1bPq\x1b\\",
    "\x9b31m red",
    "\x9d0;title\x9c",
    "\nindex.woh is sound",
    "\r\x1b[Kindex.woh is sound",
    "a\tb\x0b\x0c\x85c",
    "line\u2028para\u2029graph",
    "\u202egnp.exe \u2066\u2067\u2068\u2069",
    "\u200e\u200f\u061c\u200b\ufeff",
    "\x7f\x08\x08\x08",
    "[bold red]mark-up[/] :smile: [link=http://x]y[/link]",
    "\U000e0041\U000e007f tags",
]
ALL = "".join(map(chr, range(0x110000)))
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def acts(c):
    """Whether a character does something, said by Unicode's own tables."""
    return (
        unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(c) in BIDI
        or c in "\u200e\u200f\u061c"
    )


def test_every_character_that_acts_is_escaped_and_letters_are_not():
    for c in filter(acts, ALL):
        assert display_text(c) == c.encode("unicode_escape").decode()
        assert display_text(c).isascii()
    for c in ALL:
        if unicodedata.category(c)[0] in "LMNPS" or unicodedata.category(c) == "Zs":
            assert display_text(c) == c
    assert display_text("👩‍👩‍👧 می‌خواهم") == "👩‍👩‍👧 می‌خواهم"


@given(st.text(st.characters()))
def test_any_text_is_one_line_that_does_nothing(text):
    shown = display_text(text)
    assert not any(map(acts, shown))
    assert len(shown.splitlines()) <= 1
    assert display_text(shown) == shown
    assert str(WOHError(text)) == shown


@given(
    st.recursive(st.text(st.characters()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_means_what_it_meant(value):
    for ascii_only in (False, True):
        line = display_json(json.dumps(value, ensure_ascii=ascii_only))
        assert not UNSAFE.search(line)
        assert json.loads(line) == value


@given(st.binary())
def test_a_path_of_any_bytes(path):
    assert not UNSAFE.search(display_path(path))


# ---- in real processes ----------------------------------------------------------------------------------

PLACE = "x\nindex.woh is sound\x1b]0;pwned\x07\u202e\x9b1m.woh"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """An index whose every name is an attack, in a folder called like one."""
    folder = tmp_path_factory.mktemp("hostile")
    n = len(ATTACKS)
    X, _ = tagged(0, n=n)
    tags = [[attack.strip(), WORDS[i % 3]] for i, attack in enumerate(ATTACKS)]
    with WOHIndex.create(folder / PLACE, **SMALL) as index:
        index.update(X, tags, keys=[f"{i}{attack}" for i, attack in enumerate(ATTACKS)])
        index.update(X + 1, tags, keys=[f"again {i}{attack}" for i, attack in enumerate(ATTACKS)])
    with closing(sqlite3.connect(folder / PLACE / "catalog.db")) as connection:
        connection.execute("UPDATE items SET trust = 0.01")  # info names what it doubts
        reseal(connection)
        connection.commit()
    np.savez(folder / "q.npz", features=X[:2], keys=np.array([f"q{ATTACKS[0]}", f"q{ATTACKS[5]}"]))
    (folder / f"no{ATTACKS[1]}.npz").write_bytes(b"nothing")
    return folder


def command(hostile, *args):
    return [sys.executable, "-m", "woh_faiss_cli", *args, "--index", PLACE]


def on_terminal(hostile, *args):
    """Everything that a command writes to a terminal of its own, and how it ends."""
    ours, theirs = os.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(
        command(hostile, *args), cwd=hostile, stdin=theirs, stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        data = b""
        try:
            while block := os.read(ours, 1 << 16):
                data += block
        except OSError:  # Linux says so when the last writer is gone
            pass
    os.close(ours)
    return data.decode(), process.returncode


def harmless(text):
    """Refuse whatever is neither text, an end of a line, nor Rich's own bold and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text.replace("\r\n", "\n"))
    assert not UNSAFE.search(text.replace("\n", "")), UNSAFE.findall(text)
    return text


ASKED = {
    "query": ("query", "q.npz", "-k", "28", "--explain"),
    "query of an item": ("query", "--key", f"5{ATTACKS[5]}", "-k", "28"),
    "info": ("info", "--tags", "40", "--doubted", "28"),
    "verify": ("verify",),
    "an error": ("update", f"no{ATTACKS[1]}.npz"),
    "a usage error": ("query", "--allow", f"none{ATTACKS[0]}", "--id", "1"),
    "a missing key": ("query", "--key", f"none{ATTACKS[9]}"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_on_a_terminal_names_are_text(hostile, asked):
    shown = harmless(on_terminal(hostile, *asked)[0])
    sound = [line for line in shown.splitlines() if line.startswith("index.woh is sound")]
    assert sound == []
    if asked[0] in ("query", "info") and len(asked) > 3 and "--allow" not in asked:
        assert r"\x1b]0;pwned\x07" in shown
        assert "[bold red]mark-up[/] :smile:" in shown


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_in_a_pipe_names_are_text(hostile, monkeypatch, asked):
    monkeypatch.chdir(hostile)
    done = CliRunner().invoke(main, [*asked, "--index", PLACE])
    assert isinstance(done.exception, SystemExit | None), done.exception
    for stream in (done.stdout.replace("\t", ""), done.stderr):
        harmless(stream)
        assert not any(line.startswith("index.woh is sound") for line in stream.splitlines())
    assert "Traceback" not in done.stderr
    if asked[0] == "query" and done.stdout:
        assert {line.count("\t") for line in done.stdout.splitlines()} == {5 + 4 * ("--explain" in asked)}


def test_json_has_every_name_and_no_control(hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    done = CliRunner().invoke(main, ["query", "q.npz", "-k", "28", "--json", "--index", PLACE])
    assert done.exit_code == 0, done.output
    assert not UNSAFE.search(done.stdout.replace("\n", ""))
    keys = {json.loads(line)["key"] for line in done.stdout.splitlines()}
    assert {f"{i}{attack}" for i, attack in enumerate(ATTACKS)} <= keys


def test_verify_tells_a_sound_index_from_one_that_says_so(hostile, tmp_path):
    """The name of a broken index ends a line and says that it is sound."""
    shown, code = on_terminal(hostile, "verify")
    assert code == 0
    assert harmless(shown).count("\n") == 1
    assert shown.startswith(r"x\nindex.woh is sound\x1b]0;pwned\x07\u202e\x9b1m.woh is sound")
    broken = tmp_path / PLACE
    broken.mkdir()
    shown, code = on_terminal(tmp_path, "verify")
    assert code == 1
    assert not any(line.startswith("index.woh is sound") for line in harmless(shown).splitlines())


def test_the_report_of_a_benchmark_shows_names_as_text(tmp_path):
    from woh_faiss.evaluation.benchmark import write

    record = {
        "bytes": 2,
        "distinct": 1,
        "method": "woh",
        "bits": 16,
        "seed": 0,
        "database": 1,
        "chunks": 1,
        "queries": 1,
        "min_count": 1,
    }
    record |= {
        "rounds": [{"map": 0.5, "seconds": 1.0}],
        "first": [10],
        "precision": [0.5],
        "recall": [0.5],
        "hyper": {},
    }
    record["quality"] = {"self1": 0.5, "self10": 0.5, "float_recall10": 0.5}
    page = write([record], tmp_path, title="".join(ATTACKS), command="<script>" + ATTACKS[0]).read_text()
    assert not UNSAFE.search(page.replace("\n", ""))
    assert "<script>" not in page
