"""Odd values in the place of every number, list and array of the public interface: one line each."""

import shutil
import zipfile
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from conftest import SMALL, length, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from woh_faiss import WOHConfig, WOHIndex, read_chunk
from woh_faiss.errors import ConfigError, InputError, StoreError, WOHError

XQ = tagged(8, n=2)[0]

numbers = st.one_of(
    st.integers(),
    st.integers(-2, 100),
    st.sampled_from([2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 10**4000, 10**12]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.complex_numbers(max_magnitude=9),
    st.lists(st.integers(), max_size=3),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-5, 5)),
    st.builds(np.bool_, st.booleans()),
    st.builds(np.array, st.lists(st.integers(-5, 5), max_size=2)),
)

#: One argument of a call each; nothing in them changes the index.
CALLS = {
    "k": lambda index, value: index.search(XQ, value),
    "k by hamming": lambda index, value: index.search(XQ, value, by="hamming"),
    "by": lambda index, value: index.search(XQ, 3, by=value),
    "by of ids": lambda index, value: index.search_ids([0], 3, by=value),
    "expand": lambda index, value: index.search(XQ, 3, expand=value),
    "k of ids": lambda index, value: index.search_ids([0], value),
    "k of tags": lambda index, value: index.search_tags([["sea"]], value),
    "tags": lambda index, value: index.search_tags(value, 3),
    "radius": lambda index, value: index.range_search(XQ, value),
    "radius of ids": lambda index, value: index.range_search_ids([0], value),
    "allow": lambda index, value: index.search(XQ, 3, allow=value),
    "deny": lambda index, value: index.search(XQ, 3, deny=[value]),
    "through": lambda index, value: index.search(XQ, 3, ann=value),
    "queries": lambda index, value: index.search(value, 3),
    "ids": lambda index, value: index.items([value]),
    "searched ids": lambda index, value: index.search_ids([value], 3),
    "explained ids": lambda index, value: index.explain([value]),
    "most": lambda index, value: index.explain([1], value),
    "timeout": lambda index, value: index.remove([], timeout=value),
    "round": lambda index, value: index.rollback(value) if value not in (0, False) else None,
    "auto_refresh": lambda index, value: WOHIndex.open(index.path, auto_refresh=value).close(),
    "nlist": lambda index, value: index.to_faiss("ivf", nlist=value),
    "kind": lambda index, value: index.build_ann(value),
}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    with WOHIndex.create(tmp_path_factory.mktemp("odd") / "i", **SMALL) as index:
        index.update(*tagged(0))
        yield index


@pytest.mark.parametrize("name", CALLS)
@settings(deadline=None, max_examples=length(60))
@given(numbers)
def test_any_value_is_answered_or_refused_in_one_line(one, name, value):
    if name == "round" and isinstance(value, np.ndarray):
        value = 3
    told = ""
    try:
        CALLS[name](one, value)
    except WOHError as error:
        told = str(error)
    assert "\n" not in told
    assert len(told) < 1000
    assert one._store.snapshot.round == 1


@pytest.mark.parametrize("name", [field.name for field in fields(WOHConfig) if field.init])
@settings(deadline=None, max_examples=length(60))
@given(numbers)
def test_any_value_of_a_hyper_parameter_makes_a_config_or_is_refused(name, value):
    told = ""
    try:
        WOHConfig(**{name: value})
    except ConfigError as error:
        told = str(error)
    assert "\n" not in told
    assert len(told) < 1000


@pytest.mark.parametrize(("name", "value"), [("bits", 100_000), ("bits", 1048576), ("anchors", 10**12)])
def test_sizes_that_no_machine_has_room_for_are_refused_before_they_are_tried(tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value}, expected at most"):
        WOHIndex.create(tmp_path / "i", **{name: value})
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize("k", [2**31 - 1, 2**31, 2**63])
def test_more_neighbours_than_faiss_counts_are_refused(one, k):
    for call in (
        partial(one.search, XQ),
        partial(one.search, XQ, by="hamming"),
        partial(one.search_ids, [1]),
    ):
        with pytest.raises(InputError, match=f"k is {k}, expected less than 2147483647"):
            call(k)
    with pytest.raises(InputError, match="k is 1000000000, and there are 40 items for 2 queries"):
        one.search(XQ, 10**9)


def test_a_matrix_is_an_array(one):
    for a, b in zip(one.search(XQ.view(np.matrix), 5), one.search(XQ, 5), strict=True):
        assert_array_equal(a, b)
        assert type(a) is np.ndarray


def test_a_folder_that_is_removed_while_it_is_open_is_named(tmp_path):
    with WOHIndex.create(tmp_path / "i", **SMALL) as index:
        index.update(*tagged(0))
        shutil.rmtree(tmp_path / "i")
        assert index.search(XQ, 3)[1].shape == (2, 3)  # what is mapped answers
        for act in (
            index.refresh, index.info, index.health, index.rounds, index.tags, index.compact,
            lambda: index.items([1]), lambda: index.add(XQ), lambda: index.update(*tagged(1)),
            lambda: index.explain([1]), lambda: index.id_of("x"), lambda: index.rollback(0),
            lambda: index.build_ann("ivf"), lambda: index.export(tmp_path / "o"),
        ):  # fmt: skip
            with pytest.raises(StoreError, match=r"catalog.db .*(is missing|cannot be opened)|no index at"):
                act()


@pytest.mark.parametrize("shape", ["(True, 4)", "(1, True)", "(-1, -4)"])
@pytest.mark.parametrize("mapped", [True, False])
def test_a_header_whose_shape_is_none_is_refused(tmp_path, shape, mapped):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    size = 4 if shape == "(1, True)" else 16
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(size)
    path = tmp_path / "features.npy"
    path.write_bytes(data)
    if not mapped:
        path = tmp_path / "chunk.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("features.npy", data)
    with pytest.raises(InputError, match="damaged header"):
        read_chunk(path)
