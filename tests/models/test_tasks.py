"""Tests for every task: float64 values, training, files, LoRA, int8."""

import keras
import numpy as np
import pytest

from tests.layers.harness import assert_equal, numpy, quantized
from tests.models.builders import TASKS, data, expected_outputs, saved_and_loaded, task, texts
from tests.oracles import numpy_roformer as oracle

pytestmark = [
    # no output of a language model of RoFormer-Sim depends on its pooler
    pytest.mark.filterwarnings(
        "ignore:Gradients do not exist for variables .'pooler/dense/kernel'"
    ),
    # Keras warns about every input, dropout and norm when it quantizes a model
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method"),
]

every_task = pytest.mark.parametrize("name", TASKS)
# every class, family, pooling and masking once, as training a model takes seconds
one_of_each = pytest.mark.parametrize(
    "name", ["classifier_pooler", "classifier_mean", "masked_lm", "causal_lm_sim"]
)


def predicted(model, x):
    """Runs Keras' loop, whose graph takes a second. `model(x)` gives the same numbers."""
    return model.predict(x, batch_size=8, verbose=0)


@every_task
def test_equals_float64(name, rng):
    model = task(name, num_layers=2)
    x, _, _ = data(name, rng)
    expected = expected_outputs(model, x)
    # float32 through two blocks and a head, relative to the output's size
    size = np.abs(expected).max()
    assert np.abs(numpy(model(x)) - expected).max() < 4e-6 * size
    assert np.abs(predicted(model, x) - expected).max() < 4e-6 * size


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("classifier", 1),
        ("classifier_pooler", 1),
        ("classifier_mean", 9),
        ("masked_lm", 2),
        ("causal_lm", 9),
    ],
)
def test_the_last_feed_forward_runs_where_the_head_reads(name, count, rng, monkeypatch):
    model, seen = task(name), []
    last = model.backbone.encoder_blocks[-1].feed_forward
    call = type(last).call
    monkeypatch.setattr(last, "call", lambda x: seen.append(tuple(x.shape)) or call(last, x))
    model(data(name, rng, batch=3)[0])
    assert seen == [(3, count, 16)]


@one_of_each
def test_life(name, rng, tmp_path):
    """Compiles, fits, evaluates, predicts, saves and loads. A loaded model trains on alike."""
    model = task(name)
    x, y, weights = data(name, rng)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-2, weight_decay=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
        run_eagerly=name != "masked_lm",  # six graphs take longer than the few steps
    )
    history = model.fit(x, y, weights, batch_size=4, epochs=6, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    assert int(model.optimizer.iterations) == 12

    probabilities = oracle.softmax(expected_outputs(model, x))
    chosen = np.take_along_axis(probabilities, y[..., None], axis=-1)[..., 0]
    w = np.ones(y.shape) if weights is None else weights
    result = model.evaluate(x, y, weights, batch_size=8, verbose=0, return_dict=True)
    # Keras divides the weighted sum by the number of entries
    assert abs(result["loss"] - (-np.log(chosen) * w).sum() / w.size) < 1e-5
    hits = (probabilities.argmax(-1) == y) * w
    assert abs(result["sparse_categorical_accuracy"] - hits.sum() / w.sum()) < 1e-6

    loaded = saved_and_loaded(model, tmp_path)
    assert type(loaded) is type(model) and loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    assert loaded.evaluate(x, y, weights, batch_size=8, verbose=0, return_dict=True) == result
    assert int(loaded.optimizer.iterations) == 12
    for each in (model, loaded):
        each.fit(x, y, weights, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert_equal(loaded.get_weights(), model.get_weights(), atol=1e-7)

    model.save_weights(tmp_path / "model.weights.h5")
    fresh = type(model).from_config(model.get_config())
    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(numpy(fresh(x)), numpy(model(x)))


# texts and pairs of them; where the labels are given, and where they come from the preprocessor
@pytest.mark.parametrize(
    "name",
    [pytest.param("classifier_mean", marks=pytest.mark.slow), "masked_lm", "causal_lm_sim"],
)
def test_raw_strings_and_preset(name, rng, tmp_path):
    model = task(name, preprocessor={})
    pairs = name in ("classifier_mean", "causal_lm_sim")
    raw = (texts(rng, 8), texts(rng, 8)) if pairs else texts(rng, 8)
    y = rng.integers(0, 3, size=8) if name.startswith("classifier") else None
    # labels and weights of language models come from the preprocessor
    x = model.preprocessor(raw)
    x = {k: numpy(v) for k, v in (x if y is not None else x[0]).items()}
    # a token drawn at random may be [PAD], which the original takes for padding
    x["token_ids"] = np.where(x["padding_mask"] > 0, np.maximum(x["token_ids"], 1), 0)
    expected = expected_outputs(model, x)
    assert np.abs(numpy(model(x)) - expected).max() < 4e-6 * np.abs(expected).max()

    model.save_to_preset(tmp_path / "preset")
    loaded = type(model).from_preset(tmp_path / "preset")
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    if y is not None:
        np.testing.assert_allclose(predicted(loaded, raw), expected, atol=1e-5)
    assert loaded.preprocessor.get_config() == model.preprocessor.get_config()
    backbone = type(model.backbone).from_preset(tmp_path / "preset")
    assert_equal(backbone.get_weights(), model.backbone.get_weights())

    before = model.get_weights()
    model.compile(run_eagerly=y is None)  # a graph does not pay for two steps
    model.fit(raw, y, batch_size=4, epochs=1, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, model.get_weights(), strict=True))


@one_of_each
def test_lora(name, rng, tmp_path):
    model = task(name)
    x, y, weights = data(name, rng)
    before, frozen = numpy(model(x)), model.backbone.get_weights()
    model.backbone.enable_lora(2)
    np.testing.assert_array_equal(numpy(model(x)), before)
    trained = {w.path.split("/", 1)[1] for w in model.backbone.trainable_variables}
    own = {"lora_kernel_a", "lora_kernel_b"} | ({"bias"} if "v2" not in TASKS[name][0] else set())
    assert trained == {f"attention/qkv/{w}" for w in own}  # Keras leaves the bias trainable

    model.compile(
        keras.optimizers.Adam(1e-2), loss=model.loss, weighted_metrics=[], run_eagerly=True
    )
    history = model.fit(x, y, weights, batch_size=4, epochs=6, shuffle=False, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    after = numpy(model(x))
    assert np.abs(after - before).max() > 1e-2
    # the original weights have not changed
    kernels = [b.attention.qkv._kernel for b in model.backbone.encoder_blocks]
    for kernel in kernels:
        assert any(np.array_equal(numpy(kernel.value), w) for w in frozen if w.ndim == 2)
    for w, old in zip(model.backbone.embeddings.get_weights(), frozen, strict=False):
        np.testing.assert_array_equal(w, old)

    with pytest.warns(UserWarning, match="Skipping variable loading for optimizer"):
        loaded = saved_and_loaded(model, tmp_path)
    # the product of the two factors is added to the kernel when saved: other roundings
    np.testing.assert_allclose(numpy(loaded(x)), after, atol=2e-5)


def test_graphs_made_before_lora_are_not_used_after(rng):
    model = task("classifier")
    x, y, _ = data("classifier", rng)
    model.train_on_batch(x, y)
    before = model.predict(x, verbose=0)
    model.backbone.enable_lora(2)
    for weight in model.backbone.trainable_weights:
        weight.assign(keras.ops.ones_like(weight))
    after = model.predict(x, verbose=0)
    assert np.abs(after - before).max() > 1e-2
    np.testing.assert_allclose(after, numpy(model(x)), atol=1e-5)
    with pytest.raises(ValueError, match="recreate a new optimizer"):
        model.train_on_batch(x, y)
    model.compile("adam", loss=model.loss)
    model.train_on_batch(x, y)


@every_task
def test_int8(name, rng, tmp_path):
    model = task(name)
    x, _, _ = data(name, rng)
    exact = numpy(model(x))
    output = numpy(quantized(model)(x))
    # 127 steps for the largest weight and feature: half a percent of each factor of a sum
    error = np.sqrt(((output - exact) ** 2).mean() / (exact**2).mean())
    assert 0 < error < 0.05, error
    for layer in model.backbone._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            assert keras.backend.standardize_dtype(layer._kernel.dtype) == "int8"
    table = model.backbone.token_embedding._embeddings
    assert keras.backend.standardize_dtype(table.dtype) == "int8"

    loaded = saved_and_loaded(model, tmp_path)
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
