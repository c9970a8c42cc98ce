"""Special and added tokens in strings, offsets of `encode`, pairs as text, names from elsewhere."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.text import RoFormerTokenizer
from roformer_tf.text.familiar_names import _NAMES
from tests.text.conftest import SPECIAL, VOCABULARY

TEXT = "追a[MASK] é[SEP]一。[MASK][MASK]\N{PILE OF POO}[CLS"


@pytest.fixture(scope="module")
def with_specials():
    return RoFormerTokenizer(VOCABULARY, word_level=False, special_tokens_in_strings=True)


def test_special_tokens_in_strings(with_specials, by_character):
    """The tokens of the parts of a text, with those special tokens in between."""
    parts = ["追a", "[MASK]", " é", "[SEP]", "一。", "[MASK]", "[MASK]", "\N{PILE OF POO}[CLS"]
    assert "".join(parts) == TEXT
    expected, spans, begin = [], [], 0
    for part in parts:
        if part in SPECIAL:
            expected.append(SPECIAL.index(part))
            spans.append((begin, begin + len(part)))
        else:
            ids, starts, ends = by_character.tokenize_with_offsets([part])
            expected += ids[0]
            spans += [(begin + i, begin + j) for i, j in zip(starts[0], ends[0])]
        begin += len(part)
    assert with_specials([TEXT, "", "[PAD]"]) == [expected, [], [0]]
    ids, starts, ends = with_specials.tokenize_with_offsets([TEXT])
    assert ids[0] == expected and list(zip(starts[0], ends[0])) == spans
    assert by_character([TEXT]) != [expected]  # by default they are text
    ids, word_starts = with_specials.tokenize_with_word_starts([TEXT])
    assert ids[0] == expected
    masks = [i for i, token in enumerate(expected) if token == SPECIAL.index("[MASK]")]
    assert len(masks) == 3 and all(word_starts[0][i] for i in masks)
    in_graph = tf.function(with_specials)(tf.constant([TEXT]))
    assert in_graph.to_list() == [expected]


def test_a_broken_byte_is_one_character(with_specials):
    _, starts, ends = with_specials.tokenize_with_offsets([b"a\xff[MASK]a"])
    assert (starts, ends) == ([[0, 2, 8]], [[1, 8, 9]])


@pytest.mark.parametrize("word_level", [False, True])
def test_added_tokens(word_level, dictionary, tmp_path):
    options = {"dictionary": dictionary, "word_level": word_level}
    tokenizer = RoFormerTokenizer(VOCABULARY, **options)
    before = tokenizer(["追一科技a"])
    size = tokenizer.vocabulary_size()
    assert tokenizer.add_tokens(["<B>", "追一科", "科技"]) == 2  # the last one is there already
    assert tokenizer.vocabulary_size() == size + 2
    assert tokenizer.added_tokens == ["<B>", "追一科", "科技"]
    [ids] = tokenizer(["追一科技<B>科技a"])
    expected = [size + 1, *tokenizer(["技"])[0], size, VOCABULARY.index("科技")]
    assert ids == [*expected, VOCABULARY.index("a")]
    assert RoFormerTokenizer(VOCABULARY, **options)(["追一科技a"]) == before
    tokenizer.save_assets(tmp_path)
    again = RoFormerTokenizer.from_config(tokenizer.get_config())
    again.load_assets(tmp_path)
    assert again(["追一科技<B>科技a"]) == [ids]
    assert again.detokenize(ids[:1]) == "追一科"
    with pytest.raises(ValueError, match="lacks the special or added tokens"):
        RoFormerTokenizer(VOCABULARY, added_tokens=["missing"], **options)
    for wrong in ("<B>", [""], ["a b"], [3]):
        with pytest.raises(ValueError, match="list of strings without white space"):
            tokenizer.add_tokens(wrong)


def test_the_longest_of_tokens_with_common_beginnings(rng):
    tokens = {"".join(rng.choice(list("ab.[天"), rng.integers(1, 6))) for _ in range(300)}
    text = "".join(rng.choice(list("ab.[天"), 400))
    tokenizer = RoFormerTokenizer([*SPECIAL, *sorted(tokens)], word_level=False)
    tokenizer.add_tokens(sorted(tokens))
    longest = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    expected = [tokenizer.token_to_id(token) for token in re.findall(longest, text)]
    assert tokenizer([text]) == [expected]


def test_added_tokens_in_brackets_are_written(by_character):
    tokenizer = RoFormerTokenizer(VOCABULARY, word_level=False)
    tokenizer.add_tokens(["[LAUGH]", "[MASK]"])  # the latter is special
    ids = tokenizer.encode("追[LAUGH]一[MASK]a [LAUGH]")[0]
    assert tokenizer.detokenize(ids) == "追[LAUGH]一a [LAUGH]"
    grown = RoFormerTokenizer(tokenizer.get_vocabulary(), word_level=False)
    assert grown.detokenize(ids) == by_character.detokenize(by_character.encode("追一a")[0])


def test_new_tokens_share_no_id():
    """The ids of a repeated line leave gaps that a file cannot fill."""
    tokenizer = RoFormerTokenizer([*VOCABULARY, VOCABULARY[-1]], word_level=False)
    vocabulary = tokenizer.get_vocabulary()
    with pytest.raises(ValueError, match="repeats tokens at its end"):
        tokenizer.add_tokens(["<A>"])
    assert tokenizer.get_vocabulary() == vocabulary and tokenizer.added_tokens == []
    last = VOCABULARY[-2]  # repeated, and another token after it
    tokenizer = RoFormerTokenizer([*VOCABULARY[:-1], last, VOCABULARY[-1]], word_level=False)
    assert tokenizer.add_tokens(["<A>"]) == 1
    ids = [tokenizer.token_to_id(token) for token in tokenizer.get_vocabulary()]
    assert ids.count(tokenizer.token_to_id("<A>")) == 1


def test_offsets_of_encode(by_character):
    """Each token's span is that of `tokenize_with_offsets`, in its own text; special ones have none."""
    first, second = ["追一 é。", "a"], ["Roformer b", "科技的"]
    for limit in (None, 12, 8, 6):
        ids, segments, starts, ends = by_character.encode(
            first, second, max_length=limit, return_offsets=True
        )
        assert (ids, segments) == by_character.encode(first, second, maxlen=limit)
        for row in range(2):
            for number, texts in enumerate((first, second)):
                own = list(zip(*(x[row] for x in by_character.tokenize_with_offsets(texts))))
                found = zip(ids[row], segments[row], starts[row], ends[row])
                found = [(i, s, e) for i, segment, s, e in found if segment == number]
                assert found[-1] == (3, 0, 0)
                kept = [span for span in found if span[0] not in (2, 3)]
                assert kept == own[: len(kept)]
                if limit is None:
                    assert kept == own
    outputs = by_character.encode("追一", return_offsets=True)
    assert [np.asarray(x).tolist() for x in outputs[2:]] == [[0, 0, 1, 0], [0, 1, 2, 0]]
    with pytest.raises(ValueError, match="`maxlen` is bert4keras' name of `max_length`"):
        by_character.encode("a", max_length=3, maxlen=3)
    with pytest.raises(ValueError, match="`max_length` must be None or an integer of at least 1"):
        by_character.encode("a", max_length=0)


def test_truncation_is_that_of_the_longer_text(by_character):
    ids, _ = by_character.encode("a" * 3 + " a" * 9, "b", max_length=6)
    assert len(ids) == 6 and np.asarray(ids).tolist()[-2:] == [VOCABULARY.index("b"), 3]


def test_pairs_as_text(by_character):
    pair, _ = by_character.encode(["追一", "a", ""], ["科 b", "", ""])
    assert by_character.detokenize(pair) == ["追一\n科b", "a", ""]
    assert by_character.detokenize(pair, separator="") == ["追一科b", "a", ""]
    assert by_character.detokenize(pair[0], separator=" / ") == "追一 / 科b"
    ragged = tf.ragged.constant([[], [3, 3], [5, 3, 3, 6, 3, 7], []], tf.int32)
    texts = tf.function(by_character.detokenize)(ragged)
    assert [text.decode() for text in texts.numpy()] == ["", "", "追\n一\n科", ""]


def test_names_from_elsewhere(by_character):
    for name, ours in _NAMES.items():
        with pytest.raises(AttributeError, match=f"has no `{name}`. Use `") as error:
            getattr(by_character, name)
        assert str(error.value).endswith(f"Use {ours}.")
        for word in ours.split("`")[1::2]:  # and they exist
            attribute = word.removeprefix("[tokenizer.").split("(")[0].split(" ")[0]
            assert hasattr(type(by_character), attribute) or hasattr(by_character, attribute), word
    with pytest.raises(AttributeError, match="'RoFormerTokenizer' object has no attribute 'x'"):
        by_character.x  # noqa: B018
    keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(by_character))
