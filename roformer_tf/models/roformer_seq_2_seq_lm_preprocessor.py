import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.packing import PADDINGS
from roformer_tf.models.presets import PreprocessorFromPreset
from roformer_tf.models.roformer_seq_2_seq_backbone import RoFormerSeq2SeqBackbone
from roformer_tf.text import RoFormerSentencePieceTokenizer
from roformer_tf.text.strings import to_string_tensor

MORE_THAN_SOURCE = 50  # how much longer than its source a translation may be, in tokens


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSeq2SeqLMPreprocessor(PreprocessorFromPreset, keras_hub.models.Seq2SeqLMPreprocessor):
    """Pairs of texts to the inputs, next tokens and weights of a `RoFormerSeq2SeqLM`.

    Source and target are `<s> … </s>` each; longer ones lose their ends.

    Args:
        tokenizer: a `RoFormerSentencePieceTokenizer`.
        encoder_sequence_length: positive integer, the most tokens a source may have.
        decoder_sequence_length: positive integer, the most tokens a target may have, without its `</s>`.
        padding: `"longest"`, to the longest row of the batch, or `"max_length"`, for XLA and JAX, which compile each
            shape anew.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: `(sources, targets)`, or a dictionary of `encoder_text` and `decoder_text`: strings, lists or tensors of
            them.
        y, sample_weight: not read.

    Returns:
        `(inputs, labels, weights)`: the inputs of the model, and for each place of the target the next token and
        whether it counts.

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
        super().__init__(tokenizer, encoder_sequence_length, decoder_sequence_length, **kwargs)
        if padding not in PADDINGS:
            raise ValueError(f"`padding` must be one of {PADDINGS}. Received: padding={padding!r}")
        for name in ("encoder_sequence_length", "decoder_sequence_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 2:
                raise ValueError(
                    f"`{name}` must be an integer of at least 2, the special tokens of a text. "
                    f"Received: {name}={value!r}"
                )
        self.padding = padding

    def build(self, input_shape=None):
        self.built = (
            True  # KerasHub's packers, which it would make here, always pad to the full length
        )

    def __call__(self, x, y=None, sample_weight=None, **kwargs):
        # by keyword: a tuple alone KerasHub takes for `(x, y)`, and the target would be lost
        return super().__call__(x, y=y, sample_weight=sample_weight, **kwargs)

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
        weights = tf.cast(target_mask[..., 1:], tf.float32)
        return keras.utils.pack_x_y_sample_weight(inputs, target_ids[..., 1:], weights)

    @preprocessing_function
    def generate_preprocess(
        self, x, *, encoder_sequence_length=None, decoder_sequence_length=None, sequence_length=None
    ):
        """Sources, and optionally what their targets begin with, to the inputs of generation.

        Args:
            x: sources, or `(sources, beginnings)`, or a dictionary as in a call.
            encoder_sequence_length: as of the class, which is the default.
            decoder_sequence_length: the most tokens of a target; by default 50 more than the longest source of the
                batch has, but no more than the class allows, and with `padding="max_length"` just as many.
            sequence_length: another name of `decoder_sequence_length`.

        Returns:
            Dictionary of the inputs of the model. Rows of the target have room for what is generated.
        """
        sources, beginnings = as_pair(x) if isinstance(x, tuple | dict) else (x, None)
        sources = to_string_tensor(sources)
        if beginnings is None:
            beginnings = tf.fill(tf.shape(sources), "")
        source_ids, source_mask = self.pack(
            sources, encoder_sequence_length or self.encoder_sequence_length
        )
        length = decoder_sequence_length or sequence_length
        if length is None:
            length = self.decoder_sequence_length
            if self.padding == "longest":
                length = tf.minimum(tf.shape(source_ids)[-1] + MORE_THAN_SOURCE, length)
        target_ids, target_mask = self.pack(beginnings, length, add_end=False, width=length)
        return {
            "encoder_token_ids": source_ids,
            "encoder_padding_mask": source_mask,
            "decoder_token_ids": target_ids,
            "decoder_padding_mask": target_mask,
        }

    def pack(self, texts, length, add_end=True, width=None):
        """Token ids and padding mask, int32 `(batch, width)`, of texts between their special tokens.

        Args:
            texts: string tensor `(batch,)` or `()`.
            length: integer or scalar tensor, the most tokens of a row.
            add_end: whether rows end with `</s>`.
            width: to pad to; by default as `padding` says.
        """
        texts = to_string_tensor(texts)
        if texts.shape.rank == 0:
            packed = self.pack(texts[None], length, add_end, width)
            return tuple(x[0] for x in packed)
        rows = self.tokenizer.tokenize(texts)[:, : length - 1 - int(add_end)]
        count = rows.nrows()
        parts = [tf.fill([count, 1], self.tokenizer.start_token_id), rows]
        if add_end:
            parts.append(tf.fill([count, 1], self.tokenizer.end_token_id))
        rows = tf.concat(parts, axis=1)
        if width is None and self.padding == "max_length":
            width = length
        # a list could not hold a tensor
        shape = None if width is None else tf.stack([tf.cast(count, tf.int32), width])
        ids = rows.to_tensor(self.tokenizer.pad_token_id, shape=shape)
        mask = tf.sequence_mask(rows.row_lengths(), tf.shape(ids)[1], dtype=tf.int32)
        return ids, mask

    def get_config(self):
        return {
            **super().get_config(),
            "encoder_sequence_length": self.encoder_sequence_length,
            "decoder_sequence_length": self.decoder_sequence_length,
            "padding": self.padding,
        }


def as_pair(x):
    """`(sources, targets)` of what a user gives; the targets may be `None`."""
    if isinstance(x, tuple) and len(x) == 2:
        return x
    if isinstance(x, dict) and "encoder_text" in x and set(x) <= {"encoder_text", "decoder_text"}:
        return x["encoder_text"], x.get("decoder_text")
    raise ValueError(
        "Expected a tuple of two columns of texts, `(sources, targets)`, or a dictionary of 'encoder_text' and "
        f"'decoder_text'. Received: {sorted(x) if isinstance(x, dict) else type(x).__name__}"
    )
