"""Backbones with each position scheme: gradients, dtypes, adapters, and errors."""

import numpy as np
import pytest

from roformer_tf.checkpoint import save_checkpoint
from tests.layers.harness import assert_close, gradients, numpy, quantized, variables
from tests.models.builders import backbone, inputs, sequence

OPTIONS = {
    "relative": {"max_distance": 3},
    "t5": {"num_buckets": 8, "max_distance": 6},
    "tupe": {"untie_cls": True},
    "deberta": {"max_distance": 3},
}
OTHERS = ("sinusoidal", "relative", "transformer_xl", "t5", "tupe", "deberta")
# float32 through two blocks, where matrix products of other shapes add in another order
NOISE = 1e-5


def model_with(scheme, kind="v1", **options):
    return backbone(kind, position_scheme=scheme, position_options=OPTIONS.get(scheme), **options)


@pytest.mark.parametrize(
    ("scheme", "attention"),
    [*((scheme, "softmax") for scheme in OTHERS), ("rotary", "elu"), ("learned", "elu")],
)
def test_counted_positions_are_0_1_2(scheme, attention, rng):
    model, given = model_with(scheme, attention=attention), inputs(rng)
    positions = {**given, "position_ids": np.tile(np.arange(9), (3, 1))}
    np.testing.assert_allclose(sequence(model(given)), sequence(model(positions)), atol=NOISE)
    other = {**given, "position_ids": 2 * positions["position_ids"]}
    assert np.abs(sequence(model(other)) - sequence(model(given))).max() > 1e-3


@pytest.mark.parametrize("given", [False, True], ids=["counted", "given"])
@pytest.mark.parametrize("scheme", OTHERS)
def test_all_weights_learn_and_recomputed_gradients_are_the_same(scheme, given, rng):
    model, x = model_with(scheme), inputs(rng)
    if given:
        x["position_ids"] = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 3]] * 3)
    if model.position_scheme.per_layer:
        assert model.position_schemes[0] is not model.position_schemes[1]
    directions = rng.normal(size=(3, 9, 16))

    def learn(recompute):
        for block in model.encoder_blocks:
            block.recompute_activations = recompute
        return gradients(lambda: model(x, training=True), [], directions, model)[1]

    kept = learn(False)
    paths = {id(weight): path for path, weight in variables(model).items()}
    own = 0
    for weight, gradient in zip(model.trainable_variables, kept, strict=True):
        path = paths[id(weight)]
        if "position_scheme" in path:
            own += 1
            assert np.abs(gradient).max() > 1e-4, path
    assert own == sum(len(scheme.weights) for scheme in set(model.position_schemes))
    assert_close(learn(True), kept, 1e-5)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("scheme", OTHERS)
def test_mixed_precision(scheme, dtype, rng):
    given = inputs(rng)
    exact = sequence(model_with(scheme)(given))
    found = sequence(model_with(scheme, dtype=dtype)(given)).astype("float32")
    rounding = 2.0**-11 if dtype == "mixed_float16" else 2.0**-8
    # two blocks of a dozen roundings each, of numbers of size 3
    assert np.abs(found - exact).max() < 25 * rounding * np.abs(exact).max()


@pytest.mark.parametrize("scheme", OTHERS)
def test_without_biases_and_with_factorised_embeddings(scheme, rng):
    model, given = model_with(scheme, "v2_factorised"), inputs(rng)
    assert np.isfinite(sequence(model(given))).all()


@pytest.mark.parametrize("scheme", [*OTHERS, "none"])
def test_the_original_format_cannot_hold_them(scheme, tmp_path):
    with pytest.raises(ValueError, match=f"no such model.*'learned'.*{scheme}.*save_to_preset"):
        save_checkpoint(model_with(scheme), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning")
def test_deberta_projects_distances_with_the_kernel_of_the_block(rng):
    """LoRA changes both; int8 weights give nearly the same."""
    model, given = model_with("deberta"), inputs(rng)
    before = sequence(model(given))
    model.enable_lora(2)
    np.testing.assert_allclose(sequence(model(given)), before, atol=1e-6)
    for block in model.encoder_blocks:
        kernel = block.attention.qkv.lora_kernel_b
        kernel.assign(0.1 * rng.normal(size=kernel.shape))
    adapted = sequence(model(given))
    merged = model_with("deberta")
    for ours, theirs in zip(merged.encoder_blocks, model.encoder_blocks, strict=True):
        ours.attention.qkv.kernel.assign(numpy(theirs.attention.qkv.kernel))
    np.testing.assert_allclose(sequence(merged(given)), adapted, atol=1e-5)
    assert np.abs(adapted - before).max() > 1e-2
    quantized(merged)
    assert np.abs(sequence(merged(given)) - adapted).max() < 0.2
