import keras
import numpy as np
from keras import ops

from roformer_tf import rotary
from roformer_tf.checks import check_one_of
from roformer_tf.layers.position_scheme import PositionScheme
from roformer_tf.rope_scaling import make_rope_scaling


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryPosition(PositionScheme):
    """Rotary position embedding as a position scheme: queries and keys are rotated by their positions,
    values are not.

    The features that are rotated are the first `rotary_dim` of each head, in the half layout: pair
    i is (i, i + rotary_dim / 2). Original checkpoints rotate whole heads and are permuted as whole
    heads on loading, so a smaller `rotary_dim` is for models that are trained with it. To convert a
    checkpoint that rotates the first features in interleaved pairs, permute those columns of each
    head by `rotary.interleaved_to_half(rotary_dim)`.

    Args:
        head_dim: even int. Size of one attention head.
        max_wavelength: float. The base of the frequencies, 10000 in the paper.
        rotary_dim: even integer, how many features of a head are rotated; `None` for all.
        learned: bool. Whether the frequencies are a weight, `theta`, shared by all blocks and kept
            in float32 under every dtype policy. It starts at `max_wavelength^(-2i / rotary_dim)`;
            do not let it decay.
        on_values: bool. Whether values are rotated by their positions too, and their average back
            by the query's, so that only distances matter. `"absolute"`: the average is not rotated
            back, as in Hugging Face's `rotary_value=True`. An option that the paper does not use.
        rope_scaling: dictionary in Hugging Face's words for texts longer than the model was trained
            on, see `roformer_tf.rope_scaling`, such as `{"rope_type": "linear", "factor": 4.0}`; or
            `None`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(batch, length)`; only its length is read.
        position_ids: int or float tensor `(batch, length)`, or `None` for 0, 1, 2, …; fractions and
            negative positions are fine, and no table bounds them.
        padding_mask: int tensor `(batch, length)`, 1 for real tokens, or `None`; read by dynamic
            scaling only.
        current_length: int. Or int tensor `(batch,)`, the length that dynamic scaling goes by. By
            default it is how far the positions of a row's real tokens reach, last - first + 1: the
            number of its tokens where positions are counted, and of its longest document where they
            begin again in each.

    Returns:
        `(cos, sin)`: float32 tensors `(1 or batch, 1, length, rotary_dim)`, whatever the compute
        dtype.

    Raises:
        ValueError: If a size is not even, or the rule of `rope_scaling` is unknown.

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
        """The scheme for a model, see `PositionScheme.for_model`."""
        return cls(sizes.head_dim, sizes.max_wavelength, **options)

    @property
    def depends_on_length(self):
        """Whether dynamic scaling rotates all tokens again as the sequence grows; see `PositionScheme`."""
        return self._scaling.needs_length

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
        if position_ids is None:
            position_ids = ops.arange(ops.shape(token_ids)[1])[None]
        tables = rotary.tables(position_ids, self._frequencies())
        if self._scaling.needs_length:
            if current_length is None:
                length = _reach(position_ids, padding_mask)
            else:
                length = ops.reshape(ops.cast(current_length, "float32"), (-1, 1))
            scaled = rotary.tables(position_ids, self._frequencies(length))
            # up to the trained length the very numbers of a model without scaling
            is_longer = length[..., None] > self._scaling.original_max_position_embeddings
            tables = [ops.where(is_longer, *pair) for pair in zip(scaled, tables)]
        cos, sin = tables  # (batch, length, rotary_dim)
        return cos[:, None], sin[:, None]

    def compute_output_spec(
        self, token_ids, position_ids=None, padding_mask=None, current_length=None
    ):
        batch = 1 if position_ids is None else position_ids.shape[0]
        if self._scaling.needs_length:  # 1, or a scale for each row
            batch = None
        shape = (batch, 1, token_ids.shape[1], self.rotary_dim)
        return keras.KerasTensor(shape, "float32"), keras.KerasTensor(shape, "float32")

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
        if not self.on_values or self.on_values == "absolute":
            return output
        return self._rotate(rotary.rotate_inverse, output, context)

    def _frequencies(self, length=None):
        """Frequencies `(rotary_dim // 2,)`, in NumPy where they are fixed, since their angles are exact
        then.

        With the current lengths of rows, `(batch, 1)`, they are `(batch, 1, rotary_dim // 2)`.
        """
        ratios = self._scaling.ratios(self.rotary_dim, self.max_wavelength, length)
        theta = self.theta if self.learned else self._theta
        if isinstance(theta, np.ndarray) and isinstance(ratios, np.ndarray):
            return theta * ratios
        return ops.cast(theta, "float32") * ops.cast(ratios, "float32")

    def _rotate(self, rotate, x, context):
        cos, sin = _given(context)
        if self.rotary_dim == self.head_dim:
            return rotate(x, cos, sin)
        rotated = rotate(x[..., : self.rotary_dim], cos, sin)
        return ops.concatenate([rotated, x[..., self.rotary_dim :]], axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "head_dim": self.head_dim,
            "max_wavelength": self.max_wavelength,
            "rotary_dim": self.rotary_dim,
            "learned": self.learned,
            "on_values": self.on_values,
            "rope_scaling": dict(self.rope_scaling) if self.rope_scaling else None,
        }


def _given(context):
    if context is None:
        raise ValueError(
            "Rotary positions need the angles of this pass: give the layer `position=scheme(token_ids)`. "
            "Received: position=None"
        )
    return context


def _reach(positions, padding_mask):
    """How far the positions `(batch, length)` of the real tokens of each row reach: `(batch, 1)`, float32."""
    first = last = ops.cast(positions, "float32")
    if padding_mask is not None:
        is_real = ops.cast(padding_mask, "bool")
        # a row without real tokens reaches to minus infinity, which is no further than the trained
        # length
        first = ops.where(is_real, first, float("inf"))
        last = ops.where(is_real, last, float("-inf"))
    return ops.max(last, axis=-1, keepdims=True) - ops.min(first, axis=-1, keepdims=True) + 1
