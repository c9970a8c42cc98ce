"""The tokenizer as a Keras layer: all forms of input, and unusual input."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.text import RoFormerTokenizer
from tests.text.conftest import SPECIAL, VOCABULARY


def tokens_of(tokenizer, ids):
    return [tokenizer.id_to_token(i) for i in ids]


# -- kinds of input


def test_every_form_of_strings(tokenizer):
    texts = ["追一科技", "", "roformer的a"]
    expected = [[13, 14], [], [15, 16, 9, 10]]
    for batch in (
        texts,
        tuple(texts),
        [text.encode() for text in texts],
        np.array(texts),
        np.array([text.encode() for text in texts], object),
        tf.constant(texts),
    ):
        assert tokenizer(batch) == expected
        assert tokenizer.tokenize(batch) == expected
    for text in (texts[0], texts[0].encode(), tf.constant(texts[0]), np.array(texts[0])):
        ids = tokenizer(text)
        assert keras.backend.standardize_dtype(ids.dtype) == "int32"
        assert np.asarray(ids).tolist() == expected[0]
    assert tokenizer([["追一", "科技"], ["的"]]) == [[[13], [14]], [[9]]]
    assert tokenizer(tf.constant([["追一", "科技"], ["的", ""]])) == [[[13], [14]], [[9], []]]
    assert tokenizer(tf.ragged.constant([["追一"], [], ["的", "a"]])) == [[[13]], [], [[9], [10]]]
    ids, starts, ends = tokenizer.tokenize_with_offsets([["追一", "科技"], ["的"]])
    assert (ids[1], starts[0], ends[0]) == ([[9]], [[0], [0]], [[2], [2]])
    ids, starts, ends = tokenizer.tokenize_with_offsets("的 RoFormer")
    assert [np.asarray(x).tolist() for x in (ids, starts, ends)] == [
        [9, 15, 16],
        [0, 2, 4],
        [1, 4, 10],
    ]


@pytest.mark.parametrize("wrong", [7, None, [None], ["a", 7], tf.constant([1]), np.array([1.5])])
def test_inputs_that_are_not_strings(wrong, tokenizer):
    with pytest.raises(TypeError, match="The tokenizer takes strings"):
        tokenizer(wrong)


def test_in_tf_data_and_tf_function(tokenizer):
    texts = ["追一科技", "", "roformer的a", "b"]
    expected = tokenizer(texts)
    data = tf.data.Dataset.from_tensor_slices(texts)
    assert [x.numpy().tolist() for x in data.map(tokenizer)] == expected
    batches = list(data.batch(3).map(tokenizer, num_parallel_calls=2))
    assert [row for batch in batches for row in batch.to_list()] == expected
    assert all(isinstance(batch, tf.RaggedTensor) for batch in batches)
    ragged = tf.function(tokenizer)(tf.constant(texts))
    assert ragged.to_list() == expected
    assert tf.function(tokenizer.detokenize)(ragged).numpy().tolist() == [
        text.encode() for text in tokenizer.detokenize(expected)
    ]
    _, starts, _ = tf.function(tokenizer.tokenize_with_offsets)(tf.constant(texts))
    assert starts.to_list() == [[0, 2], [], [0, 2, 8, 9], [0]]
    ids, _ = tf.function(lambda x: tokenizer.encode(x, x, maxlen=5))(tf.constant(texts))
    assert ids.to_list() == tokenizer.encode(texts, texts, maxlen=5)[0]


def test_sequence_length(dictionary):
    tokenizer = RoFormerTokenizer(
        [*SPECIAL[1:], "[PAD]", "追", "一"], dictionary=dictionary, sequence_length=3
    )
    expected = [[5, 6, 5], [4, 4, 4], [5, 4, 4]]
    assert np.asarray(tokenizer(["追一追一", "", "追"])).tolist() == expected
    assert np.asarray(tokenizer("追")).tolist() == expected[2]
    spec = tf.data.Dataset.from_tensors(["追"]).map(tokenizer).element_spec
    assert spec == tf.TensorSpec([None, 3], tf.int32)


# -- unusual input, as the class docstring defines it


@pytest.mark.parametrize(
    "mode", ["word", pytest.param("word_cased", marks=pytest.mark.slow), "char", "char_cased"]
)
def test_invalid_utf8_counts_as_replacement_characters(mode, tokenizers, texts, rng):
    tokenizer = tokenizers(mode)
    broken = []
    for text in texts["hostile"][-600:]:
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        for _ in range(3):
            place = int(rng.integers(len(data) + 1))
            junk = rng.integers(128, 256, rng.integers(1, 4)).astype(np.uint8).tobytes()
            data[place : place + int(rng.integers(3))] = junk
        broken.append(bytes(data))
    replaced = [data.decode("utf-8", "replace") for data in broken]
    assert tokenizer(broken) == tokenizer(replaced)
    assert tokenizer.tokenize_with_offsets(broken) == tokenizer.tokenize_with_offsets(replaced)


@pytest.mark.parametrize(
    ("text", "char", "word"),
    [
        ("", [], []),
        (" \t\n\u3000\xa0\u2028", [], []),
        ("\0\x01\x7f\ufffd\u200b", [], []),
        ("r\0o\u200bformer", ["ro", "##former"], ["[UNK]", "[UNK]", "[UNK]"]),
        ("追\0一", ["追", "一"], ["追", "一"]),
        ("a\u2028b", ["a", "b"], ["a", "b"]),
        ("a\ud83db", ["[UNK]"], ["a", "[UNK]", "b"]),
        ("[MASK]", ["[UNK]"] * 3, ["[UNK]"] * 3),
        ("😀", ["[UNK]"], ["[UNK]"]),
        ("ＲＯ", ["[UNK]"], ["[UNK]"] * 2),
        ("a\u0301\u0302", ["a"], ["a"]),
        ("\u0301", [], []),
        (b"a\xffb", ["[UNK]"], ["a", "b"]),
    ],
)
def test_unusual_input(text, char, word, tokenizer, by_character):
    assert tokens_of(by_character, np.asarray(by_character(text))) == char
    assert tokens_of(tokenizer, np.asarray(tokenizer(text))) == word
    ids, starts, ends = tokenizer.tokenize_with_offsets([text])
    assert len(ids[0]) == len(starts[0]) == len(ends[0])


def test_empty_batches(tokenizer):
    for empty in ([], np.array([], object), tf.zeros([0], tf.string)):
        assert tokenizer(empty) == []
        assert tokenizer.tokenize_with_offsets(empty) == ([], [], [])
        assert tokenizer.encode(empty) == ([], [])
    assert tokenizer.detokenize([]) == ""
    assert tokenizer.detokenize([[], []]) == ["", ""]
    assert tokenizer(["", ""]) == [[], []]


def test_a_megabyte(tokenizers, texts):
    """One long text among short ones: they do not take the space of the longest."""
    long = "".join(texts["real"])[:400_000]
    assert len(long.encode()) > 1_000_000
    tokenizer = tokenizers("word")
    rows = tokenizer([long, *texts["real"][:1000]])
    assert rows[1:] == tokenizer(texts["real"][:1000])
    # split where no word crosses: the whole has the tokens of its parts
    parts = long.replace("，", "，\n").split("\n")
    assert rows[0] == [i for row in tokenizer(parts) for i in row]
    by_character = tokenizers("char")
    assert by_character(["a" * 1_000_000, "我" * 340_000])[0] == [by_character.unk_token_id]


# -- vocabulary and special tokens


def test_special_tokens_are_looked_up(tokenizer):
    names = ["pad", "unk", "start", "end", "mask"]
    assert [getattr(tokenizer, f"{name}_token_id") for name in names] == [0, 1, 2, 3, 4]
    assert sorted(tokenizer.special_token_ids) == [0, 1, 2, 3, 4]
    other = RoFormerTokenizer(
        ["<a>", "<b>", "x", "<c>", "[UNK]"],
        word_level=False,
        pad_token="<c>",
        start_token="<a>",
        end_token="<b>",
        mask_token=None,
    )
    assert [getattr(other, f"{name}_token_id") for name in names] == [3, 4, 0, 1, None]
    assert sorted(other.special_token_ids) == [0, 1, 3, 4]
    assert other.encode(["x y"])[0] == [[0, 2, 4, 1]]
    with pytest.raises(ValueError, match="`unk_token` must be"):
        RoFormerTokenizer(VOCABULARY, word_level=False, unk_token=None)
    with pytest.raises(ValueError, match="int32"):
        RoFormerTokenizer(VOCABULARY, word_level=False, dtype="string")


def test_tokens_and_ids(tokenizer):
    assert tokenizer.get_vocabulary() == VOCABULARY
    assert tokenizer.vocabulary_size() == len(VOCABULARY)
    assert all(tokenizer.token_to_id(tokenizer.id_to_token(i)) == i for i in range(len(VOCABULARY)))
    with pytest.raises(ValueError, match="'x' is not in the vocabulary"):
        tokenizer.token_to_id("x")
    for wrong in (-1, len(VOCABULARY)):
        with pytest.raises(ValueError, match="`id` must be the id of a token"):
            tokenizer.id_to_token(wrong)
        with pytest.raises(tf.errors.InvalidArgumentError, match="token ids must be in"):
            tokenizer.detokenize([5, wrong])


def test_before_the_vocabulary_is_set():
    tokenizer = RoFormerTokenizer()
    for call in (
        lambda: tokenizer("a"),
        lambda: tokenizer.detokenize([1]),
        lambda: tokenizer.tokenize_with_offsets("a"),
        lambda: tokenizer.encode("a"),
        tokenizer.get_vocabulary,
        tokenizer.vocabulary_size,
        lambda: tokenizer.graph,
        lambda: tokenizer.save_assets("."),
    ):
        with pytest.raises(ValueError, match="has no vocabulary yet"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maxlen": -1}, "`maxlen` must be None or"),
        ({"maxlen": 2.5}, "`maxlen` must be None or"),
        ({"truncate_from": "both"}, "`truncate_from` must be"),
        ({"pattern": "S*E"}, "`pattern` must be"),
        ({"second": ["a", "b"]}, "must both be strings"),
    ],
)
def test_encode_errors(arguments, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        tokenizer.encode("a", **arguments)
