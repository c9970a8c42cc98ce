"""Arguments and names that every class shares."""

import json

import numpy as np
import pytest

import roformer_tf
from roformer_tf.layers import RoFormerEmbeddings
from tests.models.builders import SIZES, backbone, tokenizer


def test_misspelt_arguments_raise_errors():
    """Keras' functional models would ignore them."""
    with pytest.raises(
        TypeError, match="`RoFormerBackbone` has no such arguments. Received: dropuot"
    ):
        roformer_tf.RoFormerBackbone(**SIZES, dropuot=0.2)
    backbone = roformer_tf.RoFormerBackbone(**SIZES, masking="causal")
    for task, needed in (
        (roformer_tf.RoFormerTextClassifier, {"num_classes": 2}),
        (roformer_tf.RoFormerMaskedLM, {}),
        (roformer_tf.RoFormerCausalLM, {}),
    ):
        with pytest.raises(TypeError, match=f"`{task.__name__}` has no such arguments"):
            task(backbone, **needed, dtype="float16")
        assert task(backbone, **needed, name="mine", compile=False).name == "mine"


def sim():
    preprocessor = roformer_tf.RoFormerSimPreprocessor(tokenizer(), source_mask_rate=0.25)
    return roformer_tf.RoFormerSim(backbone("sim", num_layers=1), preprocessor)


def test_automatic_names():
    model, again = sim(), sim()
    parts = {
        "roformer_sim": model,
        "roformer_sim_preprocessor": model.preprocessor,
        "roformer_tokenizer": model.preprocessor.tokenizer,
        "roformer_backbone": roformer_tf.RoFormerBackbone(**SIZES),
        "roformer_embeddings": RoFormerEmbeddings(9, 8, 8),
        "roformer_seq_2_seq_backbone": roformer_tf.RoFormerSeq2SeqBackbone(**SIZES),
    }
    for name, part in parts.items():
        # "_1", "_2", … where another test has made one
        assert part.name.rstrip("_0123456789") == name
    assert model.name != again.name


def test_presets_with_older_names_load(tmp_path):
    """Keras used to name our classes `ro_former_…`, and `source_mask_rate` was `hidden_sources`."""
    model = sim()
    model.save_to_preset(str(tmp_path))
    (tmp_path / "SHA256SUMS").unlink()  # older versions wrote none
    for file in tmp_path.rglob("*.json"):
        text = file.read_text(encoding="utf-8")
        for new, old in (
            ('"roformer_sim', '"ro_former_sim'),
            ('"roformer_tok', '"ro_former_tok'),
            ('"source_mask_rate"', '"hidden_sources"'),
        ):
            text = text.replace(new, old)
        file.write_text(text, encoding="utf-8")
    saved = json.loads((tmp_path / "task.json").read_text(encoding="utf-8"))["config"]
    assert saved["name"].startswith("ro_former_sim")
    assert saved["preprocessor"]["config"]["hidden_sources"] == 0.25
    older = roformer_tf.RoFormerSim.from_preset(tmp_path)
    assert older.name == saved["name"]
    assert older.preprocessor.source_mask_rate == 0.25
    np.testing.assert_array_equal(older.embed(["天地"]), model.embed(["天地"]))
