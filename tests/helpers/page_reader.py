"""Reads a page of answers back, strictly, and makes what the tests of pages need."""

from html.parser import HTMLParser

from woh_faiss.index.neighbours import Neighbour
from woh_faiss.thumbnails import Thumbnails
from woh_faiss_cli import html_page
from woh_faiss_cli.answers import Answer, Query

VOID = {"meta", "img", "wbr"}
ATTRIBUTES = {
    "html": {"lang"},
    "meta": {"charset", "name", "content", "http-equiv"},
    "img": {"src", "width", "height", "dir", "alt"},
    "section": {"aria-labelledby"},
    "h2": {"id"},
    "span": {"class", "aria-hidden"},
    "ol": {"class", "role"},
    "ul": {"class", "role"},
    "p": {"class"},
    "div": {"class"},
    "li": {"class"},
}
PLAIN = {"head", "title", "style", "body", "header", "main", "h1", "bdi", "b", "dl", "dt", "dd", "wbr"}


class Page(HTMLParser):
    """The page as a tree flattened: text by enclosing element, images, ids; fails on anything not nested."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.pieces, self.images, self.ids, self.cards = [], [], [], [], []
        assert source.startswith("<!DOCTYPE html>\n")
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert set(names) <= (set() if tag in PLAIN else ATTRIBUTES[tag])
        assert len(set(names)) == len(names)
        values = dict(attributes)
        if tag == "img":
            self.images.append(values)
        if "id" in values:
            self.ids.append(values["id"])
        if values.get("class") == "card":
            self.cards.append("")
        if tag not in VOID:
            self.open.append(tag)
            if tag == "bdi":
                self.pieces.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "bdi" in self.open:
            self.pieces[-1] += data
        if "li" in self.open and self.cards:
            self.cards[-1] += data

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_pi = unknown_decl = handle_comment


def written(path, answers, folder=None, measure="distance", about="1 query"):
    html_page.write(path, answers, about=about, measure=measure, thumbnails=Thumbnails(folder))
    return Page(path.read_bytes().decode("utf-8"))  # strictly


def answer(key, tags=("tag",), predicted=(("tag", 0.5),), tags_asked=None, name=None, distance=3):
    asked = Query(name or key or "row 0", key, tags_asked)
    return Answer(
        asked, [Neighbour(7, key, distance, list(tags))], {7: {"predicted": list(predicted), "trust": 1.0}}
    )


def saved(image, path, **options):
    image.save(path, **options)
    return path
