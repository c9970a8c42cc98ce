"""Our models compute what bert4keras, run beside them, computes from random checkpoints."""

import numpy as np
import pytest

from roformer_tf.checkpoint import mapping
from tests.checkpoint.golden import model_inputs, run_case
from tests.oracles.run_original import small_config

FACTORISED = {"embedding_size": 24}
V2 = {"hidden_act": "relu"}
KEPT = {"with_mlm": "linear", "keep_tokens": list(range(150, 50, -1))}
COMPOUND = {"with_mlm": True, "compound_tokens": [[3, 5], [[7, 9], [2, 1]]]}
POSITIONS = {"with_mlm": "linear", "custom_position_ids": True}
NO_SEGMENTS = {"with_mlm": "linear", "segment_vocab_size": 0}
EVERYTHING = {"with_pool": True, "with_nsp": True, "with_mlm": "linear"}

# name: (model, application, changes of the settings, arguments of build_transformer_model)
CASES = {
    "everything": ("roformer", "encoder", {}, EVERYTHING),
    "factorised_with_positions": ("roformer", "encoder", FACTORISED, POSITIONS),
    "lm_without_segments": ("roformer", "lm", {}, NO_SEGMENTS),
    "unilm_sim": ("roformer", "unilm", {}, {"with_pool": "linear"}),
    "kept_with_wide_heads": ("roformer", "encoder", {"num_attention_heads": 2}, KEPT),
    "compound_with_probabilities": ("roformer", "encoder", {}, COMPOUND),
    "deep": ("roformer", "encoder", {"num_hidden_layers": 5}, {}),
    "v2": ("roformer_v2", "encoder", V2, {"with_mlm": "linear"}),
    "v2_lm": ("roformer_v2", "lm", V2, {"with_mlm": "linear"}),
    "bert": ("bert", "encoder", {}, {"with_mlm": "linear"}),
    "bert_lm": ("bert", "lm", FACTORISED, {"with_mlm": "linear"}),
    "nezha": ("nezha", "encoder", {}, {"with_mlm": "linear"}),
    "nezha_lm": ("nezha", "lm", FACTORISED, {"with_mlm": "linear"}),
    "v2_factorised": ("roformer_v2", "encoder", {**V2, **FACTORISED}, {}),
}


QUICK = ("everything", "v2_factorised")  # the goldens contain the others


@pytest.mark.oracle
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_outputs(name, original, rng, tmp_path):
    model, application, changes, kwargs = CASES[name]
    config = small_config(**changes)
    original.make_checkpoint(tmp_path, config, seed=int(rng.integers(2**31)), model=model)
    # ragged, with zeros anywhere: bert4keras treats every id 0 as padding, except at position 0
    size = len(kwargs.get("keep_tokens", range(config["vocab_size"])))
    ids = rng.integers(1, size, size=(4, 17))
    ids[rng.random(ids.shape) < 0.1] = 0
    ids[np.arange(17) >= np.array([[17], [11], [5], [1]])] = 0
    arrays = {"token_ids": ids, "segment_ids": np.sort(rng.integers(0, 2, size=ids.shape))}
    if kwargs.get("custom_position_ids"):
        arrays["position_ids"] = rng.uniform(-600, 600, size=ids.shape).astype("float32")
    inputs = model_inputs({f"input_{key}": array for key, array in arrays.items()})
    if kwargs.get("segment_vocab_size") == 0:
        del arrays["segment_ids"]
    expected, noises = original.forward_with_noise(
        tmp_path, arrays, model=model, application=application, **kwargs
    )
    case = {"model": model, "application": application, "kwargs": kwargs}
    epsilon = 1e-12 if model == "bert" else 1e-7  # as bert4keras 0.11.5 has them
    outputs = run_case(case, tmp_path, inputs, layer_norm_epsilon=epsilon)
    for output, wanted, noise in zip(outputs, expected, noises, strict=True):
        assert output.shape == wanted.shape
        # if the noise is a single rounding, a multiple of it is no bound
        assert np.abs(output - wanted).max() <= max(4 * noise, 2e-6 * np.abs(wanted).max())


@pytest.mark.oracle
@pytest.mark.parametrize("embedding_size", [32, 24])
@pytest.mark.parametrize("model", ["roformer", "roformer_v2", "bert", "nezha"])
def test_the_table_has_the_names_and_shapes_of_every_family(
    model, embedding_size, original, rng, tmp_path
):
    config = small_config(max_position_embeddings=64)
    if embedding_size != 32:
        config["embedding_size"] = embedding_size
    variables = original.make_checkpoint(
        tmp_path, config, seed=int(rng.integers(2**31)), model=model
    )
    sizes = mapping.Sizes(200, 2, 4, 32, 64, embedding_size, 2, num_positions=64)
    groups = [
        g for g in mapping.GROUPS if model != "roformer_v2" or g not in ("pooler", "nsp", "mlm")
    ]
    table = {v.name: v.shape for v in mapping.variables(model, sizes, groups)}
    assert table == {name: array.shape for name, array in variables.items()}
