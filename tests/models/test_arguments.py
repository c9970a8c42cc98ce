"""A misspelt argument is refused: Keras' functional models would ignore it."""

import pytest

import roformer_tf

SIZES = {
    "vocabulary_size": 10,
    "num_layers": 1,
    "num_heads": 1,
    "hidden_dim": 4,
    "intermediate_dim": 4,
}


def test_misspelt_arguments_are_refused():
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
