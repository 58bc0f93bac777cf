"""Pushing into real databases: equal to the index after every change, and so are the answers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, tagged
from databases import SERVERS
from numpy.testing import assert_array_equal
from test_cli import run

from woh_faiss import WOHIndex, codes
from woh_faiss.errors import EngineError, InputError, StoreError
from woh_faiss.integrations import pushing
from woh_faiss.integrations.engines import Address, State
from woh_faiss.integrations.pushing import push
from woh_faiss.integrations.remote import Remote

#: Codes of the long life, and kills: `WOH_PUSH_ROWS=100000 WOH_PUSH_KILLS=20` for the whole of it.
ROWS = int(os.environ.get("WOH_PUSH_ROWS", 10_000))
KILLS = int(os.environ.get("WOH_PUSH_KILLS", 4))
XQ = tagged(99, n=12)[0]


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    started = SERVERS[request.param]()
    yield started
    started.stop()


@pytest.fixture
def table(request):
    """A name that no other test has."""
    return "t_" + "".join(c if c.isalnum() else "_" for c in request.node.name.lower())[:50]


@pytest.fixture
def url(server, table):
    return server.url(table)


def expected(index):
    """(id, packed code, key, round) of every item, in the order of rows."""
    store = index.store
    _, removed = store.history()
    ids = np.delete(np.asarray(store.view.ids), [row for row, _ in removed]).tolist()
    items = index.items(ids)
    packed = codes.unpad(store.codes(ids), index.config.bits)
    return [(it.id, code.tobytes(), it.key, it.round) for it, code in zip(items, packed, strict=True)]


def check(server, table, index, xq=XQ, k=25):
    """The table is the index, and answers as it does."""
    assert server.rows(table) == expected(index)
    with Remote(index, server.url(table)) as remote:
        assert remote.note() is None
        for found, wanted in zip(remote.search(xq, k), index.search(xq, k), strict=True):
            assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype


def grown(path, **config):
    """An index with a past: updates, replaced and removed items."""
    index = WOHIndex.create(path, **SMALL, keep_models=50, **config)
    for seed in range(3):
        index.update(*tagged(seed), keys=[f"{seed}/{i}" for i in range(40)])
    index.remove([3, 44])
    index.update(*tagged(5), ids=np.arange(60, 100), on_duplicate="replace")
    return index


# ---- what is sent ---------------------------------------------------------------------------------


def test_only_what_changed_is_sent(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        assert push(index, url).sent == 118
        check(server, table, index)
        assert (push(index, url).sent, push(index, url).deleted) == (0, 0)
        index.remove([0, 1])
        index.add(XQ)
        index.update(*tagged(6, n=5), ids=np.arange(10, 15), on_duplicate="replace")
        done = push(index, url)
        assert (done.sent, done.deleted, done.round) == (17, 2, index.rounds()[-1].round)
        check(server, table, index)
        index.compact()
        done = push(index, url)
        assert (done.sent, done.deleted) == (0, 0)
        check(server, table, index)


def test_a_rollback_takes_out_and_brings_back(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        index.rollback(3)  # before the removal and the replacement
        done = push(index, url)
        assert (done.sent, done.deleted) == (42, 0)
        check(server, table, index)
        index.update(*tagged(8), ids=np.arange(500, 540))
        push(index, url)
        index.rollback(3)
        index.update(*tagged(9), ids=np.arange(500, 540))  # the same round number, the same ids
        done = push(index, url)
        assert (done.sent, done.deleted) == (40, 0)
        check(server, table, index)


def test_a_copy_that_went_its_own_way(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        shutil.copytree(tmp_path / "i", tmp_path / "copy")
        index.update(*tagged(10))
        push(index, url)
    with WOHIndex.open(tmp_path / "copy") as copy:
        copy.update(*tagged(11, n=7))
        push(copy, url)
        check(server, table, copy)


@pytest.mark.parametrize("seed", range(3))
def test_any_life(server, table, url, tmp_path, seed, monkeypatch):
    """Random changes, some of them pushed; few codes, so that nearly everything is a tie."""
    monkeypatch.setattr(pushing, "STEP", 30)
    monkeypatch.setattr(pushing, "BATCH", 13)
    rng = np.random.default_rng(seed)
    with grown(tmp_path / "i") as index:
        for step in range(14):
            ids = [id_ for id_, *_ in expected(index)]
            action = rng.choice(["update", "replace", "remove", "compact", "rollback", "add"])
            if action == "update":
                index.update(*tagged(100 + step, n=20))
            elif action == "add":
                index.add(XQ, keys=[f"add {step}/{i}" for i in range(len(XQ))])
            elif action == "replace":
                some = rng.choice(ids, 8, replace=False)
                index.update(*tagged(200 + step, n=8), ids=some, on_duplicate="replace")
            elif action == "remove":
                index.remove(rng.choice(ids, 9, replace=False))
            elif action == "compact":
                index.compact()
            else:
                earlier = [it.round for it in index.rounds()][-4:-1]
                try:
                    index.rollback(int(rng.choice(earlier)))
                except InputError:  # compact has erased what that round needs
                    continue
            if rng.random() < 0.6:
                push(index, url)
                check(server, table, index, xq=XQ[:3])
        push(index, url)
        check(server, table, index)


def test_steps_are_whole_rounds_and_hide_nothing(server, table, url, tmp_path, monkeypatch):
    """What a reader finds between steps: rounds up to one, and no item gone that is there in the end."""
    monkeypatch.setattr(pushing, "STEP", 1)
    with grown(tmp_path / "i") as index:
        push(index, url)
        index.remove([5])
        for seed in range(12, 15):
            index.update(*tagged(seed, n=9), ids=np.arange(30, 39), on_duplicate="replace")
            index.update(*tagged(seed + 20, n=4))
        before, seen = {id_ for id_, *_ in server.rows(table)}, []
        done = pushing.Source.check

        def look(source):
            seen.append(server.rows(table))
            done(source)

        monkeypatch.setattr(pushing.Source, "check", look)
        push(index, url)
        after = {id_: at for id_, _, _, at in expected(index)}
        assert len(seen) > 4
        for rows in seen:
            assert {id_ for id_, *_ in rows} >= before & set(after)
        check(server, table, index)


def test_a_long_life(server, table, url, tmp_path, capsys):
    """ROWS codes: pushed, updated, removed, replaced, compacted, rolled back."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS // 10, 7)).astype(np.float32)
    with WOHIndex.create(tmp_path / "i", **{**SMALL, "bits": 32}, keep_models=9) as index:
        index.update(*tagged(0))
        for _ in range(10):
            index.add(X := X + rng.normal(size=X.shape).astype(np.float32))
        push(index, url)
        check(server, table, index)
        index.update(*tagged(1))
        index.remove(np.arange(0, ROWS, 7))
        index.add(X, ids=np.arange(1, 7 * len(X), 7), on_duplicate="replace")
        push(index, url)
        check(server, table, index)
        before = index.rounds()[-1].round
        index.compact()
        index.remove(np.arange(1, ROWS, 70))
        push(index, url)
        check(server, table, index)
        index.add(X)
        push(index, url)
        index.rollback(before)
        push(index, url)
        check(server, table, index)


# ---- deaths ---------------------------------------------------------------------------------------


def test_killed_anywhere_and_pushed_again(server, table, tmp_path):
    """SIGKILL at a random moment of a push; the next push ends as if it had not been."""
    rng = np.random.default_rng(1)
    worker = [sys.executable, Path(__file__).with_name("push_worker.py"), "60", "25", *server.modules]
    first, second = tmp_path / "first", tmp_path / "second"
    with grown(first) as index:
        index.update(*tagged(30, n=300))
    shutil.copytree(first, second)
    with WOHIndex.open(second) as index:
        index.remove(np.arange(150, 190))
        index.update(*tagged(31, n=200), ids=np.arange(200, 400), on_duplicate="replace")
        index.compact()
        index.update(*tagged(32, n=150))
    with subprocess.Popen(
        list(map(str, worker)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:

        def job(path, name, after):
            child.stdin.write(
                json.dumps({"index": str(path), "url": server.url(name), "after": after}) + "\n"
            )
            child.stdin.flush()
            done = json.loads(child.stdout.readline())
            assert not done["failed"]
            return done

        try:
            whole = {path: job(path, f"{table}_w", None)["seconds"] for path in (first, second)}
            killed = 0
            for trial in range(KILLS):
                name = f"{table}_{trial}"
                for path in (first, second):
                    killed += job(path, name, rng.uniform(0, whole[path]))["killed"]
                    if path == second or trial % 2:  # the other half goes on from a half-done first push
                        job(path, name, None)
                        with WOHIndex.open(path) as index:
                            check(server, name, index, xq=XQ[:2])
        finally:
            child.stdin.close()
    print(f"\n{killed} of {2 * KILLS} pushes were killed before their end; whole ones took {whole}")
    assert killed >= KILLS / 2


# ---- what is refused ------------------------------------------------------------------------------


def test_another_index_s_table(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index, WOHIndex.create(tmp_path / "o", **SMALL) as other:
        other.update(*tagged(2))
        push(other, url)
        for act in (lambda: push(index, url), lambda: Remote(index, url)):
            with pytest.raises(EngineError, match=f"{table} holds the codes of another index"):
                act()
        check(server, table, other)
        push(index, url, force=True)
        check(server, table, index)


def test_somebody_s_table(server, table, url, tmp_path):
    server.make_foreign(table)
    with grown(tmp_path / "i") as index:
        for act in (lambda: push(index, url), lambda: Remote(index, url)):
            with pytest.raises(EngineError, match=f"{table} was not made by woh-index push"):
                act()
        push(index, url, force=True)
        check(server, table, index)


def test_codes_of_another_length(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index, WOHIndex.create(tmp_path / "o", **{**SMALL, "bits": 24}) as other:
        push(other, url)
        with pytest.raises(EngineError, match="holds codes of 24 bits, the index has 16; choose another"):
            push(index, url)
        push(index, url, force=True)
        check(server, table, index)


def test_nothing_there_to_ask(server, url, index):
    with pytest.raises(EngineError, match="is not there yet; make it with woh-index push"):
        Remote(index, url)


def test_two_pushes_at_once(server, table, url, tmp_path, monkeypatch):
    """The one that comes late changes nothing."""
    with grown(tmp_path / "i") as index, WOHIndex.open(tmp_path / "i") as other:
        push(index, url)
        index.remove([10, 11])
        begin = server.engine.begin

        def late(engine, state):
            monkeypatch.undo()
            other.add(XQ)
            push(other, url)
            begin(engine, state)

        monkeypatch.setattr(server.engine, "begin", late)
        with pytest.raises(EngineError, match=r"another push changed .* meanwhile; push again"):
            push(index, url)
        check(server, table, other)


def test_an_index_rewritten_meanwhile(server, table, url, tmp_path, monkeypatch):
    with grown(tmp_path / "i") as index, WOHIndex.open(tmp_path / "i") as writer:
        writer.compact()
        with pytest.raises(StoreError, match="was compacted or rolled back meanwhile"):
            push(index, url)
        index.refresh()
        put = pushing.Source.check
        monkeypatch.setattr(pushing.Source, "check", lambda source: (writer.rollback(3), put(source)))
        with pytest.raises(StoreError, match="was compacted or rolled back meanwhile; push again"):
            push(index, url)
        monkeypatch.undo()
        index.refresh()
        push(index, url)
        check(server, table, index)


def test_a_newer_package_s_table():
    state = State("0" * 32, 16, False, False)
    assert State.parse(state.text(), "here") == state
    with pytest.raises(EngineError, match="here was pushed to by a newer woh-faiss: upgrade woh-faiss"):
        State.parse(state.text().replace('"format": 1', '"format": 2'), "here")
    for text in (None, "", "items of the shop", state.text().replace("identity", "who"), state.text()[:-1]):
        assert State.parse(text, "here") is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("items", "the URL names no database that is known; give postgresql://"),
        ("mysql://me:hunter2@h/db", "mysql://… names no database that is known"),
        ("me:hunter2@h/db", "the URL names no database"),
        ("postgresql://me:hunter2@h/db", "postgresql://h/db is not a whole URL; give postgresql://"),
        ("postgresql://me:hunter2@h?table=t", "is not a whole URL"),
        ("postgresql://me:hunter2@h/db/t?table=u", "is not a whole URL"),
        ("postgresql://me:hunter2@h/db?table=t&bogus=1", "is not a whole URL"),
        ("postgresql://me:hunter2@h:x/db/t", "invalid|port"),
        ("postgresql://me:hun?ter2@h/db", "is not a whole URL"),
        ("postgresql://me:hunter2@127.0.0.1:1/db?table=t", "postgresql://127.0.0.1:1/db.table=t: .*refused"),
        ("postgresql://127.0.0.1:1/db?password=hunter2&table=t", "refused.*; check that it runs, and host"),
    ],
)
def test_a_url_that_is_not_one(index, url, says):
    pytest.importorskip("psycopg")
    for command in ("push", "query"):
        asked = ["push", url] if command == "push" else ["query", "--id", 3, "--engine", url]
        error = run(*asked, "--index", index.path, code=1).stderr
        assert error.startswith("Error: ")
        assert error.count("\n") == 1
        assert "hunter2" not in error
        assert "ter2" not in error
        with pytest.raises((EngineError, InputError), match=says):
            push(index, url)


def test_a_part_of_a_url():
    assert Address.parse("postgres://u:p@h:1/d/t?a=b&c").options == (("a", "b"), ("c", ""))
    assert Address.parse("postgresql://u:a/b@h:1/d/t").shown == "postgresql://h:1/d/t"
    assert Address.parse("postgresql://u:a?b@h:1/d/t").shown == "postgresql://…"


@pytest.mark.parametrize(("scheme", "library"), [("postgresql", "psycopg"), ("milvus", "pymilvus")])
def test_a_library_that_is_not_installed(index, monkeypatch, scheme, library):
    monkeypatch.setitem(sys.modules, library, None)
    error = run("push", f"{scheme}://h/db/t", "--index", index.path, code=1).stderr
    extra = {"psycopg": "postgres", "pymilvus": "milvus"}[library]
    assert f"{scheme}:// needs {library}" in error
    assert f"pip install 'woh-faiss[{extra}]'" in error
    assert error.count("\n") == 1


# ---- the command line -----------------------------------------------------------------------------


def test_the_command_line(server, table, url, tmp_path):
    np.savez(tmp_path / "q.npz", features=tagged(7, n=70)[0])
    with grown(tmp_path / "i") as index:
        key = index.items([20])[0].key
    at = ["--index", tmp_path / "i"]
    assert f"118 rows sent, 0 deleted; {server.shown(table)} is at round 5" in run("push", url, *at).stderr
    assert "0 rows sent" in run("push", url, *at).stderr
    for asked in (
        [tmp_path / "q.npz", "-k", 7],
        ["--id", 20],
        ["--key", key, "-k", 300],
        [tmp_path / "q.npz"],
    ):
        for shape in ([], ["--json"], ["--explain", "--json"]):
            flat = run("query", *asked, *shape, *at)
            there = run("query", *asked, *shape, *at, "--engine", url)
            assert there.stdout == flat.stdout
            assert there.stdout
    run("remove", 1, *at)
    told = run("query", "--id", 20, *at, "--engine", url).stderr
    assert f"note: {server.shown(table)} is at round 5, the index at 6; push again" in told


@pytest.mark.parametrize(
    "more", [["--radius", 3], ["--rerank", 20], ["--tags", "sea"], ["--allow", "-"], ["--deny", "-"]]
)
def test_what_an_engine_does_not_answer(more):
    named = [] if "--tags" in more else ["queries.npz"]
    assert "--engine finds the K nearest" in run("query", *named, *more, "--engine", "x", code=2).stderr


def test_tags_are_sent_if_asked_for(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        with pytest.raises(
            EngineError, match="was made without --with-tags; choose another table, or --force"
        ):
            push(index, url, with_tags=True)
        push(index, url, with_tags=True, force=True)
        index.update(*tagged(40, n=3))
        push(index, url)  # what the table has decides
        items = index.items([id_ for id_, *_ in expected(index)])
        assert server.tags(table) == {item.id: item.tags for item in items}


def test_approximate_search(server, table, url, tmp_path):
    rng = np.random.default_rng(0)
    with grown(tmp_path / "i") as index:
        index.add(rng.normal(size=(2000, 7)))
        if not server.has_approximate:  # Milvus Lite
            with pytest.raises(EngineError, match="only support BIN_FLAT; push again"):
                push(index, url, approximate=True)
            with pytest.raises(EngineError, match="is not there yet"):
                Remote(index, url)
            push(index, url)
            check(server, table, index)
            return
        push(index, url, approximate=True)
        assert server.rows(table) == expected(index)
        with Remote(index, url) as remote:
            D, I = remote.search(XQ, 10)
            exact, _ = index.search(XQ, 10)
        assert (exact <= D).all()
        assert (exact == D).mean() > 0.5
        assert len(np.unique(I[0])) == 10
        assert server.approximate_index(table)
        push(index, server.url(table + "_x"))
        with pytest.raises(EngineError, match="was made without --approximate"):
            push(index, server.url(table + "_x"), approximate=True)


def test_an_index_without_items(server, table, url, tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        assert push(index, url).sent == 0
        assert server.rows(table) == []
        index.update(*tagged(0))
        assert push(index, url).sent == 40
        check(server, table, index, k=60)  # more than there are
        index.rollback(0)
        done = push(index, url)
        assert (done.sent, done.deleted) == (0, 40)
        assert server.rows(table) == []
