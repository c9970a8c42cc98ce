"""The version and the citation agree with the package."""

import configparser
import re

import roformer_tf


def test_one_version(repository):
    citation = (repository / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == roformer_tf.__version__
    assert f"## [{roformer_tf.__version__}]" in changelog
    assert "arXiv:2104.09864" in citation


def test_extras(repository):
    """Each extra that the code or a page names exists."""
    setup = configparser.ConfigParser()
    setup.read(repository / "setup.cfg", encoding="utf-8")
    extras = set(setup["options.extras_require"])
    files = [repository / "README.md"]
    for folder, pattern in (("roformer_tf", "*.py"), ("experiments", "*.py"), ("docs", "*.md")):
        files += (repository / folder).rglob(pattern)
    named = set()
    for file in files:
        named |= set(re.findall(r"roformer-tf\[(\w+)\]", file.read_text(encoding="utf-8")))
    assert named and named <= extras
