import keras
import keras_hub

from roformer_tf.layers import MaskedLMHead
from roformer_tf.models.roformer_backbone import (
    TOKEN_INPUTS,
    RoFormerBackbone,
    initializer_of,
    sequence_output,
)
from roformer_tf.models.roformer_masked_lm_preprocessor import RoFormerMaskedLMPreprocessor
from roformer_tf.models.roformer_task import RoFormerTask


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerMaskedLM(RoFormerTask, keras_hub.models.MaskedLM):
    """Masked language model: logits over the vocabulary, at the masked positions or everywhere.

    Args:
        backbone: a `RoFormerBackbone`.
        preprocessor: a `RoFormerMaskedLMPreprocessor`, or `None` to take token ids instead of
            strings.
        head_epsilon: float. Epsilon of the layer norm in the head, 1e-12 in every version of
            bert4keras.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`, and optionally `mask_positions`, int
            `(batch, count)`.

    Returns:
        Logits `(batch, count, vocabulary_size)`, or `(batch, length, vocabulary_size)` without
        `mask_positions`.

    Example:

    >>> import numpy as np
    >>> import roformer_tf
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone)
    >>> ids = np.array([[2, 15, 31, 3]])
    >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> tuple(masked_lm(inputs).shape)
    (1, 4, 100)
    >>> tuple(masked_lm({**inputs, "mask_positions": np.array([[2]])}).shape)
    (1, 1, 100)

    Reference: `with_mlm` of bert4keras' `models.py`.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerMaskedLMPreprocessor
    input_dtypes = {**TOKEN_INPUTS, "mask_positions": "int32"}

    def __init__(self, backbone, preprocessor=None, head_epsilon=1e-12, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.head = language_model_head(backbone, head_epsilon)

        # === Functional model ===
        mask_positions = keras.Input((None,), dtype="int32", name="mask_positions")
        inputs = {**backbone.input, "mask_positions": mask_positions}
        super().__init__(inputs, **kwargs)

        # === Config ===
        self.head_epsilon = head_epsilon

    def compute_outputs(self, inputs, training=None):
        inputs = dict(inputs)
        inputs["output_positions"] = inputs.pop("mask_positions", None)
        outputs = self.backbone(inputs, training=training)
        return self.head(sequence_output(outputs), training=training)

    def compile(self, optimizer="auto", loss="auto", **kwargs):
        """See `keras_hub.models.MaskedLM.compile`. The default loss averages masked tokens."""
        super().compile(optimizer=optimizer, loss=token_loss(loss), **kwargs)

    def run_on(self, texts):
        mask_token = self.preprocessor.tokenizer.mask_token
        inputs, _ = self.preprocessor.pack_masks([mask_token + text for text in texts])
        keras.Model.predict_on_batch(self, inputs)


def token_loss(loss):
    """Returns the loss of a language model: for `"auto"` the mean over the tokens that count.

    KerasHub's default divides by the number of positions in the batch, so that a sequence with few
    tokens to predict counts less.
    """
    if loss != "auto":
        return loss
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )


def language_model_head(backbone, epsilon):
    """Makes the head of masked and causal language models that fits the backbone's family."""
    return MaskedLMHead(
        backbone.token_embedding,
        transform=backbone.norm == "layer_norm",
        activation=backbone.activation,
        epsilon=epsilon,
        dropout=backbone.dropout,
        kernel_initializer=initializer_of(backbone.norm, backbone.num_layers),
        dtype=backbone.dtype_policy,
        name="head",
    )
