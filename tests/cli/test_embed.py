"""`embed` of tasks that have no pooler, and of a bare backbone."""

import numpy as np
import pytest

from tests.cli.conftest import run
from tests.models import builders


@pytest.mark.slow
def test_the_command_embeds_with_any_model(tmp_path, rng, capsys, printed_json, error_of):
    texts = builders.texts(rng, 3)
    masked_lm = builders.task("masked_lm", preprocessor={})
    masked_lm.save_to_preset(str(tmp_path / "task"))
    masked_lm.backbone.save_to_preset(str(tmp_path / "backbone"))
    masked_lm.preprocessor.tokenizer.save_to_preset(str(tmp_path / "backbone"))
    masked_lm.backbone.save_to_preset(str(tmp_path / "alone"))
    wanted = masked_lm.embed(texts, pooling="mean", normalize=False)
    for folder in ("task", "backbone"):
        assert run("embed", tmp_path / folder, *texts, "--pooling", "mean", "--raw", "--json") == 0
        found = [line["vector"] for line in printed_json()]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
    assert run("embed", tmp_path / "task", *texts, "--pooling", "cls") == 0
    vectors = masked_lm.embed(texts, pooling="cls")
    assert f"{vectors[0] @ vectors[1]:.3f}" in capsys.readouterr().out
    assert "has no pooler" in error_of("embed", tmp_path / "task", *texts)
    assert "without a tokenizer" in error_of("embed", tmp_path / "alone", "天", "--pooling", "cls")
