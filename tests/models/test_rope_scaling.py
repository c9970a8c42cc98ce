"""Length scaling as an argument of new, loaded and saved models."""

import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint import load_checkpoint, save_checkpoint
from tests.layers.harness import gradients, numpy
from tests.models.builders import backbone, inputs, saved_and_loaded, sequence, task, texts

TRAINED = 6
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": TRAINED}
YARN = {**DYNAMIC, "rope_type": "yarn", "factor": 4.0}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "dynamic": DYNAMIC,
    "yarn": YARN,
}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
# float32 through two blocks, where matrix products of other shapes add in another order
NOISE = 1e-5


@pytest.fixture(scope="module")
def masked_lm():
    return task("masked_lm", preprocessor={"sequence_length": 12})


@pytest.fixture(scope="module")
def folders(masked_lm, tmp_path_factory):
    top = tmp_path_factory.mktemp("models")
    save_checkpoint(masked_lm, top / "original")
    # a .keras file may become a preset
    saved_and_loaded(masked_lm, top).save_to_preset(str(top / "preset"))
    return top


def expected_logits(masked_lm, scaling, given):
    """Returns the logits of a model made with this scaling and the same weights."""
    config = masked_lm.backbone.get_config()
    model = roformer_tf.RoFormerMaskedLM(
        roformer_tf.RoFormerBackbone.from_config({**config, "rope_scaling": scaling})
    )
    model.set_weights(masked_lm.get_weights())
    return numpy(model(given))


@pytest.mark.parametrize(
    "kind, name",
    [("original", "dynamic"), ("original", "linear"), ("preset", "yarn"), ("preset", "ntk")],
)
def test_loaded_models_take_a_scaling(kind, name, folders, masked_lm, rng):
    scaling = SCALINGS[name]
    loaded = roformer_tf.RoFormerMaskedLM.from_preset(
        str(folders / kind), rope_scaling=scaling, dropout=0.0, preprocessor=None
    )
    assert loaded.backbone.get_config()["rope_scaling"] == scaling
    given = inputs(rng, length=11)
    logits = numpy(loaded(given))
    np.testing.assert_allclose(logits, expected_logits(masked_lm, scaling, given), atol=NOISE)
    assert np.abs(logits - numpy(masked_lm(given))).max() > 1e-2


def test_saved_models_keep_their_scaling(folders, masked_lm, tmp_path, rng):
    model = roformer_tf.RoFormerMaskedLM.from_preset(str(folders / "preset"), rope_scaling=DYNAMIC)
    given = inputs(rng, length=11)
    logits = numpy(model(given))
    model.save_to_preset(str(tmp_path / "again"))
    for loaded in (
        saved_and_loaded(model, tmp_path),
        roformer_tf.RoFormerMaskedLM.from_preset(str(tmp_path / "again")),
    ):
        assert loaded.backbone.rope_scaling == DYNAMIC
        np.testing.assert_array_equal(numpy(loaded(given)), logits)
    assert loaded.predict(texts(rng, 3), verbose=0).shape[0] == 3  # and still takes strings
    plain = roformer_tf.RoFormerMaskedLM.from_preset(
        str(tmp_path / "again"), rope_scaling={"rope_type": "default"}
    )
    np.testing.assert_array_equal(numpy(plain(given)), numpy(masked_lm(given)))


@every_scaling
def test_padding_and_neighbours_change_nothing(scaling, rng):
    model = backbone("v1", rope_scaling=scaling)
    given = inputs(rng, batch=4, length=12)
    given["padding_mask"][1, 4:] = 0  # below the trained length, in a batch with longer sequences
    together = sequence(model(given))
    for row, length in enumerate(given["padding_mask"].sum(-1)):
        alone = {name: value[row : row + 1, :length] for name, value in given.items()}
        np.testing.assert_allclose(together[row, :length], sequence(model(alone))[0], atol=NOISE)


def test_dynamic_is_the_plain_model_up_to_the_trained_length(rng):
    """Bit for bit, also in a batch with a longer sequence."""
    plain, dynamic = backbone("v1"), backbone("v1", rope_scaling=DYNAMIC)
    given = inputs(rng, batch=3, length=9, padded=False)
    given["padding_mask"][1:, TRAINED:] = 0
    before, after = sequence(plain(given)), sequence(dynamic(given))
    np.testing.assert_array_equal(after[1:], before[1:])
    assert np.abs(after[0] - before[0]).max() > 1e-2
    assert dynamic.count_params() == plain.count_params()


@every_scaling
def test_shifted_positions(scaling, rng):
    model = backbone("v1", rope_scaling=scaling)
    given = inputs(rng, length=9)
    positions = np.broadcast_to(np.arange(9, dtype="float32"), (3, 9))
    expected = sequence(model(given))
    for shift in (0, 100, 100_000):
        shifted = sequence(model({**given, "position_ids": positions + np.float32(shift)}))
        np.testing.assert_allclose(shifted, expected, atol=10 * NOISE)


def test_learned_frequencies_are_one_weight_with_a_gradient(rng):
    learned = backbone("v1", position_options={"learned": True, "rotary_dim": 4})
    assert learned.count_params() == backbone("v1").count_params() + 2
    names = [weight.name for weight in learned.trainable_weights]
    assert names.count("theta") == 1
    theta = learned.trainable_weights[names.index("theta")]
    theta.assign([0.9, 0.1])
    given = inputs(rng)
    cotangent = rng.normal(size=(3, 9, 16)).astype("float32")
    _, found = gradients(lambda: learned(given), [], cotangent, learned)
    gradient = found[names.index("theta")]
    step = 2e-3
    for i in range(2):
        losses = []
        for sign in (1, -1):
            theta.assign(np.float32([0.9, 0.1]) + sign * step * np.eye(2, dtype="float32")[i])
            losses.append((sequence(learned(given)).astype("float64") * cotangent).sum())
        # central differences of a float32 model, with a step that its noise does not drown
        numeric = (losses[0] - losses[1]) / (2 * step)
        assert abs(gradient[i] - numeric) < 0.02 * np.abs(gradient).max() + 1e-2


def test_a_model_with_scaling_loads_the_checkpoint_of_a_model_without(tmp_path):
    with pytest.raises(ValueError, match="cannot hold `rope_scaling`.*save_to_preset"):
        save_checkpoint(backbone("v1", rope_scaling=YARN), tmp_path / "original")
    assert not (tmp_path / "original").exists()
    save_checkpoint(backbone("v1"), tmp_path / "original")
    assert load_checkpoint(backbone("v1", rope_scaling=YARN), tmp_path / "original").complete


def test_wrong_settings():
    with pytest.raises(ValueError, match=r"\['rope_type'\]` must be one of"):
        backbone("v1", rope_scaling={"rope_type": "su"})
    with pytest.raises(ValueError, match="`rope_scaling` needs rotary positions.*'learned'"):
        backbone("v1", position_scheme="learned", rope_scaling=SCALINGS["linear"])
    with pytest.raises(ValueError, match="must be arguments of `RotaryPosition`.*rotary_dims"):
        backbone("v1", position_options={"rotary_dims": 4})
