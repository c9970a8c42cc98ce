"""Preprocessors: strings to inputs, labels and weights, with a small vocabulary of characters."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import roformer_tf
from tests.layers.harness import numpy
from tests.models.builders import CHARACTERS, SPECIAL, texts, tokenizer

PAD, CLS, SEP, MASK = (SPECIAL.index(t) for t in ("[PAD]", "[CLS]", "[SEP]", "[MASK]"))
CLASSES = [
    roformer_tf.RoFormerTextClassifierPreprocessor,
    roformer_tf.RoFormerMaskedLMPreprocessor,
    roformer_tf.RoFormerCausalLMPreprocessor,
]


@pytest.fixture(scope="module")
def tokens():
    return tokenizer()


def ids(text):
    return [len(SPECIAL) + CHARACTERS.index(c) for c in text]


def packed(first, second=None, length=None):
    """Packs as bert4keras' `encode` does, one token at a time."""
    parts = [[CLS, *ids(first), SEP]] + ([] if second is None else [[*ids(second), SEP]])
    while length is not None and sum(map(len, parts)) > length:
        # the original counts the start token of the second text when it looks for the longest
        sizes = [len(part) + (i > 0) for i, part in enumerate(parts)]
        parts[sizes.index(max(sizes))].pop(-2)
    return sum(parts, []), [i for i, part in enumerate(parts) for _ in part]


def as_lists(inputs):
    """Sequences without their padding, which must be at the end and 0 everywhere."""
    inputs = {k: numpy(v) for k, v in inputs.items()}
    rows = []
    for token, segment, mask in zip(
        inputs["token_ids"], inputs["segment_ids"], inputs["padding_mask"], strict=True
    ):
        n = mask.sum()
        assert (mask[:n] == 1).all() and (mask[n:] == 0).all()
        assert (token[n:] == PAD).all() and (segment[n:] == 0).all()
        rows.append((token[:n].tolist(), segment[:n].tolist()))
    return rows


@pytest.mark.parametrize("padding", ["longest", "max_length"])
@pytest.mark.parametrize("pairs", [False, True])
def test_classifier(tokens, padding, pairs, rng):
    length = 14
    preprocessor = CLASSES[0](tokens, sequence_length=length, padding=padding)
    first, second = texts(rng, 20, 0, 20), texts(rng, 20, 0, 20)
    x = (first, second) if pairs else first
    inputs = preprocessor(x)
    expected = [packed(a, b if pairs else None, length) for a, b in zip(first, second, strict=True)]
    assert as_lists(inputs) == expected
    longest = max(len(row) for row, _ in expected)
    assert inputs["token_ids"].shape == (20, length if padding == "max_length" else longest)
    assert {v.dtype for v in inputs.values()} == {tf.int32}

    # a batch of short texts is as wide as its longest
    short = preprocessor((["天"], ["地玄"]) if pairs else ["天", "地玄"])
    narrow = 6 if pairs else 4
    assert short["token_ids"].shape[1] == (length if padding == "max_length" else narrow)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("pairs", [False, True])
def test_in_a_dataset_as_called_eagerly(tokens, cls, pairs, rng):
    """Except for masking, which is drawn again."""
    preprocessor = cls(tokens, sequence_length=12)
    first, second = texts(rng, 6), texts(rng, 6)
    labels = np.arange(6)
    x = (first, second) if pairs else first
    keras.utils.set_random_seed(5)
    eager = preprocessor(x, labels)
    dataset = tf.data.Dataset.from_tensor_slices((x, labels)).batch(6).map(preprocessor)
    (mapped,) = list(dataset)
    assert len(eager) == len(mapped)
    if cls is CLASSES[1]:
        eager, mapped = (
            {k: x[0][k] for k in ("segment_ids", "padding_mask")} for x in (eager, mapped)
        )
    tf.nest.map_structure(np.testing.assert_array_equal, eager, mapped)


def test_labels_pass_through_and_one_string(tokens):
    preprocessor = CLASSES[0](tokens, sequence_length=8)
    x, y, w = preprocessor(["天", "地"], y=np.array([1, 0]), sample_weight=np.array([0.5, 2.0]))
    assert numpy(y).tolist() == [1, 0] and numpy(w).tolist() == [0.5, 2.0]
    x, y = preprocessor(["天", "地"], [1, 0])
    assert numpy(y).tolist() == [1, 0]
    one = preprocessor("天地")  # a single string has no batch axis
    assert numpy(one["token_ids"]).tolist() == [CLS, *ids("天地"), SEP]


@pytest.mark.parametrize("cls", CLASSES)
def test_padding_of_the_tokenizer_is_not_text(tokens, cls):
    """A tokenizer's own `sequence_length` is for those who call it."""
    vocabulary = tokens.get_vocabulary()
    padded = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False, sequence_length=4)
    given, expected = cls(padded), cls(tokens)
    for x in (["天地", "玄黄宇宙洪荒"], (["天地"], ["玄"])):
        np.testing.assert_array_equal(given.count_tokens(x), expected.count_tokens(x))
        results = []
        for preprocessor in (given, expected):
            keras.utils.set_random_seed(5)
            results.append(preprocessor(x))
        tf.nest.map_structure(np.testing.assert_array_equal, *results)
    if cls is CLASSES[2]:
        prompts = [p.generate_preprocess(["天地"], sequence_length=9) for p in (given, expected)]
        tf.nest.map_structure(np.testing.assert_array_equal, *prompts)


def test_truncation_from_the_left(tokens):
    preprocessor = CLASSES[0](tokens, sequence_length=5, truncate_from="left")
    assert as_lists(preprocessor(["天地玄黄宇宙"])) == [([CLS, *ids("黄宇宙"), SEP], [0] * 5)]
    right = CLASSES[0](tokens, sequence_length=5)
    assert as_lists(right(["天地玄黄宇宙"])) == [([CLS, *ids("天地玄"), SEP], [0] * 5)]


def test_causal_lm(tokens, rng):
    """Labels are the next tokens. Weights are 1 for a single text, or the target of a pair."""
    preprocessor = CLASSES[2](tokens, sequence_length=10)
    first, second = texts(rng, 12, 1, 15), texts(rng, 12, 1, 15)
    for x in (first, (first, second)):
        inputs, labels, weights = preprocessor(x)
        labels, weights = numpy(labels), numpy(weights)
        assert labels.shape == weights.shape == inputs["token_ids"].shape
        assert labels.shape[1] <= 10 and weights.dtype == np.float32
        for i in range(12):
            token, segment = packed(first[i], second[i] if x is not first else None, 11)
            n = len(token) - 1
            assert numpy(inputs["token_ids"])[i, :n].tolist() == token[:-1]
            assert numpy(inputs["segment_ids"])[i, :n].tolist() == segment[:-1]
            assert labels[i, :n].tolist() == token[1:]
            counted = [1] * n if x is first else segment[1:]
            assert weights[i].tolist() == counted + [0] * (labels.shape[1] - n)


@pytest.mark.parametrize("cls", CLASSES[1:])
def test_sample_weights_multiply_those_of_tokens(tokens, cls, rng):
    preprocessor, x = cls(tokens), texts(rng, 3)
    given = np.array([0.0, 2.0, 0.5], "float32")
    weights, found = (numpy(preprocessor(x, sample_weight=w)[2]) for w in (None, given))
    np.testing.assert_array_equal(found, given[:, None] * weights)
    assert weights.any(axis=1).all()


def test_masking_follows_its_rates(tokens, rng):
    """15 % are chosen: 80 % become [MASK], 10 % a random token, 10 % stay. Never special tokens."""
    preprocessor = CLASSES[1](tokens, sequence_length=128, padding="max_length")
    raw = texts(rng, 400, 100, 126)
    plain = numpy(CLASSES[0](tokens, sequence_length=128, padding="max_length")(raw)["token_ids"])
    inputs, labels, weights = preprocessor(raw)
    changed, labels, weights = numpy(inputs["token_ids"]), numpy(labels), numpy(weights)
    positions = numpy(inputs["mask_positions"])
    assert positions.shape == labels.shape == weights.shape == (400, 20)  # ceil(0.15 * 128)
    assert set(np.unique(weights)) <= {0.0, 1.0}
    rows = np.repeat(np.arange(400)[:, None], 20, 1)[weights == 1]
    chosen = positions[weights == 1]
    original, now = plain[rows, chosen], changed[rows, chosen]
    np.testing.assert_array_equal(original, labels[weights == 1])
    assert (original >= len(SPECIAL)).all()
    assert len(set(zip(rows.tolist(), chosen.tolist(), strict=True))) == len(rows)
    untouched = np.ones_like(plain, bool)
    untouched[rows, chosen] = False
    np.testing.assert_array_equal(changed[untouched], plain[untouched])

    n = len(rows)
    selectable = (plain >= len(SPECIAL)).sum()
    assert abs(n / selectable - 0.15) < 0.005  # rounded to whole tokens in each text
    # a random token is the old one once in 48 times
    # five standard deviations of a binomial of 6,700 draws
    masked, same = (now == MASK).mean(), (now == original).mean()
    assert abs(masked - (0.8 + 0.1 / 48)) < 5 * np.sqrt(0.8 * 0.2 / n)
    assert abs(same - (0.1 + 0.1 / 48)) < 5 * np.sqrt(0.1 * 0.9 / n)
    random_tokens = now[(now != MASK) & (now != original)]
    counts = np.bincount(random_tokens, minlength=48)
    # chi-square of 47 cells ([MASK] cannot be told from the 80 %): mean 46, standard deviation 10
    share = len(random_tokens) / 47
    assert ((np.delete(counts, MASK) - share) ** 2 / share).sum() < 46 + 6 * 10

    again = preprocessor(raw)
    assert (numpy(again[0]["token_ids"]) != changed).any()


def test_masking_is_repeatable_with_a_seed(tokens, rng):
    raw = texts(rng, 8, 8, 12)
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(123)
        preprocessor = CLASSES[1](tokens, sequence_length=16, mask_selection_rate=0.4)
        results.append([numpy(preprocessor(raw)[0]["token_ids"]) for _ in range(2)])
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0][0] != results[0][1]).any()


def test_every_epoch_is_masked_again(tokens, rng):
    """Even with a seed, though TensorFlow's random operations repeat in each pass over data."""
    keras.utils.set_random_seed(123)
    preprocessor = CLASSES[1](tokens, sequence_length=16, mask_selection_rate=0.4)
    dataset = tf.data.Dataset.from_tensor_slices(texts(rng, 8, 8, 12)).batch(8).map(preprocessor)
    epochs = [next(iter(dataset))[0]["token_ids"].numpy() for _ in range(3)]
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()


def test_every_text_has_a_mask(tokens):
    """As in BERT: at least one token, and none where there is none to choose."""
    preprocessor = CLASSES[1](tokens, sequence_length=8, mask_token_rate=1.0, random_token_rate=0.0)
    inputs, labels, weights = preprocessor(["天", "地玄黄", ""])
    assert numpy(weights).sum(1).tolist() == [1, 1, 0]
    assert numpy(inputs["token_ids"])[0].tolist()[:3] == [CLS, MASK, SEP]
    assert numpy(labels)[0, 0] == ids("天")[0] and numpy(labels)[2].sum() == 0
    one = preprocessor("地玄黄")
    assert numpy(one[0]["mask_positions"]).shape == (2,) and numpy(one[2]).tolist() == [1, 0]


def test_masking_options(tokens, rng):
    raw = texts(rng, 50, 10, 14)
    preprocessor = CLASSES[1](
        tokens,
        sequence_length=16,
        mask_selection_rate=0.5,
        mask_selection_length=4,
        mask_token_rate=1.0,
        random_token_rate=0.0,
    )
    inputs, labels, weights = preprocessor(raw)
    assert numpy(weights).sum() == 4 * 50  # half of ten and more, cut at four
    assert (numpy(inputs["token_ids"]) == MASK).sum() == 200


@pytest.mark.parametrize("cls", CLASSES)
def test_config_round_trip(tokens, cls):
    options = {"sequence_length": 9, "truncate_from": "left", "padding": "max_length"}
    if cls is CLASSES[1]:
        options |= {"mask_selection_rate": 0.3, "mask_selection_length": 3}
        options |= {"mask_token_rate": 0.7, "random_token_rate": 0.2}
    config = cls(tokens, **options).get_config()
    assert {name: config[name] for name in options} == options
    assert cls.from_config({**config}).get_config() == config


@pytest.mark.parametrize("cls", CLASSES)
def test_wrong_options(tokens, cls):
    with pytest.raises(ValueError, match="`padding` must be one of .* Received: padding='left'"):
        cls(tokens, padding="left")
    with pytest.raises(ValueError, match="`truncate_from` must be 'right', 'left' or an integer"):
        cls(tokens, truncate_from="middle")(["天"])
    for length in (0, 1, "8", 7.5):
        with pytest.raises(ValueError, match="`sequence_length` must be an integer of at least 2"):
            cls(tokens, sequence_length=length)
