import keras
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.roformer_preprocessor import RoFormerPreprocessor, TextPreprocessor
from roformer_tf.models.roformer_token_classifier_preprocessor import check_stride, token_spans
from roformer_tf.text.ragged_ops import chunk_tokens, include_marks


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerQuestionAnsweringPreprocessor(RoFormerPreprocessor, TextPreprocessor):
    """Turns questions and contexts into the inputs of a `RoFormerQuestionAnswering`.

    A pair becomes `[CLS] question [SEP] context [SEP]`. A context that is too long becomes several
    sequences, overlapping chunks, so there may be more sequences than questions.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: int. Maximum number of tokens in a sequence, special tokens included.
        stride: int. Number of tokens that neighboring chunks of a context share.
        max_question_length: int. Number of tokens after which a question is cut off, in any case
            half of `sequence_length`.
        pair_segments: bool. Whether the context has segment id 1. The scripts of the original's v2
            use 0 everywhere.
        padding: `"longest"` or `"max_length"`; see `RoFormerTextClassifierPreprocessor`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: dictionary of `question` and `context`, each a string, or list or tensor of strings; or a
            tuple of the two.
        y: int tensor `(batch, 2)`: start and end of the answer in the context, in characters, the
            end excluded. -1 where there is no answer.
        sample_weight: Weights `(batch,)`. Each chunk has the weight of its question.

    Returns:
        Dictionary of int32 tensors `token_ids`, `segment_ids`, `padding_mask` and `answer_mask`,
        each `(chunks, length)`; the latter is 1 for `[CLS]`, which stands for no answer, and the
        tokens of the context. With `y` or `sample_weight` a tuple `(x, y)` or `(x, y,
        sample_weight)`, where `y` is `(chunks, 2)` in tokens, the end included, and 0 in chunks
        without the answer.

    Raises:
        ValueError: If `padding` is unknown, a number is out of range, or `x` has other keys.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "谁", "我", "和", "你"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerQuestionAnsweringPreprocessor(tokenizer)
    >>> x, y = preprocessor({"question": ["谁"], "context": ["我和你"]}, y=[[2, 3]])
    >>> x["token_ids"].numpy().tolist(), y.numpy().tolist()
    ([[2, 5, 3, 6, 7, 8, 3]], [[5, 5]])

    Reference: `clue/cmrc2018.py` of the original's v2.
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        stride=128,
        max_question_length=64,
        pair_segments=True,
        padding="longest",
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, padding=padding, **kwargs)
        if sequence_length < 5:
            raise ValueError(
                "`sequence_length` must have room for three special tokens, a question and a "
                f"context: at least 5. Received: sequence_length={sequence_length}"
            )
        self.stride = check_stride(stride)
        check_positive_integer("max_question_length", max_question_length)
        self.max_question_length = max_question_length
        self.pair_segments = pair_segments

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        question, context = question_and_context(x)
        is_batch = question.shape.rank > 0
        if not is_batch:
            question, context = question[tf.newaxis], context[tf.newaxis]
        inputs, details = self.pack_chunks(question, context)
        if y is not None:
            y = tf.reshape(tf.cast(y, tf.int32), [-1, 1, 2])
            answers = tf.pad(y, [[0, 0], [0, 0], [0, 1]])
            y = tf.maximum(token_spans(answers, details, exact=False)[:, 0, :2], 0)
        if sample_weight is not None:
            sample_weight = tf.gather(tf.reshape(sample_weight, [-1]), details["text"])
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def pack_chunks(self, question, context):
        """Tokenizes questions and contexts `(batch,)` and packs them.

        Returns:
            `(inputs, details)`; see `RoFormerTokenClassifierPreprocessor.pack_chunks`. The offsets
            are those of the context.
        """
        return self.as_graph("chunks", self._packed_chunks, question, context)

    def _packed_chunks(self, question, context):
        room = self.sequence_length - 3
        question = self.tokenizer.graph(question)[:, : min(self.max_question_length, room // 2)]
        ids, starts, ends = self.tokenizer.graph.tokenize_with_offsets(context)
        ends = include_marks(context, ends)
        length = tf.cast(question.row_lengths(), tf.int32)
        room = room - length
        chunks, details = chunk_tokens([ids, starts, ends], room, self.shared_tokens(room))
        details["shift"] = tf.gather(length, details["text"]) + 2  # after `[CLS] question [SEP]`
        inputs = self.pack_ids((tf.gather(question, details["text"]), chunks[0]))
        position = tf.range(tf.shape(inputs["token_ids"])[1])[tf.newaxis]
        index = position - details["shift"][:, tf.newaxis]
        in_context = (index >= 0) & (index < details["size"][:, tf.newaxis])
        for name, offsets in zip(("starts", "ends"), chunks[1:]):
            offsets = tf.pad(offsets.to_tensor(-1), [[0, 0], [0, 1]], constant_values=-1)
            found = tf.gather(offsets, tf.where(in_context, index, 0), batch_dims=1)
            details[name] = tf.where(in_context, found, -1)
        inputs["answer_mask"] = tf.cast(in_context | (position == 0), tf.int32)
        return inputs, {**details, "token_starts": starts, "token_ends": ends}

    def shared_tokens(self, room):
        """Returns how many tokens neighboring chunks of this size share: at most half of them.

        Args:
            room: int32 tensor `(batch,)`. Number of tokens of a chunk of each context.
        """
        return tf.minimum(self.stride, room // 2)

    @preprocessing_function
    def count_tokens(self, x):
        """Returns the number of tokens of each sequence; `embed` counts single texts."""
        return super().count_tokens(x if tf.is_tensor(x) else question_and_context(x))


def question_and_context(x):
    """Returns the two columns of `x`, or raises `ValueError` if it has others."""
    if isinstance(x, dict) and set(x) == {"question", "context"}:
        return x["question"], x["context"]
    if isinstance(x, tuple) and len(x) == 2:
        return x
    found = sorted(x) if isinstance(x, dict) else f"{type(x).__name__}"
    raise ValueError(
        "Expected a dictionary of `question` and `context`, or a tuple of the two. "
        f"Received: {found}"
    )
