"""The rules of length scaling against their formulas and Hugging Face's functions."""

import math

import numpy as np
import pytest

from roformer_tf import rotary
from roformer_tf.rope_scaling import RULES, RopeScaling, make_rope_scaling
from tests.layers.harness import numpy

DIMS = (4, 8, 64, 128)
BASES = (10000.0, 500000.0)
TRAINED = {"original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 16.0,
    "short_factor": [1.0, 1.5],
    "long_factor": [1.0, 4.0],
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, **TRAINED}


def scaled(config, dim, base, length=None):
    """The frequencies of a rule, as float64."""
    rule = make_rope_scaling(config)
    return rotary.frequencies(dim, base) * numpy(rule.ratios(dim, base, length)).astype("float64")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dim", DIMS)
def test_formulas(dim, base):
    plain = [base ** (-2 * i / dim) for i in range(dim // 2)]
    exact = {"rtol": 1e-12}
    np.testing.assert_allclose(scaled(None, dim, base), plain, **exact)
    np.testing.assert_allclose(scaled({"rope_type": "default"}, dim, base), plain, **exact)
    linear = scaled({"rope_type": "linear", "factor": 3}, dim, base)
    np.testing.assert_allclose(linear, [theta / 3 for theta in plain], **exact)
    other_base = base * 3 ** (dim / (dim - 2))
    ntk = scaled({"rope_type": "ntk", "factor": 3}, dim, base)
    np.testing.assert_allclose(
        ntk, [other_base ** (-2 * i / dim) for i in range(dim // 2)], **exact
    )
    np.testing.assert_allclose([ntk[0], ntk[-1]], [1, plain[-1] / 3], **exact)
    for length in (1, 512, 513, 2000, 100_000):
        stretch = max(3 * length / 512 - (3 - 1), 1)
        other_base = base * stretch ** (dim / (dim - 2))
        dynamic = scaled({"rope_type": "dynamic", "factor": 3, **TRAINED}, dim, base, length)
        # the ratios are float32
        np.testing.assert_allclose(
            dynamic, [other_base ** (-2 * i / dim) for i in range(dim // 2)], rtol=1e-6
        )


def test_longrope_needs_a_factor_for_each_pair():
    with pytest.raises(ValueError, match="each of the 4 pairs of features. Received: 2 numbers"):
        make_rope_scaling(LONGROPE).ratios(8, 10000.0)


def test_ratios_of_one_pair():
    """With two features there is no slowest pair: nothing changes but by position interpolation."""
    for name, expected in (("linear", 0.25), ("ntk", 1.0), ("dynamic", 1.0)):
        config = {"rope_type": name, "factor": 4, **(TRAINED if name == "dynamic" else {})}
        np.testing.assert_array_equal(scaled(config, 2, 10000.0, 2000), [expected])


def test_dynamic_ratios_of_many_lengths():
    rule = make_rope_scaling({"rope_type": "dynamic", "factor": 2.0, **TRAINED})
    lengths = np.array([[3], [512], [700], [4096]])
    ratios = numpy(rule.ratios(8, 10000.0, lengths))
    assert ratios.shape == (4, 1, 4) and ratios.dtype == np.float32
    np.testing.assert_array_equal(ratios[:2], 1)
    for length, row in zip(lengths[:, 0], ratios[:, 0]):
        # vector instructions and the plain ones at the end of an array may differ in the last place
        alone = numpy(rule.ratios(8, 10000.0, int(length)))
        np.testing.assert_allclose(row, alone, rtol=2.5e-7)
    assert (np.diff(ratios[:, 0, 1:], axis=0)[1:] < 0).all()


def hugging_face(config, dim, base, length=None):
    """Returns frequencies and the factor on the tables of `transformers`, trained at 512."""
    pytest.importorskip("torch", reason="needs the extra hf: torch")
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: transformers")
    functions = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS
    config = dict(config)
    if config["rope_type"] == "dynamic":  # it reads the trained length from the model's settings
        del config["original_max_position_embeddings"]
    settings = transformers.LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": base, **config},
    )
    frequencies, factor = functions[config["rope_type"]](settings, "cpu", seq_len=length)
    return frequencies.numpy(), factor


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    "config",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 2.0, **TRAINED},
        YARN,
        {**YARN, "factor": 1.0},
        {**YARN, "factor": 32.0, "original_max_position_embeddings": 128},
        {**YARN, "attention_factor": 1.5},
        {**YARN, "beta_fast": 8.0, "beta_slow": 2.0},
        {**YARN, "beta_fast": 4.0, "beta_slow": 4.0, "truncate": False},
        {**YARN, "truncate": False},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        {**YARN, "mscale": 0.7},
        LLAMA3,
        {**LLAMA3, "original_max_position_embeddings": 64, "high_freq_factor": 2.0},
        "longrope",
    ],
    ids=str,
)
def test_equals_hugging_face(config, dim, base):
    if config == "longrope":
        pairs = np.arange(dim // 2)
        factors = {"short_factor": (1 + pairs / 8).tolist(), "long_factor": (1.0 + pairs).tolist()}
        config = {**LONGROPE, **factors}
    rule = make_rope_scaling(config)
    for length in (None, 100, 512, 513, 1700, 50_000) if rule.needs_length else (None,):
        expected, factor = hugging_face(config, dim, base, length)
        # theirs are float32 powers of numbers up to the base
        np.testing.assert_allclose(scaled(config, dim, base, length), expected, rtol=3e-6)
        assert math.isclose(rule.query_key_factor, factor, rel_tol=1e-12)


def test_words_of_hugging_face():
    assert make_rope_scaling(None) == make_rope_scaling({"rope_type": "default"}) == RopeScaling()
    assert make_rope_scaling({"type": "linear", "factor": 2}) == RULES["linear"](2)
    both = {"type": "linear", "rope_type": "ntk", "factor": 2}  # the newer word counts
    assert make_rope_scaling(both) == RULES["ntk"](2)
    assert make_rope_scaling({**YARN, "beta_fast": None, "attention_factor": None}) == (
        make_rope_scaling(YARN)
    )


@pytest.mark.parametrize(
    "config, message",
    [
        ("linear", "must be None or a dictionary such as .*Received: rope_scaling='linear'"),
        ({}, r"\['rope_type'\]` must be one of \('default', 'linear'.*Received: rope_scaling={}"),
        ({"rope_type": "su", "factor": 8}, "must be one of .*Received: .*su"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "must be below"),
        ({**LLAMA3, "low_freq_factor": None}, "'llama3' needs `low_freq_factor`"),
        ({**LONGROPE, "factor": None}, "needs `factor`, the ratio of the longest"),
        ({**LONGROPE, "short_factor": [1.0, 0]}, "must be a list of positive numbers"),
        ({**LONGROPE, "original_max_position_embeddings": 1}, "needs `attention_factor` if"),
        ({"rope_type": ["linear"]}, "must be one of"),
        ({"rope_type": "linear"}, "'linear' needs `factor`, a number of at least 1"),
        ({"rope_type": "linear", "factor": None}, "'linear' needs `factor`"),
        ({"rope_type": "dynamic", "factor": 2}, "needs `original_max_.*the length that the model"),
        (
            {"rope_type": "linear", "factor": 2, "rope_theta": 1e4},
            "not .*'rope_theta'.*the base of",
        ),
        ({"rope_type": "default", "factor": 2}, r"takes \[\], and not \['factor'\]"),
        ({"rope_type": "linear", "factor": 0.5}, "at least 1. Received: 0.5"),
        ({"rope_type": "ntk", "factor": "4"}, "at least 1. Received: '4'"),
        ({"rope_type": "ntk", "factor": True}, "at least 1. Received: True"),
        ({"rope_type": "ntk", "factor": math.inf}, "at least 1. Received: inf"),
        ({**YARN, "original_max_position_embeddings": 0}, "a positive integer.*Received: 0"),
        ({**YARN, "original_max_position_embeddings": 51.5}, "a positive integer.*Received: 51.5"),
        ({**YARN, "attention_factor": -1}, r"\['attention_factor'\]` must be a positive number"),
        ({**YARN, "truncate": 1}, "must be True or False. Received: 1"),
        ({**YARN, "beta_fast": 1, "beta_slow": 32}, "must not be below"),
    ],
    ids=str,
)
def test_wrong_settings(config, message):
    with pytest.raises(ValueError, match=message):
        make_rope_scaling(config)
