"""Compares the NumPy oracle with bert4keras: two implementations that share only the equations."""

import json

import numpy as np
import pytest

from tests.checkpoint.conftest import read_variables
from tests.checkpoint.golden import read_case
from tests.oracles import numpy_roformer as oracle
from tests.oracles.run_original import small_config

NAMES = """encoder encoder_all_layers one_token mlm_linear mlm_softmax pool pool_nsp pool_nsp_mlm lm
lm_linear unilm_sim unilm_linear long factorised factorised_mlm padded padded_mlm padded_masked_mean
odd_masks odd_masks_lm position_ids_default position_ids_integer position_ids_fractional
v2_encoder_mlm v2_lm_mlm v2_unilm_mlm v2_encoder act_gelu act_gelu_tanh act_relu keep_tokens
compound_tokens keep_and_compound small_embeddings small_embeddings_mlm small_embeddings_v2
no_segments""".split()


def outputs_of(case, variables, config, inputs):
    """The outputs of a case of the manifest, in the original's order."""
    kwargs = case["kwargs"]
    variables = oracle.select_tokens(
        variables, kwargs.get("keep_tokens"), kwargs.get("compound_tokens")
    )
    activation = kwargs.get("hidden_act", config["hidden_act"])
    states = oracle.encoder(
        variables, config, **inputs, application=case["application"], activation=activation
    )
    if case.get("head") == "all_layers":
        return states
    if case.get("head") == "masked_mean":
        return [oracle.masked_mean(states[-1], oracle.padding_mask(inputs["token_ids"]))]
    outputs = []
    if with_pool := kwargs.get("with_pool") or kwargs.get("with_nsp"):
        pooled = oracle.pooler(states[-1], variables, "tanh" if with_pool is True else with_pool)
        outputs.append(
            oracle.next_sentence(pooled, variables) if kwargs.get("with_nsp") else pooled
        )
    if with_mlm := kwargs.get("with_mlm") or case["application"] != "encoder":
        logits = oracle.mlm_head(states[-1], variables, activation)
        outputs.append(oracle.softmax(logits) if with_mlm is True else logits)
    return outputs or [states[-1]]


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_golden_case(shared_dir, name):
    case, checkpoint, arrays = read_case(shared_dir, name)
    outputs = outputs_of(
        case,
        read_variables(checkpoint / "bert_model.ckpt"),
        json.loads((checkpoint / "bert_config.json").read_text()),
        {key: arrays[f"input_{key}"] for key in case["inputs"]},
    )
    assert len(outputs) == len(case["outputs"])
    for i, (output, noise) in enumerate(zip(outputs, case["float32_noise"], strict=True)):
        # `noise` is the distance of bert4keras from its own float64 run
        np.testing.assert_allclose(output, arrays[f"output_{i}"], rtol=0, atol=1.001 * noise)


def test_epsilon_of_the_older_release(shared_dir):
    """bert4keras 0.10.4, which made the release, uses 1e-12: small embeddings show it."""
    _, checkpoint, arrays = read_case(shared_dir, "small_embeddings")
    states = oracle.encoder(
        read_variables(checkpoint / "bert_model.ckpt"),
        json.loads((checkpoint / "bert_config.json").read_text()),
        arrays["input_token_ids"],
        arrays["input_segment_ids"],
        epsilon=1e-12,
    )
    folder = shared_dir / "golden" / "cases_bert4keras_0.10.4"
    older = np.load(folder / "small_embeddings.npz")["output_0"]
    np.testing.assert_allclose(states[-1], older, rtol=0, atol=4e-6)  # float32 rounding
    assert np.abs(states[-1] - arrays["output_0"]).max() > 1e-3


def test_rotation_depends_on_distance_only(rng):
    query, key = rng.standard_normal((2, 1, 1, 1, 8))
    products = [
        (oracle.rotary_interleaved(query, [m]) * oracle.rotary_interleaved(key, [m - 5])).sum()
        for m in (5, 17, 1000)
    ]
    np.testing.assert_allclose(products, products[0], rtol=1e-12)


def test_half_layout_is_a_permutation(rng):
    x = rng.standard_normal((2, 3, 2, 8))
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    expected = oracle.rotary_interleaved(x, [0, 1, 7])[..., order]
    np.testing.assert_array_equal(oracle.rotary_half(x[..., order], [0, 1, 7]), expected)


@pytest.mark.oracle
@pytest.mark.parametrize("application", ["encoder", "lm", "unilm"])
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("roformer", {}),
        ("roformer", {"embedding_size": 24, "hidden_act": "relu"}),
        ("roformer_v2", {"hidden_act": "relu"}),
    ],
    ids=["v1", "v1-factorised", "v2"],
)
def test_agrees_with_live_original(original, tmp_path, rng, model, changes, application):
    """Random checkpoint, inputs and mask; both sides in float64."""
    config = small_config(**changes)
    variables = original.make_checkpoint(tmp_path, config, int(rng.integers(2**31)), model=model)
    token_ids = rng.integers(1, 200, (4, 23))
    token_ids[np.arange(23) >= rng.integers(2, 24, (4, 1))] = 0
    token_ids[3, rng.integers(0, 23, 5)] = 0  # padding in the middle, and perhaps at position 0
    segment_ids = np.sort(rng.integers(0, 2, token_ids.shape))
    inputs = {
        "token_ids": token_ids,
        "segment_ids": segment_ids,
        "position_ids": rng.uniform(-100, 100, token_ids.shape),
    }
    kwargs = {"with_mlm": "linear", "custom_position_ids": True}
    (expected,) = original.forward(
        tmp_path, inputs, model=model, application=application, dtype="float64", **kwargs
    )
    case = {"kwargs": kwargs, "application": application}
    (logits,) = outputs_of(case, variables, config, inputs)
    # float64 rounding, of logits that reach 20 through some 200 operations
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-11)
