"""Filters of metadata choose what a naive reading of them chooses, or are refused by name."""

import re

import pytest

from woh_faiss.errors import InputError
from woh_faiss.integrations.metadata_filter import compiled

METADATA = [
    {"year": 2000, "topic": "sea", "tags": ["sea", "boat"], "new": True},
    {"year": 2005.5, "topic": "hill", "tags": [], "author": {"name": "A"}},
    {"year": 2010, "topic": None},
    {"year": 1, "sizes": [1, 20]},
]


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        ({}, [0, 1, 2, 3]),
        ({"topic": "sea"}, [0]),
        ({"topic": None}, [2]),
        ({"year": 2000.0}, [0]),
        ({"new": 1}, []),
        ({"year": True}, []),
        ({"author": {"name": "A"}}, [1]),
        ({"year": {"$gt": 2000}}, [1, 2]),
        ({"year": {"$gte": 2000, "$lt": 2010}}, [0, 1]),
        ({"year": {"$lte": 2000}}, [0, 3]),
        ({"topic": {"$gt": "hill"}}, [0]),
        ({"topic": {"$in": ["sea", None]}}, [0, 2]),
        ({"topic": {"$in": []}}, []),
        ({"topic": {"$nin": ["sea"]}}, [1, 2, 3]),
        ({"topic": {"$ne": "sea"}}, [1, 2, 3]),
        ({"topic": {"$exists": False}}, [3]),
        ({"tags": "boat"}, [0]),
        ({"tags": {"$in": ["boat", "x"]}}, [0]),
        ({"tags": {"$eq": ["sea", "boat"]}}, [0]),
        ({"tags": {"$eq": []}}, [1]),
        ({"sizes": {"$gt": 10}}, [3]),
        ({"year": {"$not": {"$gt": 2000}}}, [0, 3]),
        ({"$not": {"topic": "sea"}}, [1, 2, 3]),
        ({"$or": [{"topic": "sea"}, {"year": 1}]}, [0, 3]),
        ({"$and": [{"year": {"$gt": 1}}, {"year": {"$lt": 2010}}], "topic": "hill"}, [1]),
    ],
)
def test_what_a_filter_chooses(wanted, rows):
    match = compiled(wanted)
    assert [row for row, metadata in enumerate(METADATA) if match(metadata)] == rows


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([], "filter is a list, expected a function of a Document or a dict"),
        ({"topic": ["sea"]}, """'topic' is the list ['sea']; write {"$in": [...]}"""),
        ({"topic": {"$regex": "s"}}, "operator '$regex' of 'topic' is not known, expected one of $eq"),
        ({"topic": {"$ne": "a", "other": 1}}, "operator 'other' of 'topic' is not known"),
        ({"$nor": []}, "operator '$nor' is not known, expected one of $and, $or, $not"),
        ({"$or": []}, "$or has [], expected a list of filters"),
        ({"$and": {"a": 1}}, "expected a list of filters"),
        ({"$or": [3]}, "filter is a int"),
        ({"year": {"$in": 3}}, "$in of 'year' has 3, expected a list of values"),
        ({"year": {"$gt": None}}, "$gt of 'year' has None, expected a number or text"),
        ({"year": {"$exists": 1}}, "$exists of 'year' has 1, expected true or false"),
        ({"year": {"$not": 1}}, "$not of 'year' has 1, expected a dict of operators"),
        ({"year": float("nan")}, "filter cannot be kept as JSON"),
        ({"year": object()}, "filter cannot be kept as JSON"),
        ({1: 2}, "filter cannot be kept as JSON"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_is_looked_at(wanted, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        compiled(wanted)
    assert str(caught.value).isprintable()


def test_text_and_numbers_have_no_order():
    with pytest.raises(InputError, match=r"\$gt of 'year' compares 2005 with '2006' of a document"):
        compiled({"year": {"$gt": 2005}})({"year": "2006"})
