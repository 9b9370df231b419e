"""Make Matplotlib's SVG plain: no style sheet, no metadata, no references but its own.

A strict Content-Security-Policy forbids ``style`` attributes, a page with many figures needs ids
that differ, and a figure that follows the page's theme names its colours instead of stating them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from encore.report.palette import PALETTE

#: An artist whose id begins so becomes a group that shows the rest of the id when pointed at.
TIP = "tip "
#: Fonts of a file of its own: the one it was laid out with, then the widest common ones.
_FONTS = "'DejaVu Sans', Verdana, sans-serif"
_NAMESPACE = re.compile(r"^\{(.*)\}")
_XLINK = "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"#([^)\"']+)")
_TONE_NAMES = {tone.light: name for name, tone in PALETTE.items()}
_CLASS_PREFIX = {"fill": "f", "stroke": "s"}


def file_svg(svg: bytes, *, label: str) -> bytes:
    """A drawing as a file of its own, in light tones, the same bytes for the same drawing.

    Args:
        svg: As Matplotlib writes it.
        label: The text alternative.
    """
    root = _plain(svg, prefix="")
    root.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "xmlns:xlink": _XLINK,
        "font-family": _FONTS,
        "role": "img",
        "aria-label": label,
    }
    for element in root.iter():
        if "href" in element.attrib:  # readers older than SVG 2 know only this name
            element.set("xlink:href", element.attrib.pop("href"))
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def inline_svg(svg: bytes, *, label: str, prefix: str) -> str:
    """A drawing as an element of an HTML page, its colours as classes ``f-ink``, ``s-ink``, ….

    Args:
        svg: As Matplotlib writes it.
        label: The text alternative.
        prefix: Begins every id, so that drawings of one page do not share any.
    """
    root = _plain(svg, prefix=prefix)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.attrib |= {"role": "img", "aria-label": label}
    for element in root.iter():
        _name_colours(element)
    return ElementTree.tostring(root, encoding="unicode")


def _plain(svg: bytes, *, prefix: str) -> Element:
    root = ElementTree.fromstring(svg)  # noqa: S314 - Matplotlib's own output, every text escaped
    for parent in list(root.iter()):
        for child in list(parent):
            if _local_name(child.tag) in {"metadata", "style"}:
                parent.remove(child)
    for element in root.iter():
        element.tag = _local_name(element.tag)
        element.attrib = dict(_plain_attributes(element))
        if element.tag == "g" or not (element.text or "").strip():
            element.text = None
        element.tail = None
    referenced = {name for element in root.iter() for name in _references(element)}
    for element in list(root.iter()):
        _rename(element, referenced, prefix=prefix)
    root.attrib |= {"stroke-linejoin": "round", "stroke-linecap": "butt"}
    return root


def _local_name(name: str) -> str:
    return _NAMESPACE.sub("", name)


def _plain_attributes(element: Element) -> Iterator[tuple[str, str]]:
    """Attributes without namespaces, ``style`` taken apart, what a page decides left out."""
    for name, value in element.attrib.items():
        if name == "style":
            for declaration in value.split(";"):
                key, _, text = (part.strip() for part in declaration.partition(":"))
                if key and key != "font-family":
                    yield key, text
        else:
            yield _local_name(name), value


def _references(element: Element) -> Iterator[str]:
    for name, value in element.attrib.items():
        if name == "href" or value.startswith("url("):
            yield from _REFERENCE.findall(value)


def _rename(element: Element, referenced: set[str], *, prefix: str) -> None:
    """Prefix ids that something refers to, and drop the others; a tip becomes a title."""
    for name, value in element.attrib.items():
        if name == "href" or value.startswith("url("):
            element.set(name, value.replace("#", f"#{prefix}"))
    own_id = element.attrib.pop("id", None)
    if own_id is None:
        return
    if own_id.startswith(TIP):
        title = Element("title")
        title.text = own_id.removeprefix(TIP)
        element.insert(0, title)
    elif own_id in referenced:
        element.set("id", prefix + own_id)


def _name_colours(element: Element) -> None:
    classes = []
    for property_name, letter in _CLASS_PREFIX.items():
        tone = _TONE_NAMES.get(element.attrib.get(property_name, ""))
        if tone is not None:
            del element.attrib[property_name]
            classes.append(f"{letter}-{tone}")
    if classes:
        element.set("class", " ".join(classes))
