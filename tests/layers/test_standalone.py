"""Blocks and attention that are called with features alone: they make positions and masks themselves."""

import keras
import keras_hub
import numpy as np
import pytest

from roformer_tf import layers
from tests.layers.harness import (
    assert_equal,
    built,
    check_keras_mask,
    numpy,
    one_program,
    randomize,
)

HEADS, HEAD_DIM, WIDTH, LENGTH = 2, 8, 16, 6
X = np.random.default_rng(3).normal(size=(2, LENGTH, WIDTH)).astype("float32")
PADDING = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], "int32")
MASK = np.random.default_rng(4).integers(0, 2, size=(2, LENGTH, LENGTH)).astype("bool")
MASK |= np.eye(LENGTH, dtype="bool")
SCHEMES = {
    "rotary": lambda: layers.RotaryPosition(HEAD_DIM),
    "rotary values": lambda: layers.RotaryPosition(HEAD_DIM, on_values=True),
    "t5": lambda: layers.T5RelativeBias(HEADS),
    "nezha": lambda: layers.SinusoidalRelativePosition(HEAD_DIM),
    "none": lambda: None,
}
# the same sums in two programs
NOISE = 2e-6


def made(kind, scheme="rotary", **options):
    scheme = SCHEMES[scheme]()
    if kind == "attention":
        layer = layers.SelfAttention(HEADS, HEAD_DIM, position_scheme=scheme, **options)
    elif kind == "linear":
        feature_map = layers.EluFeatureMap()
        layer = layers.LinearAttention(
            HEADS, HEAD_DIM, feature_map, position_scheme=scheme, **options
        )
    else:
        cls = layers.EncoderBlock if kind == "encoder" else layers.DecoderBlock
        layer = cls(WIDTH, 24, HEADS, position_scheme=scheme, **options)
    return built(layer, X.shape)


def parts(layer, padding=None, masking="bidirectional"):
    """The bias and the context that a model would compute once for all of its blocks."""
    attention = getattr(layer, "attention", layer)
    padding = np.ones_like(PADDING) if padding is None else padding
    return {
        "attention_bias": layers.AttentionMask(masking)(padding),
        "position": attention.position_scheme(np.zeros((2, LENGTH), "int32"), None, padding),
    }


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["attention", "encoder"])
def test_alone_equals_handed_over(kind, scheme):
    layer = made(kind, scheme)
    expected = numpy(layer(X, **parts(layer)))
    np.testing.assert_allclose(numpy(layer(X)), expected, atol=NOISE)
    expected = numpy(layer(X, **parts(layer, PADDING)))
    for padding in (PADDING, PADDING.astype("bool")):
        np.testing.assert_allclose(numpy(layer(X, padding_mask=padding)), expected, atol=NOISE)
    as_mask = np.broadcast_to(PADDING[:, None], MASK.shape)
    np.testing.assert_allclose(numpy(layer(X, attention_mask=as_mask)), expected, atol=NOISE)


@pytest.mark.parametrize("padding", [None, PADDING])
def test_causal(padding):
    attention, block, linear = (
        made("attention"),
        made("encoder", causal=True),
        made("linear", causal=True),
    )
    for layer, options in ((attention, {"use_causal_mask": True}), (block, {})):
        expected = numpy(layer(X, **parts(layer, padding, "causal")))
        found = numpy(layer(X, padding_mask=padding, **options))
        np.testing.assert_allclose(found, expected, atol=NOISE)
    given = parts(linear, padding)
    found = numpy(linear(X, padding_mask=padding))
    np.testing.assert_allclose(found, numpy(linear(X, **given)), atol=NOISE)


def test_masks_are_combined():
    layer = made("encoder", causal=True)
    visible = MASK & np.tril(MASK[0] | True) & (PADDING[:, None] == 1)
    bias = np.where(visible, 0.0, -1e9).astype("float32")[:, None]
    expected = numpy(layer(X, attention_bias=bias))
    found = numpy(layer(X, padding_mask=PADDING, attention_mask=MASK))
    np.testing.assert_allclose(found, expected, atol=NOISE)


@pytest.mark.parametrize("kind", ["attention", "encoder", "linear", "decoder"])
def test_masks_that_keras_carries_along(kind):
    check_keras_mask(made(kind), WIDTH, atol=NOISE)


@pytest.mark.parametrize("kind", ["attention", "encoder"])
def test_attention_scores(kind):
    layer = made(kind)
    output, scores = layer(X, padding_mask=PADDING, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(layer(X, padding_mask=PADDING)), atol=NOISE)
    assert tuple(scores.shape) == (2, HEADS, LENGTH, LENGTH)
    np.testing.assert_allclose(numpy(scores).sum(-1), 1, atol=1e-6)
    assert (numpy(scores)[0, ..., 4:] == 0).all()
    inputs = keras.Input((LENGTH, WIDTH))
    symbolic = layer(inputs, return_attention_scores=True)
    assert [part.shape for part in symbolic] == [(None, LENGTH, WIDTH), (None, 2, LENGTH, LENGTH)]


@pytest.mark.parametrize("kind", ["attention", "encoder", "linear", "decoder"])
@pytest.mark.parametrize("scheme", ["rotary", "none"])
def test_cached_equals_uncached(kind, scheme):
    causal = {"causal": True} if kind in ("encoder", "linear") else {}
    layer = made(kind, scheme, **causal)
    whole = layer(X, use_causal_mask=True) if kind == "attention" else layer(X)

    @one_program
    def step(x, cache, index):
        if kind == "decoder":
            return layer(x, self_attention_cache=cache, self_attention_cache_update_index=index)
        return layer.call_with_cache(x, cache, index)

    cache, outputs = layer.build_cache(2, LENGTH + 2), []
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        index = start if start < 4 else keras.ops.convert_to_tensor(np.int64(start))
        output, cache = step(X[:, start:stop], cache, index)
        outputs.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, 1), numpy(whole), atol=NOISE)


def test_decoder_block():
    """Its call is that of KerasHub's decoder: causal by itself, with masks and caches by name."""
    memory = np.random.default_rng(5).normal(size=(2, 4, WIDTH)).astype("float32")
    real = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
    block = layers.DecoderBlock(WIDTH, 24, HEADS, position_scheme=layers.RotaryPosition(HEAD_DIM))
    block.build(X.shape, memory.shape)
    randomize(block)
    given = parts(block, PADDING, "causal")
    expected = numpy(block(X, memory, encoder_attention_bias=layers.AttentionMask()(real), **given))
    options = {"decoder_padding_mask": PADDING, "encoder_padding_mask": real}
    np.testing.assert_allclose(numpy(block(X, memory, **options)), expected, atol=NOISE)
    as_mask = np.broadcast_to(real[:, None] == 1, (2, LENGTH, 4))
    options = {"decoder_padding_mask": PADDING, "encoder_attention_mask": as_mask}
    np.testing.assert_allclose(numpy(block(X, memory, **options)), expected, atol=NOISE)

    whole = numpy(block(X, memory, encoder_padding_mask=real))
    cache, cross, outputs, one_row = block.build_cache(2, LENGTH), None, [], as_mask[:, :1]
    for i in range(LENGTH):
        output, cache, cross = block(
            X[:, i : i + 1],
            memory if i < 2 else None,  # the cache holds what the block needs of it
            **({"encoder_padding_mask": real} if i % 2 else {"encoder_attention_mask": one_row}),
            self_attention_cache=cache,
            self_attention_cache_update_index=i,
            cross_attention_cache=cross,
        )
        outputs.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, atol=NOISE)
    with pytest.raises(ValueError, match="needs it in every call"):
        block(X)


def test_steps_come_before_the_first_call():
    memory = X[:, :4]
    block = layers.DecoderBlock(WIDTH, 24, HEADS)
    cross = block.cross_attention.build_cache(memory)
    found, _ = block.call_with_cache(X, block.build_cache(2, LENGTH), 0, cross)
    np.testing.assert_allclose(numpy(found), numpy(block(X, memory)), atol=NOISE)
    block = layers.DecoderBlock(WIDTH, 24, HEADS)
    found, _ = block.call_with_cache(X, block.build_cache(2, LENGTH), 0)
    np.testing.assert_allclose(numpy(found), numpy(block(X)), atol=NOISE)
    attention = layers.CrossAttention(HEADS, HEAD_DIM)
    found = attention.call_with_cache(X, attention.build_cache(memory))
    np.testing.assert_allclose(numpy(found), numpy(attention(X, memory)), atol=NOISE)


def test_models_take_and_return_caches():
    block = layers.DecoderBlock(WIDTH, 24, HEADS)
    attention = layers.RotaryMultiHeadAttention(HEADS, HEAD_DIM)
    attention.build(X.shape, X.shape)

    def step(x, memory, cache, other):
        of_block = {"self_attention_cache": cache, "self_attention_cache_update_index": 0}
        return block(x, memory, **of_block), attention(x, x, cache=other, cache_update_index=0)

    given = X, X[:, :4], block.build_cache(2, LENGTH), attention.build_cache(2, LENGTH)
    given = keras.tree.map_structure(keras.ops.convert_to_tensor, given)
    symbols = keras.tree.map_structure(lambda x: keras.Input(x.shape[1:]), given)
    model = keras.Model(symbols, step(*symbols))
    assert_equal(model(given), step(*given), atol=NOISE)


@pytest.mark.parametrize(
    ("ours", "theirs", "calls"),
    [
        (
            layers.EncoderBlock,
            keras_hub.layers.TransformerEncoder,
            [
                ((X,), {}),
                ((X, PADDING), {}),
                ((X, PADDING, MASK), {}),
                ((X,), {"padding_mask": PADDING, "attention_mask": MASK}),
            ],
        ),
        (
            layers.DecoderBlock,
            keras_hub.layers.TransformerDecoder,
            [
                ((X,), {}),
                ((X,), {"decoder_padding_mask": PADDING, "decoder_attention_mask": MASK}),
                ((X,), {"decoder_attention_mask": MASK, "use_causal_mask": False}),
            ],
        ),
    ],
    ids=["encoder", "decoder"],
)
def test_takes_the_calls_of_keras_hub(ours, theirs, calls):
    """The same program runs with either block; numbers differ, as theirs has no positions."""
    for block in (ours(WIDTH, 24, HEADS), theirs(24, HEADS)):
        for given, options in calls:
            assert tuple(block(*given, **options).shape) == X.shape


@pytest.mark.parametrize("head_dim", [HEAD_DIM, WIDTH])
def test_schemes_take_features(head_dim):
    """Also where a head is as wide as the features."""
    scheme = layers.RotaryPosition(head_dim)
    assert_equal(scheme(np.zeros((2, LENGTH), "int32")), scheme(X))


@pytest.mark.parametrize("chunked_above", [2048, 4])
@pytest.mark.parametrize(
    ("kind", "scheme"), [*(("attention", scheme) for scheme in SCHEMES), ("linear", "rotary")]
)
def test_outputs_at_positions(kind, scheme, chunked_above, monkeypatch):
    """They are those of the whole sequence, whatever decides which keys a query sees."""
    layer = made(kind, scheme)
    monkeypatch.setattr(layer, "chunked_above", chunked_above)
    positions = np.array([[0, 3, 3], [5, 0, 1]])
    documents = np.array([[1, 1, 2, 2, 3, 3], [1, 1, 1, 2, 2, 2]])
    masks = [{}, {"padding_mask": PADDING}, parts(layer, PADDING)]
    if kind == "attention":
        masks += [{"use_causal_mask": True}, {"attention_mask": MASK}]
        unilm = layers.AttentionMask("unilm", dense=False)(PADDING, documents - 1, documents)
        masks += [{"attention_bias": unilm}]
    wholes = [
        np.take_along_axis(numpy(layer(X, **options)), positions[..., None], axis=1)
        for options in masks
    ]
    for asked in (positions[:, :1], positions):
        count = asked.shape[1]
        for options, whole in zip(masks, wholes, strict=True):
            found = layer(X, output_positions=asked, **options)
            np.testing.assert_allclose(numpy(found), whole[:, :count], atol=NOISE)
            if kind == "attention":
                found, scores = layer(
                    X, output_positions=asked, return_attention_scores=True, **options
                )
                np.testing.assert_allclose(numpy(found), whole[:, :count], atol=NOISE)
                assert scores.shape == (2, HEADS, LENGTH, LENGTH)
        inputs = keras.Input((LENGTH, WIDTH)), keras.Input((count,), dtype="int32")
        model = keras.Model(inputs, layer(inputs[0], output_positions=inputs[1]))
        assert model.output_shape == (None, count, WIDTH)
        np.testing.assert_allclose(numpy(model((X, asked))), wholes[0][:, :count], atol=NOISE)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("attention", {}),
        ("attention", {"return_attention_scores": True}),
        ("encoder", {}),
        ("encoder", {"return_attention_scores": True}),
        ("linear", {}),
    ],
)
def test_mask_at_positions(kind, options):
    """Outputs are averaged by the mask that Keras carries along, of these positions."""
    layer = made(kind, dtype="mixed_bfloat16")
    for positions in ([2, 0, 1], [2, 0], [0]):
        ids, at = keras.Input((3,), dtype="int32"), keras.Input((len(positions),), dtype="int32")
        x = keras.layers.Embedding(9, WIDTH, mask_zero=True)(ids)
        output = keras.tree.flatten(layer(x, output_positions=at, **options))[0]
        mean = keras.layers.GlobalAveragePooling1D()(output)
        model = keras.Model([ids, at], [mean, output])
        found, output = model([np.array([[1, 2, 0]]), np.array([positions])])
        expected = numpy(output)[0, np.array(positions) < 2].mean(0)
        np.testing.assert_allclose(numpy(found)[0], expected, atol=NOISE)
