"""`embed` of every task: pooled as asked, in float64 NumPy, and whatever the padding."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import roformer_tf
from tests.layers.harness import quantized
from tests.models import builders
from tests.oracles import numpy_roformer as oracle

POOLERS = {"classifier_pooler", "causal_lm_sim"}
FAST = ("masked_lm", "classifier_pooler")


def expected(model, text, pooling):
    """The vector of one text without padding, in float64."""
    given = {k: np.asarray(v) for k, v in model.preprocessor.pack([text]).items()}
    assert given["padding_mask"].all()
    outputs = builders.hidden_states(model.backbone, given)
    last = outputs["sequence_output"]
    return {
        "cls": lambda: last[0, 0],
        "mean": lambda: oracle.masked_mean(last, given["padding_mask"])[0],
        "pooler": lambda: outputs["pooled_output"][0],
    }[pooling]()


@pytest.mark.eager
@pytest.mark.parametrize(
    "name",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in builders.TASKS
    ],
)
def test_vectors_are_those_of_numpy(name, rng):
    """Texts of different lengths in batches of three, so most of them are padded."""
    model = builders.task(name, preprocessor={})
    texts = builders.texts(rng, 7)
    for pooling in ("pooler", "cls", "mean"):
        if pooling == "pooler" and name not in POOLERS:
            continue
        if pooling == "cls" and model.backbone.masking == "causal":
            continue
        wanted = np.array([expected(model, text, pooling) for text in texts])
        found = model.embed(texts, normalize=False, batch_size=3, pooling=pooling)
        assert found.dtype == np.float32 and found.shape == wanted.shape
        # float32 beside float64: some 1e-6 of states near 1
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        found = model.embed(texts, pooling=pooling)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)
        # alone, without padding, a text has the vector that it has beside longer ones
        alone = model.embed(texts[0], pooling=pooling)
        np.testing.assert_allclose(alone, found[0], rtol=0, atol=2e-6)
        if pooling == "pooler":
            np.testing.assert_array_equal(model.embed(texts), found)


@pytest.mark.eager
def test_padding_to_a_fixed_length_changes_nothing(rng):
    texts = builders.texts(rng, 4)
    wide = builders.task("masked_lm", preprocessor={"padding": "max_length"})
    narrow = builders.task("masked_lm", preprocessor={})
    for pooling in ("cls", "mean"):
        found = [model.embed(texts, pooling=pooling) for model in (wide, narrow)]
        np.testing.assert_allclose(*found, rtol=0, atol=2e-6)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_graphs_made_before_int8_and_lora_are_not_used_after():
    model = builders.task("masked_lm", preprocessor={})
    vectors = [model.embed("天", pooling="mean")]
    for change in (quantized, lambda model: model.enable_lora(2)):
        change(model)
        for weight in model.backbone.trainable_weights:
            if "lora" in weight.name:
                weight.assign(ops.ones_like(weight))
        vectors.append(model.embed("天", pooling="mean"))
    assert len({vector.tobytes() for vector in vectors}) == 3


@pytest.mark.slow
def test_tasks_that_pack_other_inputs(rng):
    """Readers, taggers and choosers embed plain texts with the vectors of their backbone."""
    backbone, tokenizer = builders.backbone(), builders.tokenizer()
    texts = builders.texts(rng, 3)
    plain = roformer_tf.RoFormerMaskedLM(
        backbone, roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    ).embed(texts, pooling="mean")
    for name, options in {
        "MultipleChoice": {},
        "QuestionAnswering": {},
        "TokenClassifier": {"labels": ["PER"]},
    }.items():
        preprocessor = getattr(roformer_tf, f"RoFormer{name}Preprocessor")(tokenizer)
        model = getattr(roformer_tf, f"RoFormer{name}")(
            backbone, preprocessor=preprocessor, **options
        )
        np.testing.assert_allclose(model.embed(texts, pooling="mean"), plain, rtol=0, atol=2e-6)


def test_errors_say_what_to_pass():
    masked_lm = builders.task("masked_lm", preprocessor={})
    with pytest.raises(ValueError, match="has no pooler, so say.*`pooling='mean'` averages"):
        masked_lm.embed("天")
    with pytest.raises(ValueError, match="has no pooler.*Received: pooling='pooler'"):
        masked_lm.embed("天", pooling="pooler")
    with pytest.raises(ValueError, match="`pooling` must be.*'max'"):
        masked_lm.embed("天", pooling="max")
    with pytest.raises(TypeError, match="Received: a dataset"):
        masked_lm.embed(tf.data.Dataset.from_tensors(["天"]), pooling="mean")
    gpt = builders.task("causal_lm", preprocessor={})
    with pytest.raises(ValueError, match="sees no other token.*`pooling='mean'`"):
        gpt.embed("天", pooling="cls")
