"""The served page in a real browser: Chromium drives a server process; axe-core looks at every page.

``WOH_SCREENSHOTS=docs`` keeps the pictures of the documentation, which are of made-up drawings.
"""

import base64
import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import made_up_pictures
import pytest
from conftest import SMALL, tagged
from PIL import Image

from woh_faiss import Chunk, WOHIndex

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    # In CI, which installs one, it fails.
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no chromium or google-chrome"),
]
if not os.environ.get("CI"):
    pytest.importorskip("playwright")
    pytest.importorskip("axe_playwright_python")
    pytest.importorskip("fastapi")

ATTACKS = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg onload='document.title=`owned`'>",
    "\u202ereversed\u2069 שלום",
    "x" * 10_000,
    "javascript:document.title='owned'",
]
#: Pictures of the documentation.
SHOTS = Path(os.environ["WOH_SCREENSHOTS"]).absolute() if os.environ.get("WOH_SCREENSHOTS") else None
NARROW = {"viewport": {"width": 320, "height": 640}}


@contextmanager
def serving(index, *options):
    """A server process of an index: its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "woh_faiss_cli", "serve", "--index", index, "--port", port, *options]
    log = index.parent / "log"
    with log.open("wb") as out:
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=out)
    try:
        for _ in range(600):
            with suppress(OSError):
                urllib.request.urlopen(f"{base}/healthz", timeout=5).close()  # noqa: S310
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield base
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up pictures, the model that sees them, and their index."""
    return made_up_pictures.all_in(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def site(folder):
    with serving(folder / "pictures.woh", "--images", folder / "photos") as base:
        yield base


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A server of an index whose keys, tags and metadata attack a page."""
    folder = tmp_path_factory.mktemp("hostile")
    X, tags = tagged(0)
    keys = [f"{attack}{n}" for n, attack in enumerate(ATTACKS * 7)][: len(X)]
    metadata = {ATTACKS[0]: [ATTACKS[n % 5][:300] for n in range(len(X))]}
    with WOHIndex.create(folder / "i.woh", **SMALL) as index:
        more = [[*own, ATTACKS[n % len(ATTACKS)]] for n, own in enumerate(tags)]
        index.update(Chunk.of(X, more, keys=keys, metadata=metadata))
    with serving(folder / "i.woh", "--images", folder) as base:
        yield base


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM is not None, "CI needs a browser: apt-get install chromium"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tabs(browser):
    """(a function that gives the one tab of a server and options, what went wrong in any of them)

    A new tab is new processes, which take as long as what most tests do in it.
    """
    pages, faults = {}, []

    def tab(base, **options):
        key = base, repr(options)
        if key not in pages:
            page = pages[key] = browser.new_context(base_url=base, **options).new_page()
            page.set_default_timeout(30_000)
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
            page.on("request", lambda it: faults.append(it.url) if not it.url.startswith(base) else None)
            page.on("dialog", lambda dialog: faults.append("a dialog"))
        return pages[key]

    return tab, faults


@pytest.fixture
def open_page(tabs, site):
    """Opens pages; in the end none may have had an error, or have asked anything of another server."""
    tab, faults = tabs
    faults.clear()  # of a test that failed

    def opened(path="/", base=site, **options):
        page = tab(base, **options)
        assert page.context.cookies() == []
        page.goto(path)
        return page

    opened.faults = faults
    yield opened
    assert faults == []


def until(page, true):
    """Waits until JavaScript says so; Playwright's own way needs a page that lets text run."""
    for _ in range(600):
        if page.evaluate(true):
            return
        page.wait_for_timeout(50)
    raise AssertionError(true)


def keys(page):
    return [text.rsplit(" id ", 1)[0] for text in page.locator(".card p.key").all_inner_texts()]


def axe_faults(page):
    """What axe-core says is serious or critical."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (fault["id"], [node["html"][:200] for node in fault["nodes"]][:3])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def dropped(page, event, data, name="mine.png", type_="image/png"):
    """A file dropped on, or pasted into, the page, as a browser would tell of it."""
    page.evaluate(
        """([event, data, name, type]) => {
          const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
          const held = new DataTransfer();
          held.items.add(new File([bytes], name, {type}));
          const how = {bubbles: true, cancelable: true};
          document.body.dispatchEvent(event === "drop"
            ? new DragEvent("drop", {dataTransfer: held, ...how})
            : new ClipboardEvent("paste", {clipboardData: held, ...how}));
        }""",
        [event, base64.b64encode(data).decode(), name, type_],
    )


def png(kind="boat", seed=7):
    out = io.BytesIO()
    made_up_pictures.drawing(kind, seed).save(out, "PNG")
    return out.getvalue()


def test_by_keyboard_alone(open_page, folder):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    while page.evaluate("document.activeElement.id") != "q":
        page.keyboard.press("Tab")
    page.keyboard.type("se")
    box, options = page.locator("#q"), page.locator("#options li")
    options.first.wait_for()
    assert box.get_attribute("aria-expanded") == "true"
    assert options.first.locator("bdi").inner_text() == "sea"
    page.keyboard.press("ArrowDown")
    assert box.get_attribute("aria-activedescendant") == options.first.get_attribute("id")
    assert options.first.get_attribute("aria-selected") == "true"
    page.keyboard.press("Enter")  # takes the tag, and searches no sooner than the second time
    assert box.input_value() == "sea"
    assert not page.locator("#options").is_visible()
    page.keyboard.type(" golden")
    options.first.wait_for()
    page.keyboard.press("ArrowUp")  # from the end
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    assert not page.locator("#options").is_visible()
    assert box.input_value() == "sea golden"
    page.keyboard.press("Backspace")
    options.first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert box.input_value() == 'sea "golden gate"'
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=sea+%22golden+gate%22")
    with WOHIndex.open(folder / "pictures.woh") as index:
        ids = index.search_tags(["sea", "golden gate"], 24)[1][0]
        assert keys(page) == [item.key for item in index.items(ids)]
        while page.evaluate("document.activeElement.className") != "like":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/?like={ids[0]}")
        assert keys(page) == [item.key for item in index.items(index.search_ids(ids[:1], 24)[1][0])]


def test_more_like_this_and_filters(open_page, folder):
    page = open_page("/?q=forest")
    until(page, "[...document.images].slice(0, 5).every((it) => it.naturalWidth === 320)")
    page.locator(".card a.like").first.click()
    page.wait_for_url("**/?like=*")
    assert page.locator("h1").inner_text().startswith("Like forest/")
    page.locator(".card .tags a", has_text="tree").first.click()
    page.wait_for_url("**tag=tree")
    assert all("tree" in tags for tags in page.locator(".card .tags").all_inner_texts())
    page.locator(".options summary").click()
    page.fill("#where", "year >= 2020 and camera = 'Leica'")
    page.locator("#where").press("Enter")
    page.wait_for_url("**where=*")
    assert all("Leica" in text for text in page.locator(".card dl").all_inner_texts())
    assert page.locator(".card").count() > 1
    page.fill("#where", "year >= 'x'")
    page.locator("#where").press("Enter")
    page.wait_for_selector("[role=alert]")
    assert "status of 400" in open_page.faults.pop()
    assert "expected a number" in page.locator("[role=alert]").inner_text()
    page.fill("#where", "")
    page.locator("#where").press("Enter")
    page.wait_for_selector(".card")
    page.locator(".chips a", has_text="tree").click()
    until(page, "!location.search.includes('tree')")


@pytest.mark.parametrize("event", ["drop", "paste"])
def test_a_picture_is_dropped_or_pasted(open_page, folder, event):
    page = open_page("/?where=year+%3E+2015")
    dropped(page, event, png())
    page.wait_for_selector("h1:has-text('Like the picture mine.png')")
    with WOHIndex.open(folder / "pictures.woh") as index:
        from woh_faiss.encoders import open_encoder

        xq = open_encoder(index.encoder.name).embed_images([Image.open(io.BytesIO(png()))])
        ids = index.search(xq, 48, where="year > 2015")[1][0]
        assert keys(page)[:24] == [item.key for item in index.items(ids[:24])]
        if event == "paste":
            return
        # The picture itself is shown, which the server does not keep.
        page.wait_for_selector("canvas#asked:not([hidden])")
        assert page.evaluate("document.querySelector('canvas').width") == 256
        # The next ones come by scrolling, and are asked of the same picture.
        page.locator("#next").scroll_into_view_if_needed()
        until(page, "document.querySelectorAll('.card').length >= 48")
        assert keys(page)[:48] == [item.key for item in index.items(ids)]
        page.locator(".card .tags button", has_text="boat").first.click()
        page.wait_for_selector(".chips:has-text('boat')")
        found = index.search(xq, 24, where="year > 2015 and 'boat' in tags")[1][0]
        assert keys(page)[:24] == [item.key for item in index.items(found[found >= 0])]


def test_what_is_dropped_and_is_no_picture(open_page, hostile):
    page = open_page()
    dropped(page, "drop", b"text", "a.txt", "text/plain")
    until(page, "document.getElementById('count').textContent.includes('no picture')")
    page.evaluate("document.getElementById('drop').dataset.most = 1000")
    dropped(page, "drop", png())
    until(page, "document.getElementById('count').textContent.includes('this server takes 1,000;')")
    page = open_page(base=hostile)
    dropped(page, "drop", png())
    until(page, "document.getElementById('count').textContent.includes('--encoder')")


def test_pages_come_by_scrolling(open_page, folder):
    page = open_page("/?q=sea&k=90&offset=10")
    n = 90
    while n < 230:
        page.mouse.wheel(0, 100_000)
        until(page, f"document.querySelectorAll('.card').length > {n}")
        n = page.locator(".card").count()
    assert page.locator("#next").count() == 0
    assert page.locator("#count").inner_text() == "11 to 240 of 240 items"
    with WOHIndex.open(folder / "pictures.woh") as index:
        assert keys(page) == [item.key for item in index.items(index.search_tags(["sea"], 240)[1][0, 10:])]


def test_without_a_script(open_page, folder):
    page = open_page(java_script_enabled=False)
    page.fill("#q", "night")
    page.locator("#ask button").click()
    assert page.locator("h1").inner_text() == "night"
    first = keys(page)
    page.locator("a[rel=next]").click()
    second = keys(page)
    assert len(first) == len(second) == 24
    assert not set(first) & set(second)
    page.locator("a[rel=prev]").click()
    assert keys(page) == first
    page.set_input_files("#picture", {"name": "mine.png", "mimeType": "image/png", "buffer": png()})
    page.locator("#drop button").click()
    assert page.locator("h1").inner_text() == "Like the picture mine.png"
    assert keys(page)[0] == "boat/07.jpg"
    page.locator("#next button").click()
    assert "25 to 48" in page.locator("#count").inner_text()
    page.locator("nav a", has_text="What it knows").click()
    assert page.locator("h1").inner_text() == "What it knows"


@pytest.mark.parametrize("path", ["/?k=40", "/?q=sea", "/?like=0", "/about"])
def test_text_of_strangers_runs_nothing(open_page, hostile, path):
    page = open_page(path, hostile, **NARROW)
    assert "owned" not in page.title().replace("title='owned'", "").replace("='owned'", "")
    assert page.locator(".card script, .card svg:not(.share), .card img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    if path == "/?k=40":
        assert page.locator(".card").count() == 40
        assert any(key.startswith("<script>document.title='owned'</script>") for key in keys(page))
        page.fill("#q", "<scr")
        page.locator("#options li").first.wait_for()
        assert page.locator("#options li bdi").first.inner_text() == ATTACKS[0]
        page.locator("#options li").first.click()
        assert page.input_value("#q") == ATTACKS[0]


@pytest.mark.parametrize("path", ["/?k=8", "/?like=3&where=year+%3E+2016&tag=sea&k=4", "/about"])
def test_everybody_can_use_it(open_page, path):
    page = open_page(path, **NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.evaluate("document.querySelectorAll('details').forEach((it) => { it.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    for scheme, paper in (("dark", "rgb(20, 23, 27)"), ("light", "rgb(255, 255, 255)")):
        page.emulate_media(color_scheme=scheme)  # light is what a tab begins and ends with
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert axe_faults(page) == []


def test_axe_finds_faults(open_page):
    page = open_page("/?k=2")
    page.evaluate("document.querySelector('.card img').removeAttribute('alt'); document.title = ''")
    assert {fault for fault, _ in axe_faults(page)} >= {"image-alt", "document-title"}


def test_the_token_is_asked_for(open_page, folder):
    token = folder / "token"
    token.touch(0o600)
    token.write_text("a made-up token of the tests\n".replace(" ", "-"))
    with serving(folder / "pictures.woh", "--token-file", token) as base:
        page = open_page("/?q=night&k=5", base)
        assert page.locator("h1").inner_text() == "Log in"
        assert axe_faults(page) == []
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=alert]")
        assert "status of 403" in open_page.faults.pop()
        page.keyboard.type(token.read_text().strip())
        page.keyboard.press("Enter")
        page.wait_for_url("**/?q=night&k=5")
        page.wait_for_selector(".card")
        assert not page.evaluate("document.cookie")
        dropped(page, "drop", png())
        page.wait_for_selector("h1:has-text('Like the picture mine.png')")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_selector("h1:has-text('Log in')")


@pytest.mark.parametrize("name", ["server-page", "server-about"])
def test_pictures_of_the_documentation(open_page, tmp_path, name):
    path = {"server-page": "/?k=12", "server-about": "/about"}[name]
    height = {"server-page": 720, "server-about": 1100}[name]
    page = open_page(path, viewport={"width": 960, "height": height}, device_scale_factor=1)
    if name == "server-page":
        dropped(page, "drop", png("hill", 77), "my mountains.png")
        page.wait_for_selector("canvas#asked:not([hidden])")
    page.wait_for_load_state("networkidle")
    with Image.open(io.BytesIO(page.screenshot())) as shot:
        assert shot.size == (960, height)
        assert len(shot.convert("RGB").getcolors(960 * height)) > 200
        file = (SHOTS or tmp_path) / f"{name}.png"
        shot.convert("RGB").quantize(128).save(file, optimize=True)
    assert file.stat().st_size < 300_000
