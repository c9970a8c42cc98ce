import math
import random

import keras
from keras import ops

from roformer_tf.layers.dropout import GivenSeed
from roformer_tf.layers.feature_map import FeatureMap, scaled_exp


@keras.saving.register_keras_serializable(package="roformer_tf")
class FavorFeatureMap(FeatureMap):
    """Positive orthogonal random features (FAVOR+): E[phi(q) . phi(k)] = exp(q . k / sqrt(d)).

    phi(x) = exp(W y - |y|^2 / 2) for y = x / d^(1/4). The rows of W are normal vectors, orthogonal
    in groups of d. The relative error of an estimate is about
    exp(|y_q + y_k|^2 / 2) / sqrt(`num_features`): it falls with the number of features, and grows
    fast with the size of queries and keys. All heads use the same W.

    Args:
        num_features: even positive integer; `d log(d)` by default, as in performer-pytorch.
        seed: int. Determines all draws of W. Random by default.
        redraw_every: int. Number of training steps after which W is redrawn, or `None` for never. A
            step is a call with `training=True`; all replicas of a `tf.distribute` strategy draw the
            same. In a loop over parts of a batch or with recomputed activations, leave it out and
            call `redraw` between the steps.
        rotate_inputs: bool. Whether a position scheme rotates queries and keys instead of the
            features. Attention then approximates *softmax attention with RoPE* and can use its
            weights. performer-pytorch, which the paper trained its Performer with, does so.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments, returns: see `FeatureMap`.

    Raises:
        ValueError: If `num_features` is not an even positive integer, or `redraw_every` not a
            positive one.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import FavorFeatureMap
    >>> x = np.random.default_rng(0).normal(size=(1, 1, 2, 16)).astype("float32") / 2
    >>> feature_map = FavorFeatureMap(num_features=4096, seed=1)
    >>> query, key, log_scale = feature_map(x[:, :, :1], x)
    >>> weights = np.array(query) @ np.array(key[0, 0]).T * np.exp(log_scale)
    >>> softmax = np.exp(x[0, 0, 0] @ x[0, 0].T / 4)
    >>> bool(np.allclose(weights / weights.sum(), softmax / softmax.sum(), atol=0.02))
    True

    Reference: Choromanski et al., Rethinking attention with Performers, arXiv 2009.14794, lemma 1
    and section 2.4.
    """

    def __init__(
        self, num_features=None, seed=None, redraw_every=None, rotate_inputs=False, **kwargs
    ):
        super().__init__(**kwargs)
        if num_features is not None:
            if not isinstance(num_features, int) or num_features <= 0 or num_features % 2:
                raise ValueError(
                    "`num_features` must be an even positive integer, since RoPE rotates pairs of "
                    f"features. Received: num_features={num_features!r}"
                )
        if redraw_every is not None and (not isinstance(redraw_every, int) or redraw_every <= 0):
            raise ValueError(
                "`redraw_every` must be a positive integer or None. "
                f"Received: redraw_every={redraw_every!r}"
            )
        self.num_features = num_features
        self.seed = random.randint(1, 10**9) if seed is None else seed
        self.redraw_every = redraw_every
        self.rotate_inputs = rotate_inputs

    def feature_dim(self, head_dim):
        return self.num_features or 2 * max(1, round(head_dim * math.log(head_dim) / 2))

    def build(self, query_shape, key_shape):
        head_dim = query_shape[-1]
        options = {"trainable": False, "aggregation": "only_first_replica"}
        self.projection = self.add_weight(
            (self.feature_dim(head_dim), head_dim),
            initializer=lambda shape, dtype=None: self._draw(0, shape),
            dtype="float32",
            name="projection",
            **options,
        )
        self.draws = self.add_weight((), "zeros", "int32", name="draws", **options)
        if self.redraw_every:
            self.steps = self.add_weight((), "zeros", "int32", name="steps", **options)

    def call(self, query, key, key_bias=None, training=None):
        projection = self._next_projection() if training and self.redraw_every else self.projection
        projection = ops.transpose(ops.convert_to_tensor(projection))
        size = query.shape[-1] ** -0.25
        query, key = size * query, size * key
        # exp(-|q|^2 / 2) and 1 / sqrt(num_features) cancel between numerator and denominator
        query = scaled_exp(ops.matmul(query, projection))[0]
        half = ops.sum(ops.square(key), axis=-1, keepdims=True) / 2
        return query, *scaled_exp(ops.matmul(key, projection) - half)

    def redraw(self):
        """Redraws all features, with the next draw of the seed."""
        self.draws.assign(self.draws + 1)
        self.projection.assign(self._draw(self.draws, self.projection.shape))

    def _next_projection(self):
        """Counts a training step and returns its projection."""
        steps = ops.convert_to_tensor(self.steps)
        due = ops.logical_and(steps > 0, ops.equal(steps % self.redraw_every, 0))
        draws = ops.convert_to_tensor(self.draws) + ops.cast(due, "int32")
        shape = tuple(self.projection.shape)
        # no assignment inside the condition: replicas could not agree on it there
        projection = ops.cond(
            due, lambda: self._draw(draws, shape), lambda: ops.convert_to_tensor(self.projection)
        )
        self.steps.assign(steps + 1)
        self.draws.assign(draws)
        self.projection.assign(projection)
        return projection

    def _draw(self, number, shape):
        """Returns draw `number` of the seed, `(num_features, head_dim)`."""
        num_features, head_dim = shape
        blocks = -(-num_features // head_dim)
        # JAX takes its raw keys in this dtype only
        dtype = "uint32" if keras.config.backend() == "jax" else "int32"
        seed = GivenSeed(ops.stack([ops.cast(self.seed, dtype), ops.cast(number, dtype)]))
        normal = keras.random.normal((2, blocks, head_dim, head_dim), dtype="float32", seed=seed)
        directions, triangle = ops.qr(normal[0])
        # QR does not choose the sign of a column at random
        directions = directions * ops.sign(ops.diagonal(triangle, axis1=-2, axis2=-1))[:, None]
        lengths = ops.sqrt(ops.sum(ops.square(normal[1]), axis=-1, keepdims=True))
        rows = ops.swapaxes(directions, -1, -2) * lengths
        return ops.reshape(rows, (blocks * head_dim, head_dim))[:num_features]
