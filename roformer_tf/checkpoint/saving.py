"""Writes a model as an original folder, or as a preset."""

import os
import shutil
from json import dumps
from pathlib import Path

import keras
from keras.src.utils.summary_utils import weight_memory_size

from roformer_tf.checkpoint.digests import CARD_FILE, add_digests
from roformer_tf.checkpoint.folder import check_layout
from roformer_tf.checkpoint.loading import ModelBinding, family_of
from roformer_tf.checkpoint.model_card import write_card
from roformer_tf.checkpoint.original_config import original_config
from roformer_tf.checkpoint.original_files import CONFIG_FILE, VOCABULARY_FILE, write_checkpoint
from roformer_tf.checkpoint.vocabulary import Vocabulary, check_vocabulary_size
from roformer_tf.files import SAVING, check_room, replace_files

# files of a preset that another model may have left in its folder
STALE_WEIGHTS = ("task.json", "task.weights.h5", "model*.weights.h5", "model.weights.json")
STALE_PARTS = ("tokenizer.json", "preprocessor.json", "assets")


def save_checkpoint(model, folder, vocabulary=None, settings=None, nsp_head=False):
    """Saves a model in the original format, which bert4keras and `from_preset` read.

    Writes `bert_config.json`, `bert_model.ckpt.index`, `bert_model.ckpt.data-00000-of-00001`,
    `checkpoint`, `SHA256SUMS` and, if there is a vocabulary, `vocab.txt`. If anything fails, the
    folder stays as it was. Other files in the folder are kept. Loading a checkpoint and saving it
    again gives the same bytes per variable. LoRA weights are merged. Weights are stored in float32.

    Args:
        model: A `RoFormerBackbone`, `RoFormerMaskedLM`, `RoFormerCausalLM`, `RoFormerSim`, or a
            classifier that is the next-sentence head.
        folder: str or path. Created if it does not exist.
        vocabulary: Path of a `vocab.txt`, or list of tokens. Defaults to the vocabulary of the
            model's tokenizer.
        settings: dict. More entries for `bert_config.json`, such as
            `{"max_position_embeddings": 1536}`.
        nsp_head: bool. Whether to save the head of a classifier with `pooling="pooler"` and two
            classes as the next-sentence head.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: If the format does not support a part or setting of the model (the head of a
            classifier or of reading, quantized weights, another `max_wavelength`, added tokens of
            its tokenizer), or the vocabulary's size or `settings` contradict the model, also of a
            `vocab.txt` that is in the folder and would stay.
        FileExistsError: If the folder holds a model in another layout.
        NotADirectoryError: If `folder` is a file.

    Example:

    >>> import tempfile
    >>> import roformer_tf
    >>> from roformer_tf.checkpoint import save_checkpoint
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> folder = save_checkpoint(backbone, tempfile.mkdtemp())
    >>> for file in sorted(folder.iterdir()):
    ...     print(file.name)
    SHA256SUMS
    bert_config.json
    bert_model.ckpt.data-00000-of-00001
    bert_model.ckpt.index
    checkpoint

    Reference: `save_weights_as_checkpoint` of bert4keras' `models.py`.
    """
    binding = ModelBinding(model, nsp_head)
    has_new_head = hasattr(model, "logits_dense") or getattr(model, "head_arguments", ())
    if has_new_head and not nsp_head:
        raise ValueError(
            f"The original format cannot hold the head of {binding.label}. Save the "
            "encoder alone with `save_checkpoint(model.backbone, …)`, or everything with "
            "`model.save_to_preset`. If it is the next-sentence head, pass nsp_head=True."
        )
    config = _merge_settings(original_config(binding.backbone), settings or {})
    if vocabulary is None:
        tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
        _check_no_marked_tokens(tokenizer)
        vocabulary = None if tokenizer is None else tokenizer.get_vocabulary()
    if vocabulary is not None:
        is_file = isinstance(vocabulary, (str, os.PathLike))
        parsed = Vocabulary(vocabulary)
        check_vocabulary_size(parsed, binding.backbone.vocabulary_size, "`vocabulary`")
    check_layout(folder, "original")
    left = Path(folder, VOCABULARY_FILE)
    if vocabulary is None and left.is_file():
        source = f"{left}, which is in the folder already,"
        check_vocabulary_size(Vocabulary(left), binding.backbone.vocabulary_size, source)

    with replace_files(folder, before_moving=add_digests) as temporary:
        write_checkpoint(temporary, original_tensors(binding))
        (temporary / CONFIG_FILE).write_text(dumps(config, indent=2) + "\n", encoding="utf-8")
        if vocabulary is not None and is_file:
            shutil.copyfile(vocabulary, temporary / VOCABULARY_FILE)
        elif vocabulary is not None:
            text = "".join(f"{token}\n" for token in parsed.tokens)
            (temporary / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")
    return Path(folder)


def _check_no_marked_tokens(tokenizer):
    """Raises an error for a tokenizer that would give other ids when it is read again."""
    marked = getattr(tokenizer, "marked_tokens", dict)()
    if marked:
        raise ValueError(
            "The original format has no place for tokens that are found in a text as they are "
            f"written: {', '.join(list(marked)[:5])}{' …' if len(marked) > 5 else ''}. Its tokenizer "
            "would take them for text. Use `model.save_to_preset`. Or pass "
            "`vocabulary=tokenizer.get_vocabulary()` here, and give a tokenizer that reads the "
            "folder the same `added_tokens` or `special_tokens_in_strings`."
        )


def save_preset(model, save, folder, stale=(), weights=None):
    """Calls KerasHub's `save_to_preset` such that it writes the folder completely or not at all.

    Writes a model card beside weights, unless a person has written the `README.md` that is there.

    Args:
        model: The model, or part of one, that is saved.
        save: Function of a path, KerasHub's method.
        folder: str or path.
        stale: tuple of str. Patterns of files to remove unless they are written now.
        weights: list of variables that `save` writes to one file, or `None` for a part without
            any. HDF5 cannot recover from a full disk, so their size is checked before.

    Raises:
        FileExistsError: If the folder holds a model in another layout.
        OSError: If the files cannot be written.
    """
    if Path(folder).name.startswith(SAVING):  # a part of the model that is being saved
        save(str(folder))
        return
    check_layout(folder, "preset")
    check_room(Path(folder).absolute(), weight_memory_size(weights or ()))

    def complete(new, folder):
        kept = weights is not None and write_card(model, new, folder)
        add_digests(new, folder, stale=(*stale, CARD_FILE) if kept else stale)

    with replace_files(folder, remove=stale, before_moving=complete) as temporary:
        save(str(temporary))


class SavedWhole:
    """A part of a preset whose `save_to_preset` writes its folder completely or not at all."""

    def save_to_preset(self, preset_dir):
        """Saves to a folder that `from_preset` reads, completely or not at all."""
        save_preset(self, super().save_to_preset, preset_dir)


def has_original_format(backbone):
    """Whether the original format can hold a backbone with all its settings."""
    try:
        family_of(backbone)
        original_config(backbone)
    except ValueError:
        return False
    return True


def original_tensors(binding):
    """Yields `(original name, float32 array)` for every variable of a `ModelBinding`."""
    for path, variables in binding.by_weight().items():
        weight = keras.ops.convert_to_numpy(binding.weight(path)).astype("float32", copy=False)
        for variable in variables:
            yield variable.name, variable.to_original(weight)


def _merge_settings(config, settings):
    contradictions = {
        name: value
        for name, value in settings.items()
        if name in config and name != "max_position_embeddings" and config[name] != value
    }
    if contradictions:
        raise ValueError(
            "`settings` must not contradict the model, which has "
            f"{ {name: config[name] for name in contradictions} }. Received: {contradictions}"
        )
    return {**config, **settings}
