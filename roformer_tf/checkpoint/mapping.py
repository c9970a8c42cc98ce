"""Maps the variables of original checkpoints to the weights of our models, in one table.

Loading, saving, inspecting and converting all read `TABLE`. A row contains the name and shape of
a variable in the original file, the path of its weight in our model, and how to rearrange the
numbers. They are moved but never computed, so loading and saving again gives the same bytes:

* the query, key and value kernels are the three thirds of the columns of one fused kernel, `qkv`;
* the columns of queries and keys are reordered, head by head, from the interleaved layout of the
  original to the half layout (`rotary.interleaved_to_half`), and if values are rotated too, so are
  their columns and the rows of the output projection;
* `cls/seq_relationship/output_weights` is stored transposed.

Source: `variable_mapping` of `BERT`, `NEZHA`, `RoFormer` and `RoFormerV2` in bert4keras'
`models.py`.
"""

from dataclasses import dataclass

import numpy as np

from roformer_tf import rotary


@dataclass(frozen=True)
class Family:
    """How the variables of one family differ from those of the others.

    Attributes:
        title: str. The family's name in messages.
        rotary: bool. Whether queries and keys are rotated, and hence reordered on loading.
        positions: bool. Whether there is a table of learned absolute positions.
        biases: bool. Whether the encoder has biases and its norms have weights (all but v2).
        position_scheme: str. The `position_scheme` of its `RoFormerBackbone`.
    """

    title: str
    rotary: bool
    positions: bool
    biases: bool
    position_scheme: str = "rotary"

    @property
    def norm(self):
        """The `norm` of its `RoFormerBackbone`."""
        return "layer_norm" if self.biases else "rms_norm"


FAMILIES = {
    "roformer": Family("RoFormer v1", rotary=True, positions=False, biases=True),
    "roformer_v2": Family("RoFormer v2", rotary=True, positions=False, biases=False),
    "bert": Family("BERT or WoBERT", False, positions=True, biases=True, position_scheme="learned"),
    "nezha": Family("NEZHA", False, False, biases=True, position_scheme="sinusoidal_relative"),
}


def find_family(norm, position_scheme):
    """Returns the family with a norm and a position scheme, or `None` if there is none."""
    for name, family in FAMILIES.items():
        if (family.norm, family.position_scheme) == (norm, position_scheme):
            return name
    return None


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
    """One row of the table; `{i}` in a name stands for the number of the encoder layer.

    Attributes:
        group: str. A key of `GROUPS`.
        name: str. The variable in the original checkpoint.
        shape: str. Its axes there: V vocabulary, E embedding, H hidden, F intermediate, S segments,
            P positions, 2 classes.
        weight: str. Dotted path of the weight, from the backbone (`backbone.`) or from the task.
        hugging_face: str. The tensor in Hugging Face's layout, or `None`.
        third: int. 0, 1 or 2 for query, key or value in the fused `qkv`, `None` for whole weights.
        rotated: bool. Whether its columns are features of queries or keys.
        from_values: bool. Whether its rows are features of values.
        transposed: bool. Whether the original stores the transpose of our weight.
        token_axis: bool. Whether the first axis counts tokens (see `vocabulary.edit_rows`).
    """

    group: str
    name: str
    shape: str
    weight: str
    hugging_face: str | None
    third: int | None = None
    rotated: bool = False
    from_values: bool = False
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
        from_values=True,
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
    """The sizes that shapes of variables depend on; `num_positions` is for learned positions."""

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    embedding_dim: int
    num_segments: int
    num_positions: int = 0

    def axis(self, symbol):
        """Returns the length of the axis that the table calls `symbol`."""
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


@dataclass(frozen=True, kw_only=True)
class Variable(Row):
    """One variable of a checkpoint: a `Row` of the table for a known family and known sizes.

    Its names have the number of the layer.

    Attributes:
        shape: tuple of int. Shape in the original checkpoint.
        columns: slice. The part of the weight's last axis that holds the variable.
        order: Array of int, or `None`. `ours = original[..., order]`.
        row_order: Array of int, or `None`. `ours = original[row_order]`.
    """

    shape: tuple
    columns: slice
    order: np.ndarray | None
    row_order: np.ndarray | None

    def from_original(self, array):
        """Converts an array of the original checkpoint to its part of our weight."""
        if self.transposed:
            array = array.T
        if self.row_order is not None:
            array = array[self.row_order]
        return array if self.order is None else array[..., self.order]

    def to_original(self, weight):
        """Converts our whole weight to the original's array: the inverse of `from_original`."""
        array = weight[..., self.columns]
        if self.row_order is not None:
            array = array[np.argsort(self.row_order)]
        if self.order is not None:
            array = array[..., np.argsort(self.order)]
        return np.ascontiguousarray(array.T if self.transposed else array)


def variables(family, sizes, groups=tuple(GROUPS), rotary_values=False):
    """Lists the `Variable`s of a checkpoint in the order of the table.

    Args:
        family: str. A key of `FAMILIES`.
        sizes: `Sizes`.
        groups: Keys of `GROUPS` to include, if family and sizes allow them.
        rotary_values: bool. Whether values are rotated as queries and keys are.

    >>> sizes = Sizes(200, 1, 2, 8, 16, 8, 2)
    >>> len(variables("roformer", sizes)), len(variables("roformer_v2", sizes))
    (29, 12)
    """
    traits = FAMILIES[family]
    result = []
    for row in TABLE:
        if row.group in groups and _exists(row, traits, sizes):
            layers = range(sizes.num_layers) if "{i}" in row.name else (0,)
            result += [_fill(row, traits, sizes, i, rotary_values) for i in layers]
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
        # The head of v2 has no transform, but a projection back to a factorised embedding. The
        # original neither saves nor loads it; it gets the name of the same product in v1, so that
        # no weight is lost.
        return factorised
    return not row.name.endswith(("/bias", "/beta", "/gamma", "output_bias"))


def _fill(row, traits, sizes, layer, rotary_values):
    columns = slice(None)
    order = row_order = None
    if row.third is not None:
        columns = slice(row.third * sizes.hidden_dim, (row.third + 1) * sizes.hidden_dim)
    if traits.rotary:
        head_dim = sizes.hidden_dim // sizes.num_heads
        heads = np.arange(sizes.num_heads)[:, None] * head_dim
        half = (heads + rotary.interleaved_to_half(head_dim)).reshape(-1)
        if row.rotated or (rotary_values and row.third == 2):
            order = half
        if rotary_values and row.from_values and len(row.shape) == 2:
            row_order = half
    known = {
        "name": row.name.format(i=layer),
        "shape": tuple(sizes.axis(symbol) for symbol in row.shape),
        "weight": row.weight.format(i=layer),
        "hugging_face": row.hugging_face and row.hugging_face.format(i=layer),
    }
    return Variable(**{**vars(row), **known}, columns=columns, order=order, row_order=row_order)
