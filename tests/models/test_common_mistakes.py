"""What people try first and what they are told."""

import re

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.layers import EncoderBlock, RotaryEmbedding, RotaryPosition
from tests.models import builders

TEXTS = ["天地", "玄黄"]


@pytest.fixture(scope="module")
def classifier():
    preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(builders.tokenizer())
    return roformer_tf.RoFormerTextClassifier(builders.backbone(num_layers=1), 3, preprocessor)


@pytest.mark.parametrize(
    "kind", ["texts", *(pytest.param(x, marks=pytest.mark.slow) for x in ("pairs", "inputs"))]
)
def test_an_unbatched_dataset(classifier, kind):
    x = {"texts": TEXTS, "pairs": (TEXTS, TEXTS), "inputs": classifier.preprocessor(TEXTS)}[kind]
    dataset = tf.data.Dataset.from_tensor_slices((x, [0, 1]))
    for call in (classifier.fit, classifier.evaluate):
        with pytest.raises(ValueError, match=r"Did you forget `dataset.batch\(32\)`"):
            call(dataset, verbose=0)
    with pytest.raises(ValueError, match="Did you forget"):
        classifier.predict(dataset.map(lambda x, y: x), verbose=0)
    with pytest.raises(ValueError, match="Did you forget"):
        classifier.fit(dataset.batch(2), validation_data=dataset, verbose=0)


def test_missing_labels(classifier):
    validation = {"validation_data": (TEXTS,)}
    for call, options in (
        (classifier.fit, {"verbose": 0}),
        (classifier.evaluate, {"verbose": 0}),
        (classifier.train_on_batch, {}),
        (classifier.test_on_batch, {}),
    ):
        for texts in (TEXTS, tf.constant(TEXTS)):
            with pytest.raises(ValueError, match="Labels are missing: pass `y`, a list"):
                call(texts, **options)
    with pytest.raises(ValueError, match="pass `validation_data`, `\\(examples, labels\\)`"):
        classifier.fit(TEXTS, [0, 1], verbose=0, **validation)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(2)
    for stream in (dataset, ((TEXTS,) for _ in "1")):
        with pytest.raises(ValueError, match="pass `x`, a dataset of batches"):
            classifier.fit(stream, verbose=0)


def test_targets_beside_their_sources():
    """A language model would learn the sources alone."""
    causal_lm = builders.task("causal_lm", preprocessor={})
    pairs = tf.data.Dataset.from_tensor_slices((TEXTS, TEXTS)).batch(2)
    for data in ((TEXTS, TEXTS), (TEXTS, np.array(TEXTS)), (pairs,)):
        with pytest.raises(ValueError, match=r"as labels. Pass .* `fit\(\(first, second\)\)`"):
            causal_lm.fit(*data, verbose=0)
    with pytest.raises(ValueError, match="RoFormerCausalLM has no classes of examples to weigh"):
        causal_lm.fit(TEXTS, class_weight={0: 1.0}, verbose=0)


@pytest.mark.slow
def test_labels_of_many_classes(classifier):
    labels = [[1, 0, 1], [0, 1, 1]]
    with pytest.raises(ValueError, match="Multi-label .* `activation='sigmoid'`") as error:
        classifier.fit(TEXTS, labels, verbose=0)
    assert "CategoricalCrossentropy" in str(error.value)  # one-hot ones
    # what it says works
    multi_label = roformer_tf.RoFormerTextClassifier(
        builders.backbone(num_layers=1), 3, classifier.preprocessor, activation="sigmoid"
    )
    multi_label.compile(loss="binary_crossentropy", metrics=["binary_accuracy"])
    history = multi_label.fit(TEXTS, labels, verbose=0)
    assert set(history.history) == {"loss", "binary_accuracy"}


def test_rotary_position_is_not_the_layer_that_rotates():
    x = np.ones((2, 5, 4, 8), "float32")
    with pytest.raises(ValueError, match="does not rotate .* `roformer_tf.layers.RotaryEmbedding`"):
        RotaryPosition(head_dim=8)(x)
    assert RotaryEmbedding()(x).shape == x.shape


def test_a_block_still_takes_the_context_of_features():
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    scheme = RotaryPosition(head_dim=8)
    block = EncoderBlock(16, 32, num_heads=2, position_scheme=scheme)
    expected = np.asarray(block(x))
    np.testing.assert_array_equal(block(x, position=scheme(x)), expected)
    one_head = EncoderBlock(8, 16, num_heads=1, position_scheme=RotaryPosition(head_dim=8))
    assert one_head(x[..., :8]).shape == (2, 5, 8)


def test_from_pretrained_of_hugging_face():
    public = [getattr(roformer_tf, name) for name in roformer_tf.__all__]
    loadable = [each for each in public if hasattr(each, "from_preset")]
    assert len(loadable) > 20
    for each in loadable:
        message = (
            f"`{each.__name__}` has no `from_pretrained`. Use `from_preset(folder)`, or "
            "`from_preset('hf://user/name')`."
        )
        with pytest.raises(AttributeError, match=re.escape(message)):
            each.from_pretrained("junnyu/roformer_chinese_base")
