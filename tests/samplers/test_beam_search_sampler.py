"""Beam search over tables as models, against all texts and a beam search in plain Python."""

import itertools

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from roformer_tf.samplers import BeamSearchSampler, OriginalBeamSampler, with_min_length
from tests.layers.harness import compiled, numpy
from tests.samplers import table_model
from tests.samplers.table_model import LENGTH, LENGTHS, Row, search

FORMS = ("fairseq", "gnmt")
# sums of half a dozen float32 logarithms of size 5, and a division
ROUNDING = 1e-5


def assert_finds(found, prompt, expected, lengths=LENGTHS):
    """Checks texts and scores against `expected`, [(score, tokens)] for each sequence."""
    texts, scores = found
    for row, hypotheses in enumerate(expected):
        hypotheses = hypotheses[: scores.shape[1]]
        wanted = [table_model.filled(prompt[row], lengths[row], tokens) for _, tokens in hypotheses]
        assert texts[row, : len(wanted)].tolist() == wanted
        np.testing.assert_allclose(
            scores[row, : len(wanted)], [score for score, _ in hypotheses], rtol=0, atol=ROUNDING
        )
        assert np.all(scores[row, len(wanted) :] == -np.inf)


def tables_for(rng, vocabulary, lengths=LENGTHS):
    return table_model.make_tables(rng, len(lengths), vocabulary, LENGTH)


@pytest.mark.parametrize(
    "alpha, form",
    [
        (0.6, "fairseq"),
        (0.6, "gnmt"),
        (0.0, "gnmt"),
        (1.0, "fairseq"),
        (2.0, "gnmt"),
        (-0.5, "fairseq"),
    ],
)
def test_with_a_beam_for_every_prefix_it_is_exhaustive_search(rng, alpha, form):
    tables, stops = tables_for(rng, vocabulary=3), [2]
    beams = 2**4 * 3  # the number of continuations of the longest prefixes
    sampler = BeamSearchSampler(beams, alpha, form, return_all_beams=True)
    prompt, found = search(sampler, tables, stops)
    expected = [
        table_model.exhaustive_search(Row(table), stops, LENGTH - length, alpha, form)
        for table, length in zip(tables, LENGTHS, strict=True)
    ]
    assert [len(e) for e in expected] == [63, 31, 7]
    assert_finds(found, prompt, expected)
    sampler.return_all_beams = False  # it ends earlier
    _, best = search(sampler, tables, stops)
    assert best.tolist() == found[0][:, 0].tolist()


@pytest.mark.parametrize(
    "beams, alpha, form, stops, early_stopping, min_ends, min_length",
    [
        (1, 0.6, "fairseq", [2], False, 1, 0),
        (2, 0.6, "gnmt", [2], False, 1, 0),
        (4, 0.6, "fairseq", [2], False, 1, 0),
        (4, 1.0, "fairseq", [0, 3], False, 1, 2),
        (7, 1.0, "gnmt", [1], True, 1, 1),
        (3, 0.6, "fairseq", [0, 3], True, 2, 0),
        (5, 0.6, "gnmt", [2], False, 2, 0),
        (3, 0.6, "fairseq", None, False, 1, 0),
    ],
)
def test_equals_beam_search_by_hand(
    rng, beams, alpha, form, stops, early_stopping, min_ends, min_length
):
    lengths = (1, 1, 1, 2, 3, 5)
    tables = tables_for(rng, vocabulary=4, lengths=lengths)
    options = alpha, form, early_stopping, min_ends, True
    sampler = BeamSearchSampler(beams, *options, temperature=1.3)
    prompt, found = search(sampler, tables, stops, lengths, min_length=min_length)
    expected = []
    for table, length in zip(tables, lengths, strict=True):
        row, room = Row(table, 1.3, min_length, stops or ()), LENGTH - length
        expected.append(
            table_model.beam_search(
                row, stops or (), room, beams, alpha, form, min_ends, early_stopping
            )
        )
    assert_finds(found, prompt, expected, lengths)


def test_the_score_is_that_of_the_text_and_the_penalty_counts_the_stop_token():
    """By hand: ln P of 2 tokens and the stop token, over 3^0.6 or (8/6)^0.6."""
    tables = np.full((1, 40, 3), -20, "float32")
    for node, token in ((0, 1), (2, 0), (7, 2)):  # 1, then 0, then the stop token
        tables[0, node, token] = 0
    tables[0, 0, 0] = np.log(3)  # 1 has 1/4, and 0 has 3/4 but goes nowhere
    tables[0, 7, 1] = 0  # half of the texts do not stop here
    for form, penalty in (("fairseq", 3**0.6), ("gnmt", (8 / 6) ** 0.6)):
        sampler = BeamSearchSampler(6, 0.6, form, return_all_beams=True)
        prompt, mask = table_model.make_prompt([1], 4)
        next = table_model.step(tables, mask)
        texts, scores = sampler(next, prompt, index=1, mask=mask, stop_token_ids=[2])
        found = dict(zip(map(tuple, numpy(texts)[0, :, 1:].tolist()), numpy(scores)[0].tolist()))
        assert found[1, 0, 2] == pytest.approx(np.log(1 / 8) / penalty, abs=1e-6)
        assert found[1, 0, 1] == pytest.approx(np.log(1 / 8) / penalty, abs=1e-6)


def test_sequences_do_not_depend_on_each_other(rng):
    tables, stops = tables_for(rng, vocabulary=4), [2]
    for early_stopping in (False, True):
        sampler = BeamSearchSampler(3, early_stopping=early_stopping, return_all_beams=True)
        _, (texts, scores) = search(sampler, tables, stops)
        for row, length in enumerate(LENGTHS):
            prompt, mask = table_model.make_prompt([length], LENGTH)
            next = table_model.step(tables[row : row + 1], mask)
            alone = sampler(next, prompt, index=length, mask=mask, stop_token_ids=stops)
            assert numpy(alone[0])[0, :, 1:].tolist() == texts[row, :, 1:].tolist()
            np.testing.assert_allclose(numpy(alone[1])[0], scores[row], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("cls", [BeamSearchSampler, OriginalBeamSampler])
@pytest.mark.parametrize("floatx", ["float16", "float64"])
def test_floatx_changes_nothing(cls, floatx, rng):
    tables = tables_for(rng, vocabulary=4)
    _, expected = search(cls(3), tables, [2])
    keras.config.set_floatx(floatx)
    _, found = search(cls(3), tables, [2])
    assert found.tolist() == expected.tolist()


def test_cache_follows_its_beam(rng):
    sampler = BeamSearchSampler(5, return_all_beams=True)
    tables = tables_for(rng, vocabulary=4)
    _, cached = search(sampler, tables, [2])
    _, uncached = search(sampler, tables, [2], cached=False)
    assert all(c.tolist() == u.tolist() for c, u in zip(cached, uncached, strict=True))


def test_compiled_equals_eager(rng):
    sampler = BeamSearchSampler(3, return_all_beams=True)
    tables = tables_for(rng, vocabulary=4)
    _, eager = search(sampler, tables, [2, 3], min_length=1)
    _, graph = search(sampler, tables, [2, 3], min_length=1, wrap=compiled)
    assert graph[0].tolist() == eager[0].tolist()
    np.testing.assert_allclose(graph[1], eager[1], rtol=0, atol=ROUNDING)


@pytest.mark.tensorflow("shapes are fixed elsewhere")
def test_graph_of_unknown_shape(rng):
    import tensorflow as tf

    tables = tables_for(rng, vocabulary=4)
    prompt, mask = table_model.make_prompt(LENGTHS, LENGTH)

    sampler = BeamSearchSampler(3, return_all_beams=True)
    next = table_model.cached_step(tables, mask)
    shapes = tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, None), "bool")

    @tf.function(input_signature=shapes)
    def run(prompt, mask):
        cache = {"row": prompt[:, :1], "node": 0 * prompt[:, 0]}
        forbidding = with_min_length(next, 1, [2], mask)
        return sampler(forbidding, prompt, cache=cache, index=1, mask=mask, stop_token_ids=[2])

    _, eager = search(sampler, tables, [2], min_length=1)
    found = keras.tree.map_structure(numpy, run(prompt, mask))
    assert found[0].tolist() == eager[0].tolist()
    np.testing.assert_allclose(found[1], eager[1], rtol=0, atol=ROUNDING)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="its loop traces `next` once")
def test_ends_as_soon_as_no_beam_can_win():
    """The stop token has p = 0.4 in the first step. The bound shows when no other text can win."""
    calls = []

    def next(prompt, cache, index):
        calls.append(int(index))
        scores = ops.log(ops.convert_to_tensor([[0.3, 0.3, 0.4]]))
        return ops.repeat(scores, ops.shape(prompt)[0], axis=0), None, cache

    def steps(length, **options):
        calls.clear()
        prompt, mask = table_model.make_prompt([1], length)
        sampler = BeamSearchSampler(**options)
        sampler(next, prompt, index=1, mask=mask, stop_token_ids=[2])
        return len(calls)

    # sums only: ln 0.3 < ln 0.4 already
    assert steps(50, num_beams=1, length_penalty=0.0) == 1
    # unfinished texts have n ln 0.3 after n steps, and there is room for 49 tokens
    for form, alpha in itertools.product(FORMS, (0.2, 0.6)):
        longest = table_model.penalty(49, alpha, form)
        first = np.log(0.4) / table_model.penalty(1, alpha, form)
        needed = next_step(n * np.log(0.3) / longest <= first for n in range(1, 60))
        assert 1 < needed < 49
        assert steps(50, num_beams=1, length_penalty=alpha, penalty_form=form) == needed
    assert steps(50, num_beams=1, length_penalty=0.6, early_stopping=True) == 1


def next_step(conditions):
    return 1 + list(conditions).index(True)


def test_without_stop_tokens_it_is_the_beam_search_of_keras_hub(rng):
    lengths = (2, 2, 2)
    tables = tables_for(rng, vocabulary=4, lengths=lengths)
    ours = BeamSearchSampler(4, length_penalty=0.0, return_all_beams=True)
    theirs = keras_hub.samplers.BeamSampler(4, return_all_beams=True)
    _, found = search(ours, tables, None, lengths)
    _, expected = search(theirs, tables, None, lengths)
    assert found[0].tolist() == expected[0].tolist()
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=ROUNDING)


def test_one_beam_without_penalty_is_greedy_search(rng):
    tables = tables_for(rng, vocabulary=4)
    prompt, ours = search(BeamSearchSampler(1, length_penalty=0.0), tables, [2])
    _, greedy = search(keras_hub.samplers.GreedySampler(), tables, [2])
    for row, length in enumerate(LENGTHS):
        new = greedy[row, length:].tolist()
        end = new.index(2) + 1 if 2 in new else len(new)
        wanted = table_model.filled(prompt[row], length, new[:end])
        assert ours[row].tolist() == wanted


def test_row_without_room_and_other_dtypes(rng):
    lengths = (LENGTH, 3)
    tables = tables_for(rng, vocabulary=4, lengths=lengths)
    prompt, mask = table_model.make_prompt(lengths, LENGTH)
    sampler = BeamSearchSampler(2, return_all_beams=True)
    next = table_model.step(tables, mask)
    _, expected = search(sampler, tables, [2], lengths)
    texts, scores = expected
    assert texts[0, 0].tolist() == prompt[0].tolist()
    assert scores[0].tolist() == [0, -np.inf]
    integers = "uint32" if keras.backend.backend() == "jax" else "int64"  # JAX has no 64 bits
    found = sampler(
        lambda prompt, *rest: next(ops.cast(prompt, "int32"), *rest),
        ops.cast(prompt, integers),
        index=np.int64(3),
        mask=mask.astype("int32"),
        stop_token_ids=(2,),
    )
    assert keras.backend.standardize_dtype(found[0].dtype) == integers
    keras.tree.map_structure(
        lambda f, e: np.testing.assert_array_equal(numpy(f), e), found, expected
    )


def test_config():
    sampler = BeamSearchSampler(3, 1.0, "gnmt", True, 2, True, temperature=0.5)
    again = keras_hub.samplers.deserialize(keras_hub.samplers.serialize(sampler))
    assert type(again) is BeamSearchSampler
    assert again.get_config() == sampler.get_config()
    assert again.get_config() == {
        "num_beams": 3,
        "length_penalty": 1.0,
        "penalty_form": "gnmt",
        "early_stopping": True,
        "min_ends": 2,
        "return_all_beams": True,
        "temperature": 0.5,
    }


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_beams": 0}, "`num_beams` must be a positive integer. Received: num_beams=0"),
        ({"min_ends": 0}, "`min_ends` must be a positive integer. Received: min_ends=0"),
        ({"penalty_form": "wu"}, "Received: penalty_form='wu'"),
        ({"temperature": 0.0}, "`temperature` must be positive. Received: temperature=0.0"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        BeamSearchSampler(**options)
