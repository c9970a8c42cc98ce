"""Layers choose attention in blocks by the length, while tracing or at run time."""

import numpy as np
import pytest
from keras import ops

from roformer_tf.layers import AttentionMask, EncoderBlock, RotaryPosition, SelfAttention
from roformer_tf.layers.chunked_attention import BLOCK_SIZE
from roformer_tf.layers.dropout import dropout_seeds
from tests.layers.chunked_cases import HEADS, LENGTH, MASKINGS, PADDING, B, mask, seed_of
from tests.layers.harness import assert_close, built, flat, gradients, numpy


def layer(length_above, dtype="float32", cls=SelfAttention, **options):
    if cls is EncoderBlock:
        made = EncoderBlock(
            16, 24, HEADS, position_scheme=RotaryPosition(8), dtype=dtype, **options
        )
        made.attention.chunked_above = length_above
    else:
        made = SelfAttention(HEADS, 8, position_scheme=RotaryPosition(8), dtype=dtype, **options)
        made.chunked_above = length_above
    return built(made, (None, None, 16))


def call(made, x, bias=None, **options):
    scheme = made.position_scheme
    return made(x, attention_bias=bias, position=scheme(ops.zeros(ops.shape(x)[:2])), **options)


def inputs(rng, length=LENGTH):
    return rng.normal(size=(B, length, 16)).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("masking", MASKINGS)
def test_layer(masking, documents, dtype, rng):
    x, parts = inputs(rng), mask(masking, documents)
    expected = numpy(call(layer(None, dtype), x, mask(masking, documents, dense=True)))
    np.testing.assert_array_equal(numpy(call(layer(None, dtype), x, parts)), expected)
    np.testing.assert_array_equal(numpy(call(layer(LENGTH, dtype), x, parts)), expected)
    share = 2e-6 if dtype == "float32" else 6 * 2.0**-8
    found = numpy(call(layer(LENGTH - 1, dtype), x, parts))
    np.testing.assert_allclose(found, expected, atol=share * np.abs(expected).max())
    assert dtype != "float32" or np.abs(found - expected).max() > 0  # it went the other way


def test_layer_of_several_blocks(rng):
    x, padding = inputs(rng, 1100), np.ones((B, 1100), "int32")
    padding[1, 900:] = 0
    parts = AttentionMask("causal", dense=False)(padding)
    weights = rng.normal(size=x.shape)
    results = []
    for above in (None, 0):
        made = layer(above)
        results.append(gradients(lambda x, made=made: call(made, x, parts), [x], weights, made))
    plain, chunked = (outputs + found for outputs, found in results)
    assert_close(chunked, plain, 1e-5)  # sums of up to 1100 terms in another order


def test_what_keeps_to_the_plain_way(rng, monkeypatch):
    from roformer_tf.layers import SinusoidalRelativePosition, self_attention

    def refuse(*args):
        raise AssertionError

    monkeypatch.setattr(self_attention, "chunked_attention", refuse)
    x = inputs(rng)
    call(layer(0), x, mask("causal", dense=True))
    call(layer(None), x, mask("bidirectional"))
    with pytest.raises(AssertionError):
        call(layer(0), x, mask("bidirectional", dense=True))
    made = SelfAttention(HEADS, 8, position_scheme=SinusoidalRelativePosition(8))
    made.chunked_above = 0
    call(made, x, mask("causal"))


def test_dropout_of_the_layer(rng):
    x = inputs(rng)
    made = layer(0, dropout=0.5)
    exact = numpy(call(layer(0), x))
    np.testing.assert_array_equal(numpy(call(made, x, training=False)), exact)
    one, other = (numpy(call(made, x, training=True)) for _ in range(2))
    assert np.abs(one - other).max() > 0.05
    with dropout_seeds([made.dropout_layer], [seed_of(1)]):
        one, other = (numpy(call(made, x, training=True)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


# === Lengths that a TensorFlow graph does not know when it is made ===

tensorflow_only = pytest.mark.tensorflow("other backends know every length")


def signature():
    import tensorflow as tf

    return [tf.TensorSpec([None, None, 16]), tf.TensorSpec([None, None], tf.int32)]


@tensorflow_only
@pytest.mark.parametrize(
    ("masking", "xla"), [*((masking, False) for masking in MASKINGS), ("unilm", True)]
)
def test_length_known_at_run_time_only(masking, xla, rng):
    import tensorflow as tf

    mask_layer = AttentionMask(masking, dense=False)

    def step_of(made):
        def step(x, padding):
            bias = mask_layer(padding, 0 * padding)
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = call(made, x, bias)
            return output, tape.gradient(output, [x, *(w.value for w in made.trainable_variables)])

        return step

    function = tf.function(step_of(layer(8)), input_signature=signature(), jit_compile=xla)
    for length in (8, 9, 5):
        x, padding = inputs(rng, length), PADDING[:, :length]
        expected = flat(step_of(layer(None))(tf.constant(x), tf.constant(padding)))
        assert_close(flat(function(x, padding)), expected, 5e-6)
    assert function.experimental_get_tracing_count() == 1


@tensorflow_only
def test_no_condition_where_the_length_is_known():
    import tensorflow as tf

    for length, conditions in ((None, 1), (6, 0)):
        made = layer(8, dropout=0.1)
        function = tf.function(lambda x, made=made: call(made, x, training=True))
        graph = function.get_concrete_function(tf.TensorSpec([2, length, 16])).graph
        names = [op.type for op in graph.get_operations()]
        assert sum(name in ("If", "StatelessIf") for name in names) == conditions


@tensorflow_only
def test_layers_share_the_graphs_of_blocks():
    import tensorflow as tf

    layers = [layer(8) for _ in range(3)]

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = x
            for made in layers:
                output = call(made, output)
        return tape.gradient(output, x)

    graph = tf.function(step).get_concrete_function(tf.TensorSpec([None, None, 16])).graph
    made = [function.signature.name for function in graph.as_graph_def().library.function]
    for shared in ("_attended", "_gradients"):
        assert sum(shared in name for name in made) == 1, made


@tensorflow_only
@pytest.mark.parametrize("masking", MASKINGS)
def test_no_tensor_of_all_queries_and_keys(masking):
    """Neither forward nor backward, in any graph that is run."""
    import tensorflow as tf

    length = 4096
    made, mask_layer = layer(0, dropout=0.1), AttentionMask(masking, dense=False)

    def step(x, padding):
        bias = mask_layer(padding, padding, padding)
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = call(made, x, bias, training=True)
        return tape.gradient(output, x)

    given = tf.TensorSpec([1, length, 16]), tf.TensorSpec([1, length], tf.int32)
    graph = tf.function(step).get_concrete_function(*given).graph
    graphs = [graph, *(function.graph for function in graph._functions.values())]
    sizes = [
        output.shape.num_elements() or 0
        for one in graphs
        for op in one.get_operations()
        for output in op.outputs
        if output.shape.is_fully_defined()
    ]
    assert len(graphs) > 4  # loops in loops
    # queries, keys and values; or a block of scores of each head
    assert max(sizes) <= max(3 * length * 16, HEADS * BLOCK_SIZE**2) < length**2 // 10


@pytest.mark.slow
@tensorflow_only
def test_recomputed_activations(rng):
    """Dropout in a branch of a block that is computed twice uses one seed for both passes."""
    import tensorflow as tf

    lengths, seeds = (6, 9), tf.constant([[1, 2], [3, 4]])  # to both sides of the branch
    given = [tf.constant(inputs(rng, length)) for length in lengths]
    found = []
    for recompute in (False, True):
        block = layer(8, cls=EncoderBlock, dropout=0.2, attention_dropout=0.3)
        block.recompute_activations = recompute

        @tf.function(input_signature=signature())
        def step(x, padding, block=block):
            bias = AttentionMask("causal", dense=False)(padding)
            with dropout_seeds([block.attention.dropout_layer, block.dropout_layer], seeds):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    output = call(block, x, bias, training=True)
                    loss = tf.reduce_sum(output**3)
                return output, tape.gradient(loss, x)

        found.append([y for x in given for y in flat(step(x, PADDING[:, : x.shape[1]]))])
    assert_close(*found, 5e-6)  # gradients of up to 10, whose roundings are shares of the largest
