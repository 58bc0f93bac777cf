"""Filters: as brute force, at any state of an index; what is no filter is refused in one line."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, length, tagged
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss import WOHIndex
from woh_faiss.errors import InputError, StoreError
from woh_faiss.store import NewRound, filtered, view
from woh_faiss.store import where as grammar
from woh_faiss.store.item_metadata import ColumnSlot
from woh_faiss.tags.tag_text import normalise
from woh_faiss_cli.main import main

ODD = 'a "name"; DROP TABLE items --'
N = 300
NUMBERS = {"price": "real", "year": "integer", "id": "integer"}
TEXTS = {"color": "text", ODD: "text", "key": "text"}
TYPES = {**NUMBERS, **TEXTS, "public": "boolean", "day": "date", "when": "datetime"}
WORDS = [
    "beach",
    "Beach House",
    "#sea",
    "größe",
    "ｂｅａｃｈ",
    'a"b',
    "x\\beach",
    "sea, sun",
    "",
    "it's",
    "new_york",
]


def metadata_of(n, seed):
    """Columns with missing values, and with values that come often."""
    rng = np.random.default_rng(seed)

    def some(values):
        return [None if rng.random() < 0.2 else values[rng.integers(len(values))] for _ in range(n)]

    days = [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(9)]
    return {
        "price": some([0.0, 0.1, 1.5, 20.0, -3.25, 1e300, 5e-324]),
        "year": some([2019, 2020, 2021, 2**62 + 1, -(2**63)]),
        "color": some(["red", "Red", "dark red", "", "100%", "it's", "größe"]),
        ODD: some(["red", "'; DROP TABLE items; --", '"']),
        "public": some([True, False]),
        "day": some(days),
        "when": some(
            [dt.datetime(2024, 1, 1, 10), dt.datetime(2024, 1, 1, 10, 0, 0, 5), dt.datetime(2024, 1, 2)]
        ),
    }


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """An index with metadata, items without any, removed and replaced ones."""
    rng = np.random.default_rng(0)
    with WOHIndex.create(tmp_path_factory.mktemp("where") / "i", **SMALL) as index:
        index.update(*tagged(0))
        X = np.tile(tagged(1)[0], (8, 1))[:N]
        tags = [[WORDS[j] for j in rng.choice(len(WORDS), rng.integers(4), replace=False)] for _ in range(N)]
        keys = [f"photos/{'IMG_' if i % 3 else 'img-'}{i}.jpg" if i < 250 else f"it's {i}" for i in range(N)]
        index.add(X, tags, keys=keys, metadata=metadata_of(N, 1))
        index.remove(range(50, 70))
        index.add(X[:9], ids=range(100, 109), metadata={"year": [2020] * 9}, on_duplicate="replace")
        yield index


@pytest.fixture(scope="module")
def items(filled):
    return filled.items()


# ---- brute force -----------------------------------------------------------------------------------------


def held(item, name):
    """The value of a field as a filter sees it."""
    return {"id": item.id, "key": item.key}.get(name, item.metadata.get(name))


def like(text, pattern):
    """SQL's LIKE: % is any text, _ a letter, in any case of ASCII letters."""
    parts = {"%": ".*", "_": "."}
    fold = "".join(parts.get(c, re.escape(c)) for c in pattern)
    ascii_only = re.compile("(?aims)" + fold)
    lowered = "".join(c.lower() if c.isascii() else c for c in text)
    return ascii_only.fullmatch(lowered) is not None


def truth(tree, item):
    """True, False or None (not known) for one item, of a predicate as `predicates` makes them."""
    what, *rest = tree
    if what == "not":
        inner = truth(rest[0], item)
        return None if inner is None else not inner
    if what in ("and", "or"):
        found = [truth(part, item) for part in rest]
        decides = what == "or"
        return decides if decides in found else None if None in found else not decides
    if what == "tag":
        return normalise(rest[0]) in {normalise(tag) for tag in item.tags}
    if what == "no tags":
        return not item.tags
    name, *values = rest
    value = held(item, name)
    if what == "null":
        return value is None
    if value is None:
        return None
    if what == "flag":
        return value
    if what == "in":
        return value in values
    if what == "between":
        return values[0] <= value <= values[1]
    if what == "like":
        return like(value, values[0])
    if what == "startswith":
        return value.startswith(values[0])
    (other,) = values
    return {
        "<": lambda: value < other,
        "<=": lambda: value <= other,
        ">": lambda: value > other,
        ">=": lambda: value >= other,
        "=": lambda: value == other,
        "!=": lambda: value != other,
    }[what]()


def quoted(name):
    return name if re.fullmatch(r"[a-z]\w*", name) else '"' + name.replace('"', '""') + '"'


def literal(value):
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def text_of(tree):
    """The filter that a predicate is."""
    what, *rest = tree
    if what == "not":
        return f"not {text_of(rest[0])}"
    if what in ("and", "or"):
        return "(" + f" {what.upper()} ".join(map(text_of, rest)) + ")"
    if what == "tag":
        return f"{literal(rest[0])} in tags"
    if what == "no tags":
        return "tags is null"
    name, values = quoted(rest[0]), [literal(value) for value in rest[1:]]
    if what == "null":
        return f"{name} is null"
    if what == "flag":
        return name
    if what == "in":
        return f"{name} in ({', '.join(values)})"
    if what == "between":
        return f"{name} between {values[0]} and {values[1]}"
    return f"{name} {what} {values[0]}"


number = st.one_of(
    st.sampled_from([0, 0.1, 1.5, 20, 2020, 2**62 + 1, -(2**63), 10**30, 5e-324, 1e300, 2.0**62]),
    st.integers(-400, 400),
    st.floats(allow_nan=False, allow_infinity=False),
)
word = st.one_of(
    st.sampled_from(
        ["red", "it's", "%", "_ed", "photos/IMG_1%", "r%d", "'; DROP TABLE items; --", "größe", "\\"]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
)
day = st.dates(dt.date(2023, 12, 30), dt.date(2024, 1, 12)).map(dt.date.isoformat)
time = st.sampled_from(["2024-01-01T10:00:00", "2024-01-01T10:00:00.000005", "2024-01-02T00:00:00"])
VALUE = {
    "real": number,
    "integer": number,
    "text": word,
    "date": day,
    "datetime": time,
    "boolean": st.booleans(),
}
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "=", "!="])
ORDERED = [name for name in TYPES if name != "public"]


def compared(name):
    value = VALUE[TYPES[name]]
    return st.one_of(
        st.tuples(SIGNS, st.just(name), value),
        st.tuples(st.just("between"), st.just(name), value, value),
        st.lists(value, min_size=1, max_size=4).map(lambda values: ("in", name, *values)),
    )


tests = st.one_of(
    st.sampled_from(ORDERED).flatmap(compared),
    st.tuples(st.sampled_from(["like", "startswith"]), st.sampled_from([*TEXTS]), word),
    st.tuples(st.just("null"), st.sampled_from([*TYPES])),
    st.tuples(st.just("tag"), st.sampled_from([word for word in WORDS if word])),
    st.sampled_from([("flag", "public"), ("no tags",), ("=", "public", True), ("!=", "public", True)]),
)
predicates = st.recursive(
    tests,
    lambda inner: st.one_of(
        inner.map(lambda tree: ("not", tree)),
        st.lists(inner, min_size=2, max_size=3).map(lambda trees: ("and", *trees)),
        st.lists(inner, min_size=2, max_size=3).map(lambda trees: ("or", *trees)),
    ),
    max_leaves=6,
)


@settings(max_examples=length(1000))
@given(predicates)
@example(("and", ("<", "price", 20), (">=", "year", 2020), ("tag", "beach")))
@example(("not", ("tag", "x\\beach")))
def test_any_filter_is_what_brute_force_says(filled, items, tree):
    expected = [item.id for item in items if truth(tree, item) is True]
    assert filled.ids(text_of(tree)).tolist() == expected


# ---- where filters go ------------------------------------------------------------------------------------


def test_conditions_of_items_are_asked_of_few_only_where_metadata_leave_few(filled, items, monkeypatch):
    for few in (0, 1):
        monkeypatch.setattr(filtered, "_FEW", few)
        for tree in (
            ("and", ("<", "price", 20), ("tag", "beach")),
            ("and", ("<", "year", 0), (">", "key", "photos/img")),
        ):
            filled.store.view.filters.clear()
            assert filled.ids(text_of(tree)).tolist() == [it.id for it in items if truth(tree, it) is True]


def test_every_search_answers_as_one_with_those_ids(filled):
    XQ = tagged(9, n=5)[0]
    for where in (
        "price < 20 and year >= 2020",
        "public",
        "'beach' in tags or key startswith 'photos/'",
        "id < 0",
    ):
        ids = filled.ids(where)
        for by in ("both", "kind", "instance", "hamming"):
            for k in (1, 7, 400):
                found, expected = (
                    filled.search(XQ, k, by=by, **how) for how in ({"where": where}, {"allow": ids})
                )
                for ours, theirs in zip(found, expected, strict=True):
                    assert_array_equal(ours, theirs)
        pairs = [
            (filled.range_search(XQ, 40, where=where), filled.range_search(XQ, 40, allow=ids)),
            (
                filled.range_search_ids([1, 45], 40, where=where),
                filled.range_search_ids([1, 45], 40, allow=ids),
            ),
            (filled.search_ids([1, 45], 9, where=where), filled.search_ids([1, 45], 9, allow=ids)),
            (filled.search_tags([["sea"]], 9, where=where), filled.search_tags([["sea"]], 9, allow=ids)),
        ]
        for found, expected in pairs:
            for ours, theirs in zip(found, expected, strict=True):
                assert_array_equal(ours, theirs)
        both = filled.search(XQ, 9, where=where, allow=range(120), deny=range(0, 400, 2))[1]
        assert set(both.ravel().tolist()) - {-1} <= set(ids[(ids < 120) & (ids % 2 == 1)].tolist())


def test_items_by_id_key_filter_and_number(filled):
    assert len(filled) == filled.ntotal
    assert [item.id for item in filled.items(where="year = 2020", limit=3)] == filled.ids("year = 2020")[
        :3
    ].tolist()
    key = filled.items([200])[0].key
    assert key in filled
    assert "nothing" not in filled
    assert 200 in filled
    assert np.int64(200) in filled
    assert not any(name in filled for name in (55, 10**9, 2**70, -1))
    assert None not in filled
    assert True not in filled
    assert [item.id for item in filled.items(keys=[key])] == [200]
    assert filled.items(keys=[key], where="id != 200") == []
    assert len(filled.items()) == len(filled)
    with pytest.raises(InputError, match="both given"):
        filled.items([1], keys=[key])
    with pytest.raises(StoreError, match="has the key 'nothing'"):
        filled.items(keys=["nothing"])
    with WOHIndex.create(filled.path.parent / "empty", **SMALL) as empty:
        assert len(empty) == 0
        assert empty
        assert empty.search(np.ones((1, 3)), 2, where="id < 5")[1].tolist() == [[-1, -1]]
        with pytest.raises(InputError, match="no column 'price'"):
            empty.search(np.ones((1, 3)), 2, where="price < 5")


def test_a_reader_filters_the_state_it_is_at(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL, keep_models=9) as index:
        index.update(*tagged(0), metadata={"size": np.arange(40)})
        index.update(*tagged(1), metadata={"size": np.arange(40)})
        with WOHIndex.open(tmp_path / "i") as reader:
            wheres = ("size < 10", "size < 10 and 'sea' in tags", "size is null or id < 9", "not size < 35")

            def answers():
                reader.store.view.filters.clear()
                return [reader.ids(where).tolist() for where in wheres]

            before = answers()
            assert before[0] == [*range(10), *range(40, 50)]
            index.remove([3, 40])
            assert answers() == before
            index.add(tagged(2)[0][:2], ids=[4, 7], metadata={"size": [99, 5]}, on_duplicate="replace")
            index.add(tagged(2)[0][:3], metadata={"size": [1, None, 99]})
            assert answers() == before
            index.compact()  # erases items, and all rows have other numbers
            gone = {3, 40, 4, 7}
            assert answers() == [[id_ for id_ in ids if id_ not in gone] for ids in before]
            index.remove([41])
            assert answers() == [[id_ for id_ in ids if id_ not in gone] for ids in before]
            reader.refresh()
            assert set(reader.ids("size < 10").tolist()) == {*before[0], 7, 80} - {3, 40, 4, 41}


def test_a_reader_whose_rows_were_coded_anew_filters_what_was_there(tmp_path):
    """Earlier versions of an item, removed before, are still in the catalogue then."""
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        index.update(*tagged(0), metadata={"size": np.arange(40), "color": ["red"] * 40})
        X = tagged(1)[0]
        index.add(X[:2], ids=[4, 5], metadata={"size": [99, 5]}, on_duplicate="replace")
        index.remove([6])
        with WOHIndex.open(tmp_path / "i") as reader:
            wheres = (
                "size < 10",
                "size < 10 and not 'snow' in tags",
                "color = 'red'",
                "color is null or size = 4",
            )

            def answers():
                reader.store.view.filters.clear()
                return [reader.ids(where).tolist() for where in wheres]

            before = answers()
            assert before[0] == [0, 1, 2, 3, 7, 8, 9, 5]
            width = index.store.d // 8
            with index.store.writing() as writing:
                codes = np.zeros((index.store.snapshot.rows, width), np.uint8)
                none = np.empty((0, width), np.uint8)
                writing.commit(NewRound("encoded", none, recoded=codes))
            assert answers() == before
            index.remove([7])
            index.add(X[:2], ids=[8, 9], metadata={"size": [99, 99]}, on_duplicate="replace")
            assert answers() == before
            reader.refresh()
            assert answers()[0] == [0, 1, 2, 3, 5]


def test_after_a_refresh_only_new_items_are_asked_about(tmp_path, monkeypatch):
    wheres = ["size < 10", "size < 10 and 'sea' in tags", "not size < 35 or 'hill' in tags", "size is null"]
    asked = []
    with (
        WOHIndex.create(tmp_path / "i", **SMALL, keep_models=9) as index,
        WOHIndex.open(tmp_path / "i") as reader,
    ):
        index.update(*tagged(0), metadata={"size": np.arange(40)})
        steps = [
            lambda: index.update(*tagged(1), metadata={"size": np.arange(40)}),
            lambda: index.remove([1, 45]),
            lambda: index.add(
                tagged(2)[0][:3], ids=[4, 46, 200], metadata={"size": [99, 5, 1]}, on_duplicate="replace"
            ),
            lambda: index.add(tagged(2)[0][:3]),
            index.compact,
            lambda: index.add(tagged(3)[0][:3], metadata={"size": [3, None, 99]}),
            lambda: index.rollback(2),
            lambda: index.update(*tagged(4), metadata={"size": np.arange(40)}),
        ]
        monkeypatch.setattr(
            view, "matching", lambda *given: asked.append(given[-1]) or filtered.matching(*given)
        )
        for step in [lambda: None, *steps]:
            step()
            reader.refresh()
            found = [reader.ids(where).tolist() for where in wheres]
            again = [reader.ids(where).tolist() for where in wheres]
            with WOHIndex.open(tmp_path / "i") as fresh:
                assert found == again == [fresh.ids(where).tolist() for where in wheres]
        carried = [0 if first is None else len(first) for first in asked]
        # Each state asks four filters, then a fresh reader does.
        assert [carried[at] for at in range(0, len(carried), 8)] == [0, 40, 80, 80, 83, 0, 82, 0, 76]
        assert len(carried) == 8 * 9


def test_removing_what_a_filter_lets_through(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index, WOHIndex.open(tmp_path / "i") as other:
        index.update(*tagged(0), metadata={"size": np.arange(40)})
        assert other.remove(where="size >= 30") == 10  # which has not seen them
        index.refresh()
        assert index.ids("size > 20").tolist() == list(range(21, 30))
        assert index.remove(where="size = 1000") == 0
        assert len(index.rounds()) == 2
        with pytest.raises(InputError, match="where is given beside ids or keys"):
            index.remove([1], where="size < 3")
        with pytest.raises(InputError, match="no column 'prize'"):
            index.remove(where="prize < 3")
        assert len(index) == 30


def test_exporting_what_a_filter_lets_through(filled, tmp_path):
    ids = filled.ids("public")
    index = filled.to_faiss(where="public")
    assert index.ntotal == len(ids)
    found = filled.export(tmp_path / "a.faiss", where="public")
    assert (found.items, found.recall) == (len(ids), 1.0)
    import faiss

    read = faiss.read_index_binary(str(tmp_path / "a.faiss"))
    assert_array_equal(np.sort(faiss.vector_to_array(read.id_map)), np.sort(ids))


# ---- what is no filter -----------------------------------------------------------------------------------

REFUSED = {
    "": "where is '', expected a filter such as",
    "price <": "where ends too early",
    "price < 20 and": "where ends too early",
    "(price < 20": "where ends too early",
    "price < 20)": "not understood at letter 11, ')'",
    "price < 'cheap'": "'price' is real, expected a number, got 'cheap'",
    "price < true": "'price' is real, expected a number, got true",
    "price < null": "a comparison with null is never true; write price is null",
    "color = 3": "'color' is text, expected text in single quotes",
    'color = "red"': "where compares two columns, expected a column and a value",
    "color = red": "text is in single quotes, 'red'",
    "prize < 20": "there is no column 'prize'; did you mean price? there are id, key, tags, price, year",
    "PRICE < 20": "did you mean price?",
    '"red" = 3': "text is in single quotes, 'red'",
    "price": "'price' is real, expected a comparison",
    "1 < 2": "where compares two values",
    "price < year": "where compares two columns",
    "3 in (1, 2)": "3 is a value, expected a column before it",
    "public > true": "'public' is true or false, which have no order",
    "public between true and false": "no order",
    "'beach' in color": "'color' is text, expected tags after in",
    "beach in tags": "what is in tags is text in single quotes",
    "3 in tags": "what is in tags is text in single quotes",
    "'#' in tags": "'#' is no tag",
    "tags = 'beach'": "tags are a list; write 'beach' in tags",
    "tags like 'b%'": "tags are a list",
    "price like '1%'": "'price' is real; like and startswith are for text",
    "day = '2024-13-01'": "'day' is date, expected a date such as",
    "when > 'yesterday'": "'when' is datetime, expected a time such as",
    "price < 1e999": "too large for a number",
    "price < 20x": "not understood at letter 9",
    "color = 'red": "a quote at letter 9 that does not end",
    "1; DROP TABLE items": "not understood at letter 2",
    "color = 'x' --": "not understood at letter 13",
    "color = 'x' or 1=1": "where compares two values",
    "color = 'x' union select 1": "not understood at letter 13",
    "exists(select 1)": "not understood at letter 7",
    "rowid = 1": "there is no column 'rowid'",
    "m.c0 = 1": "not understood at letter 2",
    "__import__('os')": "not understood at letter 11",
    "price in ()": "not understood at letter 11",
    "a\0b = 1": "not understood at letter 2",
    "price < ٣": "not understood",
    "price = \udc80": "not UTF-8",
    "not " * 3000 + "public": "nested more than 30 deep",
    "(" * 60000 + "public": "where ends too early",
    " or ".join(["public"] * 400): "more than 300 conditions",
    f"id in ({', '.join(map(str, range(20001)))})": "more than 300 conditions or 20,000 values",
    "x" * 200001: "has 200,001 letters",
    f"color like '{'%' * 1001}'": "a pattern has 1,001 letters",
}


@pytest.mark.parametrize("where", REFUSED, ids=lambda where: where[:40] or "empty")
def test_what_is_no_filter_is_refused_in_one_line(filled, where):
    with pytest.raises(InputError) as refused:
        filled.ids(where)
    message = str(refused.value)
    assert REFUSED[where] in message
    assert "\n" not in message
    assert len(message) < 400


def test_as_much_as_is_allowed_is_answered(filled):
    assert filled.ids(" or ".join(["public"] * 300)).tolist() == filled.ids("public").tolist()
    assert len(filled.ids(f"id in ({', '.join(map(str, range(20000)))})")) == len(filled)
    for nested in ("(id < 0 or (id >= 0 and {}))", "(({} and id >= 0) or id < 0)", "not (not {})"):
        where = "public"
        for _ in range(14):
            where = nested.format(where)
        assert filled.ids(where).tolist() == filled.ids("public").tolist()
    assert filled.ids("(" * 5000 + "public" + ")" * 5000).tolist() == filled.ids("public").tolist()
    assert not len(filled.ids(f"color like '{'%a' * 500}'"))


PARTS = ["(", ")", "not", "and", "or", "in", "is null", "tags", "price", "'a'", '"', ";", "--", "1", "<", "="]


@settings(max_examples=length(400))
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PARTS)).map(" ".join)))
def test_any_text_is_a_filter_or_refused(filled, text):
    found = None
    try:
        filled.ids(text)
    except InputError as refused:
        found = str(refused)
    assert found is None or (found.startswith("where") and "\n" not in found)


def test_values_and_names_are_never_part_of_the_sql():
    columns = [ColumnSlot(0, ODD, "text", 1), ColumnSlot(1, "x", "text", 1)]
    name = '"' + ODD.replace('"', '""') + '"'
    evil = "x'); DROP TABLE items; --"
    v = literal(evil)
    tests = [f"{name} = {v}", f"{name} in ({v}, {v})", f"{name} like {v}", f"{name} startswith {v}"]
    tests += [f"{name} between {v} and {v}", f"{v} in tags", f"key = {v}", f"{name} is not null"]
    where = " and ".join(f"not ({test})" for test in tests)
    made = grammar.compiled(where, columns, normalise)
    assert len(made) == len(tests)
    ours = r"i\.tags|i\.key|m\.c0|NOT|NULL|IS|AND|OR|IN|LIKE|BETWEEN|substr|1|0|'%\\u%'|[ (),?=>]"
    for condition in made:
        assert re.fullmatch(f"(?:{ours}|{grammar.HAS_TAG})+", condition.sql), condition.sql
        assert condition.sql.count("?") == len(condition.values)
        assert set(condition.values) <= {evil, normalise(evil), "%items%", "%table%", len(evil)}


def test_a_filter_of_a_hostile_catalogue_runs_nothing_of_it(filled):
    """Which type a column has is compared with what was written."""
    backup = filled.path.parent / "hostile"
    filled.backup(backup)
    with sqlite3.connect(backup / "catalog.db") as connection:
        connection.execute("UPDATE metadata_columns SET type = 'text' WHERE name = 'price'")
    with pytest.raises(StoreError, match="metadata_columns is not as it was written"):
        WOHIndex.open(backup).ids("price = 'a'")


# ---- commands --------------------------------------------------------------------------------------------


def run(*args):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code in (0, 1, 2), done.output
    return done.exit_code, done.stdout, done.stderr


def test_commands_filter(filled, tmp_path):
    at = "--index", filled.path
    code, out, err = run("query", "--id", 80, "-k", 400, "--where", "year = 2020 and public", "--json", *at)
    matching = filled.ids("year = 2020 and public")
    assert (code, out.count("\n")) == (0, len(matching) - (80 in matching))
    assert f"note: --where leaves {len(matching)} of {len(filled)} items" in err
    code, out, err = run("query", "--id", 80, "--where", "prize < 3", *at)
    assert (code, out) == (1, "")
    assert err.startswith("Error: where: there is no column 'prize'; did you mean price?")
    assert run("items", "--count", "--where", "year = 2020", *at)[1] == f"{len(filled.ids('year = 2020'))}\n"
    assert run("items", "--where", "id < 3", "--limit", 2, *at)[1].splitlines()[1].startswith("1\t")
    assert run("items", "--id", 3, "--key", filled.items([200])[0].key, "--count", *at)[1] == "2\n"
    assert run("items", "--where", "id < 0", *at)[2] == f"note: no item of {filled.path} matches\n"
    assert run("query", "--id", 1, "--where", "public", "--database", "milvus://x/y", *at)[0] == 2
    assert run("remove", 1, "--where", "public", *at)[0] == 2
    assert run("export", tmp_path / "x.faiss", "--where", "public", *at)[0] == 0
    copy = tmp_path / "copy"
    filled.backup(copy)
    assert run("remove", "--where", "year = 2020", "--index", copy)[0] == 0
    assert len(WOHIndex.open(copy)) == len(filled) - len(filled.ids("year = 2020"))
