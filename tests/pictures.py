"""What tests of pictures share: the words in one, and an environment without Matplotlib."""

import sys
import xml.etree.ElementTree


def words_of(svg):
    """All words of an SVG."""
    elements = xml.etree.ElementTree.parse(svg).iter()
    return ["".join(e.itertext()).strip() for e in elements if e.tag.endswith("}text")]


def without_matplotlib(monkeypatch):
    """Makes an import of Matplotlib fail, as where it is not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
