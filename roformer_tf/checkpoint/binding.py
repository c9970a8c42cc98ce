"""A model seen through the table: which variables it has, and where each one lives."""

import keras

from roformer_tf.checkpoint import mapping
from roformer_tf.models import RoFormerBackbone


class ModelBinding:
    """The rows of the table that a model has, tied to its weights.

    Args:
        model: `RoFormerBackbone`, or a task with a `backbone`.
        nsp_head: whether the classifier on the pooler is the original's next-sentence head.

    Attributes:
        model, backbone: as given, and its backbone.
        family: key of `mapping.FAMILIES`.
        groups: the groups of variables that the model has.
        variables: dict from original name to `mapping.Variable`, in the order of the table.

    Raises:
        ValueError: if `model` is no RoFormer, or `nsp_head` is asked of a model without such a head.
    """

    def __init__(self, model, nsp_head=False):
        backbone = (
            model if isinstance(model, RoFormerBackbone) else getattr(model, "backbone", None)
        )
        if not isinstance(backbone, RoFormerBackbone):
            raise ValueError(
                "`model` must be a RoFormerBackbone or a task that has one as `backbone`. "
                f"Received: {type(model).__name__}"
            )
        self.model, self.backbone = model, backbone
        self.family = family_of(backbone)
        self.groups = ["embeddings", "encoder"]
        if backbone.num_segments:
            self.groups.append("segments")
        if mapping.FAMILIES[self.family].positions:
            self.groups.append("positions")
        if backbone.pooler is not None:
            self.groups.append("pooler")
        if getattr(model, "head", None) is not None:
            self.groups.append("mlm")
        if nsp_head:
            _check_nsp_head(model)
            self.groups.append("nsp")
        sizes = mapping.Sizes(
            vocabulary_size=backbone.vocabulary_size,
            num_layers=backbone.num_layers,
            num_heads=backbone.num_heads,
            hidden_dim=backbone.hidden_dim,
            intermediate_dim=backbone.intermediate_dim,
            embedding_dim=backbone.embedding_dim,
            num_segments=backbone.num_segments,
            num_positions=backbone.max_sequence_length,
        )
        self.variables = {v.name: v for v in mapping.variables(self.family, sizes, self.groups)}

    @property
    def label(self):
        """What error messages call the model."""
        return f"{type(self.model).__name__} {self.model.name!r}"

    def by_weight(self):
        """Dict from the dotted path of a weight to the variables it is made of."""
        result = {}
        for variable in self.variables.values():
            result.setdefault(variable.weight, []).append(variable)
        return result

    def weight(self, path):
        """The weight at a dotted path: a Keras variable or, where LoRA is merged on the fly, a tensor."""
        root, *steps = path.split(".")
        node = self.backbone if root == "backbone" else getattr(self.model, root)
        for step in steps:
            node = node[int(step)] if step.isdigit() else getattr(node, step)
        if not keras.backend.is_float_dtype(node.dtype):
            raise ValueError(
                f"The weights of {self.label} are quantized ({path} is {node.dtype}); checkpoints are loaded into and "
                "saved from float models only. Load first, then call `quantize`."
            )
        return node

    def variable(self, path):
        """The Keras variable at a dotted path, to assign to."""
        node = self.weight(path)
        if not isinstance(node, keras.Variable):
            raise ValueError(
                f"{self.label} has LoRA enabled ({path} is computed). Load the checkpoint first, then call "
                "`enable_lora`."
            )
        return node


def family_of(backbone):
    """The family whose checkpoints a backbone can have, by its norm and position scheme."""
    for name, family in mapping.FAMILIES.items():
        norm = "layer_norm" if family.biases else "rms_norm"
        if (norm, family.position_scheme) == (backbone.norm, backbone.position_scheme_name):
            return name
    known = ", ".join(
        f"{f.position_scheme!r} with {'layer_norm' if f.biases else 'rms_norm'!r}"
        for f in mapping.FAMILIES.values()
    )
    raise ValueError(
        f"The original format has no such model; it has the position schemes and norms {known}. "
        f"Received: position_scheme={backbone.position_scheme_name!r}, norm={backbone.norm!r}. "
        "Use `save_to_preset` and `from_preset`, which keep every setting."
    )


def _check_nsp_head(model):
    pooling = getattr(model, "pooling", None)
    classes = getattr(model, "num_classes", None)
    if pooling != "pooler" or classes != 2:
        raise ValueError(
            "`nsp_head=True` needs RoFormerTextClassifier(..., pooling='pooler', num_classes=2): the next-sentence "
            f"head is two logits on the pooler. Received: {type(model).__name__} with pooling={pooling!r}, "
            f"num_classes={classes!r}"
        )
