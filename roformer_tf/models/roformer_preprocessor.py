import types

import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checks import check_one_of
from roformer_tf.models.presets import PreprocessorFromPreset
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.portable import trace_quietly
from roformer_tf.text import PairPacker, RoFormerTokenizer

PADDINGS = ("longest", "max_length")


class RoFormerPreprocessor(PreprocessorFromPreset):
    """Base class of the preprocessors of `RoFormerBackbone`, named before KerasHub's base class.

    Its arguments are those of `RoFormerTextClassifierPreprocessor`.
    """

    backbone_cls = RoFormerBackbone
    tokenizer_cls = RoFormerTokenizer
    pair_segments = True  # if not, all segment ids are 0

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate_from="right",
        padding="longest",
        **kwargs,
    ):
        check_one_of("padding", padding, PADDINGS)
        check_sequence_length("sequence_length", sequence_length)
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.truncate_from = truncate_from
        self.padding = padding
        # in a plain object, into which Keras does not look
        self._compiled = types.SimpleNamespace(key=None, functions={})

    def pack(self, x, extra=0):
        """Tokenizes and packs texts, or a tuple of two columns of texts.

        Args:
            x: string, or list or tensor of strings, or a tuple of two of them.
            extra: int. How many tokens a sequence may have beyond `sequence_length`.

        Returns:
            Dictionary of int32 tensors `token_ids`, `segment_ids` and `padding_mask`, each
            `(batch, length)`.
        """

        def packed(*segments):
            return self.pack_ids(tuple(map(self.tokenizer, segments)), extra)

        segments = x if isinstance(x, tuple) else (x,)
        return self.as_graph(("pack", extra), packed, *segments)

    def as_graph(self, name, function, *texts):
        """Calls a function with columns of strings, as one graph for all batches.

        Its operations one by one take 5 to 15 ms. Inside of a graph they become part of it. Single
        texts and lists run without a graph.

        Args:
            name: Key of the function.
            function: Takes string tensors of these ranks. Reads the tokenizer and the settings.
            *texts: string tensors `(batch,)` or `(batch, choices)`.
        """
        are_batches = all(isinstance(x, tf.Tensor) and x.shape.rank for x in texts)
        if not tf.executing_eagerly() or not are_batches:
            return function(*texts)
        tokenizer = self.tokenizer
        special = tokenizer.mask_token, tokenizer.sequence_length
        settings = self.packing_settings(), self.padding, self.pair_segments
        key = tokenizer.graph, special, *settings
        if self._compiled.key != key:
            self._compiled.key, self._compiled.functions = key, {}
        functions = self._compiled.functions
        name = name, *(x.shape.rank for x in texts)
        if name not in functions:
            signature = [tf.TensorSpec([None] * x.shape.rank, tf.string) for x in texts]
            functions[name] = trace_quietly(
                tf.function(function, input_signature=signature, autograph=False)
            )
        return functions[name](*texts)

    def pack_ids(self, segments, extra=0):
        """Does the same for a tuple of one or two ragged tensors of token ids."""
        values, sequence_length, truncate_from = self.packing_settings(extra)
        inputs = PairPacker(*values, sequence_length, truncate_from)(segments)
        if not self.pair_segments:
            inputs["segment_ids"] = tf.zeros_like(inputs["segment_ids"])
        if self.padding == "longest":
            width = tf.reduce_max(tf.reduce_sum(inputs["padding_mask"], -1))
            # A sequence has two special tokens. Only an empty batch is narrower, and models cannot
            # slice that.
            width = tf.maximum(width, 2)
            inputs = {name: value[..., :width] for name, value in inputs.items()}
        return inputs

    def packing_settings(self, extra=0):
        """Returns the arguments of the `PairPacker`: three token ids, length and truncation."""
        tokenizer = self.tokenizer  # knows its special tokens only once its vocabulary is loaded
        special = tokenizer.start_token_id, tokenizer.end_token_id, tokenizer.pad_token_id
        return special, self.sequence_length + extra, self.truncate_from

    @preprocessing_function
    def count_tokens(self, x):
        """Returns the number of tokens of each sequence, special tokens included.

        Args:
            x: list or tensor of strings, or a tuple of two of them.

        Returns:
            int32 tensor `(batch,)`.
        """

        def counts(*segments):
            lengths = [row_lengths(self.tokenizer(segment)) + 1 for segment in segments]
            return tf.minimum(sum(lengths) + 1, self.sequence_length)

        segments = x if isinstance(x, tuple) else (x,)
        return self.as_graph("count", counts, *segments)

    def get_config(self):
        config = super().get_config()
        config.pop("truncate", None)  # KerasHub's own rule, which `truncate_from` replaces
        return {**config, "truncate_from": self.truncate_from, "padding": self.padding}


class TextPreprocessor(keras_hub.models.Preprocessor):
    """`keras_hub.models.Preprocessor` with a tokenizer and a maximum length of sequences."""

    def __init__(self, tokenizer, sequence_length=512, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    def get_config(self):
        return {**super().get_config(), "sequence_length": self.sequence_length}


def row_lengths(ids):
    """Returns the int32 lengths of the rows of a ragged or dense tensor."""
    if isinstance(ids, tf.RaggedTensor):
        return tf.cast(ids.row_lengths(), tf.int32)
    return tf.fill([tf.shape(ids)[0]], tf.shape(ids)[1])


LONGEST = 2**20  # memory for it is taken at once


def check_sequence_length(name, value):
    """Raises `ValueError` unless `value` is an integer with room for two special tokens."""
    if not isinstance(value, int) or not 2 <= value <= LONGEST:
        raise ValueError(
            f"`{name}` must be an integer of at least 2, the number of special tokens, and at most "
            f"{LONGEST:,}. Received: {name}={value!r}"
        )
