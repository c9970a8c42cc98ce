"""Backbones: hidden states and embeddings of the SavedModel against the Keras model."""

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf import RoFormerBackbone, RoFormerTextClassifierPreprocessor
from roformer_tf.export import export_saved_model
from tests.export.conftest import assert_close, encoded


def hidden_states(backbone, preprocessor, texts):
    inputs = preprocessor(texts)
    outputs = tf.function(backbone)(inputs)
    if not isinstance(outputs, dict):
        outputs = {"sequence_output": outputs}
    return outputs, inputs["padding_mask"].numpy()


@pytest.mark.parametrize(
    "embedding, normalize, backbone",
    [
        (None, False, {}),
        ("cls", True, {"dtype": "mixed_bfloat16"}),
        ("pooler", True, {"pooler": "linear", "masking": "unilm"}),
    ],
    ids=["mean of a tokenizer's texts", "cls in mixed_bfloat16", "pooler"],
)
@pytest.mark.slow
def test_embeddings(build, ask, tokenizer, texts, tmp_path, embedding, normalize, backbone):
    model = build(RoFormerBackbone, backbone)
    given = preprocessor = RoFormerTextClassifierPreprocessor(tokenizer, sequence_length=32)
    if embedding is None:  # a tokenizer is enough, but its 512 tokens take a while
        given, texts = tokenizer, texts[:16]
        preprocessor = RoFormerTextClassifierPreprocessor(tokenizer)
    folder = export_saved_model(
        model,
        tmp_path / "served",
        preprocessor=given,
        embedding=embedding,
        normalize=normalize,
    )
    answer = ask(folder, texts=encoded(texts))
    outputs, mask = hidden_states(model, preprocessor, texts)
    # bfloat16 has 8 bits
    tolerance = 3e-2 if "dtype" in backbone else 1e-5
    assert_close(answer["sequence_output"], outputs["sequence_output"], tolerance)
    assert answer["padding_mask"].tolist() == mask.tolist()
    if embedding == "pooler":
        expected = outputs["pooled_output"]
        assert_close(answer["pooled_output"], expected, tolerance)
    elif embedding == "cls":
        expected = np.float64(outputs["sequence_output"][:, 0])
    else:
        assert set(answer) == {"sequence_output", "padding_mask", "embedding"}
        weights = mask[..., None] / mask.sum(-1)[:, None, None]
        expected = (np.float64(outputs["sequence_output"]) * weights).sum(1)
        long = encoded(["好" * 600])
        assert ask(folder, texts=long)["sequence_output"].shape == (1, 512, 16)
        pairs, _ = hidden_states(model, preprocessor, (["很好"], ["不好"]))
        found = ask(folder, "pairs", first=encoded(["很好"]), second=encoded(["不好"]))
        assert_close(found["sequence_output"], pairs["sequence_output"])
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
        np.testing.assert_allclose(np.linalg.norm(answer["embedding"], axis=-1), 1, rtol=1e-6)
    assert_close(answer["embedding"], expected, tolerance)
    del answer["padding_mask"]
    assert {value.dtype for value in answer.values()} == {np.dtype("float32")}
    assert ask(folder, texts=[])["embedding"].shape == (0, 16)
