"""Folders as Hugging Face's save_to_disk writes them hold what their state.json says, once."""

import json
import re

import numpy as np
import pytest
from conftest import tagged
from test_inputs import plain, read, table_of

from woh_faiss.errors import InputError
from woh_faiss.inputs import Columns, open_inputs

pa = pytest.importorskip("pyarrow")

N = 12


def write(path, table):
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def saved(folder, table, shards=1, split=None, **state):
    """What `Dataset.save_to_disk` leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    step = len(table) // shards
    for i, name in enumerate(names):
        write(folder / name, table.slice(i * step, step))
    told = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": split}
    (folder / "state.json").write_text(json.dumps(told | state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.fixture
def table():
    return table_of(*tagged(1, N))


@pytest.mark.parametrize("shards", [1, 3])
def test_what_map_and_shuffle_leave_is_not_data(tmp_path, table, shards):
    folder = saved(tmp_path / "set", table, shards)
    write(folder / "cache-1c80317fa3b1799d.arrow", table)  # .map()
    write(folder / "cache-bdd640fb06671ad1.arrow", pa.table({"indices": pa.array(range(N), pa.uint64())}))
    inputs = open_inputs([folder], learn=True)
    X, tags = tagged(1, N)
    np.testing.assert_array_equal(np.concatenate([chunk.features for chunk in inputs]), X)
    assert [row for chunk in inputs for row in plain(chunk)[2]] == tags
    assert inputs.notes(Columns())[1:] == [f"{folder}: 2 files left out that state.json does not name"]


def test_a_folder_without_caches_has_no_note(tmp_path, table):
    inputs = open_inputs([saved(tmp_path / "set", table)], learn=True)
    assert len(inputs.notes(Columns())) == 1  # of columns


def test_splits_are_named_and_not_mixed(tmp_path, table):
    both = tmp_path / "both"
    for split in ("train", "test"):
        saved(both / split, table, split=split)
    with pytest.raises(InputError, match="data sets of several splits") as caught:
        read(both)
    assert "test" in str(caught.value)
    assert "train" in str(caught.value)
    (both / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    message = f"{both} is a DatasetDict with the splits train, test, expected one data set; give the folder"
    with pytest.raises(InputError, match=re.escape(message)):
        read(both)
    with pytest.raises(InputError, match="is a DatasetDict"):
        read(tmp_path)  # a folder above it
    assert len(read(both / "test")[0]) == N


def test_a_cache_of_load_dataset_is_refused(tmp_path, table):
    for name in ("x-train.arrow", "x-test.arrow"):
        write(tmp_path / name, table)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(InputError, match="is a cache of datasets, whose 2 files"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_indices_data_files": [{"filename": "i.arrow"}]}, "has a table of indices"),
        ({"_data_files": [{"filename": "none.arrow"}]}, "names none.arrow, which is not there"),
        ({"_data_files": [{"filename": "../a.arrow"}]}, "names '../a.arrow' as a file of its folder"),
        ({"_data_files": [7]}, "names None as a file of its folder"),
    ],
)
def test_a_state_that_cannot_be_followed_is_refused(tmp_path, table, state, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(saved(tmp_path / "set", table, **state))
    assert str(caught.value).isprintable()


def test_a_state_that_is_no_json_is_refused_and_another_s_is_not_read(tmp_path, table):
    folder = saved(tmp_path / "set", table)
    (folder / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"state.json is not JSON"):
        read(folder)
    (folder / "state.json").write_text('{"epoch": 3}')
    assert len(read(folder)[0]) == N
