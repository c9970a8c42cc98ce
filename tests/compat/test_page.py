"""The programs of docs/moving_from_bert4keras.md run, and the kept table is the page's."""

import json
import re
import runpy

import numpy as np
import pytest

from tests.compat.conftest import COMMON, text_of


@pytest.mark.slow
@pytest.mark.eager  # a few steps of training, whose graphs are tested with the models
def test_the_programs_run(repository, monkeypatch):
    page = (repository / "docs" / "moving_from_bert4keras.md").read_text("utf-8")
    old, imports, own = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    changed = re.sub(r"(?m)^from bert4keras\b", "from roformer_tf.compat.bert4keras", old)
    assert all(line in changed for line in imports.splitlines())
    assert 3 * len(own.splitlines()) <= len(old.splitlines()) + 3
    monkeypatch.chdir(repository)
    for program in (changed, own):
        names = {}
        exec(program, names)
        np.testing.assert_allclose(names["probabilities"].sum(), 1, rtol=1e-5)


def test_the_chinese_page_has_the_same_programs(repository):
    english, chinese = (
        (repository / "docs" / name).read_text("utf-8")
        for name in ("moving_from_bert4keras.md", "zh/moving_from_bert4keras.md")
    )
    _, imports, own = re.findall(r"```python\n(.*?)```", english, re.DOTALL)
    assert f"```text\n{imports}```" in chinese and f"```python\n{own}```" in chinese


def test_the_table_is_that_of_the_kept_results(repository):
    page = (repository / "docs" / "moving_from_bert4keras.md").read_text("utf-8")
    program = runpy.run_path(str(repository / "experiments" / "release_scripts.py"))
    kept = program["RESULTS"].read_text("utf-8").splitlines()
    table = program["table"]([json.loads(line) for line in kept])
    assert f"<!-- scripts -->\n{table}\n<!-- /scripts -->" in page
    assert len(kept) == 27


@pytest.mark.oracle
def test_the_lines_that_write_weights_on_tensorflow_2(repository, folders, original, tmp_path):
    page = (repository / "docs" / "moving_from_bert4keras.md").read_text("utf-8")
    (lines,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert lines in (repository / "docs" / "zh" / "moving_from_bert4keras.md").read_text("utf-8")
    program = """
import tensorflow as tf
from common import make_v2

def run(folder, lines):
    base = make_v2(folder)
    exec(lines, {"base": base, "tf": tf})
"""
    text = COMMON.sub("", text_of("common") + program)
    path = tmp_path / "bert_model.ckpt"
    lines = lines.replace("model.ckpt", str(path))
    original.run_program(text, {"folder": folders["roformer_v2"], "lines": lines})
    found, expected = (original.variables(x) for x in (tmp_path, folders["roformer_v2"]))
    for name in found.keys() | expected.keys():
        np.testing.assert_array_equal(found[name], expected[name], name)
