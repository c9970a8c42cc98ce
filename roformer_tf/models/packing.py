"""What the three preprocessors share: strings to the dense inputs of a model."""

import tensorflow as tf

from roformer_tf.text import PairPacker

PADDINGS = ("longest", "max_length")


class PackedInputs:
    """Mixin of the preprocessors: `pack` turns one text, or a pair, into `token_ids`, `segment_ids`, `padding_mask`.

    `padding="longest"` pads to the longest row of the batch, which is what costs least on the TensorFlow and PyTorch
    backends; `"max_length"` always pads to `sequence_length`, for XLA and JAX, which compile each shape anew.
    """

    def set_packing(self, truncate_from, padding):
        if padding not in PADDINGS:
            raise ValueError(f"`padding` must be one of {PADDINGS}. Received: padding={padding!r}")
        if not isinstance(self.sequence_length, int) or self.sequence_length < 2:
            raise ValueError(
                "`sequence_length` must be an integer of at least 2, the special tokens of a text. "
                f"Received: sequence_length={self.sequence_length!r}"
            )
        self.truncate_from = truncate_from
        self.padding = padding

    def build(self, input_shape=None):
        # The tokenizer knows its special tokens only when its vocabulary is loaded.
        self.built = True

    def __call__(self, x, y=None, sample_weight=None, **kwargs):
        # By keyword: a tuple alone KerasHub takes for `(x, y)`, and the second text of a pair would be lost.
        return super().__call__(x, y=y, sample_weight=sample_weight, **kwargs)

    def pack(self, x, extra=0):
        segments = x if isinstance(x, tuple) else (x,)
        return self.pack_ids(tuple(self.tokenizer(segment) for segment in segments), extra)

    def pack_ids(self, segments, extra=0):
        packer = PairPacker(
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.tokenizer.pad_token_id,
            sequence_length=self.sequence_length + extra,
            truncate_from=self.truncate_from,
        )
        inputs = packer(segments)
        if self.padding == "longest":
            width = tf.reduce_max(tf.reduce_sum(inputs["padding_mask"], -1))
            # every row has its two special tokens: only a batch of no rows is narrower, which models cannot slice
            width = tf.maximum(width, 2)
            inputs = {name: value[..., :width] for name, value in inputs.items()}
        return inputs

    def get_config(self):
        config = super().get_config()
        config.pop("truncate", None)  # KerasHub's own rule, which this class replaces
        return {**config, "truncate_from": self.truncate_from, "padding": self.padding}
