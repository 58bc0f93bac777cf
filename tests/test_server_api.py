"""The server's API beside the index that it serves."""

import numpy as np
import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from woh_faiss import Chunk, WOHIndex
from woh_faiss.errors import ConfigError
from woh_faiss.server.app import create_app
from woh_faiss.server.settings import Settings

WORDS = ["sea", "beach", "hill", "snow"]


def stream(n=120, d=8, start=0, seed=0):
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, len(WORDS), n)
    X = (np.eye(len(WORDS), d)[classes] * 3 + rng.normal(size=(n, d))).astype(np.float32)
    keys = [f"p{start + i}.jpg" for i in range(n)]
    price = [float(i % 50) for i in range(n)]
    return Chunk.of(X, [[WORDS[c]] for c in classes], keys=keys, metadata={"price": price})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "index.woh"
    WOHIndex.build(folder, [stream()], bits=16, instance_bits=16, anchors=10, vector_size=5).close()
    return folder


@pytest.fixture(scope="module")
def index(path):
    return WOHIndex.open(path)


@pytest.fixture(scope="module")
def client(path):
    with TestClient(create_app(Settings(index=path)), base_url="http://localhost") as client:
        yield client


def found(response):
    assert response.status_code == 200, response.text
    return [[(hit["id"], pytest.approx(hit["score"])) for hit in hits] for hits in response.json()["answers"]]


def expected(D, I):
    return [
        [(i, d) for i, d in zip(ids, row, strict=True) if i >= 0]
        for row, ids in zip(D.tolist(), I.tolist(), strict=True)
    ]


@pytest.mark.parametrize("by", ["both", "kind", "instance"])
def test_vectors_are_answered_as_the_index_answers_them(client, index, by):
    xq = stream(seed=1).features[:7]
    asked = {"vectors": xq.tolist(), "k": 5, "by": by, "where": "price < 20"}
    assert found(client.post("/v1/search", json=asked)) == expected(
        *index.search(xq, 5, by=by, where="price < 20")
    )


def test_ids_keys_and_tags(client, index):
    assert found(client.post("/v1/search", json={"ids": [3, 9], "k": 4})) == expected(
        *index.search_ids([3, 9], 4)
    )
    assert found(client.post("/v1/search", json={"keys": ["p3.jpg"], "k": 4})) == expected(
        *index.search_ids([3], 4)
    )
    assert found(client.post("/v1/search", json={"tags": [["sea"], ["hill", "snow"]], "k": 4})) == expected(
        *index.search_tags([["sea"], ["hill", "snow"]], 4)
    )


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({}, 400, "nothing to ask with"),
        ({"ids": [1], "keys": ["p1.jpg"]}, 400, "one of vectors"),
        ({"ids": [1], "tags": [["sea"]]}, 400, "tags stand beside"),
        ({"ids": [4711]}, 404, "4711 is not in"),
        ({"keys": ["<b>"]}, 404, "no item"),
        ({"vectors": [[1.0, 2.0]]}, 400, "features have 2 columns"),
        ({"vectors": []}, 400, "0 queries"),
        ({"ids": [0], "k": 1001}, 400, "up to 1000"),
        ({"ids": [0], "k": 0}, 422, "k: "),
        ({"ids": [0], "where": "price <"}, 400, "where"),
        ({"ids": [0], "no": 1}, 422, "no: "),
        ({"tags": [["xyzzy"]]}, 400, "xyzzy"),
    ],
)
def test_a_request_that_is_wrong_is_told_in_one_line(client, body, status, told):
    answer = client.post("/v1/search", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert told in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host": "0.0.0.0"}, "--token-file"),  # noqa: S104
        ({"host": "photos.example"}, "--token-file"),
        ({"writable": True}, "--token-file"),
        ({"allow_origins": ("photos.example",)}, "such as https"),
        ({"timeout": 0}, "timeout"),
        ({"max_k": 0}, "max_k"),
    ],
)
def test_settings_are_checked(path, given, told):
    with pytest.raises(ConfigError, match=told):
        Settings(index=path, **given)
