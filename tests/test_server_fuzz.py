"""The server's API asked at random, as its own description has it: no answer is a failure of the server.

    PYTHONPATH=tests/helpers python tests/test_server_fuzz.py 10000

asks so many times.
"""

import sys

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("schemathesis")
import schemathesis
import served
from conftest import drawn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from woh_faiss.server.app import create_app
from woh_faiss.server.settings import Settings


def app_of(folder):
    """A server of an index of its own that may be written to, and is not asked for much at once."""
    return create_app(
        Settings(
            index=served.built(folder / "index.woh"),
            writable=True,
            token_file=served.token_file(folder),
            max_items=50,
        )
    )


LOCAL = {**served.BEARER, "host": "localhost"}
CHECKS = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
)
FILTERS = [
    *("price < 20", "'sea' in tags", "price is null", "id > 3 and", "", "1 = 1; drop table items", "\x00"),
]


def bodies():
    """Bodies that are nearly right: what random ones seldom are."""
    some, word = st.integers(0, 3), st.sampled_from(served.WORDS) | st.text(max_size=5)
    cells = st.lists(st.none() | some | st.text(max_size=3), max_size=3)
    numbers = st.floats(-9, 9, width=32) | st.sampled_from([0.0, 1e300, 2**53])
    return st.fixed_dictionaries(
        {},
        optional={
            "vectors": st.lists(st.lists(numbers, min_size=8, max_size=8), max_size=3),
            "ids": st.lists(st.integers(0, served.N + 5), max_size=3),
            "keys": st.lists(some.map(lambda i: f"p{i}.jpg") | st.text(max_size=5), max_size=3),
            "tags": st.lists(st.lists(word, max_size=3), max_size=3),
            "k": st.integers(1, 1100), "offset": st.integers(0, 1100), "expand": st.integers(0, 9),
            "by": st.sampled_from(["both", "kind", "instance", "hamming"]),
            "where": st.sampled_from(FILTERS) | st.text(max_size=20), "explain": st.booleans(),
            "describe": st.booleans(), "texts": st.lists(st.text(max_size=20), max_size=3),
            "metadata": st.dictionaries(st.text(max_size=3), cells, max_size=3),
            "on_duplicate": st.sampled_from(["error", "skip", "replace"]),
        },
    )  # fmt: skip


def ask_at_random(app, n, seed=None):
    """How often each operation gave each status in n requests; an error where one is not as described."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=LOCAL)
    operations = [found.ok() for found in schema.get_all_operations()]
    seen = {}

    @settings(max_examples=n, deadline=None, phases=[Phase.generate], database=None,
              suppress_health_check=[*HealthCheck], derandomize=seed is None)  # fmt: skip
    @given(st.data())
    def ask(data):
        operation = data.draw(st.sampled_from(operations))
        case = data.draw(operation.as_strategy())
        if operation.method == "post" and data.draw(st.booleans()):
            case.body, case.media_type = data.draw(bodies()), "application/json"
        answer = case.call(headers=LOCAL)
        seen[operation.label, answer.status_code] = seen.get((operation.label, answer.status_code), 0) + 1
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == ["application/problem+json"]
            assert "\n" not in answer.json()["detail"]

    ask()
    return seen


@pytest.mark.slow
def test_no_request_fails_the_server(tmp_path):
    seen = ask_at_random(app_of(tmp_path), drawn(1200))
    assert {status for _, status in seen} >= {200, 400, 422}


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for (label, status), n in sorted(ask_at_random(app_of(Path(folder)), int(sys.argv[1]), 1).items()):
            print(label, status, n)
