"""Databases that codes are pushed to: what is refused, the command line, what each does in its own way."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from conftest import LENGTH, SMALL, tagged
from databases import XQ, check, expected, grown, same_answers
from test_cli import run

from woh_faiss import WOHIndex
from woh_faiss.errors import EngineError, InputError, StoreError
from woh_faiss.integrations import milvus as milvus_module
from woh_faiss.integrations import push as push_module
from woh_faiss.integrations.engine import Address, PushState, hidden
from woh_faiss.integrations.open_engine import open_engine
from woh_faiss.integrations.push import push
from woh_faiss.integrations.remote import Remote
from woh_faiss.store import NewRound

BY = "both", "kind", "instance", "hamming"

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
        with pytest.raises(
            EngineError, match=r"holds codes of 24 \+ 64 bits, the index has 16 \+ 64; choose another"
        ):
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


def test_codes_that_a_later_round_made_anew_are_sent_again(server, table, url, tmp_path):
    """Rounds, times and ids stay what they were; only the codes are others."""
    with grown(tmp_path / "i") as index:
        push(index, url)
        view = index.store.view
        recoded = np.roll(view.mapped.codes, 1, axis=0)
        none = np.empty((0, recoded.shape[1]), np.uint8)
        with index.store.writing() as writing:
            writing.commit(NewRound("encoded", none, recoded=recoded))
        with Remote(index, url) as remote:
            assert "push again" in remote.note()
        push(index, url)
        check(server, table, index)
        index.add(XQ)
        push(index, url)
        check(server, table, index)


def test_an_index_rewritten_meanwhile(server, table, url, tmp_path, monkeypatch):
    with grown(tmp_path / "i") as index, WOHIndex.open(tmp_path / "i") as writer:
        writer.compact()
        with pytest.raises(StoreError, match="were rewritten meanwhile"):
            push(index, url)
        index.refresh()
        put = push_module.CodeSource.check
        monkeypatch.setattr(push_module.CodeSource, "check", lambda source: (writer.rollback(3), put(source)))
        with pytest.raises(StoreError, match="were rewritten meanwhile; push again"):
            push(index, url)
        monkeypatch.undo()
        index.refresh()
        push(index, url)
        check(server, table, index)


def test_a_newer_package_s_table():
    state = PushState("0" * 32, 16, 64, False, False)
    assert PushState.parse(state.text(), "here") == state
    with pytest.raises(EngineError, match="here was pushed to by a newer woh-faiss: upgrade woh-faiss"):
        PushState.parse(state.text().replace('"format": 3', '"format": 4'), "here")
    for text in (None, "", "items of the shop", state.text().replace("identity", "who"), state.text()[:-1]):
        assert PushState.parse(text, "here") is None


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
        asked = ["push", url] if command == "push" else ["query", "--id", 3, "--database", url]
        error = run(*asked, "--index", index.path, code=1).stderr
        assert error.startswith("Error: ")
        assert error.count("\n") == 1
        assert "hunter2" not in error
        assert "ter2" not in error
        with pytest.raises((EngineError, InputError), match=says):
            push(index, url)


@pytest.mark.parametrize(
    "url",
    [
        "milvus://me:hunter2@h",
        "milvus://me:hunter2@h/",
        "milvus://me:hunter2@h/db/a/b",
        "milvus://me:hunter2@/items",
        "milvus+https://h/items?password=hunter2",
        "milvus+file:///items",
    ],
)
def test_a_collection_s_url_that_is_not_one(index, url):
    error = run("push", url, "--index", index.path, code=1).stderr
    assert "is not a whole URL; give milvus" in error
    assert error.count("\n") == 1
    assert "hunter2" not in error


def test_no_milvus_there(index, monkeypatch):
    pytest.importorskip("pymilvus")
    monkeypatch.setenv("MILVUS_TOKEN", "me:hunter2")
    for url in ("milvus://127.0.0.1:1/items", "milvus://me:hunter2@127.0.0.1:1/items"):
        error = run("push", url, "--index", index.path, code=1).stderr
        assert "milvus://127.0.0.1:1/items: Fail connecting to server" in error
        assert "check that it runs, and host, port, user and password" in error
        assert error.count("\n") == 1
        assert "hunter2" not in error


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
        shapes = (
            [],
            ["--json"],
            ["--explain", "--json"],
            ["--by", "hamming"],
            ["--by", "kind", "--json"],
            ["--by", "instance", "--explain"],
            ["--expand", 0],
        )
        for shape in shapes if LENGTH >= 1 or asked[0] == "--key" else shapes[:3]:
            here = run("query", *asked, *shape, *at)
            there = run("query", *asked, *shape, *at, "--database", url)
            assert there.stdout == here.stdout
            assert there.stdout
    run("remove", *range(60, 100, 2), *at)  # the table still has them
    assert run("query", tmp_path / "q.npz", "--explain", *at, "--database", url).stdout
    told = run("query", "--id", 20, *at, "--database", url).stderr
    assert f"note: {server.shown(table)} is at round 5, the index at 6; push again" in told


@pytest.mark.parametrize(
    "more", [["--radius", 3], ["--ann", "ivf"], ["--tags", "sea"], ["--allow", "-"], ["--deny", "-"]]
)
def test_what_an_engine_does_not_answer(more):
    named = [] if "--tags" in more else ["queries.npz"]
    assert "--database finds the K nearest" in run("query", *named, *more, "--database", "x", code=2).stderr


def test_a_table_of_the_former_layout(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        with closing(open_engine(url)) as engine:
            state = replace(engine.state(), format=1)
            engine._comment(state) if hasattr(engine, "_comment") else engine._say(state)
        with pytest.raises(EngineError, match=r"has the layout of an earlier woh-faiss; .*--force"):
            push(index, url)
        with pytest.raises(
            EngineError, match="has the layout of an earlier woh-faiss; push again with --force"
        ):
            Remote(index, url)
        push(index, url, force=True)
        check(server, table, index)


def test_tags_are_sent_if_asked_for(server, table, url, tmp_path):
    with grown(tmp_path / "i") as index:
        push(index, url)
        with pytest.raises(
            EngineError, match="was made without --with-tags; choose another table, or --force"
        ):
            push(index, url, with_tags=True)
        push(index, url, with_tags=True, force=True)
        index.update(*tagged(40, n=3), metadata={"price": [1.5, None, -0.25], 'a"b': ["it's", "é", None]})
        push(index, url)  # what the table has decides
        items = index.items([id_ for id_, *_ in expected(index)])
        assert server.tags(table) == {item.id: item.tags for item in items}
        values = {it.id: {name: v for name, v in it.metadata.items() if v is not None} for it in items}
        assert server.tags(table, "metadata") == values


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
            D, I = remote.search(XQ, 10, by="hamming")
            exact, _ = index.search(XQ, 10, by="hamming")
            S, by_score = remote.search(XQ, 10, expand=0)
            best, _ = index.search(XQ, 10, expand=0)
        assert (exact <= D).all()
        assert (exact == D).mean() > 0.5
        assert (best >= S).all()
        assert (best == S).mean() > 0.5
        assert len(np.unique(I[0])) == len(np.unique(by_score[0])) == 10
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
        with Remote(index, url) as remote:
            for ids in ([3, 17], 3, np.array([], np.int64)):
                for by in BY:
                    same_answers(remote.search_ids(ids, 50, by=by), index.search_ids(ids, 50, by=by))
            assert remote.search(XQ[:0], 5)[0].shape == (0, 5)
        index.rollback(0)
        done = push(index, url)
        assert (done.sent, done.deleted) == (0, 40)
        assert server.rows(table) == []


# ---- each in its own way --------------------------------------------------------------------------


def test_bit_0_is_the_first_character(postgresql, table, index):
    push(index, postgresql.url(table))
    both = f"SELECT (learned || instance)::text FROM {table} WHERE id = 3"  # noqa: S608
    text = postgresql.run.execute(both).fetchone()[0]
    assert [2 * int(bit) - 1 for bit in text] == index.reconstruct(3, signs=True).tolist()


def test_milvus_has_faiss_s_bytes(milvus, table, index):
    push(index, milvus.url(table))
    (row,) = milvus.run.get(table, ids=[3], output_fields=["code"])
    assert row["code"][0] == index.reconstruct(3).tobytes()


def test_no_half_of_a_step_is_seen(postgresql, table, tmp_path, monkeypatch):
    monkeypatch.setattr(push_module, "BATCH", 7)
    with grown(tmp_path / "i") as index:
        push(index, postgresql.url(table))
        before, put, seen = postgresql.rows(table), postgresql.engine.put, []
        index.remove([0])
        index.add(tagged(50)[0])
        index.update(*tagged(51, n=20), ids=np.arange(20, 40), on_duplicate="replace")

        def look(engine, rows, replaced):
            put(engine, rows, replaced)
            seen.append(postgresql.rows(table))

        monkeypatch.setattr(postgresql.engine, "put", look)
        push(index, postgresql.url(table))
        assert len(seen) > 2
        assert all(rows == before for rows in seen)
        check(postgresql, table, index)


def test_a_wrong_password(postgresql, table, index):
    for password in ("wrong%20horse", "wrong%2Fhorse"):
        url = postgresql.url(table).replace("postgres@", f"guarded:{password}@")
        error = run("push", url, "--index", index.path, code=1).stderr
        assert "password authentication failed" in error
        assert "check that it runs, and host, port, user and password" in error
        assert error.count("\n") == 1
        assert "horse" not in error
    push(index, url.replace("wrong%2F", "right%20"))


def test_a_connection_that_breaks(postgresql, table, tmp_path, monkeypatch):
    with grown(tmp_path / "i") as index:
        url, put = postgresql.url(table), postgresql.engine.put

        def broken(engine, rows, replaced):
            put(engine, rows, replaced)
            pid = engine._run.info.backend_pid
            postgresql.run.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            put(engine, rows, replaced)

        monkeypatch.setattr(postgresql.engine, "put", broken)
        with pytest.raises(EngineError, match=r"terminating connection.*; nothing of this step was kept"):
            push(index, url)
        monkeypatch.undo()
        push(index, url)
        check(postgresql, table, index)


def test_tables_of_every_name(postgresql, tmp_path):
    postgresql.run.execute('CREATE SCHEMA "My things"')
    with grown(tmp_path / "i") as index:
        base = postgresql.url("")
        for name in ("My%20things.the%20%22items%22", "My%20things.select"):
            assert push(index, base + name).sent == 118
            assert push(index, base + name).sent == 0
            with Remote(index, base + name) as remote:
                same_answers(remote.search(XQ, 5), index.search(XQ, 5))
        path = base.partition("?")[0] + "/by_path?" + base.partition("?")[2].replace("&table=", "")
        push(index, path)
        check(postgresql, "by_path", index)


def test_a_file_of_milvus_lite(milvus, index, tmp_path):
    """Also from a second process, after the first."""
    (tmp_path / "a b@c").mkdir()
    url = f"milvus+file://{tmp_path}/a%20b@c/codes.db/items"
    args = [sys.executable, "-m", "woh_faiss_cli"]
    at = ["--index", str(index.path)]
    done = subprocess.run([*args, "push", url, *at], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("40 rows sent")
    there = subprocess.run(
        [*args, "query", "--id", "3", "--json", "--database", url, *at],
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout == run("query", "--id", 3, "--json", *at).stdout
    missing = f"milvus+file://{tmp_path}/nowhere/codes.db/items"
    error = run("push", missing, *at, code=1).stderr
    assert "not exist" in error
    assert error.count("\n") == 1


def test_more_ties_than_milvus_tells(milvus, table, tmp_path, monkeypatch):
    monkeypatch.setattr(milvus_module, "_MOST", 30)
    rng = np.random.default_rng(3)
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        index.update(*tagged(0))
        X = np.repeat(tagged(1, n=6)[0], 50, axis=0)
        for some in np.array_split(rng.permutation(X), 5):
            index.add(some)
        index.remove(np.arange(200, 220))
        before = index.rounds()[-1].round
        index.remove(np.arange(60, 180, 2))
        push(index, milvus.url(table))
        index.rollback(before)
        push(index, milvus.url(table))  # what came first in order comes last into the collection
        for k in (1, 7, 25):
            check(milvus, table, index, k=k)
        with Remote(index, milvus.url(table)) as remote:
            for by in BY:
                with pytest.raises(InputError, match="k is 10,001; of Milvus at most 10,000 neighbours"):
                    remote.search(XQ, 10_001, by=by)
            with pytest.raises(InputError, match="k is 0"):
                remote.search(XQ, 0)


def test_two_pushes_into_milvus_that_mix(milvus, table, tmp_path, monkeypatch):
    """Nothing keeps the second out; the table is compared in full afterwards."""
    url, check_index = milvus.url(table), push_module.CodeSource.check
    with grown(tmp_path / "i") as index:
        push(index, url)
        index.add(XQ)

        def other(source):
            monkeypatch.undo()
            milvus.engine._say(engines[0], replace(engines[0]._found(), busy="another"))
            check_index(source)

        engines, begin = [], milvus.engine.begin
        monkeypatch.setattr(milvus.engine, "begin", lambda it, state: (engines.append(it), begin(it, state)))
        monkeypatch.setattr(push_module.CodeSource, "check", other)
        with pytest.raises(EngineError, match=r"another push changed .* at the same time; push again"):
            push(index, url)
        with Remote(index, url) as remote:
            assert "has not ended" in remote.note()
        assert push(index, url).sent == 0  # the rows were there
        check(milvus, table, index)


def test_a_state_s_place_that_is_taken(milvus, table, index):
    milvus.run.create_collection(f"{table}_woh", dimension=4)
    for force in (False, True):
        with pytest.raises(EngineError, match=f"needs the collection {table}_woh, which somebody else made"):
            push(index, milvus.url(table), force=force)
    assert milvus.run.has_collection(f"{table}_woh")


def test_a_collection_that_was_being_made(milvus, table, tmp_path, monkeypatch):
    with grown(tmp_path / "i") as index:
        for name in ("create_index", "load_collection"):
            with monkeypatch.context() as patch:
                calls = []

                def dies(*args, calls=calls, **more):
                    calls.append(args)
                    if len(calls) == 2:  # that of the codes, not of the state
                        raise OSError("the line is dead")

                patch.setattr(f"pymilvus.MilvusClient.{name}", dies)
                with pytest.raises(EngineError, match="the line is dead; push again"):
                    push(index, milvus.url(table))
            with pytest.raises(EngineError, match="is not there yet"):
                Remote(index, milvus.url(table))
        push(index, milvus.url(table))
        check(milvus, table, index)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/dbname=x%20password=hunter2/t",
        "postgresql://h/dbname%3Dx%20password%3Dhunter2?table=t",
        "postgresql://h/dbname%253Dx%20password%253Dhunter2?table=t",
        "postgresql://u:hunter2%40h/x",
        "postgresql://u:hunter2%40h/db/x/y=",
        "postgresql://h/db?table=t&passwrd=hunter2",
        "postgresql://h/db?password=hunter2",
        "milvus://u:hunter2%40h/c/d/e",
        "milvus://u:hunter2%2540h",
        "milvus://h/c?token=hunter2",
        "milvus://u:hunter2@",
    ],
)
def test_no_message_has_a_secret_in_an_odd_place(url):
    if url.startswith("postgresql:"):
        pytest.importorskip("psycopg")
    assert "hunter2" not in repr(Address.parse(url))
    with pytest.raises(InputError, match="is not a whole URL") as told:
        open_engine(url)
    assert "hunter2" not in str(told.value)


def test_secrets_are_hidden_however_they_are_written():
    assert hidden("no p@ss, no p%40ss", ["p@ss"]) == "no ***, no ***"


@pytest.mark.parametrize("table", ["pg_temp.t", "pg_temp_3.t", "db.pg_catalog.t", "pg_toast.t"])
def test_a_table_of_postgresqls_own_is_refused(table):
    with pytest.raises(InputError, match=r"table is 'p?.*whose schema is PostgreSQL's own or ends with"):
        open_engine(f"postgresql://nowhere.invalid/db?table={table}")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"at": ' + "[" * 100_000, '{"at": [[]]}', "3"])
def test_a_comment_nested_too_deep_is_not_ours(text):
    assert PushState.parse("woh-faiss push " + text, "x") is None
