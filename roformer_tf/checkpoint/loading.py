"""Loads the variables of a checkpoint into the weights of a model."""

import warnings
from contextlib import nullcontext
from dataclasses import dataclass, fields

import keras
import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.folder import checked_folder, compare_shapes, is_optimizer_slot
from roformer_tf.checkpoint.vocabulary import edit_rows, edited_size

# A checkpoint may contain these even if the model has no such part.
_OPTIONAL = {
    "bert/pooler/": "pooler",
    "cls/seq_relationship/": "nsp",
    "cls/predictions/": "mlm",
    "bert/embeddings/token_type_embeddings": "segments",
}
# The new layers of Hugging Face's tasks, such as `RoFormerForSequenceClassification`
_HUGGING_FACE_HEADS = ("classifier.", "qa_outputs.", "sequence_summary.")
_SIZES = [field.name for field in fields(mapping.Sizes) if field.name != "num_positions"]
# What to do if a group of variables is missing.
_FIXES = {
    "mlm": "load into `model.backbone` to keep a new head",
    "pooler": "build the backbone with pooler=None",
    "nsp": "leave out nsp_head=True",
}
_BACKBONE_ARGUMENTS = {
    "roformer": "norm='layer_norm'",
    "roformer_v2": "norm='rms_norm', activation='relu', layer_norm_epsilon=1e-7",
    "bert": "position_scheme='learned'",
    "nezha": "position_scheme='sinusoidal_relative'",
}


class ModelBinding:
    """Maps the original names of a model's variables to its weights.

    Args:
        model: A `RoFormerBackbone`, or a task that has one as `backbone`.
        nsp_head: bool. Whether the classifier on the pooler is the original's next-sentence head.

    Attributes:
        model, backbone: The model and its backbone.
        family: str. A key of `mapping.FAMILIES`.
        groups: list of str. The groups of variables that the model has.
        variables: dict. Maps original names to `mapping.Variable`, in the order of the table.

    Raises:
        ValueError: If `model` is not a RoFormer, or `nsp_head` is set but it has no such head.
    """

    def __init__(self, model, nsp_head=False):
        backbone = getattr(model, "backbone", model)
        if not all(hasattr(backbone, name) for name in (*_SIZES, "position_scheme_name", "norm")):
            raise ValueError(
                "`model` must be a RoFormerBackbone or a task that has one as `backbone`. "
                f"Received: {type(model).__name__}"
            )
        self.label = f"{type(model).__name__} {model.name!r}"  # in error messages
        self.family = family_of(backbone)
        self.model, self.backbone = model, backbone
        pooling, classes = getattr(model, "pooling", None), getattr(model, "num_classes", None)
        if nsp_head and (pooling, classes) != ("pooler", 2):
            raise ValueError(
                "`nsp_head=True` needs RoFormerTextClassifier(..., pooling='pooler', "
                "num_classes=2): the next-sentence head is two logits on the pooler. Received: "
                f"{type(model).__name__} with pooling={pooling!r}, num_classes={classes!r}"
            )
        present = {
            "embeddings": True,
            "encoder": True,
            "segments": backbone.num_segments,
            "positions": mapping.FAMILIES[self.family].positions,
            "pooler": backbone.pooler is not None,
            "mlm": hasattr(getattr(model, "head", None), "token_embedding"),
            "nsp": nsp_head,
        }
        self.groups = [group for group in present if present[group]]
        sizes = mapping.Sizes(
            **{name: getattr(backbone, name) for name in _SIZES},
            num_positions=backbone.max_sequence_length,
        )
        rotary_values = bool((backbone.position_options or {}).get("on_values"))
        table = mapping.variables(self.family, sizes, self.groups, rotary_values)
        self.variables = {variable.name: variable for variable in table}

    def by_weight(self):
        """Maps the dotted path of each weight to its list of variables."""
        result = {}
        for variable in self.variables.values():
            result.setdefault(variable.weight, []).append(variable)
        return result

    def weight(self, path):
        """Returns the Keras variable at a dotted path, or a tensor with LoRA merged in."""
        root, *steps = path.split(".")
        node = self.backbone if root == "backbone" else getattr(self.model, root)
        for step in steps:
            node = node[int(step)] if step.isdigit() else getattr(node, step)
        if not keras.backend.is_float_dtype(node.dtype):
            raise ValueError(
                f"The weights of {self.label} are quantized ({path} is {node.dtype}), but "
                "checkpoints are loaded into and saved from float models only. Load first, then "
                "call `quantize`."
            )
        return node

    def variable(self, path):
        """Returns the Keras variable at a dotted path, to assign to."""
        node = self.weight(path)
        if not isinstance(node, keras.Variable):
            raise ValueError(
                f"{self.label} has LoRA enabled ({path} is computed). Load the checkpoint first, "
                "then call `enable_lora`."
            )
        return node


def family_of(backbone):
    """Returns the family of a backbone's checkpoints, or raises an error if there is none."""
    norm, scheme = backbone.norm, backbone.position_scheme_name
    family = mapping.find_family(norm, scheme)
    if family is not None:
        return family
    known = ", ".join(f"{f.position_scheme!r} with {f.norm!r}" for f in mapping.FAMILIES.values())
    raise ValueError(
        f"The original format has no such model; it has the position schemes and norms {known}. "
        f"Received: position_scheme={scheme!r}, norm={norm!r}. "
        "Use `save_to_preset` and `from_preset`, which keep every setting."
    )


@dataclass(frozen=True)
class LoadReport:
    """The result of `load_checkpoint`.

    Attributes:
        source: str. The checkpoint.
        loaded: tuple of str. Variables that were loaded.
        ignored: dict. Maps groups to variables of parts that the model does not have: heads, or the
            segment embedding, `"hugging_face"` for the heads of Hugging Face's other tasks.
        optimizer_slots: tuple of str. Variables left over from training.
        missing: tuple of str. Variables that the model needs but the checkpoint lacks.
        unexpected: tuple of str. Variables that the checkpoint should not have.
        wrong_shape: dict. Maps names to `(shape in the model, shape in the checkpoint)`.

    The last three are empty if `strict=True`, which raises instead.

    Example:

    >>> from roformer_tf.checkpoint import LoadReport
    >>> report = LoadReport(
    ...     "bert_model.ckpt", ("a",), {}, (), missing=("b",), unexpected=(), wrong_shape={}
    ... )
    >>> report.complete
    False
    """

    source: str
    loaded: tuple
    ignored: dict
    optimizer_slots: tuple
    missing: tuple
    unexpected: tuple
    wrong_shape: dict

    @property
    def complete(self):
        """Whether every weight of backbone and head came from the checkpoint."""
        return not (self.missing or self.unexpected or self.wrong_shape)


def load_checkpoint(
    model,
    path,
    strict=True,
    family=None,
    keep_tokens=None,
    compound_tokens=None,
    nsp_head=False,
):
    """Loads the weights of an original or Hugging Face checkpoint into a model.

    Reads one tensor at a time, so it needs about as much extra memory as the largest one. If an
    error is raised for names or shapes, no weight has changed.

    Args:
        model: A `RoFormerBackbone` or a task. A masked-LM head must be in the checkpoint; any other
            head, such as a classifier's, is new and keeps its values. Pooler, next-sentence and
            masked-LM variables are ignored if the model has no such part. The trained head of
            another task of Hugging Face is left out, with a warning.
        path: str or path. A folder in the original or Hugging Face's layout, a `.zip` file of one,
            a model on the Hugging Face hub (`hf://user/name`), the prefix of a TF1 checkpoint
            (`folder/bert_model.ckpt`), or one of its files. Also a `CheckpointFolder`.
        strict: bool. `True` raises if a variable is missing, unexpected or has another shape.
            `False` loads what fits and reports the rest.
        family: str. Overrides the family found in the files, see `inspect_checkpoint`.
        keep_tokens: list of int. Ids of the tokens to keep, in their new order.
        compound_tokens: list. Tokens to append, each the mean of others: lists of ids, or tuples
            `(ids, weights)`. Ids count after `keep_tokens`.
        nsp_head: bool. Whether to load the next-sentence head into a classifier with
            `pooling="pooler"` and two classes.

    Returns:
        `LoadReport`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, the checkpoint is of another family, or, if `strict`, it
            does not fit the model or a weight is NaN or infinite. One error lists every difference.

    Example:

    >>> import tempfile
    >>> import roformer_tf
    >>> from roformer_tf.checkpoint import load_checkpoint, save_checkpoint
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> _ = save_checkpoint(backbone, folder)
    >>> report = load_checkpoint(backbone, folder)
    >>> report.complete, len(report.loaded)
    (True, 36)

    Reference: `load_weights_from_checkpoint` and `load_embeddings` of bert4keras' `models.py`.
    """
    with nullcontext(path) if hasattr(path, "arrays") else checked_folder(path) as folder:
        if folder.layout == "preset":
            raise ValueError(
                f"{folder.path} was written by `save_to_preset`. Build the model with "
                "`from_preset(folder)`, or call `model.load_weights` with its model.weights.h5."
            )
        edits = {"keep_tokens": keep_tokens, "compound_tokens": compound_tokens}
        edits = {name: tokens for name, tokens in edits.items() if tokens is not None}
        reader, binding = folder.arrays, ModelBinding(model, nsp_head)
        _check_family(folder, binding, family)
        report = _compare(reader, binding, edits)
        if strict and not report.complete:
            raise ValueError(_complaint(report, binding, edits))
        if "hugging_face" in report.ignored:
            warnings.warn(
                f"{report.source} holds the trained head of a Hugging Face task, which differs from "
                "the heads here. It was left out, and the backbone was loaded: train a new head. "
                f"Left out: {', '.join(report.ignored['hugging_face'])}",
                stacklevel=2,
            )
        loaded = set(report.loaded)
        for name, variables in binding.by_weight().items():
            variables = [v for v in variables if v.name in loaded]
            if variables:
                weight = binding.variable(name)
                _assign(weight, variables, reader, edits)
                if strict:
                    names = " and ".join(v.name for v in variables)
                    check_finite([weight], reader.source, names)
        return report


def check_finite(weights, source, name=None):
    """Raises `ValueError` if one of the weights read from `source` holds NaN or infinity."""
    for weight in weights:
        if not keras.backend.is_float_dtype(weight.dtype):
            continue
        if not keras.ops.all(keras.ops.isfinite(weight.value)):
            raise ValueError(
                f"The weight {name or weight.path} in {source} holds NaN or infinite values, so "
                "every output would be NaN. The file is damaged, or the training diverged before "
                "it was saved: use an earlier checkpoint. If a float16 model was saved, train in "
                "bfloat16."
            )


def _assign(weight, variables, reader, edits):
    first = variables[0]
    if first.token_axis and not edits:
        # a third of a base model is this one table, so avoid a copy where possible
        on_tensorflow = keras.backend.backend() == "tensorflow"
        weight.assign((reader.read_tensor if on_tensorflow else reader.read)(first.name))
    elif first.columns == slice(None):
        array = reader.read(first.name)
        if first.token_axis:
            array = edit_rows(array, **edits)
        weight.assign(first.from_original(array))
    else:
        # query, key and value are thirds of one kernel; a missing third keeps its values
        whole = np.array(keras.ops.convert_to_numpy(weight), dtype="float32")
        for variable in variables:
            whole[..., variable.columns] = variable.from_original(reader.read(variable.name))
        weight.assign(whole)


def _check_family(folder, binding, family):
    found = folder.identity(family, strict=False)  # the model has its own settings
    if found.family == binding.family:
        return
    title = "an unknown model"
    advice = "Only checkpoints with the variable names of Google's BERT can be loaded."
    if found.family is not None:
        title = mapping.FAMILIES[found.family].title
        advice = (
            f"Build the model with {_BACKBONE_ARGUMENTS[found.family]}, or with `from_preset` on "
            f"the folder. If the family is wrong, pass family={binding.family!r}."
        )
    raise ValueError(
        f"Wrong family: {folder.arrays.source} holds {title}, but {binding.label} is "
        f"{mapping.FAMILIES[binding.family].title}. Known from: {found.reasons[0]}. {advice}"
    )


def _compare(reader, binding, edits):
    shapes = dict(reader.shapes)
    for name, variable in binding.variables.items():
        if variable.token_axis and name in shapes:
            size, *rest = shapes[name]
            shapes[name] = (edited_size(size, **edits), *rest)
    missing, unknown, wrong_shape = compare_shapes(binding.variables, shapes, optional=())
    ignored, unexpected = {}, []
    for name in unknown:
        group = next((g for start, g in _OPTIONAL.items() if name.startswith(start)), None)
        if name.startswith(_HUGGING_FACE_HEADS):
            group = "hugging_face"
        if group is None or group in binding.groups:
            unexpected.append(name)
        else:
            ignored.setdefault(group, []).append(name)
    return LoadReport(
        source=str(reader.source),
        loaded=tuple(n for n in binding.variables if n in shapes and n not in wrong_shape),
        ignored={group: tuple(names) for group, names in ignored.items()},
        optimizer_slots=tuple(filter(is_optimizer_slot, shapes)),
        missing=missing,
        unexpected=tuple(unexpected),
        wrong_shape=wrong_shape,
    )


def _complaint(report, binding, edits):
    lines = [
        f"{report.source} does not fit {binding.label}: {len(report.missing)} missing, "
        f"{len(report.unexpected)} unexpected, {len(report.wrong_shape)} of wrong shape."
    ]
    shapes = (
        f"{name}: the model has {ours}, the checkpoint {theirs}"
        for name, (ours, theirs) in report.wrong_shape.items()
    )
    for title, names in {
        "Missing in the checkpoint": [f"{n} {binding.variables[n].shape}" for n in report.missing],
        "Unexpected in the checkpoint": report.unexpected,
        "Wrong shape": list(shapes),
    }.items():
        if names:
            lines += [f"{title} ({len(names)}):", *(f"  {name}" for name in names)]
    lines.append("What to do:")
    groups = {binding.variables[name].group for name in report.missing}
    for group, fix in _FIXES.items():
        if group in groups:
            lines.append(f"  The checkpoint has no {mapping.GROUPS[group]}: {fix}.")
    if "bert/embeddings/word_embeddings" in report.wrong_shape:
        edited = " after keep_tokens and compound_tokens" if edits else ""
        ours, theirs = report.wrong_shape["bert/embeddings/word_embeddings"]
        lines.append(
            f"  The model has {ours[0]} tokens, the checkpoint{edited} {theirs[0]}: build the model "
            f"with vocabulary_size={theirs[0]}, or pick the tokens with keep_tokens."
        )
    lines += [
        "  Compare the model's arguments with the settings that `python -m roformer_tf inspect` "
        "shows, or build it with `from_preset(folder)`.",
        "  strict=False loads what fits and leaves the rest as it is.",
    ]
    return "\n".join(lines)
