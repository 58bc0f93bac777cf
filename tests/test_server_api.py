"""The server's API beside the index that it serves."""

import asyncio
import io
import json
import shutil
from datetime import date

import msgpack
import numpy as np
import pytest

pytest.importorskip("fastapi")
import served
from fastapi.testclient import TestClient

from woh_faiss import WOHIndex
from woh_faiss.errors import ConfigError, InputError, MissingItemError
from woh_faiss.server.app import create_app
from woh_faiss.server.service import How, SearchRequest, Service
from woh_faiss.server.settings import Settings
from woh_faiss.server.turns import TOGETHER, Batches, Turns


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return served.built(tmp_path_factory.mktemp("served") / "index.woh")


@pytest.fixture(scope="module")
def index(path):
    return WOHIndex.open(path)


@pytest.fixture(scope="module")
def client(path):
    with TestClient(create_app(Settings(index=path)), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def writable(path, tmp_path):
    """A client with the token of a server of an index of its own."""
    shutil.copytree(path, tmp_path / "own.woh")
    settings = Settings(index=tmp_path / "own.woh", writable=True, token_file=served.token_file(tmp_path))
    with TestClient(create_app(settings), base_url="http://localhost", headers=served.BEARER) as client:
        yield client


def hits(response, measure="score"):
    """Ids and scores of each query."""
    assert response.status_code == 200, response.text
    return [[(hit["id"], pytest.approx(hit[measure])) for hit in row] for row in response.json()["answers"]]


def of_index(D, I):
    """The same of what an index answers."""
    pairs = zip(D.tolist(), I.tolist(), strict=True)
    return [[(i, d) for d, i in zip(*row, strict=True) if i >= 0] for row in pairs]


def ask(client, **body):
    return client.post("/v1/search", json=body)


# ---- searches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 40])
@pytest.mark.parametrize("by", ["both", "kind", "instance", "hamming"])
def test_vectors_are_answered_as_the_index_answers_them(client, index, by, n):
    xq = served.stream(n, seed=1).features
    found = ask(client, vectors=xq.tolist(), k=5, by=by, where="price < 20")
    measure = "distance" if by == "hamming" else "score"
    assert hits(found, measure) == of_index(*index.search(xq, 5, by=by, where="price < 20"))


def test_ids_keys_and_tags(client, index):
    assert hits(ask(client, ids=[3, 9], k=4)) == of_index(*index.search_ids([3, 9], 4))
    assert hits(ask(client, keys=["p3.jpg"], k=4)) == of_index(*index.search_ids([3], 4))
    tags = [["sea"], ["hill", "snow"]]
    assert hits(ask(client, tags=tags, k=4)) == of_index(*index.search_tags(tags, 4))
    xq = served.stream(2, seed=2).features
    assert hits(ask(client, tags=tags, vectors=xq.tolist(), k=4)) == of_index(
        *index.search_tags(tags, 4, xq=xq)
    )


def test_what_an_answer_says_of_an_item(client, index):
    (row,) = ask(client, ids=[3], k=2, explain=True).json()["answers"]
    for hit in row:
        item = index.items([hit["id"]])[0]
        assert (hit["key"], hit["tags"], hit["metadata"]) == (item.key, item.tags, dict(item.metadata))
        assert hit["kind"] + hit["instance"] == pytest.approx(hit["score"], abs=1e-6)
    (bare,) = ask(client, ids=[3], k=2, describe=False).json()["answers"]
    assert bare == [{"id": hit["id"], "score": hit["score"]} for hit in row]


def test_pages_of_answers_are_parts_of_one_list(client):
    (whole,) = ask(client, tags=[["sea"]], k=30).json()["answers"]
    pages = [ask(client, tags=[["sea"]], k=10, offset=offset).json()["answers"][0] for offset in (0, 10, 20)]
    assert [hit for page in pages for hit in page] == whole


@pytest.mark.parametrize("form", ["list", "bytes"])
def test_msgpack_goes_both_ways(client, index, form):
    xq = served.stream(3, seed=3).features
    vectors = xq.astype("<f4").tobytes() if form == "bytes" else xq.tolist()
    answer = client.post(
        "/v1/search",
        content=msgpack.packb({"vectors": vectors, "k": 4}),
        headers={"content-type": "application/msgpack", "accept": "application/msgpack"},
    )
    assert answer.headers["content-type"] == "application/msgpack"
    found = [[(hit["id"], hit["score"]) for hit in row] for row in msgpack.unpackb(answer.content)["answers"]]
    assert found == of_index(*index.search(xq, 4))


def test_answers_can_be_ordered_by_the_original_features(path, index, tmp_path):
    features = served.stream().features
    np.save(tmp_path / "features.npy", features[:-1])
    xq = served.stream(2, seed=4).features
    with TestClient(
        create_app(Settings(index=path, refine=tmp_path / "features.npy")), base_url="http://localhost"
    ) as client:
        found = ask(client, vectors=xq.tolist(), k=5, refine=True)
        assert hits(found, "cosine") == of_index(*index.search(xq, 5, refine=features[:-1]))
        every = ask(client, vectors=xq.tolist(), k=5, refine=True, refine_k=served.N).json()
        assert "no row for 1 of the answers" in every["notes"][0]
        assert ask(client, ids=[1], refine=True).status_code == 400
    assert "--refine" in ask(TestClient(create_app(Settings(index=path)), base_url="http://localhost"),
                             vectors=xq.tolist(), refine=True).json()["detail"]  # fmt: skip


def test_pictures_and_texts_are_encoded(tmp_path):
    toy_models = pytest.importorskip("toy_models")
    from woh_faiss.encoders import open_encoder
    from woh_faiss.encoders.encoder import EncoderRecord

    toy_models.clip(tmp_path / "clip")
    encoder = open_encoder(f"onnx:{tmp_path / 'clip'}")
    colours = ["red", "green", "blue", "white"] * 12
    pictures = [toy_models.picture(colour, i) for i, colour in enumerate(colours)]
    index = WOHIndex.build(
        tmp_path / "p.woh",
        [served.Chunk.of(encoder.embed_images(pictures), [[colour] for colour in colours])],
        encoder=EncoderRecord.of(encoder),
        **served.SMALL,
    )
    data = io.BytesIO()
    pictures[5].save(data, "PNG")
    with TestClient(create_app(Settings(index=index.path)), base_url="http://localhost") as client:
        found = client.post("/v1/search", files={"image": data.getvalue()}, data={"k": "3", "explain": "1"})
        assert hits(found) == of_index(*index.search(encoder.embed_images([pictures[5]]), 3))
        two = client.post("/v1/search", files=[("image", data.getvalue())] * 2, data={"tags": ["red", "sea"]})
        assert len(two.json()["answers"]) == 2
        texts = ["red sea", "blue hill"]
        assert hits(ask(client, texts=texts, k=3)) == of_index(*index.search(encoder.embed_texts(texts), 3))
        for files, told in (
            ({"image": b"no picture"}, "the picture: no picture that can be read"),
            ({"other": data.getvalue()}, "expected pictures as 'image'"),
        ):
            answer = client.post("/v1/search", files=files)
            assert (answer.status_code, told in answer.json()["detail"]) == (400, True)
        assert client.post("/v1/search", files={"image": data.getvalue()}, data={"k": "x"}).status_code == 422


def test_a_text_is_asked_by_its_words_where_no_encoder_is_known(client, index):
    found = ask(client, texts=["the SEA at night"], k=4)
    assert hits(found) == of_index(*index.search_tags([["the", "sea", "at", "night"]], 4))
    assert any("no encoder is known" in note for note in found.json()["notes"])
    assert any("nothing is known of" in note for note in found.json()["notes"])


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({}, 400, "nothing to ask with"),
        ({"ids": [1], "keys": ["p1.jpg"]}, 400, "one of vectors"),
        ({"ids": [1], "tags": [["sea"]]}, 400, "tags stand beside"),
        ({"vectors": [[0] * 8], "tags": []}, 400, "one of each"),
        ({"ids": [4711]}, 404, "4711 is not in"),
        ({"keys": ["<b>"]}, 404, "no item"),
        ({"vectors": [[1.0, 2.0]]}, 400, "features have 2 columns"),
        ({"vectors": [[1.0], [1.0, 2.0]]}, 400, "not an array"),
        ({"vectors": [[]]}, 400, "features have"),
        ({"vectors": []}, 400, "0 queries"),
        ({"ids": [0] * 1001}, 400, "takes 1 to 1000"),
        ({"ids": [0], "k": 1001}, 400, "up to 1000"),
        ({"ids": [0], "k": 10, "offset": 991}, 400, "up to 1000"),
        ({"ids": [0], "k": 0}, 422, "k: "),
        ({"ids": [-1]}, 422, "ids.0: "),
        ({"ids": [2**63]}, 422, "ids.0: "),
        ({"ids": [0], "by": "size"}, 422, "by: "),
        ({"ids": [0], "where": "price <"}, 400, "where"),
        ({"ids": [0], "where": "cost < 3"}, 400, "cost"),
        ({"ids": [0], "no": 1}, 422, "no: "),
        ({"tags": [["xyzzy"]]}, 400, "xyzzy"),
        ({"tags": [["sea"]], "by": "kind"}, 400, "by"),
        ({"vectors": [[0] * 8], "ann": "ivf"}, 400, "build-ann"),
        ({"vectors": [[0] * 8], "ann": "hnsw"}, 422, "ann: "),
        ({"vectors": [[0] * 8], "refine_k": 10}, 400, "refine_k"),
    ],
)
def test_a_request_that_is_wrong_is_told_in_one_line(client, body, status, told):
    answer = client.post("/v1/search", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert told in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[1]", "application/json", 422),
        (b'{"vectors": [[NaN, 1]]}', "application/json", 400),
        (b"\xff\xff", "application/json", 422),
        (b"{}", "text/plain", 415),
        (b"{}", "application/x-www-form-urlencoded", 415),
        (b"\xc1", "application/msgpack", 400),
        (b"\x91" * 5000, "application/msgpack", 400),
        (msgpack.packb([1]), "application/msgpack", 422),
        (msgpack.packb({"vectors": b"12345"}), "application/msgpack", 400),
        (msgpack.packb({1: 2}), "application/msgpack", 400),
        (b"--x", "multipart/form-data; boundary=x", 422),
        (b"", "multipart/form-data", 400),
        (b"[" * 100_000, "application/json", 422),
    ],
)
def test_a_body_that_is_damaged_is_told_in_one_line(client, content, kind, status):
    answer = client.post("/v1/search", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert "\n" not in answer.json()["detail"]


# ---- items -------------------------------------------------------------------------------------------------


def test_items_by_id_key_filter_and_page(client, index):
    one = client.get("/v1/items/7").json()
    item = index.items([7])[0]
    assert one == {
        "id": 7, "key": item.key, "tags": item.tags, "trust": item.trust, "metadata": dict(item.metadata),
    }  # fmt: skip
    assert client.get("/v1/items", params={"key": ["p7.jpg"]}).json() == {"items": [one], "total": 1}
    some = client.get("/v1/items", params={"id": [9, 7], "where": "price < 8"}).json()
    assert some == {"items": [one], "total": 1}
    wanted = index.ids("'sea' in tags").tolist()
    page = client.get("/v1/items", params={"where": "'sea' in tags", "limit": 5, "offset": 2}).json()
    assert ([it["id"] for it in page["items"]], page["total"]) == (wanted[2:7], len(wanted))
    assert client.get("/v1/items").json()["total"] == len(index)
    for params, status in (({"id": [4711]}, 404), ({"key": ["x"]}, 404), ({"id": [1], "key": ["x"]}, 400)):
        assert client.get("/v1/items", params=params).status_code == status
    for wrong in ("4711", "9999999999999999999"):
        answer = client.get(f"/v1/items/{wrong}")
        assert answer.status_code in (404, 422)
        assert answer.headers["content-type"] == "application/problem+json"


def test_tags_by_their_beginning(client, index):
    found = client.get("/v1/tags", params={"prefix": "#S", "limit": 2}).json()["tags"]
    wanted = [(tag, count) for tag, count, _ in index.tags() if tag.startswith("s")][:2]
    assert [(row["tag"], row["count"]) for row in found] == wanted
    assert client.get("/v1/tags", params={"prefix": "\U0010ffff"}).json() == {"tags": []}


def test_info_has_no_path(client, index):
    found = client.get("/v1/info").json()
    told = json.loads(json.dumps(index.info()))
    del told["path"]
    assert found == {**told, "writable": False}
    assert client.get("/v1/info", params={"history": 0}).json()["history"] == []


def test_figures_and_states_for_supervisors(path, client, tmp_path):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    ask(client, ids=[1, 2])
    figures = client.get("/metrics").text
    assert 'woh_requests_total{route="/v1/search",status="200"}' in figures
    assert f"woh_items {served.N}.0" in figures
    shutil.copytree(path, tmp_path / "gone.woh")
    with TestClient(create_app(Settings(index=tmp_path / "gone.woh")), base_url="http://localhost") as other:
        shutil.rmtree(tmp_path / "gone.woh")
        other.app.state.service._looked = 0  # a look is due
        answer = other.get("/readyz")
        assert (answer.status_code, "gone.woh" in answer.json()["detail"]) == (503, True)
        assert other.get("/healthz").status_code == 200


# ---- writes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["/v1/items", "/v1/rounds"])
@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_items_are_added_as_the_index_adds_them(writable, path, tmp_path, route, form):
    shutil.copytree(path, tmp_path / "same.woh")
    new = served.stream(30, start=500, seed=5)
    body = {
        "vectors": new.features.tolist(), "tags": [new.tags.of_row(i) for i in range(30)],
        "keys": new.keys.tolist(), "metadata": {"price": new.metadata["price"].cells},
    }  # fmt: skip
    if form == "msgpack":
        body["vectors"] = new.features.astype("<f4").tobytes()
        sent = {"content": msgpack.packb(body), "headers": {"content-type": "application/msgpack"}}
    else:
        sent = {"json": body}
    answer = writable.post(route, **sent)
    assert answer.status_code == 201, answer.text
    assert (answer.json()["n"], answer.json()["left_out"], answer.json()["ntotal"]) == (30, 0, served.N + 30)
    with WOHIndex.open(tmp_path / "same.woh") as same:
        (same.add if route == "/v1/items" else same.update)(new)
        with WOHIndex.open(tmp_path / "own.woh") as own:
            assert own.store.rounds()[-1].checksum == same.store.rounds()[-1].checksum
            assert own.info()["model_digest"] == same.info()["model_digest"]
    (row,) = ask(writable, keys=["p501.jpg"], k=1).json()["answers"]  # it is there at once
    assert row
    again = writable.post(route, **sent)
    assert (again.status_code, "p500.jpg" in again.json()["detail"]) == (400, True)
    body["on_duplicate"] = "skip"
    if form == "json":
        assert writable.post(route, json=body).json()["left_out"] == 30


def test_items_are_removed_and_gone_at_once(writable):
    gone = writable.delete("/v1/items", params={"id": [3, 4]})
    assert gone.json() == {"removed": 2, "ntotal": served.N - 2}
    assert writable.get("/v1/items/3").status_code == 404
    assert writable.delete("/v1/items", params={"key": ["p5.jpg"]}).json()["removed"] == 1
    assert writable.delete("/v1/items", params={"id": [3]}).status_code == 400
    assert writable.delete("/v1/items", params={"id": [3], "ignore_missing": True}).json()["removed"] == 0
    assert writable.delete("/v1/items", params={"where": "price < 10"}).json()["removed"] > 0
    assert writable.get("/v1/items", params={"where": "price < 10"}).json()["total"] == 0
    assert writable.delete("/v1/items").status_code == 400  # not everything


def test_dates_come_as_text(writable):
    vectors = served.stream(2, seed=6).features.tolist()
    for day, status in (("2026-01-05", 201), ("soon", 400)):
        with WOHIndex.open(writable.app.state.service.settings.index) as index:
            if "day" not in index.metadata_types:
                index.add(served.stream(1, start=900).features, metadata={"day": [date(2025, 1, 1)]})
        writable.app.state.service._looked = 0
        answer = writable.post("/v1/items", json={"vectors": vectors, "metadata": {"day": [day, None]}})
        assert answer.status_code == status, answer.text
    assert writable.get("/v1/items", params={"where": "day > '2026-01-01'"}).json()["total"] == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "one of vectors and texts"),
        ({"vectors": []}, "takes 1 to 10000"),
        ({"vectors": [[1] * 3]}, "3 columns"),
        ({"vectors": [[1] * 8], "ids": [3]}, "3"),
        ({"vectors": [[1] * 8], "tags": []}, "tags"),
        ({"vectors": [[1] * 8], "metadata": {"price": ["much"]}}, "price"),
        ({"vectors": [[1] * 8], "metadata": {"id": [1]}}, "id"),
        ({"texts": ["a"]}, "--encoder"),
    ],
)
def test_items_that_cannot_be_added_change_nothing(writable, body, told):
    answer = writable.post("/v1/items", json=body)
    assert answer.status_code == 400
    assert told in answer.json()["detail"]
    assert writable.get("/v1/info").json()["rounds"] == 1


# ---- one state ---------------------------------------------------------------------------------------------


def test_another_writer_is_followed_and_each_answer_is_of_one_state(path, tmp_path):
    shutil.copytree(path, tmp_path / "own.woh")
    app = create_app(Settings(index=tmp_path / "own.woh"))
    service = app.state.service
    before = service.current()
    with WOHIndex.open(tmp_path / "own.woh") as writer:
        writer.remove([3])
        writer.add(served.stream(5, start=500, seed=5))
    assert before.items([3])[0].key == "p3.jpg"  # still its state
    service._looked = 0
    after = service.current()
    assert (len(before), len(after)) == (served.N, served.N + 4)
    with pytest.raises(MissingItemError):
        after.items([3])
    assert service.current() is after


def test_answers_that_were_erased_meanwhile_are_found_anew(path, tmp_path):
    shutil.copytree(path, tmp_path / "own.woh")
    service = create_app(Settings(index=tmp_path / "own.woh")).state.service
    best = [hit.id for hit in service.search(SearchRequest(id=3, k=5)).hits]
    service._looked = float("inf")  # no look is due
    with WOHIndex.open(tmp_path / "own.woh") as writer:
        writer.remove(best[:2])
        writer.compact()
    found = service.search(SearchRequest(id=3, k=5))
    assert len(found.hits) == 5
    assert not {hit.id for hit in found.hits} & {*best[:2]}


def test_a_page_asks_with_one_request(client, index):
    service = client.app.state.service
    found = service.search(SearchRequest(tags=["sea"], where="price < 20", k=3))
    assert found.total == len(index.ids("price < 20"))
    assert found.about == "tags sea, where price < 20"
    assert [hit.id for hit in found.hits] == index.search_tags([["sea"]], 3, where="price < 20")[1][
        0
    ].tolist()
    assert service.item(3).key == "p3.jpg"


# ---- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"host": "0.0.0.0"}, "--token-file"),  # noqa: S104
        ({"host": "photos.example"}, "--token-file"),
        ({"writable": True}, "--token-file"),
        ({"allow_origins": ("photos.example",)}, "such as https"),
        ({"allow_origins": ("https://photos.example/",)}, "such as https"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"max_k": 0}, "max_k"),
    ],
)
def test_settings_are_checked(path, given, told):
    with pytest.raises(ConfigError, match=told):
        Settings(index=path, **given)


def test_settings_go_through_the_environment_without_the_token(path, tmp_path):
    settings = Settings(
        index=path, token_file=served.token_file(tmp_path), allow_hosts=("a", "b"), images=tmp_path, port=1
    )
    assert Settings.from_json(settings.to_json()) == settings
    assert served.TOKEN not in settings.to_json() + repr(settings)


# ---- searches that wait ------------------------------------------------------------------------------------


def test_searches_that_wait_are_asked_together_and_answered_as_alone(path, index, monkeypatch):
    service = Service(Settings(index=path))
    asked, search_all = [], service.search_all
    monkeypatch.setattr(
        service, "search_all", lambda q, how: asked.append(len(q.vectors)) or search_all(q, how)
    )
    xq = served.stream(60, seed=8).features
    rows = [xq[i : i + 1 + i % 3] for i in range(0, 57)]
    ways = [How(k=1 + i % 2, where=None if i % 5 else "price < 20") for i in range(len(rows))]

    async def ask():
        turns = Turns(1, 60)
        batches = Batches(service, turns)
        found = await asyncio.gather(*map(batches.search, rows, ways))
        bad = [rows[1], np.full((1, 8), np.nan, np.float32), rows[3]]
        mixed = await asyncio.gather(*[batches.search(row, How()) for row in bad], return_exceptions=True)
        turns.close()
        return found, mixed

    found, mixed = asyncio.run(ask())
    for row, how, answers in zip(rows, ways, found, strict=True):
        D, I = index.search(row, how.k, where=how.where)
        assert [[(hit.id, hit.score) for hit in hits] for hits in answers.hits] == of_index(D, I)
    assert sum(asked[:-4]) >= sum(map(len, rows))
    assert len(asked) < len(rows)
    assert max(asked) <= TOGETHER
    assert isinstance(mixed[1], InputError)
    assert [len(mixed[i].hits) for i in (0, 2)] == [len(rows[1]), len(rows[3])]
