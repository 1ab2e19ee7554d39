"""XML without surprises: no entity is expanded, no DTD is fetched or processed, and a document cut off in the middle keeps what it
holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

#: Nesting beyond this is no report of a tool.
_DEEPEST = 64


@dataclass(slots=True)
class Node:
    """One element with its line. A class because it grows while the document is read."""

    tag: str
    attributes: dict[str, str]
    line: int
    end_line: int = 0
    text: str = ""
    children: list[Node] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Node]:
        """Children of this tag."""
        return (c for c in self.children if c.tag == tag)

    def find(self, tag: str) -> Node | None:
        """First child of this tag."""
        return next(self.all(tag), None)

    def walk(self) -> Iterator[Node]:
        """This element and everything below."""
        yield self
        for child in self.children:
            yield from child.walk()

    def value(self, tag: str) -> str | None:
        """Stripped text of a child."""
        child = self.find(tag)
        return child.text.strip() if child is not None else None


class Refused(ValueError):
    """The document declares entities or nests too deep."""


def parse(data: bytes, skip: frozenset[str] = frozenset()) -> tuple[Node | None, str | None]:
    """(root, error). The root of a truncated document holds what came before the end; elements in ``skip`` are left out."""
    parser = expat.ParserCreate()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.buffer_text = True
    stack: list[Node] = []
    roots: list[Node] = []
    skipping = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal skipping
        if skipping or tag in skip:
            skipping += 1
            return
        if len(stack) >= _DEEPEST:
            raise Refused("nested too deep")
        node = Node(tag, attributes, parser.CurrentLineNumber)
        if stack:
            stack[-1].children.append(node)
        else:
            roots.append(node)
        stack.append(node)

    def end(_: str) -> None:
        nonlocal skipping
        if skipping:
            skipping -= 1
            return
        stack.pop().end_line = parser.CurrentLineNumber

    def text(data: str) -> None:
        if stack and not skipping:
            stack[-1].text += data

    def declared(*_: object) -> None:
        raise Refused("the document declares entities")

    def external(*_: object) -> int:
        raise Refused("the document refers to another one")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.EntityDeclHandler = declared
    parser.ExternalEntityRefHandler = external
    error = None
    try:
        parser.Parse(data, True)
    except Refused as problem:
        return None, str(problem)
    except expat.ExpatError as problem:
        error = f"truncated: {problem}" if "no element found" in str(problem) or "unclosed" in str(problem) else f"unparsed: {problem}"
    return (roots[0] if roots else None), error
