import keras
import keras_hub
import numpy as np
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.roformer_preprocessor import RoFormerPreprocessor, tokenize, weighted
from roformer_tf.text import PairPacker


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerCausalLMPreprocessor(RoFormerPreprocessor, keras_hub.models.CausalLMPreprocessor):
    """Turns texts into the inputs, next tokens and weights of a `RoFormerCausalLM`.

    For a single text, the model learns to predict every token. For a pair (UniLM), it learns only
    the second text and its `[SEP]`.

    Args:
        tokenizer, sequence_length, truncate_from, padding, **kwargs: See
            `RoFormerTextClassifierPreprocessor`.

    Call arguments:
        x: string, or list or tensor of strings, or a tuple of two of them (source, target).
        y: Ignored.
        sample_weight: float tensor `(batch,)`, which multiplies the weights.

    Returns:
        `(inputs, labels, weights)`: the dictionary of `RoFormerTextClassifierPreprocessor`, the
        next token of each position, and 1.0 where it counts.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerCausalLMPreprocessor(tokenizer, sequence_length=8)
    >>> inputs, labels, weights = preprocessor((["天气"], ["好"]))
    >>> inputs["token_ids"].numpy().tolist(), labels.numpy().tolist(), weights.numpy().tolist()
    ([[2, 5, 6, 3, 7]], [[5, 6, 3, 7, 3]], [[0.0, 0.0, 0.0, 1.0, 1.0]])

    A prompt for generation is the same without the last `[SEP]`:

    >>> prompt = preprocessor.generate_preprocess(["天气"], sequence_length=5)
    >>> prompt["token_ids"].numpy().tolist(), prompt["padding_mask"].numpy().tolist()
    ([[2, 5, 6, 0, 0]], [[1, 1, 1, 0, 0]])
    >>> preprocessor.generate_postprocess(prompt)
    ['天气']

    Reference: the losses of RoFormer-GPT and RoFormer-Sim in the original repositories.
    """

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        return self.next_tokens(x, sample_weight)

    def next_tokens(self, x, sample_weight=None):
        """Returns what `call` returns, as TensorFlow tensors under every backend."""
        packed = self.pack(x, extra=1)
        labels = packed["token_ids"][..., 1:]
        weights = packed["padding_mask"][..., 1:]
        if isinstance(x, tuple) and len(x) == 2:
            weights = weights * packed["segment_ids"][..., 1:]
        inputs = {name: value[..., :-1] for name, value in packed.items()}
        weights = weighted(tf.cast(weights, tf.float32), sample_weight)
        return keras.utils.pack_x_y_sample_weight(inputs, labels, weights)

    @preprocessing_function
    def generate_preprocess(self, x, sequence_length=None):
        """Turns prompts into the inputs of generation, padded to the length they may grow to.

        The `[SEP]` that would end a prompt is left out.

        Args:
            x: list or tensor of strings, or a tuple of two of them: sources, and the first words of
                their targets.
            sequence_length: int or scalar tensor. Length of the sequences. By default
                `sequence_length` of the preprocessor.

        Returns:
            Dictionary of `token_ids`, `segment_ids` and `padding_mask`, each
            `(batch, sequence_length)`.

        Raises:
            ValueError: If a prompt leaves no room for a new token. In a graph it is
                `tf.errors.InvalidArgumentError`.
        """
        tokenizer = self.tokenizer
        length = self.sequence_length if sequence_length is None else sequence_length
        pack = PairPacker(tokenizer.start_token_id, tokenizer.end_token_id, tokenizer.pad_token_id)
        segments = x if isinstance(x, tuple) else (x,)
        packed = pack(tuple(tokenize(tokenizer, segment) for segment in segments))
        kept = packed["padding_mask"][..., 1:]  # all tokens of a sequence but the last
        kept = _check_room(kept, length, segments[0])
        widths = [[0, 0]] * (kept.shape.rank - 1) + [[0, length - tf.shape(kept)[-1]]]
        fill = {"token_ids": tokenizer.pad_token_id, "segment_ids": 0, "padding_mask": 0}
        return {
            name: tf.pad(
                tf.where(kept > 0, packed[name][..., :-1], value), widths, constant_values=value
            )
            for name, value in fill.items()
        }

    @preprocessing_function
    def generate_postprocess(self, x):
        """Returns the texts of `token_ids` where `padding_mask` is 1, without special tokens."""
        ids, mask = tf.convert_to_tensor(x["token_ids"]), tf.cast(x["padding_mask"], tf.bool)
        return self.tokenizer.detokenize(tf.ragged.boolean_mask(ids, mask))


def _check_room(kept, length, texts):
    """Returns the mask `kept` of the prompts. Raises an error unless all are below `length`."""
    message = (
        "There is no room for a new token: a prompt with its special tokens must have fewer tokens "
        "than `max_length`. Shorten it, or use a larger `max_length`."
    )
    lengths = tf.reduce_sum(kept, -1)
    if tf.executing_eagerly():
        lengths, texts = np.ravel(lengths), np.ravel(texts)
        if max(lengths, default=0) >= length:
            text = texts[lengths.argmax()].decode("utf-8", "replace")
            raise ValueError(
                f"{message} Received: a prompt of {lengths.max()} tokens, max_length={length}. It "
                f"begins with {text[:20]!r}"
            )
        return kept
    # What uses the mask waits for the check. Padding by a negative width could fail first
    # otherwise.
    with tf.control_dependencies([tf.debugging.assert_less(lengths, length, message)]):
        return tf.identity(kept)
