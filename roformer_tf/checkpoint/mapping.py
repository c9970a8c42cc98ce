"""The one table between variables of original checkpoints and weights of our models.

Loading, saving, inspecting and the conversion from and to Hugging Face all read `TABLE`; no variable name is written
down anywhere else. A row says how a variable is called and shaped in the original file, where its numbers live in our
model, and what is done to them on the way. What is done only moves numbers and never computes, so that loading and
saving again gives the same bytes:

* the query, key and value kernels are the three thirds of the columns of one fused kernel, `qkv`;
* the columns of queries and keys go, head by head, from the interleaved layout of the original to the half layout
  (`rotary.interleaved_to_half`);
* `cls/seq_relationship/output_weights` is stored transposed.

Source: `variable_mapping` of `BERT`, `NEZHA`, `RoFormer` and `RoFormerV2` in bert4keras' `models.py`.
"""

from dataclasses import dataclass, replace

import numpy as np

from roformer_tf import rotary


@dataclass(frozen=True)
class Family:
    """What sets the variables of one family apart.

    Attributes:
        title: the family's name for people.
        rotary: whether queries and keys are rotated, hence permuted on loading.
        positions: whether there is a table of learned absolute positions.
        biases: whether the encoder has biases and its norms have weights (all but v2).
        position_scheme: of the `RoFormerBackbone` that it is.
    """

    title: str
    rotary: bool
    positions: bool
    biases: bool
    position_scheme: str = "rotary"


FAMILIES = {
    "roformer": Family("RoFormer v1", rotary=True, positions=False, biases=True),
    "roformer_v2": Family("RoFormer v2", rotary=True, positions=False, biases=False),
    "bert": Family("BERT or WoBERT", False, positions=True, biases=True, position_scheme="learned"),
    "nezha": Family("NEZHA", False, False, biases=True, position_scheme="sinusoidal_relative"),
}

GROUPS = {
    "embeddings": "token embedding, embedding norm and projection",
    "segments": "segment embedding",
    "positions": "learned absolute position embedding",
    "encoder": "encoder blocks",
    "pooler": "pooler",
    "nsp": "next-sentence head",
    "mlm": "masked-LM head",
}


@dataclass(frozen=True)
class Row:
    """One line of the table; `{i}` in a name stands for the number of the encoder layer.

    Attributes:
        group: key of `GROUPS`.
        name: the variable in the original checkpoint.
        shape: its axes there: V vocabulary, E embedding, H hidden, F intermediate, S segments, P positions, 2 classes.
        weight: dotted path of the weight, from the backbone (`backbone.`) or from the task.
        hugging_face: the tensor in Hugging Face's layout, or `None`.
        third: 0, 1 or 2 for query, key or value in the fused `qkv`, or `None` for the whole weight.
        rotated: whether the features are queries or keys.
        transposed: whether the original stores the transpose of our weight.
        token_axis: whether the first axis counts tokens of the vocabulary (vocabulary surgery).
    """

    group: str
    name: str
    shape: str
    weight: str
    hugging_face: str | None
    third: int | None = None
    rotated: bool = False
    transposed: bool = False
    token_axis: bool = False


def _dense(group, name, axes, weight, hugging_face, **options):
    return (
        Row(group, f"{name}/kernel", axes, f"{weight}.kernel", f"{hugging_face}.weight", **options),
        Row(group, f"{name}/bias", axes[-1], f"{weight}.bias", f"{hugging_face}.bias", **options),
    )


def _norm(group, name, axis, weight, hugging_face):
    return (
        Row(group, f"{name}/beta", axis, f"{weight}.beta", f"{hugging_face}.bias"),
        Row(group, f"{name}/gamma", axis, f"{weight}.gamma", f"{hugging_face}.weight"),
    )


def _layer():
    name, ours = "bert/encoder/layer_{i}", "backbone.encoder_blocks.{i}"
    theirs = "roformer.encoder.layer.{i}"
    rows = []
    for third, part in enumerate(("query", "key", "value")):
        rows += _dense(
            "encoder",
            f"{name}/attention/self/{part}",
            "HH",
            f"{ours}.attention.qkv",
            f"{theirs}.attention.self.{part}",
            third=third,
            rotated=part != "value",
        )
    output = "attention/output"
    rows += _dense(
        "encoder",
        f"{name}/{output}/dense",
        "HH",
        f"{ours}.attention.output_dense",
        f"{theirs}.attention.output.dense",
    )
    rows += _norm(
        "encoder",
        f"{name}/{output}/LayerNorm",
        "H",
        f"{ours}.attention_norm",
        f"{theirs}.attention.output.LayerNorm",
    )
    feed_forward = f"{ours}.feed_forward"
    rows += _dense(
        "encoder",
        f"{name}/intermediate/dense",
        "HF",
        f"{feed_forward}.intermediate_dense",
        f"{theirs}.intermediate.dense",
    )
    rows += _dense(
        "encoder",
        f"{name}/output/dense",
        "FH",
        f"{feed_forward}.output_dense",
        f"{theirs}.output.dense",
    )
    rows += _norm(
        "encoder",
        f"{name}/output/LayerNorm",
        "H",
        f"{ours}.feed_forward_norm",
        f"{theirs}.output.LayerNorm",
    )
    return tuple(rows)


TABLE = (
    Row(
        "embeddings",
        "bert/embeddings/word_embeddings",
        "VE",
        "backbone.token_embedding.embeddings",
        "roformer.embeddings.word_embeddings.weight",
        token_axis=True,
    ),
    Row(
        "segments",
        "bert/embeddings/token_type_embeddings",
        "SE",
        "backbone.embeddings.segment_embedding.embeddings",
        "roformer.embeddings.token_type_embeddings.weight",
    ),
    Row(
        "positions",
        "bert/embeddings/position_embeddings",
        "PE",
        "backbone.position_scheme.position_embedding.embeddings",
        None,
    ),
    *_norm(
        "embeddings",
        "bert/embeddings/LayerNorm",
        "E",
        "backbone.embeddings.norm",
        "roformer.embeddings.LayerNorm",
    ),
    *_dense(
        "embeddings",
        "bert/encoder/embedding_hidden_mapping_in",
        "EH",
        "backbone.embeddings.projection",
        "roformer.embeddings_project",
    ),
    *_layer(),
    *_dense("pooler", "bert/pooler/dense", "HH", "backbone.pooler.dense", "roformer.pooler.dense"),
    Row(
        "nsp",
        "cls/seq_relationship/output_weights",
        "2H",
        "logits_dense.kernel",
        None,
        transposed=True,
    ),
    Row("nsp", "cls/seq_relationship/output_bias", "2", "logits_dense.bias", None),
    *_dense(
        "mlm",
        "cls/predictions/transform/dense",
        "HE",
        "head.transform",
        "cls.predictions.transform.dense",
    ),
    *_norm(
        "mlm",
        "cls/predictions/transform/LayerNorm",
        "E",
        "head.norm",
        "cls.predictions.transform.LayerNorm",
    ),
    Row(
        "mlm",
        "cls/predictions/output_bias",
        "V",
        "head.output_bias",
        "cls.predictions.bias",
        token_axis=True,
    ),
)


@dataclass(frozen=True)
class Sizes:
    """The sizes that the shapes of a checkpoint depend on; `num_positions` is 0 without learned positions."""

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    embedding_dim: int
    num_segments: int
    num_positions: int = 0

    def axis(self, symbol):
        """The length of the axis that the table calls `symbol`."""
        lengths = {
            "V": self.vocabulary_size,
            "E": self.embedding_dim,
            "H": self.hidden_dim,
            "F": self.intermediate_dim,
            "S": self.num_segments,
            "P": self.num_positions,
            "2": 2,
        }
        return lengths[symbol]


def with_positions(sizes, num_positions):
    """`sizes` for a checkpoint whose table of absolute positions has `num_positions` rows."""
    return replace(sizes, num_positions=num_positions)


@dataclass(frozen=True)
class Variable:
    """One variable of a checkpoint of known family and sizes: a row of the table, filled in.

    Attributes:
        name: in the original checkpoint.
        group: key of `GROUPS`.
        shape: tuple of int, in the original checkpoint.
        weight: dotted path of the weight in our model.
        hugging_face: name in Hugging Face's layout, or `None`.
        columns: slice of the last axis of the weight that holds the variable.
        order: `ours = original[..., order]`, or `None`.
        transposed: whether the original stores the transpose.
        token_axis: whether the first axis counts tokens.
    """

    name: str
    group: str
    shape: tuple
    weight: str
    hugging_face: str | None
    columns: slice
    order: np.ndarray | None
    transposed: bool
    token_axis: bool

    def from_original(self, array):
        """The part of the weight that an array of the original checkpoint becomes."""
        if self.transposed:
            array = array.T
        return array if self.order is None else array[..., self.order]

    def to_original(self, weight):
        """The array of the original checkpoint that our whole weight contains; inverse of `from_original`."""
        array = weight[..., self.columns]
        if self.order is not None:
            array = array[..., np.argsort(self.order)]
        return np.ascontiguousarray(array.T if self.transposed else array)


def variables(family, sizes, groups=tuple(GROUPS)):
    """The variables of a checkpoint, in the order of the table.

    Args:
        family: key of `FAMILIES`.
        sizes: `Sizes`.
        groups: the groups wanted; those that the family or the sizes rule out are left out anyway.

    Returns:
        List of `Variable`.

    Example:

    >>> from roformer_tf.checkpoint import mapping
    >>> sizes = mapping.Sizes(200, 1, 2, 8, 16, 8, 2)
    >>> len(mapping.variables("roformer", sizes)), len(mapping.variables("roformer_v2", sizes))
    (29, 12)
    >>> mapping.variables("roformer", sizes)[0].shape
    (200, 8)
    """
    traits = FAMILIES[family]
    result = []
    for row in TABLE:
        if row.group in groups and _exists(row, traits, sizes):
            layers = range(sizes.num_layers) if "{i}" in row.name else (0,)
            result += [_fill(row, traits, sizes, i) for i in layers]
    return result


def _exists(row, traits, sizes):
    factorised = sizes.embedding_dim != sizes.hidden_dim
    if row.group == "segments":
        return sizes.num_segments > 0
    if row.group == "positions":
        return traits.positions
    if "embedding_hidden_mapping_in" in row.name and not factorised:
        return False
    if traits.biases or row.group in ("pooler", "nsp"):
        return True
    if row.name == "cls/predictions/transform/dense/kernel":
        # The head of v2 has no transform but, when the embedding is factorised, a projection back to it. The original
        # neither saves nor loads that one; it gets the name of the same product in v1, so that no weight is lost.
        return factorised
    return not row.name.endswith(("/bias", "/beta", "/gamma", "output_bias"))


def _fill(row, traits, sizes, layer):
    columns = slice(None)
    order = None
    if row.third is not None:
        columns = slice(row.third * sizes.hidden_dim, (row.third + 1) * sizes.hidden_dim)
    if row.rotated and traits.rotary:
        head_dim = sizes.hidden_dim // sizes.num_heads
        heads = np.arange(sizes.num_heads)[:, None] * head_dim
        order = (heads + rotary.interleaved_to_half(head_dim)).reshape(-1)
    return Variable(
        name=row.name.format(i=layer),
        group=row.group,
        shape=tuple(sizes.axis(symbol) for symbol in row.shape),
        weight=row.weight.format(i=layer),
        hugging_face=row.hugging_face and row.hugging_face.format(i=layer),
        columns=columns,
        order=order,
        transposed=row.transposed,
        token_axis=row.token_axis,
    )
