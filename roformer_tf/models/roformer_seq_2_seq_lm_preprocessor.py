import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checks import check_one_of
from roformer_tf.models.roformer_preprocessor import (
    PADDINGS,
    PreprocessorFromPreset,
    check_sequence_length,
    row_lengths,
    weighted,
)
from roformer_tf.models.roformer_seq_2_seq_backbone import RoFormerSeq2SeqBackbone
from roformer_tf.text import RoFormerSentencePieceTokenizer
from roformer_tf.text.strings import to_string_tensor

MORE_THAN_SOURCE = 50  # how many tokens a translation may have more than its source


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSeq2SeqLMPreprocessor(PreprocessorFromPreset, keras_hub.models.Seq2SeqLMPreprocessor):
    """Turns pairs of texts into the inputs, next tokens and weights of a `RoFormerSeq2SeqLM`.

    Source and target become `<s> … </s>` each. Longer ones lose their ends.

    Args:
        tokenizer: a `RoFormerSentencePieceTokenizer` without `add_bos` and `add_eos`, since this
            preprocessor adds the special tokens.
        encoder_sequence_length: int. Maximum number of tokens of a source.
        decoder_sequence_length: int. Maximum number of tokens of a target, without its `</s>`.
        padding: `"longest"` pads to the longest sequence of the batch, `"max_length"` to the
            maximum, for XLA and JAX, which compile a program for each shape.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: `(sources, targets)`, or a dictionary of `encoder_text` and `decoder_text`: strings, or
            lists or tensors of them.
        y: Ignored.
        sample_weight: float tensor `(batch,)`, which multiplies the weights.

    Returns:
        `(inputs, labels, weights)`: the inputs of the model, the next token of each position of the
        target, and 1.0 where it counts.

    Raises:
        ValueError: If `padding` is unknown, a length is less than 2, or the tokenizer adds special
            tokens.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.text import train_sentencepiece
    >>> proto = train_sentencepiece(["a cat and a dog", "ein Hund"], vocabulary_size=24)
    >>> tokenizer = roformer_tf.RoFormerSentencePieceTokenizer(proto)
    >>> preprocessor = roformer_tf.RoFormerSeq2SeqLMPreprocessor(tokenizer)
    >>> inputs, labels, weights = preprocessor((["a dog", "a"], ["ein Hund", "ein"]))
    >>> inputs["encoder_padding_mask"].numpy()[1, :4].tolist()
    [1, 1, 1, 0]
    >>> tuple(labels.shape) == tuple(inputs["decoder_token_ids"].shape)
    True

    Without targets, for generation, and back:

    >>> inputs = preprocessor.generate_preprocess(["a dog"], sequence_length=4)
    >>> inputs["decoder_token_ids"].numpy().tolist()
    [[2, 0, 0, 0]]

    Reference: `keras_hub.models.Seq2SeqLMPreprocessor`.
    """

    backbone_cls = RoFormerSeq2SeqBackbone
    tokenizer_cls = RoFormerSentencePieceTokenizer

    def __init__(
        self,
        tokenizer,
        encoder_sequence_length=256,
        decoder_sequence_length=256,
        padding="longest",
        **kwargs,
    ):
        check_one_of("padding", padding, PADDINGS)
        check_sequence_length("encoder_sequence_length", encoder_sequence_length)
        check_sequence_length("decoder_sequence_length", decoder_sequence_length)
        added = [name for name in ("add_bos", "add_eos") if getattr(tokenizer, name, False)]
        if added:
            raise ValueError(
                "`tokenizer` must not add special tokens, since the preprocessor adds them and they "
                f"would be there twice. Create it without {' and '.join(added)}. Received: "
                f"{', '.join(f'{name}=True' for name in added)}"
            )
        super().__init__(tokenizer, encoder_sequence_length, decoder_sequence_length, **kwargs)
        self.padding = padding

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        sources, targets = as_pair(x)
        source_ids, source_mask = self.pack(sources, self.encoder_sequence_length)
        target_ids, target_mask = self.pack(targets, self.decoder_sequence_length + 1)
        inputs = {
            "encoder_token_ids": source_ids,
            "encoder_padding_mask": source_mask,
            "decoder_token_ids": target_ids[..., :-1],
            "decoder_padding_mask": target_mask[..., :-1],
        }
        weights = weighted(tf.cast(target_mask[..., 1:], tf.float32), sample_weight)
        return keras.utils.pack_x_y_sample_weight(inputs, target_ids[..., 1:], weights)

    @preprocessing_function
    def generate_preprocess(
        self, x, *, encoder_sequence_length=None, decoder_sequence_length=None, sequence_length=None
    ):
        """Turns sources, and optionally the starts of their targets, into the inputs of generation.

        Args:
            x: sources, or `(sources, starts)`, or a dictionary of `encoder_text` and
                `decoder_text`.
            encoder_sequence_length: int. Maximum number of tokens of a source. By default that of
                the preprocessor.
            decoder_sequence_length: int. Maximum number of tokens of a target. By default 50 more
                than the longest source of the batch has, but no more than the preprocessor allows;
                with `padding="max_length"` exactly as many.
            sequence_length: Another name of `decoder_sequence_length`.

        Returns:
            Dictionary of the inputs of the model, with room in the targets for what is generated.
        """
        sources, starts = as_pair(x) if isinstance(x, tuple | dict) else (x, None)
        sources = to_string_tensor(sources)
        if starts is None:
            starts = tf.fill(tf.shape(sources), "")
        source_ids, source_mask = self.pack(
            sources, encoder_sequence_length or self.encoder_sequence_length
        )
        length = decoder_sequence_length or sequence_length
        if length is None:
            length = self.decoder_sequence_length
            if self.padding == "longest":
                length = tf.minimum(tf.shape(source_ids)[-1] + MORE_THAN_SOURCE, length)
        target_ids, target_mask = self.pack(starts, length, add_end=False, width=length)
        return {
            "encoder_token_ids": source_ids,
            "encoder_padding_mask": source_mask,
            "decoder_token_ids": target_ids,
            "decoder_padding_mask": target_mask,
        }

    @preprocessing_function
    def count_tokens(self, x):
        """Returns the number of tokens of the longer text of each pair, with special tokens."""
        limits = self.encoder_sequence_length, self.decoder_sequence_length
        columns = as_pair(x) if isinstance(x, tuple | dict) else (x, None)
        counts = [
            tf.minimum(row_lengths(self.tokenize(column)) + 2, limit)
            for column, limit in zip(columns, limits, strict=True)
            if column is not None
        ]
        return tf.reduce_max(tf.stack(counts), axis=0)

    def tokenize(self, texts):
        """Returns ragged token ids, also with a tokenizer that pads to its own `sequence_length`."""
        return self.tokenizer.graph.tokenize(to_string_tensor(texts))

    def pack(self, texts, length, add_end=True, width=None):
        """Tokenizes texts, adds special tokens, and pads.

        Args:
            texts: string tensor `(batch,)` or `()`.
            length: int or scalar tensor. Maximum number of tokens of a sequence.
            add_end: Whether sequences end with `</s>`.
            width: int or scalar tensor. Length to pad to; by default that of `padding`.

        Returns:
            Tuple of token ids and padding mask, int32 `(batch, width)`.
        """
        texts = to_string_tensor(texts)
        if texts.shape.rank == 0:
            packed = self.pack(texts[None], length, add_end, width)
            return tuple(x[0] for x in packed)
        ids = self.tokenize(texts)[:, : length - 1 - int(add_end)]
        count = ids.nrows()
        parts = [tf.fill([count, 1], self.tokenizer.start_token_id), ids]
        if add_end:
            parts.append(tf.fill([count, 1], self.tokenizer.end_token_id))
        ragged = tf.concat(parts, axis=1)
        if width is None and self.padding == "max_length":
            width = length
        # `width` may be a tensor, which a list could not hold.
        shape = None if width is None else tf.stack([tf.cast(count, tf.int32), width])
        ids = ragged.to_tensor(self.tokenizer.pad_token_id, shape=shape)
        mask = tf.sequence_mask(ragged.row_lengths(), tf.shape(ids)[1], dtype=tf.int32)
        return ids, mask


def as_pair(x):
    """Returns `(sources, targets)` of a tuple or dictionary of texts. The targets may be `None`."""
    if isinstance(x, tuple) and len(x) == 2:
        return x
    if isinstance(x, dict) and "encoder_text" in x and set(x) <= {"encoder_text", "decoder_text"}:
        return x["encoder_text"], x.get("decoder_text")
    received = sorted(x) if isinstance(x, dict) else type(x).__name__
    raise ValueError(
        "Expected a tuple of two columns of texts, `(sources, targets)`, or a dictionary of "
        f"'encoder_text' and 'decoder_text'. Received: {received}"
    )
