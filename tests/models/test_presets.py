"""`from_preset`: every argument reaches its part, mostly for folders of `save_to_preset`."""

import keras
import numpy as np
import pytest

import roformer_tf
from tests.layers.harness import assert_equal, numpy
from tests.models.builders import task

TEXTS = ["天地玄", "玄天地玄天地"]


@pytest.fixture(scope="module")
def classifier():
    return task("classifier", preprocessor={"sequence_length": 12}, num_classes=2)


@pytest.fixture(scope="module")
def preset(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    classifier.save_to_preset(str(folder))
    return folder


def test_arguments_reach_their_parts(classifier, preset):
    again = roformer_tf.RoFormerTextClassifier.from_preset(
        str(preset), sequence_length=6, attention_dropout=0.3, dropout=0.0, masking="causal"
    )
    assert again.preprocessor.sequence_length == 6
    assert (again.backbone.attention_dropout, again.backbone.masking) == (0.3, "causal")
    assert (again.dropout, again.num_classes) == (0.0, 2)
    assert_equal(again.weights, classifier.weights)


@pytest.mark.eager
def test_arguments_of_the_tokenizer_of_a_checkpoint(repository):
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor.from_preset(
        repository / "checkpoints" / "chinese_roformer_tiny",
        sequence_length=6,
        added_tokens=["[MASK]"],
        word_level=False,
    )
    assert numpy(preprocessor("[MASK]")["token_ids"]).tolist()[:3] == [2, 4, 3]
    assert preprocessor.sequence_length == 6 and preprocessor.tokenizer.sequence_length is None


@pytest.mark.eager
def test_another_task_takes_the_backbone(classifier, preset):
    causal_lm = roformer_tf.RoFormerCausalLM.from_preset(preset, sequence_length=9)
    assert causal_lm.backbone.masking == "causal"
    assert causal_lm.preprocessor.sequence_length == 9
    tables = (numpy(m.backbone.token_embedding.embeddings) for m in (causal_lm, classifier))
    np.testing.assert_array_equal(*tables)
    assert causal_lm.score("天地")["num_tokens"].tolist() == [3]


@pytest.mark.eager
@pytest.mark.parametrize(
    "name, other, mode",
    [
        ("masked_lm", roformer_tf.RoFormerCausalLM, None),
        ("causal_lm", roformer_tf.RoFormerMaskedLM, None),
        ("causal_lm", roformer_tf.RoFormerMaskedLM, "int8"),
    ],
)
def test_another_language_model_takes_the_head_too(name, other, mode, tmp_path):
    model = task(name, preprocessor={}, head_epsilon=1e-3)
    if mode:
        model.quantize(mode)
    model.save_to_preset(tmp_path)
    again = other.from_preset(tmp_path)
    assert again.head_epsilon == 1e-3
    assert_equal(again.weights, model.weights)


@pytest.mark.parametrize("name", ["classifier", "causal_lm", "masked_lm"])
def test_mixed_precision_stays_with_other_arguments(name, tmp_path):
    """KerasHub takes the saved "mixed_bfloat16" for a dtype, unless a policy is passed."""
    model = task(name, preprocessor={}, dtype="mixed_bfloat16")
    model.save_to_preset(str(tmp_path))
    for options, policy in (({}, "mixed_bfloat16"), ({"dtype": "float32"}, "float32")):
        again = type(model).from_preset(tmp_path, attention_dropout=0.3, **options)
        assert again.backbone.attention_dropout == 0.3
        assert again.backbone.dtype_policy.name == policy


def test_wrong_arguments_are_named(preset, tmp_path):
    with pytest.raises(TypeError, match="has no such arguments.*Received: sequnce_length"):
        roformer_tf.RoFormerTextClassifier.from_preset(preset, sequnce_length=6)
    with pytest.raises(TypeError, match="has no such arguments.*Received: nope"):
        roformer_tf.RoFormerBackbone.from_preset(preset, nope=6)
    with pytest.raises(FileNotFoundError, match="nowhere.* Expected an original folder"):
        roformer_tf.RoFormerMaskedLM.from_preset(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="None.* Expected an original folder"):
        roformer_tf.RoFormerMaskedLM.from_preset(None)


@pytest.mark.slow
def test_lora_of_a_task_and_a_clone(classifier, preset):
    model = roformer_tf.RoFormerTextClassifier.from_preset(preset)
    x = model.preprocessor(TEXTS)
    before = numpy(model(x))
    model.enable_lora(2)
    # two factors for the one adapted kernel, its bias, and the head
    assert len(model.trainable_weights) == 5
    np.testing.assert_array_equal(numpy(model(x)), before)
    model.compile(keras.optimizers.Adam(0.1), run_eagerly=True)
    model.fit(TEXTS, [0, 1], verbose=0)
    assert np.abs(numpy(model(x)) - before).max() > 1e-3
    keras.models.clone_model(classifier)
