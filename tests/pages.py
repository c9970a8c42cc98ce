"""The Markdown pages of the repository, and the blocks of code in them."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LANGUAGES = {"python", "console", "sh", "text", "toml", "json"}
BLOCK = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.M | re.S)


def pages():
    """Returns the Markdown pages that people read: the READMEs and the site."""
    return sorted([*ROOT.glob("README*.md"), *DOCS.rglob("*.md")])


def blocks(page, language=None):
    """Returns the blocks of code of a page: `(language, code)` of all, or the code of one language.

    Code begins with as many empty lines as there are lines before it, so that errors name a line of
    the page.
    """
    text, found = page.read_text(encoding="utf-8"), []
    for match in BLOCK.finditer(text):
        indent, name, code = match.groups()
        code = re.sub(rf"^{indent}", "", code, flags=re.M)
        if language is None:
            found.append((name, code))
        elif language == name:
            found.append("\n" * text.count("\n", 0, match.start(3)) + code)
    return found


def name_of(page):
    """The path of a page in the repository, as the name of a test."""
    return page.relative_to(ROOT).as_posix()
