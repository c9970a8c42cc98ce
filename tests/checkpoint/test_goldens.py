"""Models loaded from a checkpoint compute the outputs that bert4keras computed from it."""

import json

import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from roformer_tf.checkpoint.loading import ModelBinding
from tests.checkpoint.golden import (
    inputs_of,
    model_inputs,
    read_case,
    read_manifest,
    run_case,
    training_loss,
)

# Each case is a test of its own. A test fails if the manifest has a case that is not listed here.
CASES = """
encoder encoder_all_layers one_token mlm_linear mlm_softmax pool pool_nsp pool_nsp_mlm lm lm_linear
unilm_sim unilm_linear factorised factorised_mlm padded padded_mlm padded_masked_mean odd_masks
odd_masks_lm long position_ids_default position_ids_integer position_ids_fractional v2_encoder_mlm
v2_lm_mlm v2_unilm_mlm v2_encoder act_gelu act_gelu_tanh act_relu keep_tokens compound_tokens
keep_and_compound bert_encoder bert_mlm bert_lm nezha_encoder nezha_mlm nezha_lm nezha_long
small_embeddings small_embeddings_mlm small_embeddings_v2 no_segments
""".split()
CASES_0_10_4 = """
encoder lm mlm_linear odd_masks padded small_embeddings small_embeddings_mlm unilm_sim
""".split()

# The recorded noise is the original's own distance to its run in float64. No float32 implementation
# can be closer to another than a small multiple of it.
NOISE_FACTOR = 4


def test_no_case_is_left_out(shared_dir):
    assert sorted(case["name"] for case in read_manifest(shared_dir)["cases"]) == sorted(CASES)
    files = (shared_dir / "golden" / "cases_bert4keras_0.10.4").iterdir()
    assert sorted(file.stem for file in files) == sorted(CASES_0_10_4)


@pytest.mark.parametrize("name", CASES)
def test_golden(name, shared_dir):
    # bert4keras 0.11.5: 1e-7 in the encoder, 1e-12 in the head and in BERT
    epsilon = 1e-12 if name.startswith("bert_") else 1e-7
    _check_case(name, shared_dir, "cases", epsilon)


@pytest.mark.parametrize("name", CASES_0_10_4)
def test_golden_of_bert4keras_0_10_4(name, shared_dir):
    _check_case(name, shared_dir, "cases_bert4keras_0.10.4", epsilon=1e-12)


def _check_case(name, shared_dir, expected, epsilon):
    case, folder, arrays = read_case(shared_dir, name)
    outputs = run_case(case, folder, model_inputs(arrays), epsilon)
    expected = np.load(shared_dir / "golden" / expected / f"{name}.npz")
    assert len(outputs) == len(case["outputs"])
    for i, (output, noise) in enumerate(zip(outputs, case["float32_noise"], strict=True)):
        wanted = expected[f"output_{i}"]
        assert output.shape == wanted.shape
        difference = np.abs(output - wanted).max()
        assert difference <= NOISE_FACTOR * noise, f"{difference:.1e}, noise {noise:.1e}"
        assert difference <= 1e-5 * np.abs(wanted).max()


@pytest.mark.tensorflow("uses tf.GradientTape")
def test_gradients(shared_dir):
    """Compares loss and gradients with those of the original's `train.py`, without dropout."""
    training = shared_dir / "golden" / "training"
    noise = json.loads((training / "training.json").read_text(encoding="utf-8"))["float32_noise"]
    batches, expected = np.load(training / "batches.npz"), np.load(training / "gradients.npz")
    model = roformer_tf.RoFormerMaskedLM.from_preset(
        shared_dir / "golden" / "checkpoints" / "roformer",
        preprocessor=None,
        layer_norm_epsilon=1e-7,
    )
    ids, segments, labels = (batches[k][0] for k in ("token_ids", "segment_ids", "labels"))
    binding = ModelBinding(model)
    weights = {path: binding.variable(path) for path in binding.by_weight()}
    with tf.GradientTape() as tape:
        loss = training_loss(model, inputs_of(ids, segments), labels)
    gradients = tape.gradient(loss, [weight.value for weight in weights.values()])
    assert abs(float(loss) - expected["loss"]) <= 1e-6 * expected["loss"]
    compared = {"loss"}
    for path, gradient in zip(weights, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient).numpy()
        for variable in binding.by_weight()[path]:
            difference = np.abs(variable.to_original(gradient) - expected[variable.name]).max()
            assert difference <= NOISE_FACTOR * noise["gradients"], variable.name
            compared.add(variable.name)
    assert compared == set(expected)
