import dataclasses

import keras
import numpy as np
from keras import ops

from roformer_tf import rotary
from roformer_tf.checks import check_number, check_one_of
from roformer_tf.layers.cache import as_index
from roformer_tf.layers.config import arguments_of
from roformer_tf.rope_scaling import RopeScaling, YaRNScaling, make_rope_scaling

ROPE_TYPES = ("linear", "dynamic", "yarn")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryEmbedding(keras.layers.Layer):
    """Rotates features by their positions. A drop-in for `keras_hub.layers.RotaryEmbedding`.

    The arguments up to `denominator_dim`, and the call, are those of KerasHub, with the same
    results. Angles are exact for positions up to 2^24, and the rotation is computed in float32
    under every dtype policy.

    Args:
        max_wavelength: float. Base of the frequencies `max_wavelength^(-2i / rotary_dim)`.
        scaling_factor: float. Scaling factor for `rope_type`.
        rope_type: `"linear"`, `"dynamic"` or `"yarn"`, as in KerasHub. Its `"dynamic"` divides all
            frequencies by `scaling_factor^(d / (d - 2))`, whatever the length. For Hugging Face's
            rules pass `rope_scaling`.
        beta_fast: float. For `rope_type="yarn"`.
        beta_slow: float. For `rope_type="yarn"`.
        original_max_position_embeddings: int. Trained length, for `rope_type="yarn"`.
        truncate: bool. Whether YaRN's ramp starts and ends at whole pairs.
        sequence_axis: int. Sequence axis of the inputs.
        feature_axis: int. Feature axis of the inputs.
        denominator_dim: int. Denominator of the exponent of the frequencies. Defaults to the number
            of rotated features.
        layout: Which features make a pair: `"half"`, (i, i + d / 2), as in KerasHub and LLaMA, or
            `"interleaved"`, (2i, 2i + 1), as in the paper and the original RoFormer checkpoints.
        rotary_dim: even int. Number of features that are rotated, the first ones. Defaults to all.
        rope_scaling: dict in Hugging Face's format, such as
            `{"rope_type": "llama3", "factor": 8.0, ...}`; see `roformer_tf.rope_scaling`. It takes
            the place of `rope_type` and `scaling_factor`.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor with a sequence axis and a feature axis, such as `(batch, length, features)`
            or `(batch, length, num_heads, features)`.
        start_index: int or scalar int tensor. Position of the first token.
        positions: Tensor `(length,)` or `(batch, length)` of whole or fractional positions. If
            given, `start_index` is ignored.
        inverse: bool. Whether to rotate back: `layer(layer(x), inverse=True)` is `x`.

    Returns:
        Tensor of the shape of `inputs`.

    Raises:
        ValueError: If the number of rotated features is odd, an axis is out of range, or an option
            is unknown.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import RotaryEmbedding
    >>> query = np.random.default_rng(0).normal(size=(2, 5, 4, 8)).astype("float32")
    >>> layer = RotaryEmbedding()
    >>> rotated = layer(query)
    >>> tuple(rotated.shape)
    (2, 5, 4, 8)
    >>> bool(np.allclose(layer(rotated, inverse=True), query, atol=1e-6))
    True

    The next token of a sequence that is generated token by token:

    >>> tuple(layer(query[:, :1], start_index=5).shape)
    (2, 1, 4, 8)

    Reference: equations 14 to 16 and 34 of arXiv 2104.09864; `roformer_tf.rotary`.
    """

    def __init__(
        self,
        max_wavelength=10000,
        scaling_factor=1.0,
        rope_type="linear",
        beta_fast=32.0,
        beta_slow=1.0,
        original_max_position_embeddings=4096,
        truncate=True,
        sequence_axis=1,
        feature_axis=-1,
        denominator_dim=None,
        layout="half",
        rotary_dim=None,
        rope_scaling=None,
        **kwargs,
    ):
        # Keras would cast positions too, and bfloat16 has no 1001.
        self._casts_inputs = kwargs.pop("autocast", True)
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        check_one_of("rope_type", rope_type, ROPE_TYPES)
        check_one_of("layout", layout, rotary.LAYOUTS)
        check_number("scaling_factor", scaling_factor, low=1e-30)
        self.max_wavelength = max_wavelength
        self.scaling_factor = scaling_factor
        self.rope_type = rope_type
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.original_max_position_embeddings = original_max_position_embeddings
        self.truncate = truncate
        self.sequence_axis = sequence_axis
        self.feature_axis = feature_axis
        self.denominator_dim = denominator_dim
        self.layout = layout
        self.rotary_dim = rotary_dim
        self.rope_scaling = rope_scaling
        self._scaling = make_rope_scaling(rope_scaling) if rope_scaling else self._hub_scaling()
        self.built = True

    @property
    def depends_on_length(self):
        """Whether the angles depend on the length of the sequence: dynamic NTK and LongRoPE."""
        return self._scaling.needs_length

    @property
    def query_key_factor(self):
        """Float. The number that scales outputs, 1 except for YaRN and longrope."""
        return self._scaling.query_key_factor

    def _hub_scaling(self):
        """Returns the rule for KerasHub's `rope_type`."""
        if self.rope_type == "yarn":
            return YaRNScaling(
                self.scaling_factor,
                self.original_max_position_embeddings,
                beta_fast=self.beta_fast,
                beta_slow=self.beta_slow,
                truncate=self.truncate,
            )
        return _UniformScaling(self.scaling_factor, self.rope_type == "dynamic")

    def call(self, inputs, start_index=0, positions=None, inverse=False):
        if self._casts_inputs:
            inputs = ops.cast(inputs, self.compute_dtype)
        rank = len(inputs.shape)
        sequence_axis, feature_axis = self._axes(rank)
        inputs = ops.moveaxis(inputs, (sequence_axis, feature_axis), (1, rank - 1))
        if positions is None:
            positions = ops.arange(ops.shape(inputs)[1], dtype="int32") + as_index(start_index)
        positions = ops.convert_to_tensor(positions)
        if len(positions.shape) == 1:
            positions = positions[None]

        features = inputs.shape[-1]
        rotary_dim = features if self.rotary_dim is None else self.rotary_dim
        self._check_rotary_dim(rotary_dim, features)
        cos, sin = self._tables(positions, rotary_dim)
        factor = self.query_key_factor
        if inverse:
            sin, factor = -sin, 1 / factor
        if factor != 1:
            cos, sin = cos * factor, sin * factor
        for axis in range(2, rank - 1):
            cos, sin = ops.expand_dims(cos, axis), ops.expand_dims(sin, axis)
        outputs = rotary.rotate(inputs[..., :rotary_dim], cos, sin, self.layout)
        if rotary_dim < features:
            outputs = ops.concatenate([outputs, inputs[..., rotary_dim:]], axis=-1)
        return ops.moveaxis(outputs, (1, rank - 1), (sequence_axis, feature_axis))

    def _tables(self, positions, rotary_dim):
        base = self.max_wavelength
        if self.denominator_dim is not None:
            base = base ** (rotary_dim / self.denominator_dim)
        theta = rotary.frequencies(rotary_dim, base)
        return scaled_tables(positions, theta, self._scaling, base)

    def _axes(self, rank):
        axes = [
            axis + rank if axis < 0 else axis for axis in (self.sequence_axis, self.feature_axis)
        ]
        if not all(0 < axis < rank for axis in axes) or axes[0] == axes[1]:
            raise ValueError(
                "`sequence_axis` and `feature_axis` must be two axes of the inputs after the batch "
                f"axis. Received: sequence_axis={self.sequence_axis}, "
                f"feature_axis={self.feature_axis}, and inputs of rank {rank}"
            )
        return axes

    def _check_rotary_dim(self, rotary_dim, features):
        if not features or rotary_dim % 2 or not 0 < rotary_dim <= features:
            raise ValueError(
                "The number of rotated features must be even and at most the size of the feature "
                "axis, which must be static. Set `rotary_dim`, or another `feature_axis`. "
                f"Received: rotary_dim={self.rotary_dim}, a feature axis of size {features}"
            )

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, RotaryEmbedding)}


@dataclasses.dataclass(frozen=True)
class _UniformScaling(RopeScaling):
    """KerasHub's "linear" and "dynamic": one ratio for all frequencies."""

    factor: float
    dynamic: bool

    def __post_init__(self):
        pass  # KerasHub takes factors below 1, too

    def ratios(self, rotary_dim, base, length=None):
        exponent = rotary_dim / max(1, rotary_dim - 2) if self.dynamic else 1
        return np.full(rotary_dim // 2, self.factor**-exponent)


def scaled_tables(positions, theta, scaling, base, padding_mask=None, current_length=None):
    """Returns `rotary.tables` with the frequencies slowed down by a rule of `rope_scaling`.

    Args:
        positions: Tensor `(1 or batch, length)`.
        theta: Frequencies `(rotary_dim // 2,)`, NumPy array or tensor.
        scaling: `RopeScaling`.
        base: float. Base of the frequencies.
        padding_mask: Tensor `(batch, length)` or `None`; read by rules that depend on the length.
        current_length: int or int tensor `(batch,)`. Defaults to last position - first position + 1
            of the tokens of each sequence that are not padding.

    Returns:
        `(cos, sin)`, float32 tensors `(1 or batch, length, rotary_dim)`.
    """

    def frequencies(length=None):
        ratios = scaling.ratios(2 * theta.shape[0], base, length)
        if isinstance(theta, np.ndarray) and isinstance(ratios, np.ndarray):
            return theta * ratios  # in float64, since their angles are exact then
        return ops.cast(theta, "float32") * ops.cast(ratios, "float32")

    tables = rotary.tables(positions, frequencies())
    if not scaling.needs_length:
        return tables
    if current_length is None:
        length = _reach(positions, padding_mask)
    else:
        length = ops.reshape(ops.cast(current_length, "float32"), (-1, 1))
    scaled = rotary.tables(positions, frequencies(length))
    # up to the trained length exactly the numbers of a model without scaling
    is_longer = length[..., None] > scaling.original_max_position_embeddings
    return tuple(ops.where(is_longer, *pair) for pair in zip(scaled, tables, strict=True))


def _reach(positions, padding_mask):
    """Returns last position - first position + 1 of the real tokens: float32 `(batch, 1)`."""
    first = last = ops.cast(positions, "float32")
    if padding_mask is not None:
        is_real = ops.cast(padding_mask, "bool")
        # a sequence without real tokens reaches to minus infinity: below the trained length
        first = ops.where(is_real, first, float("inf"))
        last = ops.where(is_real, last, float("-inf"))
    return ops.max(last, axis=-1, keepdims=True) - ops.min(first, axis=-1, keepdims=True) + 1
