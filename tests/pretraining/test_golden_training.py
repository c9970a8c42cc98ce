"""Training gives the weights of bert4keras, with each optimizer of the original `train.py`."""

import json

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoint.loading import ModelBinding
from roformer_tf.optimizers import OriginalAdamW, PiecewiseLinear
from tests.checkpoint.golden import inputs_of, training_loss
from tests.oracles.run_original import small_config

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow("trains with tf.GradientTape")

OPTIMIZERS = ["adam", "adamw", "adamw_lr", "adamw_lr_accum", "adamw_accum"]
# No float32 implementation can be closer to another than a small multiple of the noise, which is
# the original's own distance to its run in float64.
NOISE_FACTOR = 4
# Adam divides by |g| + 1e-6, so where a gradient is itself about 1e-6 the update follows that
# gradient's rounding. Other float32 builds of the original differ there from it, by up to 2e-5 in
# one or two of the 24,936 elements (a step is 1e-3). So a few elements may be beyond the bound, but
# none by more than twice that: one that decays by mistake, or does not, is off by 1e-5 times its
# size after one step, and then whole variables are, not a few elements.
OUTLIERS, OUTLIER = 4, 4e-5


def our_optimizer(
    learning_rate,
    weight_decay_rate=0.0,
    exclude_from_weight_decay=("Norm", "bias"),
    lr_schedule=None,
    grad_accum_steps=1,
):
    """OriginalAdamW for the arguments of bert4keras' chain."""
    assert list(exclude_from_weight_decay) == ["Norm", "bias"]
    if lr_schedule is not None:
        learning_rate = PiecewiseLinear(learning_rate, lr_schedule)
    return OriginalAdamW(
        learning_rate, weight_decay=weight_decay_rate, accumulation_steps=grad_accum_steps
    )


def train(folder, arguments, batches, snapshots):
    """Loss before every step, variables by original name after `snapshots`, names that decay."""
    model = roformer_tf.RoFormerMaskedLM.from_preset(
        folder, preprocessor=None, layer_norm_epsilon=1e-7
    )
    optimizer = our_optimizer(**arguments)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = training_loss(model, inputs, labels)
        weights = [weight.value for weight in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, weights))
        return loss

    binding = ModelBinding(model)
    losses, found = [], {}
    for number, (ids, segments, labels) in enumerate(batches, 1):
        inputs = keras.tree.map_structure(tf.constant, inputs_of(ids, segments))
        losses.append(float(step(inputs, tf.constant(labels, "int32"))))
        if number in snapshots:
            found[number] = {
                variable.name: variable.to_original(
                    keras.ops.convert_to_numpy(binding.variable(path))
                )
                for path, variables in binding.by_weight().items()
                for variable in variables
            }
    decaying = {
        variable.name
        for path, variables in binding.by_weight().items()
        for variable in variables
        if optimizer.decays(binding.variable(path).path)
    }
    return losses, found, decaying


def assert_same_weights(ours, theirs, noise):
    assert set(ours) == set(theirs)
    outliers = {}
    for name, expected in theirs.items():
        difference = np.abs(ours[name] - expected)
        outliers.update({(name, *i): difference[i] for i in zip(*np.where(difference > noise))})
    assert len(outliers) <= OUTLIERS, (noise, len(outliers), dict(list(outliers.items())[:8]))
    assert max(outliers.values(), default=0) <= OUTLIER, outliers


@pytest.fixture(scope="module")
def golden(shared_dir):
    folder = shared_dir / "golden" / "training"
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    batches = np.load(folder / "batches.npz")
    batches = list(zip(*(batches[k] for k in ("token_ids", "segment_ids", "labels")), strict=True))
    return folder, record, batches


def test_no_optimizer_is_left_out(golden):
    assert sorted(golden[1]["optimizers"]) == sorted(OPTIMIZERS)


# the two that have all parts between them are fast
FAST = ["adamw", "adamw_lr_accum"]


@pytest.mark.parametrize(
    "name",
    [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS],
)
def test_golden_weights(name, golden, shared_dir):
    folder, record, batches = golden
    case = record["optimizers"][name]
    checkpoint = shared_dir / "golden" / "checkpoints" / record["checkpoint"]
    count = len(case["losses"])
    losses, weights, decaying = train(
        checkpoint, case["arguments"], batches[:count], case["snapshots"]
    )
    # float32 of a number near 10: up to 3e-7 of it was seen
    np.testing.assert_allclose(losses, case["losses"], rtol=1e-6)
    if "weight_decay_rate" in case["arguments"]:
        assert decaying == set(case["weight_decay_applies_to"])
        assert "cls/predictions/output_bias" in decaying
    assert sorted(weights) == case["snapshots"]
    for step, ours in weights.items():
        with np.load(folder / f"{name}_after_{step}.npz") as theirs:
            noise = record["float32_noise"][f"{name}_after_{step}"]
            assert_same_weights(ours, dict(theirs), NOISE_FACTOR * noise)


def random_batches(rng, count, vocabulary_size):
    """Ragged rows; about a fifth of the real tokens is to be predicted."""
    for _ in range(count):
        ids = rng.integers(1, vocabulary_size, size=(4, 17))
        ids[np.arange(17) >= rng.integers(3, 18, size=(4, 1))] = 0
        labels = np.where((ids != 0) & (rng.random(ids.shape) < 0.2), ids, 0)
        labels[0, 1] = ids[0, 1]
        yield ids, np.sort(rng.integers(0, 2, size=ids.shape)), labels


@pytest.mark.oracle
@pytest.mark.slow
def test_live_weights(original, rng, tmp_path):
    """The optimizer of train.py on a random checkpoint and batches, by bert4keras and by us."""
    config = small_config(embedding_size=int(rng.choice([24, 32])))
    original.make_checkpoint(tmp_path, config, seed=int(rng.integers(2**31)), with_mlm="linear")
    arguments = {
        "learning_rate": 1e-3,
        "weight_decay_rate": 0.01,
        "exclude_from_weight_decay": ["Norm", "bias"],
        "lr_schedule": {8: 1.0},
        "grad_accum_steps": 4,
    }
    count = 9  # updates at micro-steps 0 (learning rate 0), 4 and 8
    batches = list(random_batches(rng, count, config["vocab_size"]))
    expected, single, decaying = original.train(tmp_path, arguments, batches, [count])
    exact, double, _ = original.train(tmp_path, arguments, batches, [count], dtype="float64")
    losses, weights, our_decaying = train(tmp_path, arguments, batches, [count])
    assert our_decaying == set(decaying)
    np.testing.assert_allclose(losses[:5], expected[:5], rtol=1e-6)  # before weights change
    # In float32 a rounding can flip an update of Adam, and move later losses by up to 1.6e-6.
    np.testing.assert_allclose(losses, exact, rtol=2e-6)
    noise = max(np.abs(single[count][n] - double[count][n]).max() for n in single[count])
    # weights reach 2, where float32 steps are 2.4e-7
    assert_same_weights(weights[count], single[count], NOISE_FACTOR * max(noise, 2.4e-7))
