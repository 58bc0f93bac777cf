"""The core of the LangChain and Haystack stores: documents, codes, the waiting room, and deaths between."""

import itertools
import json
import os
import shutil
import signal
import sqlite3
import threading

import crash_injection
import numpy as np
import pytest
from conftest import LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import hot_journal
from toy_embeddings import D, embed, texts

from woh_faiss import WOHIndex
from woh_faiss.errors import ConfigError, InputError, LockedError, StoreError
from woh_faiss.integrations import documents as module
from woh_faiss.integrations.documents import Documents, Entry, tag_lists_of
from woh_faiss.store import files

SMALL = {"bits": 32, "anchors": 30, "vector_size": 5}


def entries(n, seed=0, *, tagged=True, start=0):
    return [
        Entry(
            f"{seed}/{start + i}",
            text,
            {"topic": topic},
            [topic, "all"] if tagged else [],
            embedding=embed(text),
        )
        for i, (text, topic) in enumerate(texts(n, seed))
    ]


def opened(path, **more):
    return Documents(path, **{"learn_from": 60, **SMALL, **more})


def ids(found):
    return [entry.id for entry, _ in found]


def by_cosine(given, query, k):
    """Oracle: ids by cosine, by other means than the store's."""
    x = np.array(query) / np.linalg.norm(query)
    rows = [
        (-float(np.dot(x, np.array(e.embedding) / np.linalg.norm(e.embedding))), i)
        for i, e in enumerate(given)
    ]
    return [given[i].id for _, i in sorted(rows)[:k]]


def by_codes(store, query, k, allowed=None):
    """Oracle: ids and scores from every stored code, bit by bit."""
    index = store.index
    h, a = (half[0] for half in index.hasher.halves(np.array([query])))
    live = [entry for entry in store.matching() if index._store.view.find([entry.number])]
    rows = []
    for entry in live:
        if allowed is None or entry.id in allowed:
            signs = index.reconstruct(entry.number, signs=True).astype(float)
            score = h @ signs[: len(h)] + max(0, a @ signs[len(h) :]) ** 8
            rows.append((-float(score) / 2, entry.number, entry.id))
    rows.sort()
    return [id_ for *_, id_ in rows[:k]], [-score for score, *_ in rows[:k]]


@pytest.fixture
def learned(tmp_path):
    """A store of 90 documents that has learned from 60 of them."""
    with opened(tmp_path / "store") as store:
        store.write(entries(60))
        store.write(entries(30, 1, tagged=False))
        yield store


def test_the_waiting_room_is_exact(tmp_path):
    given = entries(40)
    with opened(tmp_path / "store") as store:
        assert store.write(given) == 40
        assert not store.index.is_trained
        query = embed("wave salt n0.3")
        found = store.search(query, 7)
        assert ids(found) == by_cosine(given, query, 7)
        assert found[0][1] == pytest.approx(np.corrcoef([query, found[0][0].embedding])[0, 1], abs=0.2)
        assert all(-1 <= score <= 1 for _, score in found)


def test_enough_tagged_documents_are_learned_and_their_embeddings_go(tmp_path):
    with opened(tmp_path / "store") as store:
        store.write(entries(59))
        store.write(entries(20, 1, tagged=False))
        assert not store.index.is_trained
        store.write(entries(1, 2))
        assert store.index.is_trained
        assert store.index.ntotal == len(store) == 80
        assert all(entry.embedding is None for entry in store.matching())
        (done,) = store.index.rounds()
        assert (done.kind, done.n, done.trained) == ("trained", 80, 60)
        store.write(entries(5, 3, tagged=False))
        store.write(entries(5, 4))
        assert [done.kind for done in store.index.rounds()] == ["trained", "encoded", "trained"]
        keys = [item.key for item in store.index.items([entry.number for entry in store.matching()])]
        assert keys == [entry.id for entry in store.matching()]


def test_codes_answer_as_the_definition_says(learned):
    for text in ("wave boat", "snow goat peak", "tram neon"):
        found = learned.search(embed(text), 8)
        expected, scores = by_codes(learned, embed(text), 8)
        assert [score for _, score in found] == pytest.approx(scores, abs=1e-6)
        assert set(ids(found)) == set(expected) or scores[-1] == pytest.approx(scores[-2])
    topics = [entry.metadata["topic"] for entry, _ in learned.search(embed("wave boat gull"), 10)]
    assert topics.count("sea") >= 8


def test_only_what_is_kept_is_an_answer(learned, tmp_path):
    found = learned.search(embed("wave boat"), 90, lambda entry: entry.metadata["topic"] == "hill")
    hills = {entry.id for entry in learned.matching() if entry.metadata["topic"] == "hill"}
    assert set(ids(found)) == hills
    assert learned.search(embed("wave"), 3, lambda entry: False) == []
    with opened(tmp_path / "waiting") as waiting:
        waiting.write(entries(30))
        found = waiting.search(embed("wave boat"), 30, lambda entry: entry.metadata["topic"] == "hill")
        assert {entry.metadata["topic"] for entry, _ in found} == {"hill"}


def test_a_statement_about_many_documents_is_not_ended(tmp_path):
    many = [Entry(str(i), None, {"i": i}, []) for i in range(20_000 if LENGTH >= 1 else 12_000)]
    with opened(tmp_path / "store") as store:
        assert store.write(many) == len(many) == len(store)
        assert [entry.metadata["i"] for entry in store.matching()] == [*range(len(many))]
        assert store.write(many) == store.delete(None) == len(many)
        assert len(store) == 0


def test_the_embeddings_space_is_given_back(tmp_path):
    with opened(tmp_path / "store", learn_from=400) as store:
        file = store.path / "documents.sqlite"
        store.write(entries(390))
        assert file.stat().st_size > 390 * D * 8
        before = file.stat().st_size
        store.write(entries(10, 1))
        assert file.stat().st_size < before - 390 * D * 8 * 0.8


def test_learn_on_demand(tmp_path):
    with opened(tmp_path / "store", learn_from=10_000) as store:
        assert store.learn() == 0
        store.write(entries(30, tagged=False))
        with pytest.raises(InputError, match="none of the 30 items"):
            store.learn()
        store.write(entries(30, 1))
        assert store.learn() == 60
        assert store.index.ntotal == 60
        assert store.learn() == 0


def test_what_cannot_be_learned_waits(tmp_path):
    """Tags that nobody uses twice: nothing is learned, nothing lost, nor is it tried at every write."""
    with opened(tmp_path / "store", learn_from=10) as store:
        for n in range(15):
            entry = entries(1, n)[0]
            store.write([Entry(entry.id, entry.text, {}, [f"tag{n}"], embedding=entry.embedding)])
        assert not store.index.is_trained
        assert len(store.search(embed("wave"), 100)) == 15
        assert store._failed == 10
        store.write(entries(30, 99))
        assert store.index.ntotal == 45


def test_replacing_and_deleting(learned):
    sea = next(entry for entry in learned.matching() if entry.metadata["topic"] == "sea")
    learned.write(
        [Entry(sea.id, "snow peak", {"topic": "hill"}, ["hill"], embedding=embed("snow peak rope"))]
    )
    assert learned.get([sea.id])[0].text == "snow peak"
    assert len(learned) == learned.index.ntotal == 90
    assert sea.id in ids(learned.search(embed("snow peak rope"), 40))
    assert learned.delete([sea.id, "nobody"]) == 1
    assert learned.get([sea.id]) == []
    assert len(learned) == learned.index.ntotal == 89
    assert learned.delete(None) == 89
    assert learned.search(embed("wave"), 5) == []
    assert learned.index.ntotal == 0


@pytest.mark.parametrize("n", [20, 90])
def test_policies_and_repeats(tmp_path, n):
    with opened(tmp_path / "store") as store:
        store.write(entries(n))
        again = [Entry("0/1", "other", {}, [], embedding=embed("other")), *entries(2, 5)]
        with pytest.raises(InputError, match="'0/1' is in the store already"):
            store.write(again, "error")
        assert len(store) == n
        assert store.write(again, "skip") == 2
        assert store.get(["0/1"])[0].text != "other"
        assert store.write([again[0], *again], "replace") == 3
        assert store.get(["0/1"])[0].text == "other"
        with pytest.raises(InputError, match="on_duplicate is 'maybe'"):
            store.write(again, "maybe")


def test_a_new_process_finds_the_same(learned):
    query = embed("crowd tower")
    before = [(entry.id, score) for entry, score in learned.search(query, 9)]
    with Documents(learned.path) as other:
        assert [(entry.id, score) for entry, score in other.search(query, 9)] == before
        learned.write(entries(4, 7, tagged=False))
        learned.delete([before[0][0]])
        assert len(other.search(query, 200)) == 93  # another reader follows
        assert before[0][0] not in ids(other.search(query, 200))


def test_compacting_leaves_the_documents(learned):
    gone = [entry.id for entry in learned.matching()][:7]
    learned.delete(gone)
    assert learned.index.compact().items == 7
    learned.write(entries(7))
    assert len(learned.search(embed("wave"), 200)) == learned.index.ntotal == 90


def test_documents_without_embeddings_are_kept_and_not_found(learned):
    learned.write([Entry("bare", None, {"a": [1, {"b": None}]}, ["sea"], {"blob": "x"})])
    assert learned.get(["bare"])[0].more == {"blob": "x"}
    assert learned.get(["bare"])[0].metadata == {"a": [1, {"b": None}]}
    assert "bare" not in ids(learned.search(embed("wave"), 200))


def test_new_metadata_leaves_the_code(learned):
    first = next(learned.matching())
    learned.describe({first.id: {"topic": "moon"}})
    (found,) = learned.search(embed(first.text), 5, lambda entry: entry.metadata["topic"] == "moon")
    assert found[0].id == first.id
    assert found[0].number == first.number


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "row 1 is empty"),
        ({"id": "a\0b"}, "NUL"),
        ({"id": 3}, "expected a str"),
        ({"text": "\ud800"}, "UTF-8"),
        ({"metadata": {"when": {1, 2}}}, "JSON"),
        ({"metadata": [1]}, "expected a dict"),
        ({"tags": [1]}, "expected a str"),
        ({"embedding": [1.0, 2.0]}, "embeddings"),
        ({"embedding": [np.nan] * D}, "not finite"),
        ({"embedding": ["x"] * D}, "real numbers"),
    ],
)
def test_nothing_is_written_of_what_cannot_be(tmp_path, change, says):
    good, other = entries(2)
    fields = {"id": other.id, "text": other.text, "metadata": {}, "tags": [], "embedding": other.embedding}
    with opened(tmp_path / "store") as store:
        with pytest.raises(InputError, match=says) as caught:
            store.write([good, Entry(**{**fields, **change})])
        assert "\n" not in str(caught.value)
        assert len(store) == 0


def test_another_width_is_refused(tmp_path):
    with opened(tmp_path / "store") as store:
        store.write(entries(2))
        with pytest.raises(InputError, match=f"have 3 numbers, those of the store have {D}"):
            store.write([Entry("x", "x", {}, [], embedding=[1.0, 2.0, 3.0])])
        with pytest.raises(InputError, match="query have 3 columns"):
            store.search([1.0, 2.0, 3.0], 1)
        with pytest.raises(InputError, match="k is 0"):
            store.search(embed("x"), 0)


@pytest.mark.parametrize("wrong", ["0/1", [3], ["\ud800"]])
def test_ids_are_lists_of_text(tmp_path, wrong):
    with opened(tmp_path / "store") as store:
        store.write(entries(2))
        for ask in (store.get, store.delete):
            with pytest.raises(InputError, match="ids"):
                ask(wrong)
        assert len(store) == 2


def test_opening_and_looking_writes_nothing(learned):
    file = learned.path / "documents.sqlite"
    before = file.read_bytes()
    with Documents(learned.path) as other:
        other.search(embed("wave"), 3)
        other.delete(["nobody"])
        other.learn()
    assert file.read_bytes() == before


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(ConfigError, match="bits is 7"):
        Documents(tmp_path / "a", bits=7)
    assert not (tmp_path / "a").exists()
    with pytest.raises(InputError, match="learn_from is 0"):
        Documents(tmp_path / "a", learn_from=0)
    with pytest.raises(InputError, match="timeout is -1"):
        Documents(tmp_path / "a", timeout=-1)
    opened(tmp_path / "b").close()
    with pytest.raises(InputError, match="bits is 64, not 32"):
        Documents(tmp_path / "b", bits=64)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="holds something else"):
        Documents(tmp_path / "c")
    (tmp_path / "b" / "documents.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="SQLite"):
        Documents(tmp_path / "b")


def test_a_newer_or_damaged_file_is_refused(tmp_path):
    with opened(tmp_path / "store") as store:
        store.write(entries(3))
        with sqlite3.connect(tmp_path / "store" / "documents.sqlite") as connection:
            connection.execute("UPDATE documents SET metadata = '{' WHERE id = '0/0'")
            connection.execute("UPDATE waiting SET embedding = x'00' WHERE number = 2")
            connection.execute("UPDATE state SET changes = changes + 1")
        connection.close()
        with pytest.raises(StoreError, match="damaged at document 1"):
            store.get(["0/0"])
        with pytest.raises(StoreError, match="an embedding is not 24 numbers"):
            store.search(embed("x"), 1)
        with sqlite3.connect(tmp_path / "store" / "documents.sqlite") as connection:
            connection.execute("PRAGMA user_version = 9")
        connection.close()
    with pytest.raises(StoreError, match="format 9, this package reads up to 1"):
        opened(tmp_path / "store")


def test_tags_in_every_form():
    assert tag_lists_of([["a", " b "], "c d", "e f;", None, []]) == [["a", "b"], ["c", "d"], ["e f"], [], []]
    with pytest.raises(InputError, match="tags of row 1 are 3"):
        tag_lists_of([[], 3])


def die_in(work, step):
    """Run `work` in a child that is killed at its step number `step`; False if it had fewer steps.

    Steps are before and after what is done to the documents, and to the index; what a death inside of the
    index's own steps leaves is test_deaths.py's.
    """

    def install(on_step):
        def stepping(owner, name):
            real = getattr(owner, name)

            def stepped(*given, **named):
                on_step()
                done = real(*given, **named)
                on_step()
                return done

            setattr(owner, name, stepped)

        for name in ("put", "drop", "coded", "forget"):
            stepping(module.DocumentTransaction, name)
        for name in ("update", "add", "remove"):
            stepping(WOHIndex, name)

    return crash_injection.die_at(step, work, install)


def state(store):
    return {entry.id: entry.text for entry in store.matching()}


JOBS = {
    "first round": (entries(10), lambda store: store.write(entries(4, 1))),
    "learned on": (entries(14), lambda store: store.write(entries(3, 1))),
    "encoded": (entries(14), lambda store: store.write(entries(3, 1, tagged=False))),
    "replaced": (
        entries(14),
        lambda store: store.write([Entry(e.id, "new", {}, [], embedding=embed("new")) for e in entries(2)]),
    ),
    "deleted": (entries(14), lambda store: store.delete([e.id for e in entries(2)])),
}


@pytest.mark.disk
@pytest.mark.parametrize("job", JOBS)
def test_a_death_at_any_step_loses_nothing(tmp_path, job):
    """Documents are as before or as after; all are found at once; the next opening gives each one code."""
    first, work = JOBS[job]
    with opened(tmp_path / "first", learn_from=12) as store:
        store.write(first)
        before = state(store)
    shutil.copytree(tmp_path / "first", tmp_path / "whole")
    with opened(tmp_path / "whole", learn_from=12) as store:
        work(store)
        after, rounds = state(store), [done.trained for done in store.index.rounds() if done.n]

    def child():
        with opened(folder, learn_from=12) as store:
            work(store)

    seen = set()
    for step in range(100):
        folder = tmp_path / f"at{step}"
        shutil.copytree(tmp_path / "first", folder)
        died = die_in(child, step)
        # As a reader sees it that never settles anything:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Documents, "_settle", lambda self, **_: 0)
            with Documents(folder, learn_from=12) as store:
                found = state(store)
                assert found in (before, after)
                # As many as there are: a code that means nothing any more would take a place.
                answers = store.search(embed("wave"), len(found))
                assert sorted((entry.id, entry.text) for entry, _ in answers) == sorted(found.items())
                seen.add(found == after)
        with Documents(folder, learn_from=12) as store:
            assert state(store) == found
            assert store.index.ntotal == (len(found) if store.index.is_trained else 0)
            assert store._db.waiting().gone.size == 0
            if found == after:  # nothing was learned twice
                assert [done.trained for done in store.index.rounds() if done.n] == rounds
        if not died:
            break
    assert step >= 6
    assert seen == {True, False}


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 20), st.integers(1, 12), st.booleans()),
            st.tuples(st.just("delete"), st.integers(0, 20), st.integers(1, 12), st.just(False)),
            st.tuples(st.just("learn"), st.just(0), st.just(0), st.just(False)),
        ),
        max_size=8,
    )
)
def test_any_history_ends_as_a_dict_would(tmp_path_factory, history):
    model = {}
    with opened(tmp_path_factory.mktemp("history") / "store", learn_from=20) as store:
        for number, (verb, start, n, tagged) in enumerate(history):
            names = [str(i) for i in range(start, start + n)]
            if verb == "write":
                given = [
                    Entry(name, text, {}, [topic] if tagged else [], embedding=embed(text))
                    for name, (text, topic) in zip(names, texts(n, number), strict=True)
                ]
                store.write(given)
                model |= {entry.id: entry.text for entry in given}
            elif verb == "delete":
                store.delete(names)
                model = {id_: text for id_, text in model.items() if id_ not in names}
            else:
                try:
                    store.learn()
                except InputError:
                    assert not store.index.is_trained
            assert state(store) == model
            assert {entry.id: entry.text for entry, _ in store.search(embed("wave"), 999)} == model
            assert store.index.ntotal == (len(model) if store.index.is_trained else 0)


@pytest.mark.disk
def test_a_death_while_a_folder_is_made_leaves_nothing_to_repair(tmp_path):
    def child():
        files.on_step = lambda *_: next(steps) == step and os.kill(os.getpid(), signal.SIGKILL)
        opened(folder).close()

    for step in range(100):
        folder, steps = tmp_path / f"at{step}", itertools.count()
        pid = os.fork()
        if pid == 0:
            child()
            os._exit(0)
        killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        with opened(folder) as store:
            assert store.write(entries(1)) == 1
        if not killed:
            break
    assert step > 1


def test_writers_wait_for_each_other_and_say_so(learned):
    with Documents(learned.path, timeout=0) as other:
        with learned._db.writing():
            with pytest.raises(LockedError, match=r"being written by another process; waited 0 s"):
                other.write(entries(1, 8))
            assert len(other.search(embed("wave"), 5)) == 5  # readers don't wait
            Documents(learned.path).close()  # nor does opening
        assert other.write(entries(1, 8)) == 1
        assert learned.write(entries(1, 9)) == 1
        assert len(other.search(embed("wave"), 200)) == len(other) == 92


def test_threads_write_and_search(learned):
    errors = []

    def work(seed):
        try:
            for i in range(3):
                learned.write(entries(2, seed, tagged=False, start=2 * i))
                assert len(learned.search(embed("wave"), 5)) == 5
        except Exception as error:  # the test's own thread shall see it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(learned) == learned.index.ntotal == 90 + 4 * 6
    assert json.dumps(sorted(state(learned)))


# ---- folders of strangers --------------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path):
    """A closed store, and a file of somebody's."""
    with opened(tmp_path / "store") as store:
        store.write(entries(3))
    (tmp_path / "letter.txt").write_text("dear")
    return tmp_path / "store" / "documents.sqlite", tmp_path / "letter.txt"


def test_a_journal_that_names_another_file_deletes_nothing(planted, tmp_path):
    file, victim = planted
    journal = file.with_name("documents.sqlite-journal")
    journal.write_bytes(hot_journal(file, victim))
    before = file.read_bytes()
    shutil.copytree(file.parent, tmp_path / "plain")
    with pytest.raises(StoreError, match=r"documents.sqlite-journal is not a file of this package.*move it"):
        opened(file.parent)
    assert (victim.read_text(), file.read_bytes()) == ("dear", before)
    connection = sqlite3.connect(tmp_path / "plain" / "documents.sqlite")  # what SQLite does by itself
    connection.execute("SELECT count(*) FROM documents").fetchone()
    connection.close()
    assert not victim.exists()
    journal.unlink()
    with opened(file.parent) as store:
        assert len(store) == 3


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_only_plain_files_are_opened(planted, end, kind):
    file, victim = planted
    member = file.with_name(file.name + end)
    member.unlink(missing_ok=True)
    made = {
        "link": lambda: member.symlink_to(victim),
        "dangling": lambda: member.symlink_to(victim.with_name("none")),
        "pipe": lambda: os.mkfifo(member),
        "folder": member.mkdir,
    }
    made[kind]()
    with pytest.raises(StoreError, match=r"is not a (regular )?file|expected a plain file"):
        opened(file.parent)
    assert victim.read_text() == "dear"
    assert not victim.with_name("none").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM gone; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE documents ADD COLUMN more2",
        "CREATE INDEX i ON documents (text)",
        "DROP INDEX turn",
        "PRAGMA user_version = 0",
    ],
)
def test_other_tables_than_a_document_stores_are_refused(planted, statement):
    file, _ = planted
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(statement)
    connection.close()
    before = file.read_bytes()
    with pytest.raises(
        StoreError, match=r"documents.sqlite does not hold a document store's tables; put back"
    ):
        opened(file.parent)
    assert file.read_bytes() == before


def test_a_file_in_another_journal_mode_is_refused(planted):
    connection = sqlite3.connect(planted[0], isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    with pytest.raises(StoreError, match="is in journal mode delete, expected wal"):
        opened(planted[0].parent)


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


ODD = {
    "nan": {"a": float("nan")},
    "infinity": {"a": [float("-inf")]},
    "bytes": {"a": b"x"},
    "set": {"a": {1}},
    "array": {"a": np.arange(3)},
    "huge": {"a": 10**5000},
    "number as key": {"a": {1: 2}},
    "none as key": {None: 2},
    "tuple as key": {(1, 2): 2},
    "deep": nested(60),
    "deeper": nested(100_000),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("kind", ["documents", "langchain", "haystack"])
def test_metadata_that_json_cannot_hold_is_refused_in_one_line(tmp_path, what, kind):
    told = pytest.raises(
        InputError, match=r"cannot be kept as JSON \(.+\); use text, numbers, lists and dicts"
    )
    if kind == "documents":
        with opened(tmp_path / "s") as store:
            with told as error:
                store.write([Entry("a", "x", ODD[what], [])])
            assert len(store) == 0
    elif kind == "langchain":
        documents = pytest.importorskip("langchain_core.documents")
        from test_langchain import Toy

        from woh_faiss.integrations.langchain import WOHVectorStore

        store = WOHVectorStore(tmp_path / "s", Toy(), **SMALL)
        with told as error:
            store.add_documents([documents.Document.model_construct(page_content="x", metadata=ODD[what])])
        store.close()
    else:
        haystack = pytest.importorskip("haystack")
        from woh_faiss.integrations.haystack import WOHDocumentStore

        store = WOHDocumentStore(str(tmp_path / "s"), **SMALL)
        with told as error:
            store.write_documents([haystack.Document(id="a", content="x", meta=ODD[what])])
        store.close()
    assert "\n" not in str(error.value)
