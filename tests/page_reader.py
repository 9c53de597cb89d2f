"""A page read back by the standard library's parser, which tests take apart as a browser would."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from lab.report import comparability
from lab.report.page.build import build
from lab.report.page.render import page_text
from lab.stages import registry

VOID = {"br", "meta", "link", "img", "hr", "input"}
SVG_LEAVES = {"line", "path", "circle", "rect"}


@dataclass
class Element:
    """A tag with its attributes; ``parts`` are texts and elements in their order."""

    tag: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text inside, as it stands."""
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def children(self) -> list[Element]:
        """Elements directly inside."""
        return [part for part in self.parts if isinstance(part, Element)]

    def all(self, *tags: str) -> list[Element]:
        """Elements of these tags anywhere inside, in the order of the text; of any tag when none is given."""
        found: list[Element] = []
        for child in self.children:
            if not tags or child.tag in tags:
                found.append(child)
            found += child.all(*tags)
        return found

    def by_id(self, name: str) -> Element:
        """The one element with an id."""
        (found,) = [element for element in self.all() if element.attributes.get("id") == name]
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        assert tag in SVG_LEAVES, f"<{tag}/> closes itself only in SVG"
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        closed = self.open.pop()
        assert closed.tag == tag, f"</{tag}> closes <{closed.tag}> at {self.getpos()}"

    def handle_data(self, data):
        self.open[-1].parts.append(data)


def read(text: str) -> Element:
    """The root of a page; fails when a tag is not closed, or not the one that is open."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, f"not closed: {[element.tag for element in reader.open]}"
    return reader.open[0]


def rows(table: Element) -> list[list[Element]]:
    """Cells of the rows of a table's body."""
    return [[cell for cell in row.children if cell.tag in ("th", "td")] for row in table.all("tbody")[0].all("tr")]


def make(selection, claims, *, raw=lambda attempt: attempt.raw(), mask=lambda shown: shown, notes=""):
    return page_text(build(selection, registry.BY_NAME, claims, None, raw, notes), mask)


def only(selection, stage, version="v1.36.3"):
    """A selection of one attempt."""
    found = [a for a in selection.attempts if a.stage == stage and a.cell.version == version and not a.cell.gates]
    return comparability.Selection(attempts=tuple(found))


def excerpts(root: Element) -> dict[str, tuple[str, str]]:
    """Id to label and text of every raw line."""
    found = {}
    for element in root.all("div"):
        if element.attributes.get("class") == "excerpt":
            cite, pre = element.children
            found[element.attributes["id"]] = cite.text, pre.text
    return found


def links(element: Element) -> list[tuple[str, str]]:
    """Target and text of every link inside."""
    return [(a.attributes["href"].removeprefix("#"), a.text) for a in element.all("a")]
