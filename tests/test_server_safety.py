"""What a server refuses: callers without the token, names and pages of others, bodies without an end."""

import asyncio
import base64
import hmac
import logging
import os
import sys

import pytest

pytest.importorskip("fastapi")
import served
from click.testing import CliRunner
from fastapi.testclient import TestClient

from woh_faiss.errors import ConfigError
from woh_faiss.server.app import create_app
from woh_faiss.server.settings import Settings
from woh_faiss_cli.main import main

LOCAL = "http://localhost"
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return served.built(tmp_path_factory.mktemp("safe") / "index.woh")


@pytest.fixture(scope="module")
def token_file(tmp_path_factory):
    return served.token_file(tmp_path_factory.mktemp("token"))


def client_of(path, base_url=LOCAL, **given):
    return TestClient(create_app(Settings(index=path, **given)), base_url=base_url)


@pytest.fixture(scope="module")
def client(path):
    return client_of(path)


@pytest.fixture(scope="module")
def guarded(path, token_file):
    return client_of(path, token_file=token_file, writable=True)


def basic(password):
    return {"Authorization": "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()}


ROUTES = [
    ("GET", "/v1/items"), ("GET", "/v1/items/1"), ("GET", "/v1/info"), ("GET", "/v1/tags"),
    ("GET", "/metrics"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/v1/search"),
    ("POST", "/v1/items"), ("POST", "/v1/rounds"), ("DELETE", "/v1/items"),
]  # fmt: skip


# ---- the token ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_nothing_is_told_without_the_token(guarded, method, route):
    wrong = [
        {}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": f"Token {served.TOKEN}"},
        {"Authorization": f"Bearer {served.TOKEN[:-1]}"}, {"Authorization": f"Bearer {served.TOKEN}0"},
        {"Authorization": "Basic ?"}, {"Authorization": "Basic " + base64.b64encode(b"x").decode()},
        basic(""), basic(served.TOKEN.upper()), {"Authorization": b"Bearer \xff\xfe"},
    ]  # fmt: skip
    for headers in wrong:
        answer = guarded.request(method, route, headers=headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"].startswith("Basic ")
        assert served.TOKEN not in answer.text
    assert guarded.request(method, route, headers=served.BEARER).status_code != 401


def test_a_supervisor_needs_no_token(guarded):
    assert [guarded.get(route).status_code for route in ("/healthz", "/readyz")] == [200, 200]


def test_a_browser_may_read_and_not_write(guarded):
    """It sends a password by itself, wherever a request comes from."""
    assert guarded.get("/v1/items", headers=basic(served.TOKEN)).status_code == 200
    assert guarded.post("/v1/search", json={"ids": [1]}, headers=basic(served.TOKEN)).status_code == 200
    for method, route in (("POST", "/v1/items"), ("POST", "/v1/rounds"), ("DELETE", "/v1/items?id=100")):
        answer = guarded.request(method, route, headers=basic(served.TOKEN))
        assert (answer.status_code, "Bearer" in answer.json()["detail"]) == (403, True)
    assert guarded.delete("/v1/items?id=100", headers=served.BEARER).status_code == 200


@pytest.mark.parametrize("given", [{}, {"token_file": True}])
def test_without_writable_nobody_writes(path, token_file, given):
    client = client_of(path, **({"token_file": token_file} if given else {}))
    for method, route in (("POST", "/v1/items"), ("POST", "/v1/rounds"), ("DELETE", "/v1/items?id=100")):
        answer = client.request(method, route, headers=served.BEARER)
        assert (answer.status_code, "--writable" in answer.json()["detail"]) == (403, True)


def test_the_token_is_compared_in_constant_time(guarded, monkeypatch):
    seen = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: seen.append((a, b)) or compare(a, b))
    for token in ("", "x", served.TOKEN):
        guarded.get("/v1/info", headers={"Authorization": f"Bearer {token}"})
    assert [len(a) == len(b) for a, b in seen] == [True] * 3


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (served.TOKEN, 0o640, "chmod 600"),
        (served.TOKEN, 0o604, "chmod 600"),
        (served.TOKEN, 0o620, "chmod 600"),
        ("short", 0o600, "at least 16"),
        ("", 0o600, "at least 16"),
        (f"{served.TOKEN} {served.TOKEN}", 0o600, "one line"),
        (f"{served.TOKEN}\n{served.TOKEN}", 0o600, "one line"),
        ("é" * 20, 0o600, "ASCII"),
        ("0" * 5000, 0o600, "one line"),
    ],
)
def test_a_token_file_is_checked(path, tmp_path, text, mode, told):
    with pytest.raises(ConfigError, match=told) as caught:
        Settings(index=path, token_file=served.token_file(tmp_path, text, mode))
    assert served.TOKEN not in str(caught.value)


def test_a_token_file_is_a_plain_file(path, tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for place in (tmp_path / "pipe", tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            Settings(index=path, token_file=place)


# ---- hosts and pages ---------------------------------------------------------------------------------------


def refusal(answer, status):
    """The line of an answer that is one problem, with this server's headers."""
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.status_code == answer.json()["status"] == status
    return answer.json()["detail"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost:8765", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8765"]
)
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8765",
        "localhost@evil",
        "127.0.0.2", "[::2]", "[::1", "", "localhost:x", "evil.example/localhost", "2130706433",
    ],
)  # fmt: skip
def test_other_names_are_refused_as_a_page_elsewhere_may_have_them_lead_here(client, host):
    assert "--allow-host" in refusal(client.get("/v1/info", headers={"host": host}), 400)


def test_names_that_are_given_are_answered(path, token_file):
    given = {"host": "0.0.0.0", "token_file": token_file}  # noqa: S104
    with pytest.raises(ConfigError, match="--allow-host"):
        Settings(index=path, **given)
    client = client_of(path, "http://photos.example", allow_hosts=("photos.example", "::2"), **given)
    for host, status in (
        ("photos.example:1", 200),
        ("[::2]:1", 200),
        ("127.0.0.3", 400),
        ("x.photos.example", 400),
    ):
        assert client.get("/v1/info", headers={**served.BEARER, "host": host}).status_code == status


CROSS = [
    {"origin": EVIL}, {"origin": "null"}, {"origin": "http://localhost:9"}, {"origin": "http://localhost.evil"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": ""},
]  # fmt: skip


@pytest.mark.parametrize("headers", CROSS)
def test_pages_of_others_cannot_send(guarded, client, headers):
    for route in ("/v1/search", "/v1/items", "/v1/rounds"):
        answer = guarded.post(route, json={"ids": [1]}, headers={**served.BEARER, **headers})
        assert (answer.status_code, "--allow-origin" in answer.json()["detail"]) == (403, True)
    assert guarded.delete("/v1/items?id=2", headers={**served.BEARER, **headers}).status_code == 403
    assert client.post("/v1/search", json={"ids": [1]}, headers=headers).status_code == 403


def test_the_own_page_can_send(client):
    for headers in ({"origin": LOCAL}, {"origin": LOCAL, "sec-fetch-site": "same-origin"}, {}):
        assert client.post("/v1/search", json={"ids": [1]}, headers=headers).status_code == 200


def test_no_page_may_read_unless_it_is_named(client, path):
    ask = {"origin": EVIL, "access-control-request-method": "POST"}
    for answer in (
        client.get("/v1/info", headers={"origin": EVIL}),
        client.options("/v1/search", headers=ask),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    named = client_of(path, allow_origins=("https://photos.example",))
    for origin, allowed in (
        ("https://photos.example", True),
        (EVIL, False),
        ("http://photos.example", False),
    ):
        ask["origin"] = origin
        answer = named.options("/v1/search", headers=ask)
        assert (answer.headers.get("access-control-allow-origin") == origin) == allowed
        sent = named.post("/v1/search", json={"ids": [1]}, headers={"origin": origin})
        assert (sent.status_code == 200) == allowed
        assert "access-control-allow-credentials" not in answer.headers


# ---- headers, bodies, logs ---------------------------------------------------------------------------------


def test_every_answer_has_the_headers(client, guarded, monkeypatch):
    def fails(*_):
        raise RuntimeError(f"with {served.TOKEN}")

    answers = [
        client.get("/v1/info"), client.get("/nowhere"), client.put("/v1/search"), guarded.get("/v1/info"),
        client.post("/v1/search", json={}), client.get("/v1/info", headers={"host": "evil"}),
    ]  # fmt: skip
    monkeypatch.setattr(client.app.state.service, "info", fails)
    answers.append(client.get("/v1/info"))
    assert [answer.status_code for answer in answers] == [200, 404, 405, 401, 400, 400, 500]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert answers[-1].headers["content-type"] == "application/problem+json"
    assert served.TOKEN not in answers[-1].text


def test_nothing_of_a_page_comes_from_elsewhere(client):
    assert [client.get(path).status_code for path in ("/docs", "/redoc", "/docs/oauth2-redirect")] == [
        404
    ] * 3
    assert "http" not in client.get("/openapi.json").text.replace("HTTPValidationError", "")


def test_a_body_is_bounded_with_and_without_its_length(path):
    client = client_of(path, max_body=10_000)
    sent = 0

    def parts():
        nonlocal sent
        for _ in range(1000):
            sent += 1000
            yield b" " * 1000

    for content in (b" " * 10_001, parts()):
        answer = client.post("/v1/search", content=content, headers={"content-type": "application/json"})
        assert refusal(answer, 413).startswith("the body has more than 10,000 bytes; ")
    assert "--max-body" in refusal(client.post("/v1/search", files={"image": b"x" * 20_000}), 413)
    assert client.post("/v1/search", json={"ids": [1]}).status_code == 200


def test_a_body_that_does_not_arrive_is_given_up(path):
    app = create_app(Settings(index=path, timeout=0.2))

    async def ask():
        sent = []

        async def receive():
            if receive.parts:
                return receive.parts.pop()
            return await asyncio.sleep(60)

        receive.parts = [{"type": "http.request", "body": b'{"ids"', "more_body": True}]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "path": "/v1/search", "raw_path": b"/v1/search", "query_string": b"", "root_path": "",
            "scheme": "http", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": None, "server": None,
        }  # fmt: skip

        async def send(message):
            sent.append(message)

        await app(scope, receive, send)
        return sent

    start, *_ = asyncio.run(asyncio.wait_for(ask(), 30))
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]


def test_an_answer_that_is_not_found_in_time_is_given_up(path, monkeypatch):
    import threading

    app = create_app(Settings(index=path, timeout=0.2))
    go = threading.Event()
    monkeypatch.setattr(app.state.service, "search_all", lambda *_: go.wait(30))
    with TestClient(app, base_url=LOCAL) as client:
        for body in ({"vectors": [[0.0] * 8]}, {"ids": [1]}):
            answer = client.post("/v1/search", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").status_code == 200
        go.set()


def test_no_log_has_the_token(guarded, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(guarded.app.state.service, "info", lambda *_: 1 / 0)
    guarded.get("/v1/info", headers=served.BEARER)
    guarded.get("/v1/info", headers={"Authorization": f"Bearer {served.TOKEN}x"})
    assert "division by zero" in caplog.text
    assert served.TOKEN not in caplog.text


def test_without_its_packages_the_command_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "woh_faiss.server.app")
    done = CliRunner().invoke(main, ["serve", "--index", str(path)])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "pip install 'woh-faiss[serve]'" in done.output
