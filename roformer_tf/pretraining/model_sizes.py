import dataclasses
import functools

from roformer_tf.pretraining.position_costs import PositionFlops, position_weight_shapes
from roformer_tf.pretraining.settings import ModelSettings


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """Sizes of a language model: what its memory and its work depend on.

    Args:
        vocabulary_size: positive integer.
        num_layers, num_heads, hidden_dim, intermediate_dim, embedding_dim, num_segments, dropout, attention_dropout,
            activation, norm, position_scheme, position_options, max_sequence_length, dtype: as of `RoFormerBackbone`.

    Example:

    >>> from roformer_tf.pretraining import ModelSizes
    >>> sizes = ModelSizes(vocabulary_size=50_000)
    >>> sizes.num_parameters, sizes.forward_flops(rows=1, length=512, predicted=77)
    (124099664, 102641197056)

    Reference: section 2 of Kaplan et al., arXiv 2001.08361, with the attention and the vocabulary counted.
    """

    vocabulary_size: int
    num_layers: int = ModelSettings.num_layers
    num_heads: int = ModelSettings.num_heads
    hidden_dim: int = ModelSettings.hidden_dim
    intermediate_dim: int = ModelSettings.intermediate_dim
    embedding_dim: int | None = ModelSettings.embedding_dim
    num_segments: int = 2
    dropout: float = ModelSettings.dropout
    attention_dropout: float = ModelSettings.attention_dropout
    activation: str = ModelSettings.activation
    norm: str = ModelSettings.norm
    position_scheme: str = ModelSettings.position_scheme
    position_options: dict | None = dataclasses.field(default=None, hash=False)
    max_sequence_length: int = 512
    dtype: str = ModelSettings.dtype

    def __post_init__(self):
        if self.embedding_dim is None:
            object.__setattr__(self, "embedding_dim", self.hidden_dim)

    @classmethod
    def from_settings(cls, settings, vocabulary_size=None):
        """The sizes of the model that `PretrainingSettings` ask for; reads the vocabulary or the checkpoint.

        Args:
            settings: `PretrainingSettings`.
            vocabulary_size: positive integer, in place of reading the vocabulary of a new model.

        Raises:
            FileNotFoundError: if there is no such vocabulary or checkpoint.
        """
        longest = max(stage.max_length for stage in settings.stages)
        return _sizes_of(cls, settings.model, longest, vocabulary_size)

    @property
    def has_weights_in_norms(self):
        """Whether norms have weights and dense layers biases: v1, and not v2."""
        return self.norm == "layer_norm"

    @property
    def compute_bytes(self):
        """Bytes of a number of the compute dtype."""
        return 4 if self.dtype == "float32" else 2

    @property
    def weight_shapes(self):
        """List of the shapes of all weights."""
        width, inner, embedding = self.hidden_dim, self.intermediate_dim, self.embedding_dim
        shapes = [(self.vocabulary_size, embedding)]
        if self.num_segments:
            shapes.append((self.num_segments, embedding))
        shapes += position_weight_shapes(self)
        block = [(width, 3 * width), (width, width), (width, inner), (inner, width)]
        if self.has_weights_in_norms:
            block += [(3 * width,), (width,), (inner,), (width,)] + 4 * [(width,)]
            shapes += 2 * [(embedding,)]
            shapes += [(width, embedding), (embedding,), (embedding,), (embedding,)]
            shapes.append((self.vocabulary_size,))
        elif embedding != width:
            shapes.append((width, embedding))
        if embedding != width:
            shapes.append((embedding, width))
            shapes += [(width,)] if self.has_weights_in_norms else []
        return shapes + self.num_layers * block

    @property
    def num_parameters(self):
        """Number of weights."""
        return sum(map(_size, self.weight_shapes))

    def block_flops(self, rows, length):
        """Multiplications and additions of the matrix products of all blocks, forward."""
        dense = 4 * self.hidden_dim**2 + 2 * self.hidden_dim * self.intermediate_dim
        attention = 2 * length * self.hidden_dim  # scores, and averages of values
        return 2 * rows * length * self.num_layers * (dense + attention)

    def position_flops(self, rows, length):
        """`PositionFlops`, the same of the position scheme."""
        return PositionFlops.of(self, rows, length)

    def head_flops(self, predicted):
        """The same of the head, for `predicted` positions."""
        transform = self.has_weights_in_norms or self.embedding_dim != self.hidden_dim
        per_position = self.embedding_dim * (self.vocabulary_size + transform * self.hidden_dim)
        return 2 * predicted * per_position

    def embedding_flops(self, rows, length):
        """The same of the map from `embedding_dim` to `hidden_dim`, where they differ."""
        if self.embedding_dim == self.hidden_dim:
            return 0
        return 2 * rows * length * self.embedding_dim * self.hidden_dim

    def forward_flops(self, rows, length, predicted):
        """Multiplications and additions of the matrix products of a forward pass.

        Args:
            rows, length: integers, of the batch.
            predicted: number of positions that the head computes.
        """
        positions = self.position_flops(rows, length)
        return (
            self.block_flops(rows, length)
            + positions.in_blocks
            + positions.once
            + self.head_flops(predicted)
            + self.embedding_flops(rows, length)
        )

    def step_flops(self, rows, length, predicted, recompute=False):
        """The same of a training step; the backward pass is twice the forward one.

        Args:
            rows, length, predicted: as of `forward_flops`.
            recompute: whether the blocks are computed again for the gradient.
        """
        positions = self.position_flops(rows, length)
        flops = 3 * self.forward_flops(rows, length, predicted) - positions.constant
        if recompute:
            flops += self.block_flops(rows, length) + positions.in_blocks
        return flops


def _size(shape):
    product = 1
    for size in shape:
        product *= size
    return product


@functools.lru_cache(maxsize=8)
def _sizes_of(cls, model, longest, vocabulary_size):
    names = [field.name for field in dataclasses.fields(cls)]
    if model.checkpoint is None:
        from roformer_tf.text.vocabulary import Vocabulary

        if vocabulary_size is None:
            vocabulary_size = Vocabulary(model.vocabulary).size
        values = {k: v for k, v in dataclasses.asdict(model).items() if k in names}
        values["max_sequence_length"] = model.max_sequence_length or longest
        return cls(vocabulary_size=vocabulary_size, **values)
    import tensorflow as tf

    from roformer_tf.models import RoFormerBackbone

    with tf.device("CPU:0"):  # made for its settings only
        backbone = RoFormerBackbone.from_preset(model.checkpoint, load_weights=False)
    values = {k: v for k, v in backbone.get_config().items() if k in names}
    values["dtype"] = model.dtype
    return cls(**values)
