"""The examples of docs/generation.md run."""

import re

import pytest


@pytest.mark.slow
def test_the_examples_run(repository):
    text = (repository / "docs" / "generation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(compile(block, "generation.md", "exec"), names)
    assert names["gpt"].generate("今天", max_length=9).startswith("今天")
