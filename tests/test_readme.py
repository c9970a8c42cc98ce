"""The Python of the README runs, one block after the other."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_blocks_run(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 12
    for name in ("checkpoints", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    classifier, served, tf = (names[name] for name in ("classifier", "served", "tf"))
    texts = ["房间干净", "难吃"]
    answer = served.signatures["serving_default"](texts=tf.constant(texts))
    np.testing.assert_allclose(answer["logits"], classifier.predict(texts, verbose=0), atol=1e-5)
    assert set(answer["label"].numpy()) <= {b"negative", b"positive"}


@pytest.mark.slow
def test_the_page_of_answers_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "answers.md").read_text(encoding="utf-8")
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "answers.md", "exec"), names)
    assert "张三在上海，李四在天津。"[names["start"] : names["end"]] == names["text"]
    assert (tmp_path / "build" / "tagger" / "saved_model.pb").exists()


@pytest.mark.slow
def test_the_page_of_loading_runs(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "loading.md").read_text(encoding="utf-8")
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "loading.md", "exec"), names)
    assert names["masked_lm"].predict(["今天[MASK]气很好"], verbose=0).shape[0] == 1
    assert (tmp_path / "build" / "mine" / "README.md").exists()


def test_links_lead_to_files():
    """Every relative link of a Markdown page, and every program that a page names, exists."""
    pages = [ROOT / "README.md"]
    for folder in ("docs", "examples", "experiments", "benchmarks", "checkpoints"):
        pages += (ROOT / folder).rglob("*.md")
    missing = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", prose)
        programs = re.findall(r"\b((?:examples|experiments)/\w+\.(?:py|toml))", text)
        missing += [(page.name, link) for link in links if not (page.parent / link).exists()]
        missing += [(page.name, name) for name in programs if not (ROOT / name).exists()]
    assert not missing
