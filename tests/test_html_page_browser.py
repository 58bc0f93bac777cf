"""The page in a real browser: Chromium, where there is one."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import SMALL, tagged
from PIL import Image

from woh_faiss import WOHIndex
from woh_faiss_cli.main import main

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    # In CI, which installs one, it fails.
    pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no chromium or google-chrome"),
]

#: Each would rename the document if a browser took it for more than text.
ATTACKS = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "'><svg onload='document.title=`owned`'>",
    "</title></style></bdi><script>document.title='owned'</script>",
    "\u202ereversed\u2069 שלום",
]


@pytest.fixture
def html(tmp_path, monkeypatch):
    """A page of two queries with four neighbours each; keys, tags and queries attack it."""
    monkeypatch.chdir(tmp_path)
    X, tags = tagged(0)
    keys = [f"{attack}{i}" for i, attack in enumerate(ATTACKS * 6)] + [f"{i}.png" for i in range(30, 40)]
    with WOHIndex.create("index.woh", **SMALL) as index:
        index.update(X, [[*given, ATTACKS[i % 5]] for i, given in enumerate(tags)], keys=keys)
    for i in range(30, 40):
        Image.new("RGB", (64, 48), (200, 20, 20)).save(f"{i}.png")
    np.savez("q.npz", features=X[[30, 31]], keys=["30.png", ATTACKS[0]], tags=[f"{ATTACKS[1]};", "a b"])
    done = CliRunner().invoke(main, ["query", "q.npz", "-k", "4", "--html", "a.html", "--images", "."])
    assert done.exit_code == 0, done.output
    return tmp_path / "a.html"


def chromium(html, *arguments):
    assert CHROMIUM is not None, "CI needs a browser: apt-get install chromium"
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={html.parent / 'profile'}", *arguments, html.as_uri()]
    done = subprocess.run(command, cwd=html.parent, capture_output=True, check=True, timeout=600)
    return done.stdout.decode()


def test_the_browser_sees_cards_and_runs_nothing(html):
    dom = chromium(html, "--dump-dom")
    assert dom.count('<li class="card">') == 8
    assert dom.count("<section ") == 2
    assert "<title>Nearest items: 2 queries from q.npz" in dom
    assert "<script" not in dom
    assert "<svg" not in dom
    assert dom.count("<img ") == dom.count('<img src="data:image/jpeg;base64,') >= 1
    assert "&lt;script&gt;document.title='owned'&lt;" in dom  # its slash may end a line
    # What the browser made of the page is the page: it had to mend nothing.
    body = html.read_text().split("<body>")[1].split("</body>")[0]
    quotes = {"&#39;": "'", "&#34;": '"', "&quot;": '"'}
    for entity, quote in quotes.items():
        body, dom = body.replace(entity, quote), dom.replace(entity, quote)
    assert body.strip() == dom.split("<body>")[1].split("</body>")[0].strip()


@pytest.mark.parametrize("extra", [[], ["--force-dark-mode"]], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_drawn(html, width, extra):
    chromium(html, f"--window-size={width},900", "--screenshot=shot.png", *extra)
    with Image.open(html.parent / "shot.png") as shot:
        assert shot.size == (width, 900)
        colours = dict(map(reversed, shot.convert("RGB").getcolors(1 << 20)))
    paper = max(colours, key=colours.get)
    assert (sum(paper) < 200) == bool(extra)
    assert len(colours) > 50
    # The first query's own picture is at its full size.
    assert sum(n for (r, g, b), n in colours.items() if r > 180 and g < 40 and b < 40) > 2500
