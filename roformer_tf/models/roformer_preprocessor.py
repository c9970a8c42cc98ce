import types
from typing import Self

import keras_hub
import tensorflow as tf
from keras_hub.src.utils.preset_utils import KerasPresetLoader
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.checkpoint.folder import checked_folder, is_kerashub_source
from roformer_tf.checkpoint.saving import SavedWhole
from roformer_tf.checks import check_one_of
from roformer_tf.layers.config import own_arguments
from roformer_tf.models.presets import (
    TOKENIZER_ARGUMENTS,
    check_backbone_class,
    check_tokenizer,
    limit_to_positions,
    take,
)
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.naming import automatic_name
from roformer_tf.portable import trace_quietly
from roformer_tf.text import PairPacker, RoFormerTokenizer
from roformer_tf.text.familiar_names import FamiliarName
from roformer_tf.text.strings import check_one_length, map_strings, to_string_tensor

PADDINGS = ("longest", "max_length")


class PreprocessorFromPreset(SavedWhole):
    """Mixin of preprocessors: `from_preset` takes every kind of folder, `call` a pair of texts."""

    from_pretrained = FamiliarName()

    def __init__(self, *args, name=None, **kwargs):
        tokenizer = args[0] if args else kwargs.get("tokenizer")
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(f"`tokenizer` must be a tokenizer layer. Received: {tokenizer!r}")
        super().__init__(*args, name=name or automatic_name(type(self)), **kwargs)

    def build(self, input_shape=None):
        # KerasHub would make packers here, which always pad to the full length.
        self.built = True

    def __call__(self, x, y=None, sample_weight=None, **kwargs):
        # By keyword: KerasHub takes a lone tuple for `(x, y)`, and would lose the second text.
        return super().__call__(_texts(x), y=y, sample_weight=sample_weight, **kwargs)

    @classmethod
    def from_preset(cls, preset, config_file="preprocessor.json", **kwargs) -> Self:
        """Builds the preprocessor from a folder.

        Args:
            preset: str or path. An original or Hugging Face folder with a vocabulary, or one
                written by `save_to_preset`; a `.zip` file of one; or `"hf://user/name"`.
            config_file: str. Name of the preprocessor's file in the latter.
            **kwargs: Arguments of the class and, for original and Hugging Face folders, of
                `RoFormerTokenizer`.

        Raises:
            FileNotFoundError: If there is no such folder, or it has no vocabulary.
            ValueError: If the vocabulary is damaged, or belongs to another kind of tokenizer. The
                message names the class that can be built from the folder.
        """
        if is_kerashub_source(preset):  # KerasHub downloads it
            return super().from_preset(str(preset), config_file, **kwargs)
        with checked_folder(preset, weights=False) as folder:
            if folder.layout == "preset" and not folder.config_file.exists():
                # KerasHub loads nothing without a backbone's settings
                if "tokenizer" not in kwargs:
                    folder.check_tokenizer_class(cls.tokenizer_cls)
                loader = KerasPresetLoader(str(folder.path), {})
                return loader.load_preprocessor(cls, config_file, **kwargs)
            check_backbone_class(cls, folder)
            if folder.layout == "preset":
                if "tokenizer" not in kwargs:
                    check_tokenizer(cls, folder)
                return super().from_preset(str(folder.path), config_file, **kwargs)
            if "tokenizer" not in kwargs:
                options = take(kwargs, TOKENIZER_ARGUMENTS)
                kwargs["tokenizer"] = cls.tokenizer_cls(**folder.tokenizer_arguments(**options))
            if folder.has_weights and folder.identity().family == "bert":
                limit_to_positions(kwargs, folder.backbone_arguments("bert"))
            return cls(**kwargs)

    def get_config(self):
        config = super().get_config()
        config.pop("truncate", None)  # KerasHub's own rule, which `truncate_from` replaces
        return {**own_arguments(self, PreprocessorFromPreset, parts=("tokenizer",)), **config}


def _texts(x):
    """Returns strings of any form as tensors. Raises errors that say which is no string."""
    if isinstance(x, dict):
        return {name: _texts(part) for name, part in x.items()}
    if not isinstance(x, tuple):
        is_python = isinstance(x, list | str | bytes) or type(x).__module__ == "numpy"
        return to_string_tensor(x) if is_python else x
    parts = tuple(map(_texts, x))
    check_one_length(parts)
    return parts


class RoFormerPreprocessor(PreprocessorFromPreset):
    """Base class of the preprocessors. Subclasses list it before KerasHub's base class.

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
            return self.pack_ids(tuple(tokenize(self.tokenizer, x) for x in segments), extra)

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
        settings = self.packing_settings(), self.padding, self.pair_segments
        key = tokenizer.graph, tokenizer.mask_token, *settings
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
        """Packs a tuple of one or two ragged tensors of token ids; see `pack`."""
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
            lengths = [row_lengths(tokenize(self.tokenizer, x)) + 1 for x in segments]
            return tf.minimum(sum(lengths) + 1, self.sequence_length)

        segments = x if isinstance(x, tuple) else (x,)
        return self.as_graph("count", counts, *segments)


class TextPreprocessor(keras_hub.models.Preprocessor):
    """`keras_hub.models.Preprocessor` with a tokenizer and a maximum length of sequences."""

    def __init__(self, tokenizer, sequence_length=512, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length


def tokenize(tokenizer, texts):
    """Returns token ids without the padding that a tokenizer with `sequence_length` adds."""
    return map_strings(tokenizer.graph, to_string_tensor(texts))


def row_lengths(ids):
    """Returns the int32 lengths of the rows of a ragged tensor."""
    return tf.cast(ids.row_lengths(), tf.int32)


LONGEST = 2**20  # memory for it is taken at once


def check_sequence_length(name, value):
    """Raises `ValueError` unless `value` is an integer with room for two special tokens."""
    if not isinstance(value, int) or not 2 <= value <= LONGEST:
        raise ValueError(
            f"`{name}` must be an integer of at least 2, the number of special tokens, and at most "
            f"{LONGEST:,}. Received: {name}={value!r}"
        )


def weighted(weights, sample_weight):
    """Multiplies the weights of tokens, `(batch, length)`, by those of their examples, if given."""
    if sample_weight is None:
        return weights
    shape = tf.concat([tf.shape(weights)[:-1], [1]], axis=0)
    return weights * tf.reshape(tf.cast(sample_weight, weights.dtype), shape)
