"""Compares `RoFormerTokenizer` with bert4keras' tokenizer, run on the same texts.

All in one file: the original takes some 20 seconds for its side, in each process of tests.
"""

import numpy as np
import pytest
import tensorflow as tf

from roformer_tf.text import simplify_vocabulary
from roformer_tf.text.graph_tokenizer import tokenize_with_word_starts
from roformer_tf.text.strings import to_string_tensor
from tests.text.conftest import MODES, SIMPLIFIED_START, WITH_OFFSETS

pytestmark = [pytest.mark.oracle, pytest.mark.slow]  # test_golden.py has recorded outputs
BATCH = 2000


def in_batches(function, texts):
    """Returns (values, lengths) of each RaggedTensor that `function` makes of the texts."""
    parts = []
    for i in range(0, len(texts), BATCH):
        outputs = function(to_string_tensor(texts[i : i + BATCH]))
        parts.append(outputs if isinstance(outputs, tuple) else (outputs,))
    return [
        (
            np.concatenate([x.values.numpy() for x in column]),
            np.concatenate([x.row_lengths().numpy() for x in column]),
        )
        for column in zip(*parts, strict=True)
    ]


def assert_same_rows(texts, ours, theirs, what):
    """Asserts that two (values, lengths) are equal, or shows the first texts that differ."""
    if all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)):
        return
    ours, theirs = split_rows(*ours), split_rows(*theirs)
    wrong = [
        (text, a.tolist(), b.tolist())
        for text, a, b in zip(texts, ours, theirs, strict=True)
        if not np.array_equal(a, b)
    ]
    shown = "\n".join(f"{t[:200]!a}\n  ours   {a[:60]}\n  theirs {b[:60]}" for t, a, b in wrong[:5])
    raise AssertionError(f"{what}: {len(wrong)} of {len(texts)} texts differ:\n{shown}")


def split_rows(values, lengths):
    return np.split(values, np.cumsum(lengths)[:-1])


def ragged(theirs, name):
    """Values and lengths of the rows of an answer."""
    return theirs[f"{name}.values"], theirs[f"{name}.lengths"]


def word_starts(graph, segmenter, inputs):
    """Those of `tokenize_with_word_starts`, whose ids must be the plain ones."""
    ids, begins = in_batches(lambda x: tokenize_with_word_starts(graph, segmenter, x), inputs)
    (plain,) = in_batches(graph, inputs)
    assert_same_rows(inputs, ids, plain, "ids of tokenize_with_word_starts")
    return begins


def test_there_are_enough_texts(texts):
    assert len(set(texts["real"])) >= 30_000
    assert len(set(texts["hostile"])) >= 2_000


@pytest.mark.parametrize("mode", MODES)
def test_ids(mode, tokenizers, requests, original):
    inputs, theirs = requests[f"ids_{mode}"][2], original(f"ids_{mode}")
    (ours,) = in_batches(tokenizers(mode).graph, inputs)
    assert_same_rows(inputs, ours, ragged(theirs, "ids"), f"ids, {mode}")


@pytest.mark.parametrize("mode", ["word", "word_cased", "char", "char_cased"])
def test_offsets(mode, tokenizers, requests, original):
    inputs, theirs = requests[f"offsets_{mode}"][2], original(f"offsets_{mode}")
    tokenizer = tokenizers(mode)
    ids, *ours = in_batches(tokenizer.graph.tokenize_with_offsets, inputs)
    (plain,) = in_batches(tokenizer.graph, inputs)
    assert_same_rows(inputs, ids, plain, "ids of tokenize_with_offsets")
    ok = theirs["ok"]
    assert ok.mean() > 0.9, "the original's own rematch fails too often to compare"
    texts = [text for text, good in zip(inputs, ok, strict=True) if good]
    starts, ends = (split_rows(*x) for x in ours)
    their_starts, their_ends = (split_rows(*ragged(theirs, name)) for name in ("starts", "ends"))
    if MODES[mode]["lowercase"]:  # the original counts in the lower-cased text
        for text, begin, end in zip(inputs, their_starts, their_ends, strict=True):
            if "\u0130" in text:
                place = np.array([i for i, c in enumerate(text) for _ in c.lower()])
                begin[:], end[:] = place[begin], place[end - 1] + 1

    def good(rows):
        rows = [row for row, fine in zip(rows, ok, strict=True) if fine]
        return np.concatenate(rows), np.array([len(row) for row in rows])

    assert_same_rows(texts, good(starts), good(their_starts), f"starts, {mode}")
    assert_same_rows(texts, good(ends), good(their_ends), f"ends, {mode}")


@pytest.mark.parametrize("mode", ["word", "char"])
def test_encode(mode, tokenizers, requests, original):
    """Pairs and single texts, truncated from each side and to unusual lengths."""
    calls, theirs = requests[f"encode_{mode}"][2], original(f"encode_{mode}")
    rows = [split_rows(*ragged(theirs, name)) for name in ("ids", "segments")]
    tokenizer = tokenizers(mode)
    groups = {}  # calls that can share a batch
    for i, call in enumerate(calls):
        key = (call["second_text"] is None, call["maxlen"], call["truncate_from"], call["pattern"])
        groups.setdefault((*key, bool(theirs["ok"][i])), []).append(i)
    compared = 0
    for (single, maxlen, truncate_from, pattern, ok), members in groups.items():
        first = to_string_tensor([calls[i]["first_text"] for i in members])
        second = None if single else to_string_tensor([calls[i]["second_text"] for i in members])
        arguments = {"maxlen": maxlen, "truncate_from": truncate_from, "pattern": pattern}
        if not ok:  # the original raises IndexError for each of them
            with pytest.raises(tf.errors.InvalidArgumentError, match="cannot truncate"):
                tokenizer.encode(first, second, **arguments)
            continue
        ids, segments = tokenizer.encode(first, second, **arguments)
        for i, ours, our_segments in zip(members, ids, segments, strict=True):
            assert ours == rows[0][i].tolist(), calls[i]
            assert our_segments == rows[1][i].tolist(), calls[i]
            compared += 1
    assert compared > 1000


def test_detokenize(tokenizers, requests, original):
    rows = requests["decode"][2]
    texts = original("decode")["texts"]
    ours = tokenizers("char").detokenize(tf.ragged.constant(rows, tf.int32), separator="")
    wrong = [
        (row, a, b) for row, a, b in zip(rows, ours, texts, strict=True) if b is not None and a != b
    ]
    assert not wrong, f"{len(wrong)} of {len(rows)} differ: {wrong[:3]}"
    assert sum(text is not None for text in texts) > 1900


def test_simplified_vocabulary(vocabulary_path, original):
    vocabulary, keep = simplify_vocabulary(vocabulary_path, SIMPLIFIED_START)
    theirs = original("simplified")
    assert list(vocabulary) == theirs["tokens"]
    assert keep == theirs["keep"]


@pytest.mark.parametrize("mode", ["word", "word_cased", "char", "char_cased", "char_short"])
def test_words_of_the_original(mode, tokenizers, requests, original):
    inputs, theirs = requests[f"words_{mode}"][2], original(f"words_{mode}")
    begins, lengths = word_starts(tokenizers(mode).graph, None, inputs)
    ours = begins.astype(np.int32), lengths
    assert_same_rows(inputs, ours, ragged(theirs, "begins"), f"words, {mode}")


@pytest.mark.parametrize("case", ["", "_cased"])
def test_characters_with_the_words_of_jieba(case, tokenizers, requests, original):
    inputs, theirs = requests[f"segmented_word{case}"][2], original(f"segmented_word{case}")
    graph, segmenter = tokenizers(f"char{case}").graph, tokenizers(f"word{case}").graph
    ours, words = word_starts(graph, segmenter, inputs), ragged(theirs, "begins")
    rows = zip(inputs, split_rows(*ours), split_rows(*words), theirs["ok"], strict=True)
    # where jieba splits what is one token, there is nothing to compare with
    assert theirs["ok"][: WITH_OFFSETS // 8].mean() > 0.9  # of the real texts
    for text, ours, expected, ok in rows:
        assert not ok or ours.astype(int).tolist() == expected.tolist(), ascii(text)
