import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from roformer_tf.models.packing import PackedInputs
from roformer_tf.models.roformer_backbone import RoFormerBackbone
from roformer_tf.text import RoFormerTokenizer


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerCausalLMPreprocessor(PackedInputs, keras_hub.models.CausalLMPreprocessor):
    """Texts to the inputs, next tokens and weights of a `RoFormerCausalLM`.

    A single text is learned whole; of a pair (UniLM) only the second text and its `[SEP]` are.

    Args:
        tokenizer: a `RoFormerTokenizer`.
        sequence_length: positive integer, the most tokens a row may have.
        truncate_from: `"right"` or `"left"`.
        padding: `"longest"` or `"max_length"`, as in `RoFormerTextClassifierPreprocessor`.
        **kwargs: of `keras.layers.Layer`.

    Call arguments:
        x: string, list or tensor of strings, or a tuple of two of them (source, target).
        y, sample_weight: not read.

    Returns:
        `(inputs, labels, weights)`: the dictionary of `RoFormerTextClassifierPreprocessor`, and for each position the
        next token and whether it counts.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> preprocessor = roformer_tf.RoFormerCausalLMPreprocessor(tokenizer, sequence_length=8)
    >>> inputs, labels, weights = preprocessor((["天气"], ["好"]))
    >>> inputs["token_ids"].numpy().tolist(), labels.numpy().tolist(), weights.numpy().tolist()
    ([[2, 5, 6, 3, 7]], [[5, 6, 3, 7, 3]], [[0.0, 0.0, 0.0, 1.0, 1.0]])

    Reference: the losses of RoFormer-GPT and RoFormer-Sim in the original repositories.
    """

    backbone_cls = RoFormerBackbone
    tokenizer_cls = RoFormerTokenizer

    def __init__(
        self, tokenizer, sequence_length=512, truncate_from="right", padding="longest", **kwargs
    ):
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)
        self.set_packing(truncate_from, padding)

    @preprocessing_function
    def call(self, x, y=None, sample_weight=None):
        return self.next_tokens(x)

    def next_tokens(self, x):
        """What `call` returns, as TensorFlow tensors under every backend."""
        packed = self.pack(x, extra=1)
        labels = packed["token_ids"][..., 1:]
        counted = packed["padding_mask"][..., 1:]
        if isinstance(x, tuple) and len(x) == 2:
            counted = counted * packed["segment_ids"][..., 1:]
        inputs = {name: value[..., :-1] for name, value in packed.items()}
        return keras.utils.pack_x_y_sample_weight(inputs, labels, tf.cast(counted, tf.float32))
