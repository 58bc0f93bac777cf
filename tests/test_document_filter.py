"""Filters of documents in SQL let through what the same filters in Python do, and raise the same errors."""

import itertools
import math
import sqlite3
from contextlib import closing
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woh_faiss.errors import InputError, StoreError
from woh_faiss.integrations.document_db import DocumentDB
from woh_faiss.integrations.document_filter import DocumentFilter
from woh_faiss.integrations.documents import Entry
from woh_faiss.integrations.metadata_filter import compiled, document_filter

KEYS = ["a", "é", "a.b", "a\\b", 'a"b', "", "\n", "\0", "a\0", "\ud800", "😀", "[0]", "#-1", "'", "\x7f"]
NUMBERS = [0, 1, 2, -1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**22, 10**400]
NUMBERS += [0.0, -0.0, 1.0, 0.1, math.nextafter(0.1, 1), 0.5, 2.0**53, 1e22, 2.0**63, 5e-324, 1.7e308]
TEXTS = ["", "a", "b", "1", "a\0", "a\0b", "é", "\ud800", "😀", "\uffff", "true", "null", "'", '"', "\\u0000"]
SCALARS = [None, True, False, *NUMBERS, *TEXTS]
NESTED = [
    [],
    {},
    [1],
    [1.0],
    [True],
    [[1], 1],
    [{}, 1],
    [2, {}],
    ["a", "b"],
    [None],
    {"a": 1},
    {"a": {"b": [1]}},
]
NESTED += [["a", 2**63], [0.1, 2], {"b": 1, "a": 1.0}, [[2]], ["a\0b"], [False, 0]]
VALUES = [*SCALARS, *NESTED]


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    return DocumentDB(tmp_path_factory.mktemp("documents") / "d.sqlite", 10)


def put(db, metadata, texts=None):
    """Documents in the place of those that were there; returns them."""
    with db.writing() as writing:
        writing.drop(None)
        pairs = zip(metadata, texts or [None] * len(metadata), strict=True)
        writing.put([Entry(f"id {i}", text, values, []) for i, (values, text) in enumerate(pairs)])
    return list(db.matching())


def told(work):
    """What it gives, or the error."""
    try:
        return work()
    except Exception as error:
        return type(error), str(error)


def verdicts(db, keep):
    """What a filter's SQL says of each document: 1, 0 or None."""
    with db._connected() as connection:
        return [met for (met,) in connection.execute(f"SELECT {keep.sql} FROM documents", keep.values)]  # noqa: S608


def check(db, entries, keep):
    """SQL says the truth of each document, or nothing; returns of how many it says nothing."""
    said = verdicts(db, keep)
    for entry, met in zip(entries, said, strict=True):
        assert met is None or told(lambda entry=entry: keep.matches(entry)) == (met == 1), entry.metadata
    return said.count(None)


def test_every_operator_of_langchain_on_every_value(db):
    entries = put(db, [{}, *({"a": value} for value in VALUES)])
    asked = 0
    for operand in VALUES:
        for name in ("$eq", "$ne"):
            asked += check(db, entries, document_filter({"a": {name: operand}}))
        for name in ("$in", "$nin"):
            asked += check(db, entries, document_filter({"a": {name: [operand, 2, "b"]}}))
    for operand in (*NUMBERS, *TEXTS):
        for name in ("$gt", "$gte", "$lt", "$lte"):
            check(db, entries, document_filter({"a": {name: operand}}))
    assert asked < 0.25 * 4 * len(VALUES) * len(entries)


def test_every_key(db):
    entries = put(
        db, [{}, *({key: 1} for key in KEYS), {"a": {"b": 1}}, *({key: 1, "b": "a\0"} for key in KEYS)]
    )
    for key in KEYS:
        for wanted in ({key: 1}, {key: {"$exists": True}}, {key: {"$exists": False}}, {key: {"$ne": 1}}):
            check(db, entries, document_filter(wanted))


#: True, false, an error, decided in SQL and not, of documents of the next line.
PARTS = [
    {"a": 1},
    {"a": {"$gt": 0}},
    {"b": {"$lt": "x"}},
    {"b": {"$in": ["x", [1]]}},
    {"c": {"$exists": True}},
]
PARTS += [
    {"b": {"$not": {"$gte": 1, "$ne": 2}}},
    {"a": {"$eq": {"x": 1}}},
    {"": 1},
    {"c": {"$lte": 2}, "a": 1},
]
DOCUMENTS = [{"a": a, "b": b, **c} for a in (1, "x", {"x": 1}) for b in (2, "a", [1]) for c in ({}, {"c": 1})]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(DOCUMENTS), min_size=1, max_size=4),
    st.recursive(
        st.sampled_from(PARTS),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=4), min_size=1
            )
            | st.builds(lambda part: {"$not": part}, inner)
            | st.builds(lambda one, two: {**one, **two}, inner, inner)
        ),
        max_leaves=8,
    ),
)
def test_filters_of_langchain_that_are_joined(db, metadata, wanted):
    entries = put(db, metadata)
    keep, match = document_filter(wanted), compiled(wanted)
    expected = told(lambda: [entry.number for entry in entries if match(entry.metadata)])
    assert told(lambda: db.numbers(keep)) == expected
    assert told(lambda: [entry.number for entry in db.matching(keep)]) == expected


# ---- Haystack ------------------------------------------------------------------------------------------

DATES = [
    "2024-03-01",
    "2024-03-01T10:00:00",
    "2024-03-01 10:00",
    "2024-03-01T10:00:00Z",
    "2024-02-28T23:59:59.999999+23:59",
]
DATES += [
    "2024-03-02T00:30:00-23:30",
    "2024-03-01T24:00",
    "2023-02-30",
    "2024-06-15",
    "1999-12-31T00:00",
    "0001-01-01",
]
DATES += [
    "9999-12-31T23:59:59",
    "0000-01-01",
    "2024-03-05T10:00:00 +02:00",
    "2024-03-05t10:00:00",
    "2024-09-01T10",
    "2024",
]
DATES += [
    "20240901",
    "2024-W10-1",
    "March 1, 2024",
    "2024-13-01",
    "2024-06-15T10:00:00.",
    "2024-06-15T10:00:00+25:00",
]
DATES += [
    "2024-06-15T1",
    "2024-06-15\0",
    "2024-06-15T10:00:00.1234567Z",
    "٢٠٢٤-٠٦-١٥",
    "2024-06-15T10:00:60",
    "2024-06-15x",
]
SIGNS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")


def of_haystack(filters):
    pytest.importorskip("haystack")
    from woh_faiss.integrations.haystack import _matching

    return _matching(filters)


@pytest.mark.parametrize("sign", SIGNS)
def test_every_operator_of_haystack_on_every_value(db, sign):
    values = [*VALUES, *DATES]
    entries = put(
        db,
        [{}, *({"a": value} for value in values)],
        [*["", *DATES, None, "a", "a\0"], *["b"] * (len(values) - len(DATES) - 3)],
    )
    when = [
        datetime(2024, 3, 1),
        datetime(2024, 3, 1, 9, tzinfo=timezone(timedelta(hours=5))),
        datetime(9999, 12, 31),
    ]
    odd = [
        math.nan,
        math.inf,
        -math.inf,
        date(2024, 3, 1),
        {1},
        np.float64(0.1),
        np.int64(1),
        np.arange(2),
        "a" * 9,
        b"a",
    ]
    asked = 0
    for operand in [*values, *when, *odd]:
        given = [operand, None, "2024-06-15"] if "in" in sign else operand
        asked += check(db, entries, of_haystack({"field": "meta.a", "operator": sign, "value": given}))
        check(db, entries, of_haystack({"field": "content", "operator": sign, "value": given}))
    assert asked < 0.5 * len(values) * len(entries) or sign in ("<", "<=", ">", ">=")  # most are errors


FIELDS = [
    "a",
    "meta.a",
    "meta.b.c",
    "meta.b.c.d",
    "meta.l.a",
    "meta",
    "meta.",
    "id",
    "content",
    "score",
    "b.c",
]
FIELDS += ["blob.mime_type", "__dict__.meta.a", "content_type.x", "meta.é", "a b", "", "embedding", 3, None]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_haystack(db, name):
    entries = put(
        db,
        [
            {"a": 1, "l": [{"a": 1}], "é": 1},
            {"b": {"c": 1}},
            {"b": {"c": {"d": 1}}, "": 1},
            {"b": [1], "a b": 1},
        ],
    )
    for sign, value in [*itertools.product(SIGNS, (1, None, "id 1", [1, "id 0"])), ("~", 1), (None, 1)]:
        check(db, entries, of_haystack({"field": name, "operator": sign, "value": value}))


HAYSTACK_PARTS = [
    {"field": "meta.a", "operator": sign, "value": value}
    for sign, value in zip(SIGNS, (1, 1, 0, 2, 0, 1, [1], [1]), strict=True)
]
HAYSTACK_PARTS += [
    {"field": "b", "operator": ">", "value": "2024-03-01"},
    {"field": "b", "operator": "==", "value": [1]},
]
HAYSTACK_PARTS += [
    {"field": "meta.c", "operator": "=", "value": 1},
    {"operator": "AND"},
    {"field": "a"},
    {},
    3,
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([*DOCUMENTS, {"b": "2024-06-15"}]), min_size=1, max_size=4),
    st.recursive(
        st.sampled_from(HAYSTACK_PARTS),
        lambda inner: st.builds(
            lambda operator, conditions: {"operator": operator, "conditions": conditions},
            st.sampled_from(["AND", "OR", "NOT", "AND", "OR", "NOT", "and"]),
            st.lists(inner, max_size=4),
        ),
        max_leaves=8,
    ),
)
def test_filters_of_haystack_that_are_joined(db, metadata, filters):
    entries = put(db, metadata)
    keep = of_haystack(filters)
    expected = told(lambda: [entry.number for entry in entries if keep.matches(entry)])
    assert told(lambda: db.numbers(keep)) == expected
    assert told(lambda: [entry.number for entry in db.matching(keep)]) == expected


def test_haystack_s_dates_are_compared_in_sql(db):
    put(
        db,
        [
            {"taken": f"2024-{month:02}-01T10:00:00{zone}"}
            for month in range(1, 13)
            for zone in ("", "Z", "+02:00")
        ],
    )
    for sign, n in (("<", 18), (">=", 18), ("==", 0), ("!=", 36)):
        keep = of_haystack({"field": "meta.taken", "operator": sign, "value": "2024-06-05"})
        assert len(db.numbers(DocumentFilter(nobody, keep.sql, keep.values))) == n


# ---- both ----------------------------------------------------------------------------------------------


def nobody(entry):
    raise AssertionError(f"{entry.metadata} was decided in Python")


@pytest.mark.parametrize(
    ("wanted", "n"),
    [
        ({"price": {"$lt": 20}, "year": {"$gte": 2020}}, 7),
        ({"topic": {"$in": [f"topic {i}" for i in range(5)]}}, 50),
        ({"$or": [{"tags": "x"}, {"public": True}]}, 90),
        ({"$not": {"topic": {"$ne": "topic 3"}}}, 10),
        ({"author": {"name": "A"}, "topic": "topic 3", "year": 2020}, 0),
    ],
)
def test_what_is_usual_is_decided_in_sql(db, wanted, n):
    put(
        db,
        [
            {
                "price": i / 2 + 0.25,
                "year": 2000 + i % 27,
                "topic": f"topic {i % 10}",
                "public": i % 2 == 0,
                "tags": ["x", "y"][i % 5 == 0 :],
                "author": {"name": "B"},
            }
            for i in range(100)
        ],
    )
    keep = document_filter(wanted)
    expected = [entry.number for entry in db.matching() if compiled(wanted)(entry.metadata)]
    assert db.numbers(DocumentFilter(nobody, keep.sql, keep.values)) == expected
    assert len(expected) == n


def test_a_filter_may_be_as_deep_and_long_as_json_may(db):
    entries = put(db, [{"a": 1}, {"a": 2}, {"b": 1}])

    def check_numbers(keep):
        assert db.numbers(keep) == [entry.number for entry in entries if keep.matches(entry)]

    deep = {"a": {"$gte": 2}}
    for level in range(30):
        deep = [{"$not": deep}, {"$or": [{"c": {"$gt": 1}}, deep]}, {"$and": [{"a": {"$ne": 9}}, deep]}][
            level % 3
        ]
        check_numbers(document_filter(deep))
    for name, long in itertools.product(("$or", "$and"), (33, 100, 400)):
        check_numbers(document_filter({name: [{"a": {"$gt": i}} for i in range(long)]}))
        check_numbers(document_filter({name: [{"a": i} for i in range(long)]}))
    check_numbers(document_filter({"a": {"$in": [*range(2, 100_000)]}}))


def test_haystack_s_filters_may_be_deep_and_long(db):
    entries = put(db, [{"a": "2024-01-01"}, {"a": "2024-03-01"}, {"b": 1}])
    late = {"field": "meta.a", "operator": ">", "value": "2024-02-15"}
    deep = late
    for level in range(20):
        deep = {"operator": ["OR", "AND", "NOT"][level % 3], "conditions": [late, deep][level % 3 == 2 :]}
        for some in (deep, {"operator": "OR", "conditions": [late] * 5 * level}):
            keep = of_haystack(some)
            assert db.numbers(keep) == [entry.number for entry in entries if keep.matches(entry)]


def test_text_of_sql_is_a_value(db):
    put(db, [{"a'); DROP TABLE documents; --": "x' OR '1'='1"}, {"a": 1}])
    found = db.numbers(document_filter({"a'); DROP TABLE documents; --": "x' OR '1'='1"}))
    assert len(found) == 1
    assert db.count() == 2
    assert db.numbers(document_filter({"a": "1' OR '1'='1"})) == []


def test_damaged_metadata_name_their_document(db):
    first, _ = put(db, [{"a": 1}, {"a": 2}])
    with closing(sqlite3.connect(db._path, isolation_level=None)) as connection:
        connection.execute("UPDATE documents SET metadata = '{\"a\": 1' WHERE number = ?", (first.number,))
    with pytest.raises(StoreError, match=f"is damaged at document {first.number}; restore it from a backup"):
        db.numbers(document_filter({"a": 2}))


def test_documents_are_looked_at_in_their_order(db):
    put(db, [{"a": "x"}, {"a": "y"}])
    with pytest.raises(InputError, match="'x' of a document"):
        db.numbers(document_filter({"a": {"$gt": 1}}))
