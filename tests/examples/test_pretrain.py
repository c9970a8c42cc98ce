import importlib
import json

import pytest

from roformer_tf.checkpoint import inspect_checkpoint


@pytest.mark.slow
def test_goes_on_from_the_tiny_model(run, tmp_path):
    reviews = importlib.import_module("reviews").load_reviews()["train"][0][:150]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": text}) for text in reviews), encoding="utf-8")
    out = run(
        "pretrain",
        *("--files", texts, "--output", tmp_path / "run", "--steps", 3, "--batch-size", 4),
    )
    assert "before" in out and "after" in out
    report = inspect_checkpoint(tmp_path / "run" / "stage-2-512")
    assert report.complete and report.family == "roformer"
