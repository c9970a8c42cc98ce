"""Puts the variables of a checkpoint into a model."""

from dataclasses import dataclass

import keras
import numpy as np

from roformer_tf.checkpoint import mapping
from roformer_tf.checkpoint.binding import ModelBinding
from roformer_tf.checkpoint.family import check_family, guess_family, is_optimizer_slot
from roformer_tf.checkpoint.readers import open_checkpoint
from roformer_tf.checkpoint.vocabulary import edit_rows, edited_size

# What a checkpoint may have and a model may lack; anything else that the model lacks is an error.
_OPTIONAL = {
    "bert/pooler/": "pooler",
    "cls/seq_relationship/": "nsp",
    "cls/predictions/": "mlm",
    "bert/embeddings/token_type_embeddings": "segments",
}


@dataclass(frozen=True)
class LoadReport:
    """What `load_checkpoint` did.

    Attributes:
        source: str, the checkpoint.
        loaded: names of the variables that were read.
        ignored: dict from group to names that the model has no place for: heads, and the segment embedding of a model
            that was built without.
        optimizer_slots: names left over from training.
        missing: names the model needs and the checkpoint lacks; empty when `strict`.
        unexpected: names that nothing is known of; empty when `strict`.
        wrong_shape: dict from name to `(model's shape, checkpoint's shape)`; empty when `strict`.

    Example:

    >>> from roformer_tf.checkpoint import LoadReport
    >>> LoadReport("bert_model.ckpt", ("a",), {}, (), missing=("b",), unexpected=(), wrong_shape={}).complete
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
    """Loads the weights of an original (or Hugging Face) checkpoint into a model.

    One tensor at a time is read, so the extra memory is about that of the largest one. Everything is checked before
    the first weight changes.

    Args:
        model: `RoFormerBackbone` or a task. The head of a classifier is new and stays as it is; a masked-LM head must
            be in the checkpoint. Pooler, next-sentence and masked-LM variables are ignored if the model has no such
            part.
        path: a folder, the prefix of a TF1 checkpoint (`folder/bert_model.ckpt`), one of its files, or a folder in
            Hugging Face's layout.
        strict: `True` refuses a checkpoint that lacks a variable, has an unknown one or one of another shape.
            `False` loads what fits and reports the rest.
        family: `"roformer"` or `"roformer_v2"` overrides the guess from names and variables, see `inspect_checkpoint`.
        keep_tokens: ids of the tokens to keep, in their new order: rows of the word embedding and the output bias.
        compound_tokens: tokens to append as means of others: lists of ids, or pairs `(ids, weights)`; ids count after
            `keep_tokens`.
        nsp_head: load the next-sentence head into a classifier with `pooling="pooler"` and two classes.

    Returns:
        `LoadReport`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, the checkpoint is of another family, or (when `strict`) does not fit; all
            differences are named in one error.

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
    reader = open_checkpoint(path)
    binding = ModelBinding(model, nsp_head)
    _check_family(reader, binding, family)
    report = _compare(reader, binding, keep_tokens, compound_tokens)
    if strict and not report.complete:
        raise ValueError(_complaint(report, binding, keep_tokens, compound_tokens))
    loaded = set(report.loaded)
    for path_of_weight, variables in binding.by_weight().items():
        variables = [v for v in variables if v.name in loaded]
        if variables:
            _assign(
                binding.variable(path_of_weight), variables, reader, keep_tokens, compound_tokens
            )
    return report


def _assign(weight, variables, reader, keep_tokens, compound_tokens):
    first = variables[0]
    if first.token_axis and keep_tokens is None and compound_tokens is None:
        # a third of a base model is this one table: not a copy more than needed
        on_tensorflow = keras.backend.backend() == "tensorflow"
        weight.assign(reader.read_tensor(first.name) if on_tensorflow else reader.read(first.name))
    elif first.columns == slice(None):
        array = reader.read(first.name)
        if first.token_axis:
            array = edit_rows(array, keep_tokens, compound_tokens)
        weight.assign(first.from_original(array))
    else:
        # query, key and value: thirds of one kernel; a third that the checkpoint lacks keeps its values
        whole = np.array(keras.ops.convert_to_numpy(weight), dtype="float32")
        for variable in variables:
            whole[..., variable.columns] = variable.from_original(reader.read(variable.name))
        weight.assign(whole)


def _check_family(reader, binding, family):
    check_family(family)
    config = None
    try:
        config = reader.config
    except (FileNotFoundError, ValueError):
        pass  # settings only help to tell NEZHA apart; the model has its own already
    guess = guess_family(reader.shapes, config, reader.folder.resolve().name, family)
    if guess.family == binding.family:
        return
    found = mapping.FAMILIES.get(guess.family)
    wanted = mapping.FAMILIES[binding.family]
    message = (
        f"Wrong family: {reader.source} holds {found.title if found else 'an unknown model'}, but "
        f"{binding.label} is {wanted.title}. Guessed because: {guess.reasons[0]}. "
    )
    if found is None:
        message += "Only checkpoints with the variable names of Google's BERT can be loaded."
    else:
        options = {
            "roformer": "norm='layer_norm'",
            "roformer_v2": "norm='rms_norm', activation='relu', layer_norm_epsilon=1e-7",
            "bert": "position_scheme='learned'",
            "nezha": "position_scheme='sinusoidal_relative'",
        }
        message += (
            f"Build the model with {options[guess.family]}, or with `from_preset` on the folder. If the guess is "
            f"wrong, pass family={binding.family!r}."
        )
    raise ValueError(message)


def _compare(reader, binding, keep_tokens, compound_tokens):
    slots = tuple(name for name in reader.shapes if is_optimizer_slot(name))
    stored = {name: shape for name, shape in reader.shapes.items() if name not in slots}
    ignored, unexpected = {}, []
    for name in stored:
        if name not in binding.variables:
            group = next((g for start, g in _OPTIONAL.items() if name.startswith(start)), None)
            if group is None or group in binding.groups:
                unexpected.append(name)
            else:
                ignored.setdefault(group, []).append(name)
    wrong_shape = {}
    for name, variable in binding.variables.items():
        if name in stored:
            shape = stored[name]
            if variable.token_axis:
                shape = (edited_size(shape[0], keep_tokens, compound_tokens), *shape[1:])
            if shape != variable.shape:
                wrong_shape[name] = (variable.shape, shape)
    return LoadReport(
        source=str(reader.source),
        loaded=tuple(n for n in binding.variables if n in stored and n not in wrong_shape),
        ignored={group: tuple(names) for group, names in ignored.items()},
        optimizer_slots=slots,
        missing=tuple(n for n in binding.variables if n not in stored),
        unexpected=tuple(unexpected),
        wrong_shape=wrong_shape,
    )


def _complaint(report, binding, keep_tokens, compound_tokens):
    lines = [
        f"{report.source} does not fit {binding.label}: {len(report.missing)} missing, "
        f"{len(report.unexpected)} unexpected, {len(report.wrong_shape)} of wrong shape."
    ]
    if report.missing:
        lines.append(f"Missing in the checkpoint ({len(report.missing)}):")
        lines += [f"  {name} {binding.variables[name].shape}" for name in report.missing]
    if report.unexpected:
        lines.append(f"Unexpected in the checkpoint ({len(report.unexpected)}):")
        lines += [f"  {name}" for name in report.unexpected]
    if report.wrong_shape:
        lines.append(f"Wrong shape ({len(report.wrong_shape)}):")
        lines += [
            f"  {name}: the model has {ours}, the checkpoint {theirs}"
            for name, (ours, theirs) in report.wrong_shape.items()
        ]
    lines.append("What to do:")
    lines += [f"  {hint}" for hint in _hints(report, binding, keep_tokens, compound_tokens)]
    return "\n".join(lines)


def _hints(report, binding, keep_tokens, compound_tokens):
    groups_missing = {binding.variables[name].group for name in report.missing}
    for group in ("mlm", "pooler", "nsp"):
        if group in groups_missing:
            mend = {
                "mlm": "load into `model.backbone` to keep a new head",
                "pooler": "build the backbone with pooler=None",
                "nsp": "leave out nsp_head=True",
            }
            yield f"The checkpoint has no {mapping.GROUPS[group]}: {mend[group]}."
    if "bert/embeddings/word_embeddings" in report.wrong_shape:
        edited = " after keep_tokens and compound_tokens" if keep_tokens or compound_tokens else ""
        ours, theirs = report.wrong_shape["bert/embeddings/word_embeddings"]
        yield (
            f"The model has {ours[0]} tokens, the checkpoint{edited} {theirs[0]}: build the model with "
            f"vocabulary_size={theirs[0]}, or pick the tokens with keep_tokens."
        )
    yield (
        "Compare the model's arguments with the settings that `python -m roformer_tf inspect` shows, or build it with "
        "`from_preset(folder)`."
    )
    yield "strict=False loads what fits and leaves the rest as it is."
