"""`call_with_cache` equals a call on whole texts, for every scheme and attention."""

import numpy as np
import pytest
from keras import ops

from roformer_tf.layers import AttentionMask
from roformer_tf.layers.feature_maps import FEATURE_MAPS
from roformer_tf.layers.position_schemes import POSITION_SCHEMES
from tests.layers.harness import compiled, numpy
from tests.models.builders import backbone, inputs, sequence

LENGTH, ROOM = 13, 17
TRAINED = 6
# float32 through two blocks, where matrix products of other shapes add in another order
NOISE = 2e-5
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": TRAINED}
# lengths of the calls: a prompt, single tokens, several tokens
CUTS = ([7, 1, 1, 4], [1, 1, 5, 6])

MODELS = {
    "rotary": {},
    "rotary_partial": {"position_options": {"rotary_dim": 4}},
    "rotary_learned": {"position_options": {"learned": True}},
    "rotary_on_values": {"position_options": {"on_values": True}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "ntk": {"rope_scaling": {"rope_type": "ntk", "factor": 4.0}},
    "yarn": {"rope_scaling": {**DYNAMIC, "rope_type": "yarn", "factor": 4.0}},
    "learned": {"position_scheme": "learned"},
    "sinusoidal": {"position_scheme": "sinusoidal"},
    "none": {"position_scheme": "none"},
}
LINEAR = {
    f"{name}_{scheme}": {"attention": name, "position_scheme": scheme}
    for name in FEATURE_MAPS
    for scheme in ("rotary", "none")
}


def part(given, start, stop):
    return {name: value[:, start:stop] for name, value in given.items()}


def in_steps(model, given, cuts, start=0, cache=None):
    """Returns the joined outputs of consecutive calls, and the cache.

    The index is an integer in one call, and a tensor of one dtype or another in the next.
    """
    if cache is None:
        cache = model.build_cache(len(given["token_ids"]), ROOM)
    outputs, index = [], start
    for number, length in enumerate(cuts):
        dtype = np.int32 if number == 1 else np.int64
        at = index if number % 2 == 0 else ops.convert_to_tensor(dtype(index))
        output, cache = model.call_with_cache(part(given, index, index + length), cache, at)
        outputs.append(sequence(output))
        index += length
    return np.concatenate(outputs, 1), cache


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, name) for kind in ("gpt", "sim") for name in MODELS), *(("gpt", n) for n in LINEAR)],
)
def test_steps_equal_the_whole(kind, name, rng):
    model = backbone(kind, pooler=None, **{**MODELS, **LINEAR}[name])
    assert model.supports_cache
    given = inputs(rng, length=LENGTH, padded=False)
    expected = sequence(model(given))
    # a source, which sees the tokens after it, is one call
    for cuts in CUTS if model.masking == "causal" else CUTS[:1]:
        outputs, _ = in_steps(model, given, cuts)
        np.testing.assert_allclose(outputs, expected, atol=NOISE)


@pytest.mark.parametrize("options", [{}, LINEAR["elu_rotary"]], ids=["softmax", "linear"])
def test_padding(options, rng):
    """Padding before a text is hidden, and positions are those passed."""
    model = backbone("gpt", **options)
    given = inputs(rng, batch=2, length=LENGTH, padded=False)
    given["padding_mask"][1, :4] = 0
    given["position_ids"] = np.arange(LENGTH, dtype="float32") - 4 + np.zeros((2, 1), "float32")
    expected = sequence(model(given))
    for cuts in CUTS:
        outputs, _ = in_steps(model, given, cuts)
        np.testing.assert_allclose(outputs[0], expected[0], atol=NOISE)
        np.testing.assert_allclose(outputs[1, 4:], expected[1, 4:], atol=NOISE)


@pytest.mark.parametrize("options", [{}, {"rope_scaling": DYNAMIC}], ids=["rotary", "dynamic"])
@pytest.mark.parametrize("kind", ["gpt", "sim"])
def test_prompts_of_different_lengths(kind, options, rng):
    """Prompts padded on the right in a batch, then single tokens from the end of the shortest.

    Some tokens are computed again: the last of the prompt, and the rest of longer prompts.
    """
    model = backbone(kind, pooler=None, num_layers=1, **options)
    given = inputs(rng, batch=3, length=LENGTH, padded=False)
    known = [4, 9, 6]
    for row, length in enumerate(known):
        given["segment_ids"][row] = np.arange(LENGTH) >= length
    prompt = part(given, 0, max(known))
    prompt["padding_mask"] = (np.arange(max(known)) < np.array(known)[:, None]).astype("int32")
    prompt["segment_ids"] = np.zeros_like(prompt["token_ids"])
    _, cache = model.call_with_cache(prompt, model.build_cache(3, ROOM), 0)
    first = min(known) - 1
    outputs, _ = in_steps(model, given, [1] * (LENGTH - first), first, cache)
    for row, length in enumerate(known):
        for position in range(first, LENGTH):
            # the tokens of a sequence so far
            alone = {k: v[row : row + 1, : max(position + 1, length)] for k, v in given.items()}
            expected = sequence(model(alone))[0, position]
            np.testing.assert_allclose(outputs[row, position - first], expected, atol=NOISE)


@pytest.mark.parametrize("options", [{}, {"position_options": {"on_values": True}}])
def test_dynamic_scaling(options, rng):
    """A token is as in the text that ends with its call, and keeps its keys and values."""
    model = backbone("gpt", rope_scaling=DYNAMIC, **options)
    given = inputs(rng, length=LENGTH, padded=False)
    for cuts in CUTS:
        outputs, _ = in_steps(model, given, cuts)
        states = model.embeddings(given["token_ids"], given["segment_ids"])
        for block in model.encoder_blocks:
            ends = np.cumsum(cuts)
            after = []
            for start, end in zip(ends - cuts, ends, strict=True):
                mask = np.ones((3, end), "int32")
                position = model.position_scheme(mask)
                bias = AttentionMask("causal")(mask)
                after.append(
                    numpy(block(states[:, :end], attention_bias=bias, position=position))[:, start:]
                )
            states = np.concatenate(after, 1)
        np.testing.assert_allclose(outputs, states, atol=NOISE)
    outputs, _ = in_steps(model, given, [LENGTH])
    np.testing.assert_allclose(outputs, sequence(model(given)), atol=NOISE)
    # up to the trained length a model without scaling
    short = part(given, 0, TRAINED)
    plain = sequence(backbone("gpt", **options)(short))
    np.testing.assert_allclose(in_steps(model, short, [3, 1, 1, 1])[0], plain, atol=NOISE)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("kind", ["gpt", "sim"])
def test_half_precision(dtype, kind, rng):
    model = backbone(kind, pooler=None, dtype=dtype)
    given = inputs(rng, length=LENGTH, padded=False)
    outputs, cache = in_steps(model, given, CUTS[0])
    assert {x.dtype for x in cache["blocks"][0]} == {ops.convert_to_tensor(0, dtype[6:]).dtype}
    exact = sequence(backbone(kind, pooler=None)(given))
    error = np.abs(sequence(model(given)) - exact).max()
    # two computations that each are off by the roundings of their dtype
    np.testing.assert_allclose(outputs, exact, atol=3 * error)


@pytest.mark.parametrize("kind", ["gpt", "v2_causal"])
def test_compiled(kind, rng):
    """One XLA graph loops over the tokens, with room for more."""
    model = backbone(kind, pooler=None)
    given = inputs(rng, length=LENGTH, padded=False)
    expected = sequence(model(given))

    def run(given):
        def body(i, cache, outputs):
            now = {name: ops.slice(x, (0, i), (3, 1)) for name, x in given.items()}
            output, cache = model.call_with_cache(now, cache, i)
            return i + 1, cache, ops.slice_update(outputs, (0, i, 0), output)

        cache, start = model.build_cache(3, ROOM), ops.convert_to_tensor(0, "int32")
        outputs = ops.zeros((3, LENGTH, 16))
        return ops.while_loop(lambda i, *_: i < LENGTH, body, (start, cache, outputs))[2]

    np.testing.assert_allclose(numpy(compiled(run)(given)), expected, atol=NOISE)


def test_a_cache_is_not_changed_by_what_comes_after(rng):
    """Two texts may continue the same prompt."""
    model = backbone("gpt")
    given = inputs(rng, length=LENGTH, padded=False)
    other = {**given, "token_ids": given["token_ids"].copy()}
    other["token_ids"][:, 8:] = 9
    _, cache = in_steps(model, given, [8])
    for text in (other, given):
        outputs, _ = in_steps(model, text, [1] * 5, 8, cache)
        np.testing.assert_allclose(outputs, sequence(model(text))[:, 8:], atol=NOISE)


def test_models_without_cache(rng):
    given = inputs(rng, padded=False)
    for name, scheme in POSITION_SCHEMES.items():
        assert backbone("gpt", position_scheme=name).supports_cache != scheme.needs_scores
    without_cache = [
        backbone("v1"),
        backbone("gpt", position_scheme="t5"),
        backbone("gpt", attention="elu", rope_scaling=DYNAMIC),
    ]
    for model in without_cache:
        assert not model.supports_cache
        with pytest.raises(ValueError, match="supports no cache.*Received: masking="):
            model.call_with_cache(given, None, 0)
    attention = without_cache[1].encoder_blocks[0].attention
    with pytest.raises(ValueError, match="supports no cache.*T5RelativeBias"):
        attention.call_with_cache(np.ones((1, 1, 16)), attention.build_cache(1, 4), 0)
    with pytest.raises(ValueError, match="takes no document_ids"):
        backbone("gpt").call_with_cache({**given, "document_ids": given["padding_mask"]}, None, 0)
