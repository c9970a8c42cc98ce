import keras
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_preprocessor import RoFormerPreprocessor, TextPreprocessor
from roformer_tf.text.ragged_ops import chunk_tokens, include_marks
from roformer_tf.text.strings import to_string_tensor


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTokenClassifierPreprocessor(RoFormerPreprocessor, TextPreprocessor):
    """Turns texts, and entities as spans of characters, into the inputs of a token classifier.

    A text becomes `[CLS] text [SEP]`. One that is too long becomes several sequences, overlapping
    chunks, so there may be more sequences than texts.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: int. Maximum number of tokens in a sequence, special tokens included.
        stride: int. Number of tokens that neighboring chunks of a text share. An entity that is
            longer than half of it may be cut.
        padding: `"longest"` or `"max_length"`; see `RoFormerTextClassifierPreprocessor`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: string, or list or tensor of strings.
        y: int tensor `(batch, count, 3)`: start, end and type of each entity, in characters, the
            end excluded; see `RoFormerTokenClassifier.encode_labels`. A start of -1 is padding. An
            entity that begins or ends inside a token, which no model can find, is left out.
        sample_weight: Weights `(batch,)`. Each chunk has the weight of its text.

    Returns:
        Dictionary of int32 tensors `token_ids`, `segment_ids` and `padding_mask`, each
        `(chunks, length)`. With `y` or `sample_weight` a tuple `(x, y)` or `(x, y, sample_weight)`,
        where `y` is `(chunks, count, 3)` in tokens, the end included.

    Raises:
        ValueError: If `padding` is unknown, `sequence_length` is less than 2, or `stride` negative.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "北", "京", "我", "在"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerTokenClassifierPreprocessor(tokenizer)
    >>> x, y = preprocessor(["我在 北京"], y=[[[3, 5, 0]]])
    >>> x["token_ids"].numpy().tolist(), y.numpy().tolist()
    ([[2, 7, 8, 5, 6, 3]], [[[3, 4, 0]]])

    Reference: `Tokenizer.rematch` of bert4keras.
    """

    def __init__(self, tokenizer, sequence_length=512, stride=128, padding="longest", **kwargs):
        super().__init__(tokenizer, sequence_length, padding=padding, **kwargs)
        self.stride = check_stride(stride)

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        if isinstance(x, tuple):
            raise ValueError(
                "A token classifier takes texts: a string, or a list or tensor of strings. "
                f"Received: a tuple of {len(x)} columns"
            )
        x = to_string_tensor(x)
        is_batch = x.shape.rank > 0
        texts = x if is_batch else x[tf.newaxis]
        inputs, details = self.pack_chunks(texts)
        if y is not None:
            y = tf.cast(y, tf.int32)
            y = token_spans(y if is_batch else y[tf.newaxis], details)
        if sample_weight is not None:
            sample_weight = tf.gather(tf.reshape(sample_weight, [-1]), details["text"])
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)

    def pack_chunks(self, texts):
        """Tokenizes texts `(batch,)` and packs their chunks.

        Returns:
            `(inputs, details)`. The details are those of `chunk_tokens`; `shift`, int32
            `(chunks,)`, the position of a chunk's first token; `starts` and `ends`, int32
            `(chunks, length)`, the characters of each token, -1 for special tokens and padding; and
            RaggedTensors `token_starts` and `token_ends` of whole texts.
        """
        return self.as_graph("chunks", self._packed_chunks, texts)

    def _packed_chunks(self, texts):
        ids, starts, ends = self.tokenizer.graph.tokenize_with_offsets(texts)
        ends = include_marks(texts, ends)
        room = self.sequence_length - 2
        stride = min(self.stride, room // 2)
        chunks, details = chunk_tokens([ids, starts, ends], room, stride)
        inputs = self.pack_ids((chunks[0],))
        width = tf.shape(inputs["token_ids"])[1]
        for name, offsets in zip(("starts", "ends"), chunks[1:]):
            offsets = offsets.to_tensor(-1)
            after = width - 1 - tf.shape(offsets)[1]
            details[name] = tf.pad(offsets, [[0, 0], [1, after]], constant_values=-1)
        details["shift"] = tf.ones_like(details["begin"])  # after `[CLS]`
        return inputs, {**details, "token_starts": starts, "token_ends": ends}


def check_stride(stride):
    """Returns a stride, or raises `ValueError` if it is no number of tokens."""
    if not isinstance(stride, int) or stride < 0:
        raise ValueError(
            "`stride` must be the number of tokens that neighboring chunks share, 0 or more. "
            f"Received: stride={stride!r}"
        )
    return stride


def token_spans(entities, details, exact=True):
    """Returns entities in characters as spans of tokens of each chunk.

    Args:
        entities: int32 tensor `(batch, count, 3)`: start, end (excluded) and type.
        details: See `RoFormerTokenClassifierPreprocessor.pack_chunks`.
        exact: bool. Whether an entity must begin and end where tokens do. If not, it gets all
            tokens that it touches.

    Returns:
        int32 tensor `(chunks, count, 3)`: first and last token, and type. All are -1 for padding,
        for entities of other chunks, and for those that do not fit.
    """
    start, end, kind = tf.unstack(entities, 3, axis=-1)
    far = tf.int32.max
    starts = details["token_starts"].to_tensor(far)
    ends = details["token_ends"].to_tensor(far)
    # one more column, which no entity reaches
    starts, ends = (tf.pad(x, [[0, 0], [0, 1]], constant_values=far) for x in (starts, ends))
    first = tf.searchsorted(ends, start, side="right")  # the first token that ends after the start
    last = tf.searchsorted(starts, end, side="left") - 1  # the last that starts before the end
    fits = (start >= 0) & (last >= first)
    if exact:
        fits &= tf.gather(starts, first, batch_dims=1) >= start
        fits &= tf.gather(ends, tf.maximum(last, 0), batch_dims=1) <= end
    # of the whole text -> of each chunk
    text = details["text"]
    begin, size, shift = (details[name][:, tf.newaxis] for name in ("begin", "size", "shift"))
    first, last = (tf.gather(x, text) - begin for x in (first, last))
    fits = tf.gather(fits, text) & (first >= 0) & (last < size)
    spans = tf.stack([first + shift, last + shift, tf.gather(kind, text)], axis=-1)
    return tf.where(fits[..., tf.newaxis], spans, -1)
