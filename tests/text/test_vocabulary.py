"""Vocabulary files: unusual ones are read as by the original, broken ones raise errors."""

import pytest

from roformer_tf.checkpoint.vocabulary import Vocabulary, assign_ids, list_tokens
from roformer_tf.text import RoFormerTokenizer, load_vocabulary, simplify_vocabulary
from tests.text.conftest import SPECIAL


# what bert4keras 0.11.5 reads
@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("a\nb\n", {"a": 0, "b": 1}),
        ("a\nb", {"a": 0, "b": 1}),
        ("a\nb\na\nc\n", {"a": 2, "b": 1, "c": 2}),
        ("x y\n\n\u3000\nz\n", {"x": 0, "": 2, "z": 2}),
        ("a\r\nb\r\n", {"a": 0, "b": 1}),
        ("a\rb\n", {"a": 0, "b": 1}),
        ("a\u2028b\nc", {"a": 0, "c": 1}),
        ("\ufeffa\nb\n", {"\ufeffa": 0, "b": 1}),
        ("追一 1207\n", {"追一": 0}),
    ],
)
def test_odd_files_are_read_as_the_original_does(content, ids, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content.encode())
    assert load_vocabulary(path) == ids
    assert Vocabulary(path).ids == ids
    # the mapping can be written to a file again
    assert assign_ids(list_tokens(ids)) == ids
    assert Vocabulary(ids).ids == ids


def test_a_mapping_in_any_order():
    assert list_tokens({"b": 1, "a": 0, "c": 2}) == ["a", "b", "c"]


def test_a_shared_id():
    tokens = [*SPECIAL, "a", "b", "a", "c"]
    vocabulary = Vocabulary(tokens)
    assert (vocabulary.size, vocabulary.token(5), vocabulary.token(7)) == (8, None, "c")
    tokenizer = RoFormerTokenizer(tokens, word_level=False)
    assert tokenizer(["a b c"]) == [[7, 6, 7]]
    assert tokenizer.vocabulary_size() == 8
    assert tokenizer.get_vocabulary() == tokens
    with pytest.raises(ValueError, match=r"in \[0, 8\)"):
        tokenizer.id_to_token(5)
    # a last line that repeats a token gives it an id beyond the number of tokens
    assert Vocabulary(["a", "b", "a"]).size == 3


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, FileNotFoundError, "is missing: it is the vocabulary"),
        (b"", ValueError, "has no tokens"),
        (b"\n\n", ValueError, "has no tokens"),
        ("你好".encode("gbk"), ValueError, "must be UTF-8 text; byte 0 is not"),
        (
            b"[PAD]\n[UNK]\n[CLS]\n",
            ValueError,
            r"lacks the special or added tokens \['\[MASK\]', '\[SEP\]'\]",
        ),
        (b"\xef\xbb\xbf" + "\n".join(SPECIAL).encode(), ValueError, "byte order mark"),
    ],
)
def test_broken_files(content, error, message, tmp_path):
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        RoFormerTokenizer(path, word_level=False)


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ([], "empty"),
        ({}, "empty"),
        ([*SPECIAL, "a b"], "without white space"),
        ([*SPECIAL, " "], "without white space"),
        ([*SPECIAL, 7], "without white space"),
        ({"a": 0, "b": 5}, "number them 0, 1, 2"),
        ({"a": 0, "b": 0}, "number them 0, 1, 2"),
    ],
)
def test_broken_lists(vocabulary, message):
    with pytest.raises(ValueError, match=message):
        RoFormerTokenizer(vocabulary, word_level=False)


def test_simplify_names_what_is_missing():
    with pytest.raises(ValueError, match=r"not in the vocabulary: \['\[CLS\]'\]"):
        simplify_vocabulary(["[PAD]", "a"], ["[PAD]", "[CLS]"])


def test_simplify_keeps_the_tokenizer_s_results(tokenizers, vocabulary_path, texts):
    """Every character-level token except the redundant ones is kept, with the id in `keep`."""
    vocabulary, keep = simplify_vocabulary(vocabulary_path, SPECIAL)
    small = RoFormerTokenizer(vocabulary, word_level=False)
    old, new = tokenizers("char")(texts["real"][:500]), small(texts["real"][:500])
    assert [[keep[i] for i in row] for row in new] == old
