"""Reads a served page back, strictly: a tree, its cards; nothing in it runs or is fetched from elsewhere."""

from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlsplit
from xml.etree import ElementTree as ET

VOID = {"meta", "link", "input", "img", "wbr", "rect", "path"}
NAMES = {
    *("html", "head", "meta", "title", "link", "script", "body", "main", "header", "nav", "section", "div"),
    *("form", "a", "p", "h1", "h2", "ul", "ol", "li", "dl", "dt", "dd", "b", "bdi", "wbr", "span", "code"),
    *("details", "summary", "label", "input", "select", "option", "button", "img", "svg", "rect", "path"),
    *("figure", "figcaption", "canvas", "table", "thead", "tbody", "tr", "th", "td"),
}  # fmt: skip


class Tree(HTMLParser):
    """HTML as elements; fails on bad nesting, repeated attributes, and names that no template has."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        assert source.startswith("<!DOCTYPE html>\n")
        self.builder = ET.TreeBuilder()
        self.open = []
        self.feed(source)
        self.close()
        assert self.open == []
        self.root = self.builder.close()

    def handle_starttag(self, tag, attrs):
        assert tag in NAMES, tag
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        assert not [name for name in names if name.startswith("on") or name == "style"]
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.builder.end(tag)
        else:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data):
        assert data.strip() == "" or self.open[-1] != "script"
        if self.open:
            self.builder.data(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_pi = unknown_decl = handle_comment


class Seen:
    """A page: what a test asks of it."""

    def __init__(self, response, status=200):
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert "'unsafe" not in response.headers["content-security-policy"]
        self.root = Tree(response.content.decode()).root
        ids = [element.get("id") for element in self.root.iter() if element.get("id")]
        assert len(set(ids)) == len(ids)
        for element in self.root.iter():
            for name in ("href", "src", "action"):
                address = element.get(name, "/")
                assert address.startswith(("/", "#")), address
                assert not address.startswith("//")
            if element.get("aria-labelledby") is not None:
                assert element.get("aria-labelledby") in ids
            if element.tag == "label":
                assert element.get("for") in ids
        self.cards = self.root.findall(".//li[@class='card']")

    @property
    def ids(self):
        return [int(card.get("data-id")) for card in self.cards]

    def text(self, path):
        """The text of the one element at a path, white space as browsers show it."""
        (found,) = self.root.findall(path)
        return text(found)

    def all(self, path):
        return self.root.findall(path)

    def link(self, path):
        """The address of the one link at a path."""
        (found,) = self.root.findall(path)
        return found.get("href")

    @property
    def alert(self):
        return self.text(".//*[@role='alert']")

    def form(self, name, **changed):
        """The fields of a form as a browser would send them, with others where they are given."""
        (found,) = self.root.findall(f".//form[@id='{name}']")
        fields = []
        for field in found.iter():
            if field.tag == "input" and field.get("type") != "file":
                fields.append((field.get("name"), field.get("value", "")))
            elif field.tag == "select":
                (chosen,) = [option for option in field if option.get("selected") is not None] or field[:1]
                fields.append((field.get("name"), chosen.get("value")))
        assert changed.keys() <= {name for name, _ in fields}
        return [(name, changed.get(name, value)) for name, value in fields]


def text(element):
    return " ".join("".join(element.itertext()).split())


def asked(address):
    """The names and values of an address."""
    return parse_qsl(urlsplit(address).query, keep_blank_values=True)
