import keras
import numpy as np
from keras import ops
from keras.src.backend.common.masking import get_keras_mask

from roformer_tf.layers.config import arguments_of, shape_of_spec

# NumPy numbers, whose dtype no `keras.config.floatx()` changes
MINUS_INFINITY = np.float32("-inf")
NEVER = np.float32(-1e30)  # as low as none is, but finite, so that differences of it have gradients


@keras.saving.register_keras_serializable(package="roformer_tf")
class ConditionalRandomField(keras.layers.Layer):
    """Adds a learned score for each pair of neighboring tags: a linear-chain CRF.

    The outputs hold all that training and decoding need, for each token the score of every tag
    after every other one. Train them with `ConditionalRandomFieldLoss`, and find the best tags with
    `viterbi_decode`.

    Args:
        lr_multiplier: float. Factor of the learning rate of the scores of pairs: they are this
            many times the weights. Some 100 to 1,000 help when a pretrained model is fine-tuned, as
            its learning rate is small.
        **kwargs: Arguments of `keras.layers.Layer`.

    Call arguments:
        x: Tensor `(batch, length, tags)`, the scores of the tags of each token.
        padding_mask: int or bool tensor `(batch, length)`, 1 for real tokens. Others are skipped,
            wherever they are. Defaults to the mask that Keras propagates with `x`.

    Returns:
        float32 tensor `(batch, length, tags, tags)`: score of a tag (last axis) after another one.
        At the first real token the score of the tag. At padding 0 for the same tag, and minus
        infinity for all others.

    Raises:
        ValueError: If `lr_multiplier` is not positive.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import ConditionalRandomField, viterbi_decode
    >>> layer = ConditionalRandomField()
    >>> outputs = layer(np.zeros((1, 3, 2), "float32"))
    >>> layer.set_weights([np.float32([[0, 1], [1, 0]])])  # tags like to change
    >>> x = np.float32([[[5, 0], [0, 0], [0, 0]]])
    >>> np.array(viterbi_decode(layer(x))).tolist()
    [[0, 1, 0]]

    Reference: `ConditionalRandomField` of bert4keras 0.11.5.
    """

    def __init__(self, lr_multiplier=1, **kwargs):
        super().__init__(autocast=False, **kwargs)
        if not lr_multiplier > 0:
            raise ValueError(
                f"`lr_multiplier` must be positive. Received: lr_multiplier={lr_multiplier}"
            )
        self.lr_multiplier = lr_multiplier

    def build(self, x_shape, padding_mask_shape=None):
        glorot = keras.initializers.GlorotUniform()
        self.transitions = self.add_weight(
            shape=(x_shape[-1], x_shape[-1]),
            initializer=lambda shape, dtype=None: glorot(shape, dtype) / self.lr_multiplier,
            autocast=False,
            name="transitions",
        )

    def compute_mask(self, inputs, previous_mask):
        return None  # the outputs hold it

    def call(self, x, padding_mask=None):
        if padding_mask is None:
            padding_mask = get_keras_mask(x)
        x = ops.cast(x, "float32")
        if padding_mask is None:
            is_first = ops.arange(ops.shape(x)[1])[None] == 0
        else:
            padding_mask = ops.cast(padding_mask, "bool")
            is_first = ops.cumsum(ops.cast(padding_mask, "int32"), axis=1) <= 1
        transitions = ops.cast(self.transitions, "float32") * self.lr_multiplier
        outputs = ops.expand_dims(x, 2) + ops.where(
            ops.expand_dims(is_first, (2, 3)), 0.0, transitions
        )
        if padding_mask is None:
            return outputs
        return ops.where(ops.expand_dims(padding_mask, (2, 3)), outputs, _same_tag(x.shape[-1]))

    def compute_output_spec(self, x, padding_mask=None):
        return keras.KerasTensor((*x.shape, x.shape[-1]), "float32")

    compute_output_shape = shape_of_spec

    def get_config(self):
        return {**super().get_config(), **arguments_of(self, ConditionalRandomField)}


@keras.saving.register_keras_serializable(package="roformer_tf")
class ConditionalRandomFieldLoss(keras.losses.Loss):
    """Negative log probability of the true tags under a `ConditionalRandomField`.

    Args:
        **kwargs: Arguments of `keras.losses.Loss`, such as `name`.

    Call arguments:
        y_true: int tensor `(batch, length)` of tags, -1 for tokens to skip, such as
            padding. Hide the ones before the first tag from the layer too, by `padding_mask`.
        y_pred: Tensor `(batch, length, tags, tags)`, outputs of `ConditionalRandomField`.

    Returns:
        Mean over the batch.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import ConditionalRandomFieldLoss
    >>> loss = ConditionalRandomFieldLoss()(np.array([[0, 1, 1]]), np.zeros((1, 3, 2, 2), "float32"))
    >>> bool(abs(float(loss) - np.log(8)) < 1e-6)
    True

    Reference: `ConditionalRandomField.sparse_loss` of bert4keras 0.11.5.
    """

    def call(self, y_true, y_pred):
        y_pred = ops.cast(y_pred, "float32")
        tags = ops.cast(y_true, "int32")
        size = y_pred.shape[-1]
        is_real = tags >= 0
        y_pred = ops.where(ops.expand_dims(is_real, (2, 3)), y_pred, _same_tag(size))
        batch, length = ops.shape(y_pred)[:2]
        pairs = ops.reshape(y_pred, (batch, length, size * size))
        pair = _tags_before(tags) * size + ops.maximum(tags, 0)
        scores = ops.take_along_axis(pairs, pair[..., None], axis=-1)[..., 0]
        score = ops.sum(ops.where(is_real, scores, 0.0), axis=1)

        steps = ops.transpose(y_pred, (1, 0, 2, 3))
        total, _ = ops.scan(_log_total, _first_total(y_pred), steps)
        return ops.logsumexp(total, axis=1) - score


def _same_tag(size):
    """Returns the scores of pairs at padding, which keeps the tag before: `(size, size)`."""
    return ops.where(ops.eye(size, dtype="bool"), 0.0, MINUS_INFINITY)


def _tags_before(tags):
    """Returns the last tag before each token that is not -1, or 0 before the first one."""
    is_real = tags >= 0
    index = ops.arange(ops.shape(tags)[1], dtype="int32")
    order = ops.argsort(ops.where(is_real, index, index + ops.shape(tags)[1]), axis=1)
    real = ops.take_along_axis(tags, order, axis=1)  # all real ones first
    real = ops.concatenate([ops.zeros_like(tags[:, :1]), real], axis=1)
    count = ops.cast(is_real, "int32")
    return ops.take_along_axis(real, ops.cumsum(count, axis=1) - count, axis=1)


def viterbi_decode(scores):
    """Returns the tags with the highest sum of scores.

    Args:
        scores: Tensor `(batch, length, tags, tags)`, outputs of `ConditionalRandomField`. Add minus
            infinity for a tag that may not follow another.

    Returns:
        int32 tensor `(batch, length)`. Padding repeats the tag before, and has 0 before the first.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import viterbi_decode
    >>> scores = np.zeros((1, 3, 2, 2), "float32")
    >>> scores[:, 1, 0, 1] = 1
    >>> np.array(viterbi_decode(scores)).tolist()
    [[0, 1, 0]]

    Reference: `ViterbiDecoder` of bert4keras' `snippets.py`.
    """
    scores = ops.cast(ops.convert_to_tensor(scores), "float32")

    def forward(total, pairs):
        candidates = total[:, :, None] + pairs
        # On TensorFlow `ops.scan` collects nothing but the dtype of `steps`.
        best = ops.max(candidates, axis=1, initial=MINUS_INFINITY)
        return best, ops.cast(ops.argmax(candidates, axis=1), "float32")

    def backward(tag, best):
        tag_before = ops.take_along_axis(best, tag[:, None], axis=1)[:, 0]
        return tag_before, tag

    steps = ops.transpose(scores, (1, 0, 2, 3))
    total, best = ops.scan(forward, _first_total(scores), steps)
    last = ops.cast(ops.argmax(total, axis=1), "int32")
    _, tags = ops.scan(backward, last, ops.cast(best, "int32"), reverse=True)
    return ops.transpose(tags, (1, 0))


def _first_total(scores):
    """Returns the totals before the first token, where tag 0 stands for none: `(batch, tags)`."""
    is_first = ops.arange(scores.shape[-1]) == 0
    return ops.zeros((ops.shape(scores)[0], 1), "float32") + ops.where(is_first, 0.0, NEVER)


def _log_total(total, pairs):
    """Adds a token to the log sums of all sequences that end with each tag, for `ops.scan`."""
    total = ops.logsumexp(total[:, :, None] + pairs, axis=1)
    return total, total


def tag_probabilities(scores):
    """Returns the probability of each tag of each token under a conditional random field.

    Args:
        scores: Tensor `(batch, length, tags, tags)`, outputs of `ConditionalRandomField`.

    Returns:
        float32 tensor `(batch, length, tags)`.

    Example:

    >>> import numpy as np
    >>> from roformer_tf.layers import tag_probabilities
    >>> np.array(tag_probabilities(np.zeros((1, 1, 2, 2), "float32"))).tolist()
    [[[0.5, 0.5]]]

    Reference: the forward-backward algorithm.
    """
    scores = ops.cast(ops.convert_to_tensor(scores), "float32")
    steps = ops.transpose(scores, (1, 0, 2, 3))

    def backward(rest, pairs):
        return ops.logsumexp(pairs + rest[:, None, :], axis=2), rest

    first = _first_total(scores)
    _, before = ops.scan(_log_total, first, steps)
    _, after = ops.scan(backward, ops.zeros_like(first), steps, reverse=True)
    return ops.transpose(ops.softmax(before + after, axis=-1), (1, 0, 2))
