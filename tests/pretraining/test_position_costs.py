"""Weights and work of each position scheme, against models, graphs and the table in the docs."""

import random
import re

import pytest
import tensorflow as tf

from roformer_tf.layers.position_schemes import POSITION_SCHEMES
from roformer_tf.pretraining import ModelSizes
from roformer_tf.pretraining.models import make_task
from roformer_tf.pretraining.settings import ModelSettings
from tests.pretraining.test_plan import SMALL, VOCABULARY_SIZE, _products

OPTIONS = {
    "relative": {"max_distance": 3},
    "t5": {"num_buckets": 8},
    "tupe": {"untie_cls": True},
    "rotary": {"learned": True},
}
KINDS = {
    **{
        name: {"position_scheme": name, "position_options": OPTIONS.get(name)}
        for name in POSITION_SCHEMES
    },
    "relative_on_keys": {"position_scheme": "relative", "position_options": {"on_values": False}},
    "tupe_absolute": {"position_scheme": "tupe", "position_options": {"relative_bias": False}},
}


def sizes_and_task(kind):
    options = {**KINDS[kind], "dropout": 0.0, "attention_dropout": 0.0}
    settings = ModelSettings(**SMALL, **options)
    task = make_task(settings, "masked_lm", VOCABULARY_SIZE, 32)
    values = {k: v for k, v in SMALL.items() if k != "vocabulary"}
    return ModelSizes(VOCABULARY_SIZE, max_sequence_length=32, **values, **options), task


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_work_are_those_of_the_model(kind):
    rows, length = 3, 12
    sizes, task = sizes_and_task(kind)
    assert sizes.num_parameters == task.count_params()
    assert sorted(sizes.weight_shapes) == sorted(tuple(w.shape) for w in task.trainable_weights)

    @tf.function
    def forward(inputs):
        return task(inputs)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(task(inputs) ** 2)
        return tape.gradient(loss, task.trainable_weights)

    ids = tf.TensorSpec((rows, length), tf.int32)
    inputs = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), ids)
    graphs = [function.get_concrete_function(inputs).graph for function in (forward, step)]
    predicted = rows * length
    assert sizes.forward_flops(rows, length, predicted) == _products(graphs[0])
    assert sizes.step_flops(rows, length, predicted) == _products(graphs[1])


def test_counting_draws_nothing_at_random():
    """Otherwise a model made after a plan would begin with other weights than one made without."""
    random.seed(1)
    state = random.getstate()
    for kind in KINDS:
        assert ModelSizes(50, hidden_dim=16, num_heads=2, **KINDS[kind]).num_parameters > 0
    assert random.getstate() == state


def test_the_docs_say_how_many_weights_a_base_model_has(repository):
    text = (repository / "docs" / "position_schemes.md").read_text(encoding="utf-8")
    text = text[text.index("## Overview") : text.index("## Cost")]
    rows = re.findall(r"^\| `\"(\w+)\"`.*?\|.*?\|.*?\|.*?\| ([\d,]+) \|", text, re.MULTILINE)
    assert [name for name, _ in rows] == list(POSITION_SCHEMES)
    without = ModelSizes(50_000, position_scheme="none").num_parameters
    for name, number in rows:
        sizes = ModelSizes(50_000, position_scheme=name)
        assert sizes.num_parameters - without == int(number.replace(",", "")), name
