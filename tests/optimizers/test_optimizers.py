"""The fine-tuning optimizer and schedule against NumPy formulas."""

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay
from tests.layers.numpy_adam import NumpyAdam


def small_backbone(**options):
    return roformer_tf.RoFormerBackbone(
        vocabulary_size=50,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        dropout=0.0,
        attention_dropout=0.0,
        # frequencies do not decay
        **{"position_options": {"learned": True}, **options},
    )


def test_layerwise_adamw_equals_the_formula():
    keras.utils.set_random_seed(0)
    rate, decay = 1e-2, 0.1
    model = roformer_tf.RoFormerTextClassifier(small_backbone(), num_classes=2, dropout=0.0)
    optimizer = LayerwiseAdamW(rate, num_layers=2, layer_decay=0.5, weight_decay=decay)
    optimizer.build(model.trainable_variables)
    share = {"embeddings/": 0.5**3, "position_scheme/": 0.5**3}
    share |= {"encoder_block_0/": 0.5**2, "encoder_block_1/": 0.5**1}

    formulas = []
    for variable in model.trainable_variables:
        lr = rate * next((s for p, s in share.items() if variable.path.startswith(p)), 1.0)
        decays = not any(word in variable.path for word in ("bias", "gamma", "beta", "theta"))
        formulas.append(NumpyAdam({"": variable}, lr, weight_decay=decay * decays))
    rng = np.random.default_rng(0)
    for _ in range(4):
        gradients = [rng.normal(size=v.shape).astype("float32") for v in model.trainable_variables]
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in gradients])
        for formula, gradient in zip(formulas, gradients, strict=True):
            formula.step({"": gradient})
    for variable, formula in zip(model.trainable_variables, formulas, strict=True):
        # four float32 updates of size 1e-2: a few units in the last place of the update
        expected = formula.values[""]
        np.testing.assert_allclose(np.array(variable), expected, atol=1e-6, err_msg=variable.path)


@pytest.mark.parametrize(
    "scheme, shares",
    [("learned", [0.125]), ("tupe", [0.125] * 4), ("relative", [0.25, 0.25, 0.5, 0.5])],
)
def test_weights_of_positions_learn_as_slowly_as_what_they_are_added_to(scheme, shares):
    backbone = small_backbone(position_scheme=scheme, position_options=None)
    paths = [v.path for v in backbone.weights if v.path.startswith("position_scheme")]
    optimizer = LayerwiseAdamW(1.0, num_layers=2, layer_decay=0.5)
    assert [optimizer.multiplier(path) for path in paths] == shares


def test_layerwise_adamw_trains_saves_and_continues(tmp_path):
    keras.utils.set_random_seed(1)
    ids = np.random.default_rng(0).integers(1, 50, (8, 6))
    x = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    y = np.arange(8) % 2
    model = roformer_tf.RoFormerTextClassifier(small_backbone(), num_classes=2, dropout=0.0)
    schedule = LinearWarmupDecay(1e-2, total_steps=10, warmup_steps=2)
    model.compile(optimizer=LayerwiseAdamW(schedule, num_layers=2, layer_decay=0.8))
    model.fit(x, y, batch_size=8, epochs=3, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert int(again.optimizer.iterations) == 3
    assert again.optimizer.layer_decay == 0.8
    for m in (model, again):
        m.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    np.testing.assert_array_equal(model.predict(x, verbose=0), again.predict(x, verbose=0))


@pytest.mark.parametrize("end", [0.0, 1e-5])
def test_schedule_equals_the_broken_line(end):
    schedule = LinearWarmupDecay(1e-3, total_steps=50, warmup_steps=10, end=end)
    steps = np.arange(80)
    line = np.interp(steps, [0, 10, 50], [0.0, 1e-3, end])
    ours = [float(schedule(step)) for step in steps]
    np.testing.assert_allclose(ours, line, atol=1e-9)  # float32 of 1e-3
    again = LinearWarmupDecay.from_config(schedule.get_config())
    assert [float(again(step)) for step in steps] == ours


def test_schedule_may_jump_at_its_last_step():
    schedule = LinearWarmupDecay(1e-3, total_steps=10, warmup_steps=10, end=1e-5)
    rates = [float(schedule(step)) for step in (0, 5, 9, 10, 11)]
    np.testing.assert_allclose(rates, [0, 5e-4, 9e-4, 1e-5, 1e-5], rtol=1e-6)


def test_schedule_without_warmup_starts_at_the_peak():
    assert float(LinearWarmupDecay(1.0, total_steps=4, warmup_steps=0)(0)) == 1.0


@pytest.mark.parametrize(
    "arguments", [{"total_steps": 0}, {"total_steps": 5, "warmup_steps": 6}, {"total_steps": 2.5}]
)
def test_schedule_refuses_impossible_steps(arguments):
    with pytest.raises(ValueError, match="_steps` must be"):
        LinearWarmupDecay(1.0, **arguments)


def test_layer_decay_out_of_range():
    with pytest.raises(ValueError, match="layer_decay=1.5"):
        LayerwiseAdamW(1e-3, num_layers=2, layer_decay=1.5)
