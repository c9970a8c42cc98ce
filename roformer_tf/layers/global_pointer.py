import keras
from keras import ops
from keras.src.backend.common.masking import get_keras_mask

from roformer_tf import rotary
from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.config import arguments_of, own_arguments, shape_of_spec
from roformer_tf.layers.flat_dense import make_dense


@keras.saving.register_keras_serializable(package="roformer_tf")
class GlobalPointer(keras.layers.Layer):
    """Scores every span of a sequence, from each start to each end, for each type.

    A span is of a type if its score is above 0, so spans may overlap and be nested. Train it with
    `MultilabelSpanCrossentropy`, or for one span in each sequence with `SpanCrossentropy`.

    The score of the span from token m to token n is s(m, n) = (R_m q_m) · (R_n k_n) / sqrt(d): with
    RoPE it depends on the length n - m of the span.

    Args:
        num_heads: int. Number of types.
        head_dim: even int. Size d of the queries and keys.
        use_rope: bool. Whether to rotate queries and keys by their positions.
        use_bias: bool. Whether the projection has a bias.
        tril_mask: bool. Whether spans that end before they start are masked.
        kernel_initializer: initializer of the projection.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, features)`.
        padding_mask: int or bool tensor `(batch, length)`, 1 for tokens where a span may start and
            end. Defaults to the mask that Keras propagates with `x`.

    Returns:
        float32 tensor `(batch, num_heads, start, end)`, minus infinity for masked spans.

    Raises:
        ValueError: If `num_heads` is not positive, or `head_dim` not positive and even.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import GlobalPointer
    >>> x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    >>> scores = GlobalPointer(num_heads=3, head_dim=8)(x)
    >>> tuple(scores.shape)
    (2, 3, 5, 5)
    >>> float(scores[0, 0, 2, 1])
    -inf

    Reference: https://kexue.fm/archives/8373; `GlobalPointer` of bert4keras 0.11.5 (`heads`,
    `head_size` and `RoPE` there), whose weights it takes.
    """

    def __init__(
        self,
        num_heads,
        head_dim=64,
        use_rope=True,
        use_bias=True,
        tril_mask=True,
        kernel_initializer="lecun_normal",
        **kwargs,
    ):
        # autocast would round a mask; the projections cast their input themselves
        super().__init__(autocast=False, **kwargs)
        check_positive_integer("num_heads", num_heads)
        check_positive_integer("head_dim", head_dim)
        if head_dim % 2:
            raise ValueError(f"`head_dim` must be even. Received: head_dim={head_dim}")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.use_rope = use_rope
        self.use_bias = use_bias
        self.tril_mask = tril_mask
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape, padding_mask_shape=None):
        self.dense = make_dense(self, 2 * self.num_heads * self.head_dim, "dense")
        self.dense.build(x_shape)

    def compute_mask(self, inputs, previous_mask):
        return None  # masked spans have a score of minus infinity

    def call(self, x, padding_mask=None):
        if padding_mask is None:
            padding_mask = get_keras_mask(x)
        batch, length = ops.shape(x)[:2]  # the shape of the product is wrong in ONNX files
        x = self.dense(x)
        if self.num_heads == 1:  # the transposition of a single head is wrong in ONNX files
            x = ops.expand_dims(x, 1)
        else:
            x = ops.reshape(x, (batch, length, self.num_heads, 2 * self.head_dim))
            x = ops.transpose(x, (0, 2, 1, 3))
        query, key = ops.split(x, 2, axis=-1)
        return self.mask_scores(self.products(query, key), padding_mask)

    def products(self, query, key):
        """Returns the scores `(..., start, end)` of queries and keys `(..., length, head_dim)`."""
        if self.use_rope:
            positions = ops.arange(ops.shape(query)[-2], dtype="int32")
            cos, sin = rotary.tables(positions, rotary.frequencies(self.head_dim))
            query = rotary.rotate(query, cos, sin, "interleaved")
            key = rotary.rotate(key, cos, sin, "interleaved")
        # scaled before the product, where float16 would overflow
        query = query / self.head_dim**0.5
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
        return ops.cast(scores, "float32")

    def mask_scores(self, scores, padding_mask=None):
        """Sets scores to minus infinity: of padding, and of spans that end before they start."""
        allowed = None
        if padding_mask is not None:
            real = ops.cast(padding_mask, "bool")
            allowed = ops.logical_and(ops.expand_dims(real, (1, 3)), ops.expand_dims(real, (1, 2)))
        if self.tril_mask:
            positions = ops.arange(ops.shape(scores)[-1], dtype="int32")
            upper = ops.less_equal(ops.expand_dims(positions, 1), positions)
            allowed = upper if allowed is None else ops.logical_and(allowed, upper)
        if allowed is None:
            return scores
        return ops.where(allowed, scores, ops.cast(float("-inf"), scores.dtype))

    def compute_output_spec(self, x, padding_mask=None):
        return keras.KerasTensor((x.shape[0], self.num_heads, x.shape[1], x.shape[1]), "float32")

    compute_output_shape = shape_of_spec

    def get_config(self):
        own = own_arguments(self, GlobalPointer)
        return {**own, **super().get_config(), **arguments_of(self, GlobalPointer)}
