import keras
import numpy as np
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_preprocessor import (
    RoFormerPreprocessor,
    TextPreprocessor,
    row_lengths,
)
from roformer_tf.text.ragged_ops import ragged_rows, ranges
from roformer_tf.text.strings import to_string_tensor

FORMS = (("question", "choices"), ("context", "question", "choices"), ("left", "choices", "right"))


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerMultipleChoicePreprocessor(RoFormerPreprocessor, TextPreprocessor):
    """Turns questions and their choices into the inputs of a `RoFormerMultipleChoice`.

    Each choice becomes a sequence: `[CLS] context [SEP] question [SEP] choice [SEP]`, or without a
    context `[CLS] question [SEP] choice [SEP]`. What is too long loses tokens at the end of its
    longest part. A text with a gap becomes `[CLS] left [SEP] choice [SEP] right [SEP]`, and loses
    tokens on the longer side, those far from the gap.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: int. Maximum number of tokens in a sequence, special tokens included.
        pair_segments: bool. Whether a choice has segment id 1. The scripts of the original's v2 use
            0 everywhere.
        padding: `"longest"` or `"max_length"`; see `RoFormerTextClassifierPreprocessor`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: dictionary of string tensors: `question` `(batch,)`, `choices` `(batch, choices)` and
            optionally `context` `(batch,)`; or `left` `(batch,)`, `choices` and `right` `(batch,)`.
            Questions with fewer choices than others are padded with "".
        y: Labels, passed through.
        sample_weight: Weights, passed through.

    Returns:
        Dictionary of int32 tensors `token_ids`, `segment_ids` and `padding_mask`, each
        `(batch, choices, length)`. A choice that is padding has a `padding_mask` of 0 throughout.
        With `y` or `sample_weight` a tuple `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ValueError: If `padding` is unknown, `sequence_length` is less than 8, or `x` has other
            keys.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "谁", "我", "和", "你"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerMultipleChoicePreprocessor(tokenizer)
    >>> x = preprocessor({"question": ["谁", "和"], "choices": [["你", "我"], ["我", ""]]})
    >>> x["token_ids"].numpy().tolist()
    [[[2, 5, 3, 8, 3], [2, 5, 3, 6, 3]], [[2, 7, 3, 6, 3], [0, 0, 0, 0, 0]]]

    Reference: `clue/c3.py` and `clue/chid.py` of the original's v2.
    """

    def __init__(
        self, tokenizer, sequence_length=512, pair_segments=True, padding="longest", **kwargs
    ):
        super().__init__(tokenizer, sequence_length, padding=padding, **kwargs)
        if sequence_length < 8:
            raise ValueError(
                "`sequence_length` must have room for four special tokens and each part: at least "
                f"8. Received: sequence_length={sequence_length}"
            )
        self.pair_segments = pair_segments

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        is_batch = x["choices"].shape.rank > 1
        if not is_batch:
            x = {name: part[tf.newaxis] for name, part in x.items()}
        inputs = self.pack(x)
        if not is_batch:
            inputs = {name: part[0] for name, part in inputs.items()}
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def pack(self, x):
        """Tokenizes and packs a dictionary of string tensors; single texts for `embed`, too."""
        if not isinstance(x, dict):
            return super().pack(x)
        x = {name: _dense(x[name]) for name in form_of(x)}
        names = tuple(x)
        return self.as_graph(
            ("pack", names), lambda *parts: self._packed(dict(zip(names, parts))), *x.values()
        )

    def _packed(self, x):
        names, choices = tuple(x), x["choices"]
        count = tf.shape(choices)[1]
        is_real = tf.reshape(choices, [-1]) != ""
        row = tf.repeat(tf.range(tf.shape(choices)[0]), count)
        tokenize = self.tokenizer.graph
        ids = {  # a context is tokenized once, and not once for each of its choices
            name: tokenize(tf.reshape(choices, [-1]))
            if name == "choices"
            else tf.gather(tokenize(x[name]), row)
            for name in names
        }
        ids = self._truncated(ids)

        start, end, pad = self.packing_settings()[0]
        ends = tf.fill([tf.size(row), 1], end)
        parts = [tf.fill([tf.size(row), 1], start)]
        for name in names:
            parts += [ids[name], ends]
        rows = tf.concat(parts, axis=1)
        token_ids = rows.to_tensor()
        width = tf.maximum(tf.shape(token_ids)[1], 1)  # 0 in an empty batch, which has no [CLS]
        width = self.sequence_length if self.padding == "max_length" else width
        token_ids = tf.pad(token_ids, [[0, 0], [0, width - tf.shape(token_ids)[1]]])
        mask = tf.sequence_mask(rows.row_lengths(), width) & is_real[:, tf.newaxis]

        position = tf.range(width)[tf.newaxis]
        before = names[: names.index("choices")]
        begin = 1 + sum(row_lengths(ids[name]) + 1 for name in before)
        stop = begin + row_lengths(ids["choices"]) + 1  # with its `[SEP]`
        in_choice = (position >= begin[:, tf.newaxis]) & (position < stop[:, tf.newaxis])
        inputs = {
            "token_ids": tf.where(mask, token_ids, pad),
            "segment_ids": tf.cast(mask & in_choice & self.pair_segments, tf.int32),
            "padding_mask": tf.cast(mask, tf.int32),
        }
        return {name: tf.reshape(part, [-1, count, width]) for name, part in inputs.items()}

    def _truncated(self, ids):
        """Returns the parts without the tokens for which there is no room."""
        room = self.sequence_length - 1 - len(ids)  # special tokens
        if "left" in ids:
            choices = ids["choices"][:, : room - 2]
            lengths = row_lengths(ids["left"]), row_lengths(ids["right"])
            of_left, of_right = kept_lengths(lengths, room - row_lengths(choices))
            left = _part(ids["left"], of_left, row_lengths(ids["left"]) - of_left)
            return {"left": left, "choices": choices, "right": _part(ids["right"], of_right)}
        names = [name for name in ("choices", "question", "context") if name in ids]
        kept = kept_lengths([row_lengths(ids[name]) for name in names], room)
        kept = dict(zip(names, kept))
        return {name: _part(part, kept[name]) for name, part in ids.items()}

    @preprocessing_function
    def count_tokens(self, x):
        if not isinstance(x, dict):
            return super().count_tokens(x)
        names, choices = form_of(x), _dense(x["choices"])
        of_choices = row_lengths(self.tokenizer.graph(tf.reshape(choices, [-1])))
        counts = tf.reduce_max(tf.reshape(of_choices, tf.shape(choices)), axis=1) + 1 + len(names)
        counts += sum(row_lengths(self.tokenizer.graph(x[n])) for n in names if n != "choices")
        return tf.minimum(counts, self.sequence_length)


def form_of(x):
    """Returns the names of the parts of a sequence in their order, or raises `ValueError`."""
    for names in FORMS:
        if isinstance(x, dict) and set(x) == set(names):
            return names
    found = sorted(x) if isinstance(x, dict) else type(x).__name__
    raise ValueError(
        "Expected a dictionary of `question`, `choices` and optionally `context`, or of `left`, "
        f"`choices` and `right`. Received: {found}"
    )


def kept_lengths(lengths, room):
    """Returns how many tokens of each part are kept if the longest part always loses the next one.

    Of equally long parts the first one loses it. Lengths are int32 tensors `(rows,)`, and so is the
    `room`, unless it is one number for all.

    Reference: `truncate_sequences` of bert4keras' `snippets.py`.
    """
    by_length = tf.sort(tf.stack(lengths), axis=0)
    # the longest j parts are cut to one limit, which no other part reaches
    limit = tf.zeros_like(by_length[0])
    shorter = tf.zeros_like(limit)
    for j in range(len(lengths), 0, -1):
        fair = (room - shorter) // j
        is_limit = fair >= (by_length[len(lengths) - j - 1] if j < len(lengths) else 0)
        limit = tf.where(is_limit, fair, limit)
        shorter += by_length[len(lengths) - j]
    kept = [tf.minimum(length, limit) for length in lengths]
    rest = room - tf.add_n(kept)
    for i in reversed(range(len(lengths))):
        more = tf.where((lengths[i] > kept[i]) & (rest > 0), 1, 0)
        kept[i] += more
        rest -= more
    return kept


def _dense(texts):
    return texts.to_tensor("") if isinstance(texts, tf.RaggedTensor) else texts


def _part(rows, counts, skipped=0):
    """Returns the first tokens of each row, or those after the first `skipped`."""
    starts = tf.cast(rows.row_starts(), tf.int32) + skipped
    return ragged_rows(tf.gather(rows.values, ranges(starts, counts)), counts)


def choice_tensor(choices):
    """Converts the choices of each question to a string tensor `(batch, choices)`, padded with "".

    Raises:
        ValueError: If a question has no choice, or a choice is empty.
        TypeError: If a choice is not a string.
    """
    if tf.is_tensor(choices):
        return _dense(choices)
    rows = [list(row) if isinstance(row, list | tuple | np.ndarray) else row for row in choices]
    if isinstance(choices, np.ndarray) and choices.ndim == 2:  # whose rows are padded
        rows = [[choice for choice in row if choice not in ("", b"")] for row in choices.tolist()]
    for i, row in enumerate(rows):
        if not isinstance(row, list) or not row or not all(row):
            raise ValueError(
                "Every question needs a list of choices, none of them empty. "
                f"Received: {row!r} for question {i}"
            )
        wrong = [choice for choice in row if not isinstance(choice, str | bytes)]
        if wrong:
            raise TypeError(
                f"Choices must be strings. Received: {wrong[0]!r} of type "
                f"{type(wrong[0]).__name__} for question {i}"
            )
    width = max(map(len, rows), default=0)
    flat = to_string_tensor([choice for row in rows for choice in row + [""] * (width - len(row))])
    return tf.reshape(flat, [len(rows), width])
