"""Backbones with linear attention, new or from a checkpoint: one argument replaces softmax."""

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.layers.feature_maps import FEATURE_MAPS
from tests.layers.harness import compiled, numpy, variables
from tests.models.builders import SIZES, backbone, inputs, saved_and_loaded, sequence

NAMES = tuple(FEATURE_MAPS)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *((name, "rotary") for name in NAMES),
        *(("elu", scheme) for scheme in ("none", "learned", "sinusoidal")),
    ],
)
def test_compiled_and_padding(name, scheme, rng):
    model = backbone("v1", attention=name, position_scheme=scheme)
    given = inputs(rng)
    expected = sequence(model(given))
    # float32 noise, carried through two blocks
    np.testing.assert_allclose(sequence(compiled(lambda x: model(x))(given)), expected, atol=1e-4)
    # tokens at padded positions have no influence
    changed = {**given, "token_ids": np.where(given["padding_mask"], given["token_ids"], 7)}
    real = given["padding_mask"] == 1
    np.testing.assert_array_equal(sequence(model(changed))[real], expected[real])


@pytest.mark.parametrize("name", NAMES)
def test_causal_models_see_no_future(name, rng):
    model = backbone("gpt", attention=name)
    given = inputs(rng, padded=False)
    changed = {**given, "token_ids": given["token_ids"].copy()}
    changed["token_ids"][:, 5:] = 9
    before, after = sequence(model(given)), sequence(model(changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert np.abs(before[:, 5:] - after[:, 5:]).max() > 1e-2


def test_options_reach_the_feature_map():
    options = {"num_features": 10, "seed": 5, "redraw_every": 100}
    model = backbone("gpt", attention="favor", attention_options=options)
    maps = [block.attention.feature_map for block in model.encoder_blocks]
    assert [m.seed for m in maps] == [5, 6]  # each block draws its own
    assert all(m.num_features == 10 and m.redraw_every == 100 for m in maps)
    assert all(block.attention.causal for block in model.encoder_blocks)
    assert model.position_scheme.head_dim == 10
    assert model.get_config()["attention_options"] == options
    weights = variables(model)
    assert weights["encoder_block_0/attention/feature_map/projection"].shape == (10, 8)


@pytest.mark.parametrize("options", [{"redraw_every": 1}, {"redraw_every": 1, "seed": None}])
def test_loaded_model_redraws_what_the_saved_one_would(options, tmp_path):
    model = backbone("gpt", attention="favor", attention_options=options)
    loaded = saved_and_loaded(model, tmp_path)
    for saved, block in zip(model.encoder_blocks, loaded.encoder_blocks, strict=True):
        maps = [each.attention.feature_map for each in (saved, block)]
        for feature_map in maps:
            feature_map.redraw()
        np.testing.assert_array_equal(*(numpy(each.projection.value) for each in maps))


def test_wrong_options_raise_errors(rng):
    with pytest.raises(ValueError, match="`attention` must be one of .*'favor'.*attention='relu'"):
        backbone("v1", attention="relu")
    with pytest.raises(ValueError, match="passed to EluFeatureMap: .*nope"):
        backbone("v1", attention="elu", attention_options={"nope": 1})
    with pytest.raises(ValueError, match="attention='softmax'` has none"):
        backbone("v1", attention_options={"seed": 1})
    with pytest.raises(ValueError, match="UniLM.*masking='unilm', attention='elu'"):
        backbone("sim", attention="elu")
    for scheme in ("sinusoidal_relative", "relative", "t5", "transformer_xl", "tupe", "deberta"):
        with pytest.raises(ValueError, match="Linear attention computes no scores"):
            backbone("v1", attention="elu", position_scheme=scheme)
    model = backbone("v1", attention="elu")
    given = inputs(rng)
    with pytest.raises(ValueError, match="packed documents"):
        model({**given, "document_ids": given["padding_mask"]})


def test_original_checkpoints_load(rng, tmp_path):
    """With the same weights, FAVOR+ on rotated queries and keys approximates the trained model."""
    original = backbone("v1")
    for block in original.encoder_blocks:  # few features do for small queries and keys
        block.attention.qkv.kernel.assign(0.4 * numpy(block.attention.qkv.kernel.value))
    folder = save_checkpoint(original, tmp_path / "original")
    given = inputs(rng)
    expected = sequence(original(given))
    errors = {}
    for name, options in (
        ("elu", {}),
        ("cosine", {}),
        ("softmax_features", {}),
        ("favor", {"num_features": 4096, "rotate_inputs": True, "seed": 1}),
    ):
        model = roformer_tf.RoFormerBackbone.from_preset(
            folder, attention=name, attention_options=options
        )
        assert model.attention == name
        ours = variables(model)
        for path, weight in variables(original).items():
            np.testing.assert_array_equal(numpy(ours[path].value), numpy(weight.value))
        errors[name] = np.sqrt(np.mean((sequence(model(given)) - expected) ** 2))
    # hidden states have variance 1
    assert errors.pop("favor") < 0.02 and min(errors.values()) > 0.03
    # it cannot be saved back: the original's files have softmax attention only
    with pytest.raises(ValueError, match="attention='elu'.*`save_to_preset`"):
        save_checkpoint(backbone("v1", attention="elu"), tmp_path / "refused")


@pytest.mark.parametrize(
    ("name", "options"), [("elu", None), ("favor", {"redraw_every": 10, "seed": 1})]
)
def test_a_causal_model_trains(name, options):
    """It memorizes a text of period 7."""
    keras.utils.set_random_seed(1)
    model = roformer_tf.RoFormerBackbone(
        **{**SIZES, "num_layers": 1},
        masking="causal",
        attention=name,
        attention_options=options,
        num_segments=0,
    )
    causal_lm = roformer_tf.RoFormerCausalLM(model)
    causal_lm.compile(keras.optimizers.Adam(2e-2))
    ids = np.resize(np.array([5, 9, 6, 5, 8, 6, 7]), (400, 33))  # 50 batches of it
    before, after = ids[:, :-1], ids[:, 1:]
    x = {"token_ids": before, "segment_ids": 0 * before, "padding_mask": 0 * before + 1}
    causal_lm.fit(x, after, batch_size=8, verbose=0)
    few = {key: value[:8] for key, value in x.items()}
    assert causal_lm.evaluate(few, after[:8], verbose=0, return_dict=True)["loss"] < 0.5
