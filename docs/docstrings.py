"""Prepares docstrings for the site: what our sections are called, and examples as code.

An extension of Griffe, which reads the docstrings for mkdocstrings (see mkdocs.yml).
"""

import re
import textwrap

import griffe

SECTIONS = {
    "Call arguments": "Args: Call arguments",
    "Class attributes": "Attributes: Class attributes",
}


class Docstrings(griffe.Extension):
    """Rewrites every docstring before Griffe parses its sections."""

    def on_object(self, *, obj, **kwargs):
        """Rewrites the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = prepared(obj.docstring.value)


def prepared(text):
    """Returns a docstring whose sections Griffe knows, with each example in a block of code."""
    # without a list of arguments it is prose
    text = re.sub(r"^Call arguments:\n    (See .*(?:\n    .*)*)", _as_prose, text, flags=re.M)
    text = re.sub(r"^(Returns|Yields):\n((?:    .*\n?|\n(?=    ))+)", _as_text, text, flags=re.M)
    for name, section in SECTIONS.items():
        text = re.sub(rf"^{name}:$", f"{section}:", text, flags=re.M)
    text = re.sub(r"^(Examples?):$", r"**\1**", text, flags=re.M)
    text = re.sub(r"^Reference: ", "**Reference:** ", text, flags=re.M)
    blocks = text.split("\n\n")
    for i, block in enumerate(blocks):
        if block.lstrip().startswith(">>> "):
            indent = block[: len(block) - len(block.lstrip())]
            blocks[i] = f"{indent}```pycon\n{block}\n{indent}```"
    text = "\n\n".join(blocks)
    return re.sub(r"\n *```\n\n *```pycon\n", "\n\n", text)  # one example, one block


def _as_prose(match):
    return "**Call arguments.** " + match[1].replace("\n    ", "\n")


def _as_text(match):
    return f"**{match[1]}:**\n\n{textwrap.dedent(match[2])}"
