import keras
from keras import ops

from roformer_tf import rotary
from roformer_tf.checks import check_one_of
from roformer_tf.layers.position_scheme import PositionScheme, positions_of
from roformer_tf.layers.rotary_embedding import scaled_tables
from roformer_tf.rope_scaling import make_rope_scaling


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryPosition(PositionScheme):
    """Rotary position embedding (RoPE): rotates queries and keys by their positions.

    It rotates the first `rotary_dim` features of each head, in the half layout: pair i is
    (i, i + rotary_dim / 2). Original checkpoints rotate whole heads, so use a smaller `rotary_dim`
    only for models trained with it. To convert a checkpoint that rotates the first features in
    interleaved pairs, permute those columns of each head by
    `rotary.interleaved_to_half(rotary_dim)`.

    Args:
        head_dim: even int. Size of one attention head.
        max_wavelength: float. The base of the frequencies, 10000 in the paper.
        rotary_dim: even int. Number of rotated features in a head; `None` for all.
        learned: bool. Whether the frequencies are a weight, `theta`, shared by all blocks and kept
            in float32 under every dtype policy. It starts at `max_wavelength^(-2i / rotary_dim)`;
            do not let it decay.
        on_values: bool. Whether to rotate values by their positions too, and their average back by
            the query's, so that only distances matter. `"absolute"` does not rotate the average
            back, as Hugging Face's `rotary_value=True`. The paper does not use this option.
        rope_scaling: dict, as in Hugging Face, for texts longer than the model was trained on, such
            as `{"rope_type": "linear", "factor": 4.0}`; or `None`. See `roformer_tf.rope_scaling`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`, or features `(batch, length, hidden_dim)`; only the
            length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …; fractions and
            negative positions are fine, and no table bounds them.
        padding_mask: int tensor `(batch, length)`, 1 for real tokens, or `None`; read by scaling
            that depends on the length only (`"dynamic"` and `"longrope"`).
        current_length: int or int tensor `(batch,)`. The length for such scaling. By default it is
            the span of the positions of a sequence's real tokens, last - first + 1: its number of
            tokens, or that of its longest document where positions start again in each.

    Returns:
        `(cos, sin)`: float32 tensors `(1 or batch, 1, length, rotary_dim)`, whatever the compute
        dtype.

    Raises:
        ValueError: If a size is not even, or the rule of `rope_scaling` is unknown; if it is called
            with heads of queries or keys, which `RotaryEmbedding` rotates.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RotaryPosition
    >>> scheme = RotaryPosition(head_dim=4)
    >>> cos, sin = scheme(np.zeros((2, 3), "int32"))
    >>> tuple(cos.shape)
    (1, 1, 3, 4)
    >>> query = key = np.ones((2, 1, 3, 4), "float32")
    >>> q, k = scheme.apply_to_query_key(query, key, (cos, sin))
    >>> tuple(q.shape)
    (2, 1, 3, 4)

    Reference: equations 14 to 16 of arXiv 2104.09864; `roformer_tf.rotary`.
    """

    def __init__(
        self,
        head_dim,
        max_wavelength=10000.0,
        rotary_dim=None,
        learned=False,
        on_values=False,
        rope_scaling=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.head_dim = head_dim
        self.max_wavelength = max_wavelength
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.learned = learned
        self.on_values = on_values
        self.rope_scaling = rope_scaling
        self._scaling = make_rope_scaling(rope_scaling)
        check_one_of("on_values", on_values, (False, True, "absolute"))
        if rotary_dim is not None and not (
            isinstance(rotary_dim, int) and 0 < rotary_dim <= head_dim and rotary_dim % 2 == 0
        ):
            raise ValueError(
                f"`rotary_dim` must be an even integer from 2 to `head_dim`={head_dim}. "
                f"Received: rotary_dim={rotary_dim!r}"
            )
        self._theta = rotary.frequencies(self.rotary_dim, max_wavelength)

    @classmethod
    def for_model(cls, sizes, **options):
        return cls(sizes.head_dim, sizes.max_wavelength, **options)

    @property
    def depends_on_length(self):
        """Whether the rotations change as the sequence grows, as with dynamic NTK and LongRoPE."""
        return self._scaling.needs_length

    @property
    def changes_output(self):
        """Whether the averages of rotated values are rotated back."""
        return self.on_values not in (False, "absolute")

    def build(self, *shapes, **named_shapes):
        if self.learned:
            self.theta = self.add_weight(
                name="theta",
                shape=self._theta.shape,
                initializer=lambda shape, dtype: ops.cast(self._theta, dtype),
                dtype="float32",
                autocast=False,
            )
        super().build(*shapes, **named_shapes)

    def call(self, token_ids, position_ids=None, padding_mask=None, current_length=None):
        self._check_tokens(token_ids)
        position_ids = positions_of(token_ids, position_ids)
        theta = self.theta if self.learned else self._theta
        cos, sin = scaled_tables(
            position_ids, theta, self._scaling, self.max_wavelength, padding_mask, current_length
        )  # (batch, length, rotary_dim)
        return cos[:, None], sin[:, None]

    def compute_output_spec(
        self, token_ids, position_ids=None, padding_mask=None, current_length=None
    ):
        self._check_tokens(token_ids)
        batch = 1 if position_ids is None else position_ids.shape[0]
        if self._scaling.needs_length:  # 1, or a scale for each row
            batch = None
        shape = (batch, 1, token_ids.shape[1], self.rotary_dim)
        return keras.KerasTensor(shape, "float32"), keras.KerasTensor(shape, "float32")

    def _check_tokens(self, token_ids):
        shape = token_ids.shape
        is_features = "float" in keras.backend.standardize_dtype(token_ids.dtype)
        # Of rank 2 they are ids that Keras has cast. Of rank 3 they are inputs of a block, which may
        # be as wide as a head.
        if is_features and len(shape) not in (2, 3):
            raise ValueError(
                "`RotaryPosition` does not rotate features: it computes the angles of positions, "
                "for `EncoderBlock(…, position_scheme=RotaryPosition(head_dim))`. To rotate queries "
                "and keys in a layer of your own, use `roformer_tf.layers.RotaryEmbedding`. Expected "
                "token ids (batch, length), or inputs of a block (batch, length, hidden_dim). Received: "
                f"floats of shape {tuple(shape)}"
            )

    def apply_to_query_key(self, query, key, context):
        factor = self._scaling.query_key_factor
        if factor != 1:
            context = [table * factor for table in _given(context)]
        return self.apply_to_features(query, key, context)

    def apply_to_features(self, query, key, context):
        # without YaRN's factor, which sharpens a softmax: here it would make the numerator larger
        # than its denominator
        return self._rotate(rotary.rotate, query, context), self._rotate(
            rotary.rotate, key, context
        )

    def apply_to_value(self, value, context):
        return self._rotate(rotary.rotate, value, context) if self.on_values else value

    def apply_to_output(self, output, weights, context):
        if not self.changes_output:
            return output
        return self._rotate(rotary.rotate_inverse, output, context)

    def _rotate(self, rotate, x, context):
        cos, sin = _given(context)
        if self.rotary_dim == self.head_dim:
            return rotate(x, cos, sin)
        rotated = rotate(x[..., : self.rotary_dim], cos, sin)
        return ops.concatenate([rotated, x[..., self.rotary_dim :]], axis=-1)


def _given(context):
    if context is None:
        raise ValueError(
            "Rotary positions need the angles of this pass: give the layer "
            "`position=scheme(token_ids)`. Received: position=None"
        )
    return context
