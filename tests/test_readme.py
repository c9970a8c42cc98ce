"""What the README shows runs as it stands, one block after the other."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_blocks_run(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 8
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    classifier, served, tf = (names[name] for name in ("classifier", "served", "tf"))
    texts = ["房间干净", "难吃"]
    answer = served.signatures["serving_default"](texts=tf.constant(texts))
    np.testing.assert_allclose(answer["logits"], classifier.predict(texts, verbose=0), atol=1e-5)
    assert set(answer["label"].numpy()) <= {b"negative", b"positive"}
