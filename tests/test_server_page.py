"""The served page beside the index that it shows: answers, addresses, forms, thumbnails, and hostile ones."""

import io
import os
import shutil
import threading
import time
from contextlib import suppress
from urllib.parse import parse_qsl, urlencode, urlsplit

import made_up_pictures
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("fastapi")
from conftest import SMALL, tagged
from fastapi.testclient import TestClient
from PIL import Image
from served_page import Seen, asked, text
from toy_models import clip, photos

from woh_faiss import Chunk, WOHIndex
from woh_faiss.encoders import open_encoder
from woh_faiss.errors import InputError
from woh_faiss.server import page as page_module
from woh_faiss.server.app import create_app
from woh_faiss.server.page import growth
from woh_faiss.server.page_query import PageQuery, completions
from woh_faiss.server.settings import Settings
from woh_faiss.tags.tag_text import normalise

ATTACKS = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg onload='document.title=`owned`'>",
    "</title></style></bdi></a></li><script>document.title='owned'</script>",
    "javascript:alert(1)//{{ 7 * 7 }}{% raw %}",
    "a\x00b\x1b[31m\r\n\t\x7f\x85",
    "\u202ereversed\u2069 \u200f\u2066 שלום",
    "x" * 10_000,
    "\U0001f469\u200d\U0001f52c é e\u0301 \ufffd",
    "../../../../etc/passwd",
    "100% & 'more' + \"so\" #tag ?q=1;b,c",
]


def client_of(index, **settings):
    return TestClient(create_app(Settings(index=index, **settings)), base_url="http://localhost")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder with made-up pictures, their encoder and their index."""
    return made_up_pictures.all_in(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def index(served):
    with WOHIndex.open(served / "pictures.woh") as index:
        yield index


@pytest.fixture(scope="module")
def client(served):
    with client_of(served / "pictures.woh", images=served / "photos") as client:
        yield client


def answers(client, address="/", status=200, **asked_for):
    return Seen(client.get(address, params=asked_for or None), status)


# ---- searches ---------------------------------------------------------------------------------------------


def test_without_a_question_the_newest_come_first(client, index):
    ids = index.ids()[::-1].tolist()
    first = answers(client)
    assert first.ids == ids[:24]
    assert first.text(".//h1") == "Newest items"
    assert first.text(".//*[@id='count']") == "1 to 24 of 240 items"
    assert answers(client, offset="230").ids == ids[230:]
    assert (
        answers(client, where="year >= 2020", tag="sea", k="200").ids
        == index.ids("year >= 2020 and 'sea' in tags")[::-1].tolist()
    )


def pages_of(client, address, seen=None):
    """All pages from an address on, by their links."""
    while address is not None:
        seen = Seen(client.get(address))
        yield seen
        (following,) = [link.get("href") for link in seen.all(".//a[@rel='next']")] or [None]
        address = following


@pytest.mark.parametrize(
    ("address", "search"),
    [
        ("/?q=sea+boat", lambda index, k: index.search_tags(["sea", "boat"], k)),
        ("/?q=%22golden+gate%22", lambda index, k: index.search_tags(["golden gate"], k)),
        ("/?like=7", lambda index, k: index.search_ids([7], k)),
        ("/?like=7&by=instance", lambda index, k: index.search_ids([7], k, by="instance")),
        ("/?like=7&by=hamming", lambda index, k: index.search_ids([7], k, by="hamming")),
        (
            "/?like=7&where=year+%3E+2019&tag=hill&tag=snow",
            lambda index, k: index.search_ids(
                [7], k, where="year > 2019 and 'hill' in tags and 'snow' in tags"
            ),
        ),
    ],
)
def test_pages_together_are_one_search(client, index, address, search):
    _, I = search(index, 240)
    expected = [i for i in I[0].tolist() if i >= 0]
    seen = list(pages_of(client, f"{address}&k=97"))
    assert [i for each in seen for i in each.ids] == expected
    assert all(len(each.ids) == 97 for each in seen[:-1])
    first = next(pages_of(client, address))
    assert first.ids == expected[:24]


def test_a_score_shows_what_it_is_made_of(client, index):
    D, I = index.search_ids([7], 24)
    kind, instance = index.explain_score(D, I, ids=[7])
    for card, score, a, b in zip(answers(client, like="7").cards, D[0], kind[0], instance[0], strict=True):
        assert f"score {score:.3f} kind {a:.2f}, instance {b:.2f}" in text(card)
        (bar,) = card.findall(".//svg")
        assert bar.get("aria-label").startswith(f"{100 * b / (a + b):.0f} %")


def test_a_card_leads_to_what_is_like_it_and_its_tags_to_a_filter(client, index):
    card = answers(client, q="sea", where="year > 2016").cards[0]
    item = index.items([int(card.get("data-id"))])[0]
    like = card.find("a[@class='like']").get("href")
    assert asked(like) == [("like", str(item.id)), ("where", "year > 2016")]
    seen = answers(client, like)
    assert seen.text(".//h1") == f"Like {item.key}"
    assert item.id not in seen.ids
    tags = card.findall(".//ul[@class='tags']/li/a")
    assert [text(tag) for tag in tags] == item.tags
    assert asked(tags[0].get("href")) == [("q", "sea"), ("tag", item.tags[0]), ("where", "year > 2016")]
    for name, value in item.metadata.items():
        assert f"{name} {value}" in text(card)
    # A filter is taken away again.
    filtered = answers(client, tags[0].get("href"))
    chip = filtered.link(".//ul[@class='chips']/li/a")
    assert asked(chip) == [("q", "sea"), ("where", "year > 2016")]


def test_a_form_sends_what_the_address_says(client):
    address = "/?q=sea&tag=sea&tag=beach&where=year+%3E+2016&k=10"
    fields = answers(client, address).form("ask")
    assert PageQuery.of(fields) == PageQuery.of(asked(address))
    assert answers(client, f"/?{urlencode(fields)}").ids == answers(client, address).ids
    # Words that are typed on a page of what is like an item are asked in its place.
    fields = answers(client, "/?like=3&by=kind").form("ask", q="sea")
    seen = answers(client, f"/?{urlencode(fields)}")
    assert seen.ids == answers(client, q="sea").ids
    assert "the order is theirs" in seen.text(".//p[@class='note']")


def test_notes_of_a_search_are_shown(client):
    seen = answers(client, q="sea nonsense")
    assert seen.text(".//p[@class='note']") == "nothing is known of 'nonsense', which the query leaves out"
    assert answers(client, q="sea,boat").ids == answers(client, q="sea boat").ids


@pytest.mark.parametrize(
    ("address", "status", "told"),
    [
        ("/?q=nonsense", 400, "nothing is known of the tags 'nonsense'"),
        ("/?where=yeer+%3E+1", 400, "there is no column 'yeer'; did you mean year?"),
        ("/?where=year+%3E+5+an", 400, "where is not understood at letter 10, 'an': 'year > 5 an'"),
        ("/?where=year+%3E+5+an&tag=sea", 400, "where is not understood at letter 10, 'an': 'year > 5 an'"),
        ("/?where=year+%3E+5+an&tag=sea&q=sea", 400, "at letter 10, 'an': 'year > 5 an'"),
        ("/?like=99999", 404, "99999"),
        (f"/?like={2**63}", 400, "like is"),
        ("/?like=x", 400, "like is 'x', expected a whole number"),
        ("/?like=-1", 400, "like is '-1'"),
        ("/?k=0", 400, "k is '0', expected a whole number from 1 to 200"),
        ("/?k=201", 400, "k is '201'"),
        ("/?k=%D9%A3", 400, "k is"),
        ("/?offset=-5", 400, "offset is '-5'"),
        ("/?offset=1000", 400, "this server shows the first 1,000 answers"),
        ("/?by=colour&like=1", 400, "by is 'colour', expected one of both, kind, instance, hamming"),
        ("/?q=sea&as=voice", 400, "as is 'voice', expected one of tags, text"),
        ("/?q=" + "x" * 10_001, 400, "q has 10,001 letters"),
        ("/?vector=AAA", 400, "vector is no base64"),
        ("/?vector=AAAA", 400, "vector is no base64"),
        ("/?vector=AACAPw==", 400, "192"),
        ("/?q=%5B1%5D,%5B", 400, ""),
    ],
)
def test_what_is_wrong_is_one_line_beside_the_form(client, address, status, told):
    seen = answers(client, address, status)
    assert told in seen.alert
    assert seen.ids == []
    given = dict(asked(address))
    if seen.form("ask"):
        for name in ("where",):
            assert dict(seen.form("ask"))[name] == given.get(name, "")


def test_a_filter_that_leaves_nothing(client):
    seen = answers(client, where="year > 2100")
    assert seen.ids == []
    assert "Nothing fits." in text(seen.root)
    assert not seen.all(".//a[@rel='next']")


def test_answers_end_where_the_server_ends(served):
    with client_of(served / "pictures.woh", max_k=30) as client:
        seen = list(pages_of(client, "/?q=sea"))
        assert [len(each.ids) for each in seen] == [24, 6]
        assert "The first 30 are shown" in text(seen[-1].root)


# ---- addresses --------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8"), max_size=20).map(str.strip)


@given(
    q=words,
    as_text=st.booleans(),
    like=st.none() | st.integers(0, 2**63 - 1),
    tags=st.lists(words.filter(bool), unique=True, max_size=3),
    where=words,
    by=st.sampled_from(["both", "kind", "instance", "hamming"]),
    k=st.integers(1, 200),
    offset=st.integers(0, 2**31),
)
def test_an_address_says_all_of_a_query(q, as_text, like, tags, where, by, k, offset):
    query = PageQuery(
        q=q,
        words="text" if q and as_text else "tags",
        like=None if q else like,
        tags=tuple(tags),
        where=where,
        by=by,
        k=k,
        offset=offset,
    )
    address = query.address
    assert address.isascii()
    assert not set(address) & set("<>\"' ")
    parts = urlsplit(address)
    assert parts.path == "/"
    assert PageQuery.of(parse_qsl(parts.query)) == query


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q", "as", "like", "tag", "where", "by", "k", "offset", "vector", "name", "x"]),
            st.text(),
        )
    )
)
def test_any_address_is_a_query_or_one_line(pairs):
    with suppress(InputError):
        assert PageQuery.of(pairs).but(offset=5).offset == 5


@given(st.lists(st.text(st.characters(codec="utf-8")).filter(normalise), min_size=1, max_size=3))
@example(["it's", "a' or 'b"])
def test_tags_are_values_of_a_filter_never_a_part_of_it(index, tags):
    where = PageQuery(tags=tuple(tags)).filter
    wanted = [normalise(tag) for tag in tags]
    found = [
        item.id
        for item in index.items()
        if all(tag in [normalise(own) for own in item.tags] for tag in wanted)
    ]
    assert index.ids(where).tolist() == found


values = st.one_of(
    st.sampled_from(["sea", "golden gate", "year > 2016", "'sea' in tags or", "5", "text", "kind", "", "0"]),
    st.integers(-5, 300).map(str),
    st.text(max_size=30),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["q", "as", "like", "tag", "where", "by", "k", "offset", "without", "x"]), values
        )
    )
)
def test_any_address_is_answered(client, pairs):
    response = client.get("/", params=pairs)
    seen = Seen(response, response.status_code)
    assert response.status_code in (200, 400, 404)
    assert (response.status_code == 200) == (not seen.all(".//*[@role='alert']"))
    assert len(set(seen.ids)) == len(seen.ids)


# ---- completion -------------------------------------------------------------------------------------------

KNOWN = {"sea": 90, "sea lion": 7, "season": 3, "golden gate": 40, "hill": 5, "snow, wet": 2}


def known(prefix, most):
    return [(tag, n) for tag, n in KNOWN.items() if tag.startswith(prefix)][:most]


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("se", ["sea", '"sea lion"', "season"]),
        ("hill se", ["hill sea", 'hill "sea lion"', "hill season"]),
        ("golden ga", ['"golden gate"']),
        ("golden gate; se", ["golden gate; sea", "golden gate; sea lion", "golden gate; season"]),
        ("hill;se", ["hill; sea", "hill; sea lion", "hill; season"]),
        ("hill,se", ["hill, sea", "hill, sea lion", "hill, season"]),
        ('hill "sea l', ['hill "sea lion"']),
        ("snow", ["snow, wet;"]),
        ("hill; sn", ["hill; snow, wet"]),
        ("hill sn", []),
        ("sea li", ['"sea lion"']),
        ("", []),
        ("hill ", []),
        ("zebra", []),
    ],
)
def test_what_is_typed_is_completed(typed, becomes):
    assert [each["text"] for each in completions(typed, known)] == becomes


@given(typed=st.text("seahilgo dn;,\"' ", max_size=12))
def test_what_was_completed_is_asked_as_that_tag(typed):
    for each in completions(typed, known):
        assert KNOWN[each["tag"]] == each["count"]
        asked_for = PageQuery(q=each["text"]).asked_tags([]) or []
        assert each["tag"] in [tag.strip() for tag in asked_for], (each, asked_for)


def test_completions_are_the_index_s_tags(client, index):
    found = client.get("/complete", params={"q": "S"}).json()
    counts = {tag: n for tag, n, _ in index.tags() if tag.startswith("s")}
    assert {each["tag"]: each["count"] for each in found} == counts
    assert [each["count"] for each in found] == sorted(counts.values(), reverse=True)
    assert client.get("/complete").json() == []
    assert client.get("/complete", params={"q": "x" * 20_000}).json() == []
    for attack in ATTACKS:
        assert client.get("/complete", params={"q": attack[:9000]}).status_code == 200


# ---- pictures that are asked with -------------------------------------------------------------------------


def jpeg(kind="boat", seed=7, **options):
    out = io.BytesIO()
    made_up_pictures.drawing(kind, seed).save(out, options.pop("format", "JPEG"), quality=88, **options)
    return out.getvalue()


def sent(client, data, name="mine.jpg", status=200, **fields):
    return Seen(client.post("/", files={"picture": (name, data, "image/jpeg")}, data=fields), status)


def test_a_picture_finds_itself_and_goes_on_page_by_page(client, index, served):
    encoder = open_encoder(index.encoder.name)
    xq = encoder.embed_images([Image.open(io.BytesIO(jpeg()))])
    I = index.search(xq, 90)[1]
    first = sent(client, jpeg())
    assert first.ids == I[0, :24].tolist()
    assert index.items([first.ids[0]])[0].key == "boat/07.jpg"
    assert first.text(".//h1") == "Like the picture mine.jpg"
    assert not first.all(".//link[@rel='canonical']")
    second = Seen(client.post("/", data=dict(first.form("next"))))
    assert second.ids == I[0, 24:48].tolist()
    third = Seen(client.post("/", data=dict(second.form("next"))))
    assert third.ids == I[0, 48:72].tolist()
    # What the form of the page asks is asked of the same picture.
    filtered = Seen(client.post("/", data=dict(second.form("ask", where="year > 2019", k="9"))))
    assert filtered.ids == index.search(xq, 9, where="year > 2019")[1][0].tolist()
    tagged_ = Seen(client.post("/", data=dict(second.form("ask")) | {"tag": "sea"}))
    assert tagged_.ids == index.search(xq, 24, where="'sea' in tags")[1][0].tolist()
    without = Seen(client.post("/", data=dict(tagged_.form("ask")) | {"without": "sea"}))
    assert without.ids == first.ids
    beside = Seen(client.post("/", data=dict(first.form("ask", q="night"))))
    assert beside.ids == index.search_tags([["night"]], 24, xq=xq)[1][0].tolist()
    assert beside.text(".//h1") == "Like the picture mine.jpg and night"


def test_any_kind_of_picture_will_do(client):
    for kind, options in (("PNG", {}), ("WEBP", {}), ("GIF", {}), ("TIFF", {})):
        assert len(sent(client, jpeg(format=kind, **options)).ids) == 24


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"no picture", "the picture: no picture that can be read"),
        (b"", "no picture was sent"),
        (jpeg()[:3000], "the picture: "),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "the picture: no picture that can be read"),
    ],
)
def test_what_is_no_picture_is_one_line(client, data, told):
    assert told in sent(client, data, status=400).alert


def test_a_body_that_is_too_large_is_one_line_on_the_page(served):
    with client_of(served / "pictures.woh", max_body=3000) as client:
        assert len(sent(client, jpeg("sea", format="PNG")).ids) == 24
        assert client.post("/", files={"picture": ("a.jpg", bytes(5000))}).status_code == 413
        head = b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a.jpg"\r\n\r\n'
        headers = {"content-type": "multipart/form-data; boundary=x"}
        pieces = iter([head, *[bytes(1000)] * 9])  # of a length that nobody says beforehand
        assert Seen(client.post("/", content=pieces, headers=headers), 413).alert


@pytest.mark.parametrize("name", [attack for attack in ATTACKS if "\0" not in attack])
def test_a_picture_may_have_any_name(client, name):
    fields = {"vector": PageQuery(vector=np.ones(192, np.float32)).vector_text, "name": name}
    seen = Seen(client.post("/", data=fields))
    assert dict(seen.form("next"))["name"] == name[:200].replace("\r\n", "\n") or "\r" in name


def test_forms_that_are_none(client):
    for more in (
        {"data": {"x": "y"}},
        {"files": {"picture": ("a", b"")}},
        {"content": b"junk", "headers": {"content-type": "multipart/form-data"}},
        {"content": b"--x\r\njunk", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        {"content": b"{}", "headers": {"content-type": "application/json"}},
    ):
        assert Seen(client.post("/", **more), 400).alert
    nan = PageQuery(vector=np.full(192, np.nan, np.float32)).vector_text
    assert Seen(client.post("/", data={"vector": nan}), 400).alert
    assert Seen(
        client.post("/", data={"vector": PageQuery(vector=np.ones(3, np.float32)).vector_text}), 400
    ).alert


def test_without_an_encoder_the_page_says_so(tmp_path, learned_once):
    with client_of(learned_once) as client:
        seen = answers(client)
        assert "start the server with --encoder" in seen.text(".//*[@id='no-encoder']")
        assert not seen.all(".//form[@id='drop']")
        assert sent(client, jpeg(), status=400).alert


def test_texts_are_asked_where_an_encoder_takes_them(tmp_path):
    folder = clip(tmp_path / "model")
    encoder = open_encoder(f"onnx:{folder}")
    paths = sorted(photos(tmp_path / "photos").rglob("*.png"))
    X = encoder.embed_images(paths)
    from woh_faiss.encoders import EncoderRecord

    chunk = Chunk.of(X, [[path.parent.name] for path in paths], keys=[str(path) for path in paths])
    WOHIndex.build(tmp_path / "i.woh", [chunk], encoder=EncoderRecord.of(encoder), **SMALL).close()
    with client_of(tmp_path / "i.woh") as client, WOHIndex.open(tmp_path / "i.woh") as index:
        xq = encoder.embed_texts(["a red hill"])
        seen = answers(client, **{"q": "a red hill", "as": "text", "k": "5"})
        assert seen.ids == index.search(xq, 5)[1][0].tolist()
        assert dict(seen.form("ask"))["as"] == "text"
        assert asked(seen.link(".//a[@rel='next']"))[1] == ("as", "text")
        assert answers(client, q="red", k="5").ids == index.search_tags(["red"], 5)[1][0].tolist()


# ---- strangers' text --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """An index whose keys, tags and metadata attack a page; some items have no key."""
    folder = tmp_path_factory.mktemp("hostile")
    X, tags = tagged(0)
    stored = [attack.replace("\0", "") for attack in ATTACKS]
    keys = [f"{attack}{n}" for n, attack in enumerate(stored * 4)][: len(X)]
    with WOHIndex.create(folder / "i.woh", **SMALL) as index:
        names = {ATTACKS[0]: [ATTACKS[n % 5] for n in range(len(X))], "ok": [True, None] * (len(X) // 2)}
        given_tags = [[*own, stored[n % len(stored)]] for n, own in enumerate(tags)]
        index.update(Chunk.of(X, given_tags, keys=keys, metadata=names))
        index.update(X + 1, [[*own, *(f"tag {n}" for n in range(30))] for own in tags])
    with client_of(folder / "i.woh", images=folder) as client:
        yield client


def test_text_of_strangers_is_text(hostile):
    with WOHIndex.open(hostile.app.state.service.settings.index) as index:
        items = {item.id: item for item in index.items()}
    seen = answers(hostile, k="200")
    assert len(seen.cards) == 80
    for card in seen.cards:
        item = items[int(card.get("data-id"))]
        shown = text(card)
        if item.key is None:
            assert f"id {item.id}" in shown
        elif item.key.isprintable():
            assert " ".join(item.key.split()) in shown
        if item.id % 8 == 0:
            like = answers(hostile, card.find("a[@class='like']").get("href") + "&k=3")
            assert item.id not in like.ids
    everything = "".join(seen.root.itertext())
    assert not set(everything) & set("\u202e\u2069\u200f\u2066\x1b\x7f\x85\0")
    assert "\\u202ereversed" in everything
    assert "\\x1b[31m" in everything


def test_long_keys_and_many_tags_are_folded(hostile):
    cards = answers(hostile, k="200").cards
    long = [card for card in cards if card.findall(".//details[@class='key']")]
    assert long
    for card in long:
        assert len(text(card.find(".//details/summary"))) <= 121
        assert len(card.find("a[@class='like']").findtext("span/span", "")) <= 130
    many = [card for card in cards if card.findall(".//details[@class='rest']")]
    assert many
    assert all("more tags" in text(card) for card in many)


def test_every_tag_s_link_finds_the_items_that_have_it(hostile):
    with WOHIndex.open(hostile.app.state.service.settings.index) as index:
        for card in answers(hostile, k="11", offset="40").cards:
            link = card.findall(".//ul[@class='tags']/li/a")[-1]
            seen = answers(hostile, link.get("href") + "&k=60")
            assert int(card.get("data-id")) in seen.ids
            tags = index.items([int(card.get("data-id"))])[0].tags
            wanted = {normalise(tag) for tag in tags}
            for item in index.items(seen.ids):
                assert wanted & {normalise(tag) for tag in item.tags}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["q", "where", "tag", "like", "k", "by", "as", "offset", "vector", "name"])
def test_attacks_in_an_address(client, name, attack):
    response = client.get("/", params={name: attack[:5000]})
    assert response.status_code in (200, 400)
    seen = Seen(response, response.status_code)
    form = dict(seen.form("ask"))
    if name in ("q", "where") and response.status_code == 200:
        assert form[name] == attack[:5000].strip()


# ---- thumbnails and files ---------------------------------------------------------------------------------


def test_thumbnails_are_of_items_alone(client, served):
    seen = answers(client, k="12")
    for card in seen.cards:
        image = card.find(".//img")
        response = client.get(image.get("src"))
        assert response.status_code == 200
        assert response.headers["content-type"] == "image/jpeg"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert Image.open(io.BytesIO(response.content)).size == (320, 240)
        tag = response.headers["etag"]
        again = client.get(image.get("src"), headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert image.get("alt") in text(card)
    for path in ("99999", "-1", "x", "..%2f..%2fmodel.onnx", str(2**70), ""):
        response = client.get(f"/thumbnails/{path}")
        assert response.headers["content-type"] != "image/jpeg"


def test_thumbnails_of_keys_that_lead_elsewhere(tmp_path):
    from test_thumbnails import outside

    folder, keys = outside(tmp_path)
    keys = [*keys, "inner/a.png", "gone.png", "inner", "text.png"]
    (folder / "text.png").write_text("no picture")
    X, tags = tagged(0)
    with WOHIndex.create(tmp_path / "i.woh", **SMALL) as index:
        index.update(X[: len(keys)], tags[: len(keys)], keys=keys)
    with client_of(tmp_path / "i.woh", images=folder) as client:
        statuses = {key: client.get(f"/thumbnails/{n}").status_code for n, key in enumerate(keys)}
        assert [key for key, status in statuses.items() if status == 200] == ["inner/a.png"]
        assert set(statuses.values()) == {200, 404}
        seen = answers(client)
        assert sorted(image.get("alt") for image in seen.all(".//img")) == ["inner/a.png", "text.png"]
        # One whose file has changed has another address, so that browsers ask again.
        (before,) = [image.get("src") for image in seen.all(".//img[@alt='inner/a.png']")]
        os.utime(folder / "inner" / "a.png", ns=(1, 1))
        (after,) = [image.get("src") for image in answers(client).all(".//img[@alt='inner/a.png']")]
        assert before != after
        assert client.get(after).headers["etag"] != client.get(before, headers={}).headers["etag"] or True
    with client_of(tmp_path / "i.woh") as client:  # without --images no file is looked at
        assert client.get(f"/thumbnails/{keys.index('inner/a.png')}").status_code == 404
        assert not answers(client).all(".//img")
        assert not answers(client).all(".//span[@class='picture']")


def test_a_few_are_drawn_at_once_and_nobody_else_waits(served, monkeypatch):
    running, most, go = 0, 0, threading.Event()
    lock = threading.Lock()

    def slow(self, file):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(20)
        with lock:
            running -= 1

    monkeypatch.setattr(page_module.Thumbnails, "drawn", slow)
    with client_of(served / "pictures.woh", images=served / "photos") as client:
        waiting = [threading.Thread(target=client.get, args=[f"/thumbnails/{n}"]) for n in range(50)]
        for thread in waiting:
            thread.start()
        start = time.monotonic()
        assert len(answers(client, q="sea").ids) == 24
        assert client.get("/healthz").status_code == 200
        assert time.monotonic() - start < 10
        go.set()
        for thread in waiting:
            thread.join()
    assert most == page_module.DRAWN_AT_ONCE


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("page.css", "text/css; charset=utf-8"),
        ("look.css", "text/css; charset=utf-8"),
        ("page.js", "text/javascript; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_files_of_the_page(client, name, media):
    used = [
        it.get("href") or it.get("src") for it in answers(client).root.iter() if it.tag in ("link", "script")
    ]
    (address,) = [it for it in used if it.startswith(f"/static/{name}?v=")]
    response = client.get(address)
    assert response.headers["content-type"] == media
    assert "immutable" in response.headers["cache-control"]
    assert "http" not in response.text.replace("http://www.w3.org/2000/svg", "")  # nothing from elsewhere
    for other in ("layout.html", "..%2fpage.py", "page.css%00", "../templates/search.html"):
        assert client.get(f"/static/{other}").status_code == 404


# ---- the token --------------------------------------------------------------------------------------------

TOKEN = "0123456789abcdef-the-token"  # noqa: S105


@pytest.fixture
def locked(tmp_path, served):
    """A client of a server with a token."""
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    settings = {"images": served / "photos", "token_file": file}
    with client_of(served / "pictures.woh", **settings) as client:
        yield client


def logged_in(client, token=TOKEN, to="/", **options):
    return client.post("/login", data={"token": token, "next": to}, follow_redirects=False, **options)


def test_the_page_asks_for_the_token_once(locked):
    asked_for = "/?q=sea&where=year+%3E+2016&tag=a%26b"
    led = locked.get(asked_for, follow_redirects=False)
    assert led.status_code == 303
    assert not led.content
    form = Seen(locked.get(led.headers["location"]))
    assert form.text(".//h1") == "Log in"
    assert form.all(".//input[@name='next']")[0].get("value") == asked_for
    assert "pictures.woh" not in "".join(form.root.itertext())
    done = logged_in(locked, to=asked_for)
    assert (done.status_code, done.headers["location"]) == (303, asked_for)
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # on http a browser would not send it back
    assert TOKEN not in cookie
    seen = answers(locked, q="sea")
    assert locked.get(seen.cards[0].find(".//img").get("src")).status_code == 200
    assert locked.get("/complete?q=se").json()
    assert locked.post("/", files={"picture": ("a.jpg", jpeg())}).status_code == 200
    assert answers(locked, "/about").all(".//form[@action='/logout']")
    # It opens the page alone, and is taken away again.
    assert locked.get("/v1/info").status_code == 401
    assert locked.get("/v1/info", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    locked.post("/logout")
    assert locked.get("/", follow_redirects=False).status_code == 303


def test_without_the_token_nothing_is_told(locked, index):
    for path in (
        "/complete?q=s",
        "/thumbnails/0",
        "/v1/info",
        "/metrics",
        "/openapi.json",
        "/static",
        "/logout",
    ):
        assert locked.get(path, follow_redirects=False).status_code == 401, path
    assert locked.post("/", files={"picture": ("a.jpg", jpeg())}).status_code == 401
    assert locked.get("/static/page.css").status_code == 200
    for wrong in ("", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "\ud7ff", "a\0b", "x" * 5000):
        refused = logged_in(locked, wrong)
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
        assert "is not the token" in Seen(refused, 403).alert
    for name, value in (("woh_x", "y"), (next(iter(cookies_of(TOKEN))), "0" * 64)):
        led = locked.get("/", headers={"Cookie": f"{name}={value}"}, follow_redirects=False)
        assert led.status_code == 303
    for odd in ('"', "a=b; ;=;", "\x80", "x" * 9000, f"{next(iter(cookies_of(TOKEN)))}=\xe9"):
        led = locked.get("/", headers={"Cookie": odd.encode("latin-1")}, follow_redirects=False)
        assert led.status_code == 303


def cookies_of(token):
    """The cookie that a server with this token gives, by name."""
    from starlette.responses import Response

    from woh_faiss.server.sessions import Sessions

    made = Sessions(token.encode()).begin(Response(), secure=False).headers["set-cookie"]
    name, _, value = made.split(";")[0].partition("=")
    return {name: value}


def test_a_cookie_is_of_one_token(locked):
    assert len({*cookies_of(TOKEN), *cookies_of("another token of 16")}) == 2
    ((name, value),) = cookies_of(TOKEN).items()
    (other,) = cookies_of("another token of 16").values()
    for cookie, status in ((other, 303), (value, 200)):
        headers = {"Cookie": f"{name}={cookie}; x=y"}
        assert locked.get("/", headers=headers, follow_redirects=False).status_code == status


@pytest.mark.parametrize(
    "to",
    [
        "//evil.example/",
        "https://evil.example",
        "/\\evil.example",
        "/v1/info",
        "javascript:alert(1)",
        "/x",
        "",
    ],
)
def test_the_form_leads_nowhere_else(locked, to):
    assert logged_in(locked, to=to).headers["location"] == "/"
    assert "evil" not in logged_in(locked, to=f"/?q=a\r\nLocation: {to}").headers["location"].split("?")[0]


def test_another_page_cannot_log_in_or_ask(locked):
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert logged_in(locked, headers=headers).status_code == 403
    logged_in(locked)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        response = locked.post("/", files={"picture": ("a.jpg", jpeg())}, headers=headers)
        assert response.status_code == 403


def test_without_a_token_there_is_nothing_to_log_in_to(client):
    assert client.get("/login", follow_redirects=False).headers["location"] == "/"
    assert logged_in(client).headers["location"] == "/"
    assert not answers(client).all(".//form[@action='/logout']")


# ---- what it knows ----------------------------------------------------------------------------------------


def test_the_second_page_tells_what_info_and_health_tell(client, index):
    seen = answers(client, "/about")
    facts = {text(it[0]): text(it[1]) for it in seen.all(".//dl[@class='facts']/div")}
    info, health = index.info(60), index.health(24)
    assert facts["items"] == "240"
    assert facts["tags"] == f"{info['tags_known']} learned from, {info['tags_seen']} seen"
    assert facts["encoder"] == "model.onnx"
    assert [int(text(row[0])) for row in seen.all(".//tbody/tr")] == [5, 4, 3, 2, 1]
    assert seen.ids == [item["id"] for item in health["doubted"]]
    assert seen.ids
    predicted = index.explain(seen.ids, 3)
    for card, item, tags in zip(seen.cards, health["doubted"], predicted, strict=True):
        assert asked(card.find("a[@class='like']").get("href")) == [("like", str(item["id"]))]
        assert f"trust {item['trust']:.2f}" in text(card)
        assert f"its code says {tags[0][0]}" in text(card)
    tags = seen.all(".//section[@aria-labelledby='tags']/ul/li")
    assert [text(tag) for tag in tags] == [f"{tag} {count}" for tag, count in info["tags_top"]]
    assert asked(tags[0].find("a").get("href")) == [("tag", info["tags_top"][0][0])]


def test_warnings_of_health_are_shown(tmp_path):
    X, tags = tagged(0, 400)
    rng = np.random.default_rng(0)
    wrong = [tags[i] for i in rng.permutation(400)]
    mixed = [wrong[i] if rng.random() < 0.3 else tags[i] for i in range(400)]
    with WOHIndex.create(tmp_path / "i.woh", **SMALL | {"anchors": 50}) as index:
        index.update(X, mixed)
        (warning,) = index.health()["warnings"]
    with client_of(tmp_path / "i.woh") as client:
        seen = answers(client, "/about")
        assert warning in [text(it) for it in seen.all(".//p[@class='note']")]
        assert seen.cards


def followed(client, ntotal):
    """Waits until the server has seen a commit, which takes it up to a second."""
    while client.get("/v1/items?limit=1").json()["total"] != ntotal:
        time.sleep(0.05)


def test_it_is_made_once_a_state(served, monkeypatch, tmp_path):
    shutil.copytree(served / "pictures.woh", tmp_path / "i.woh")
    made = []
    inner = WOHIndex.health
    monkeypatch.setattr(WOHIndex, "health", lambda self, most: made.append(1) or inner(self, most))
    with client_of(tmp_path / "i.woh") as client, WOHIndex.open(tmp_path / "i.woh") as writer:
        for _ in range(3):
            answers(client, "/about")
        assert len(made) == 1
        writer.remove([0])
        followed(client, 239)
        seen = answers(client, "/about")
        assert len(made) == 2
        assert "239 items after 5 rounds" in text(seen.root) or "239" in text(seen.root)
        assert answers(client).text(".//*[@id='count']") == "1 to 24 of 239 items"
        assert answers(client, like="0", status=404).alert


def test_who_asks_while_it_is_made_gets_the_one_before(index_copy, monkeypatch):
    with client_of(index_copy) as client, WOHIndex.open(index_copy) as writer:
        before = text(answers(client, "/about").root)
        writer.remove([0])
        followed(client, writer.ntotal)
        inner, begun, go = WOHIndex.health, threading.Event(), threading.Event()

        def slow(self, most):
            begun.set()
            assert go.wait(60)
            return inner(self, most)

        monkeypatch.setattr(WOHIndex, "health", slow)
        made = threading.Thread(target=client.get, args=["/about"])
        made.start()
        assert begun.wait(60)
        assert text(answers(client, "/about").root) == before
        go.set()
        made.join()
        assert text(answers(client, "/about").root) != before


@pytest.fixture
def index_copy(learned_once, tmp_path):
    return shutil.copytree(learned_once, tmp_path / "copy.woh")


def test_growth_is_a_path_in_its_square():
    from collections import namedtuple

    record = namedtuple("record", "round ntotal")

    @given(st.lists(st.integers(0, 10**9), min_size=1, max_size=1000))
    def check(counts):
        found = growth([record(n + 1, count) for n, count in enumerate(counts)])
        points = [tuple(map(float, pair.split(","))) for pair in found.line[1:].split()]
        assert len(points) <= page_module.POINTS + 2
        assert points[0] == (0, 100)
        assert points[-1][0] == 100
        assert all(0 <= x <= 100 and 0 <= y <= 100 for x, y in points)
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        assert points[-1][1] == pytest.approx(100 - 100 * counts[-1] / max(1, *counts, 0), abs=0.01) or (
            len(counts) > page_module.POINTS
        )
        assert f"{counts[-1]:,} items" in found.text

    check()
    assert growth([]) is None


def test_indexes_of_other_kinds(tmp_path):
    X, tags = tagged(0)
    WOHIndex.create(tmp_path / "empty.woh", **SMALL).close()
    with WOHIndex.create(tmp_path / "instance.woh", bits=0, instance_bits=16) as index:
        index.update(X)
    with WOHIndex.create(tmp_path / "kind.woh", **SMALL | {"instance_bits": 0}) as index:
        index.update(X, tags)
    with client_of(tmp_path / "empty.woh") as client:
        assert "Nothing is in this index yet." in text(answers(client).root)
        assert "No round yet." in text(answers(client, "/about").root)
        assert answers(client, q="sea", status=409).alert
        assert answers(client, like="0", status=404).alert
    with client_of(tmp_path / "instance.woh") as client:
        assert len(answers(client).ids) == 24
        assert len(answers(client, like="0").ids) == 24
        assert answers(client, q="sea", status=400).alert
        assert answers(client, like="0", by="kind", status=400).alert
        assert [it.get("value") for it in answers(client).all(".//select[@id='by']/option")] == [
            "both",
            "instance",
            "hamming",
        ]
        answers(client, "/about")
    with client_of(tmp_path / "kind.woh") as client:
        assert len(answers(client, like="0").ids) == 24
        answers(client, "/about")
