"""Writes a model as an original folder, or as a preset with its model card."""

import os
import re
import shutil
import warnings
from json import dumps
from pathlib import Path

import keras
from keras.src.utils.summary_utils import weight_memory_size

from roformer_tf.checkpoint.folder import CheckpointFolder, find_layout, is_kerashub_source
from roformer_tf.checkpoint.hub import is_hub_source
from roformer_tf.checkpoint.loading import ModelBinding, family_of
from roformer_tf.checkpoint.model_files import (
    CARD_FILE,
    DIGESTS_FILE,
    add_digests,
    file_digest,
    read_digests,
)
from roformer_tf.checkpoint.original_config import original_config
from roformer_tf.checkpoint.original_files import CONFIG_FILE, VOCABULARY_FILE, write_checkpoint
from roformer_tf.checkpoint.vocabulary import Vocabulary, check_vocabulary_size
from roformer_tf.files import SAVING, check_room, replace_files

# files that the preset of another model may have left in a folder
STALE_WEIGHTS = ("task.json", "task.weights.h5", "model*.weights.h5", "model.weights.json")
STALE_PARTS = ("tokenizer.json", "preprocessor.json", "assets")

_PREDICT = 'model.predict(["今天天气很好"])'
# Class -> the hub's name of its task, and a line of Python that uses the model.
_CLASSES = {
    "RoFormerMaskedLM": (
        "fill-mask",
        'from roformer_tf.models import fill_mask\n\nfill_mask(model, ["今天[MASK]气很好"], top_k=3)',
    ),
    "RoFormerTextClassifier": ("text-classification", _PREDICT),
    "RoFormerTokenClassifier": ("token-classification", _PREDICT),
    "RoFormerQuestionAnswering": (
        "question-answering",
        'model.predict({"question": ["谁在上海？"], "context": ["张三在上海，李四在天津。"]})',
    ),
    "RoFormerMultipleChoice": (
        "multiple-choice",
        'model.predict({"question": ["谁在上海？"], "choices": [["张三", "李四"]]})',
    ),
    "RoFormerSim": ("sentence-similarity", 'model.embed(["今天天气不错", "今天天气很好"])'),
    "RoFormerSimClassifier": (
        "text-classification",
        'model.predict((["今天天气不错"], ["今天天气很好"]))',
    ),
    "RoFormerCausalLM": ("text-generation", 'model.generate(["今天"], max_length=16)'),
    "RoFormerSeq2SeqLM": (
        "translation",
        'from roformer_tf.models import translate\n\ntranslate(model, ["Good morning."])',
    ),
    "RoFormerBackbone": (
        "feature-extraction",
        'model({"token_ids": [[2, 5, 3]]})  # ids of the vocabulary',
    ),
    "RoFormerSeq2SeqBackbone": ("feature-extraction", None),
}
_FACTS = {
    "vocabulary_size": "tokens",
    "num_layers": "layers",
    "num_decoder_layers": "decoder layers",
    "hidden_dim": "hidden size",
    "num_heads": "attention heads",
    "norm": "norm",
    "position_scheme": "positions",
    "masking": "masking",
    "pooler": "pooler",
}
_CHINESE = re.compile("[一-鿿]")
_MOSTLY = 0.1  # share of the tokens; in BERT's English vocabularies fewer are Chinese


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
    head_epsilon = getattr(model, "head_epsilon", None)
    config, settings = original_config(binding.backbone, head_epsilon), settings or {}
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
    if vocabulary is None:
        tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
        _check_tokenizer(tokenizer)
        vocabulary = None if tokenizer is None else tokenizer.get_vocabulary()
    check_layout(folder, "original")
    size, left = binding.backbone.vocabulary_size, Path(folder, VOCABULARY_FILE)
    if vocabulary is not None:
        parsed = Vocabulary(vocabulary)
        check_vocabulary_size(parsed, size, "`vocabulary`")
    elif left.is_file():
        source = f"{left}, which is in the folder already,"
        check_vocabulary_size(Vocabulary(left), size, source)

    with replace_files(folder, before_moving=add_digests) as temporary:
        write_checkpoint(temporary, original_tensors(binding))
        text = dumps({**config, **settings}, indent=2) + "\n"
        (temporary / CONFIG_FILE).write_text(text, encoding="utf-8")
        if isinstance(vocabulary, str | os.PathLike):
            shutil.copyfile(vocabulary, temporary / VOCABULARY_FILE)
        elif vocabulary is not None:
            text = "".join(f"{token}\n" for token in parsed.tokens)
            (temporary / VOCABULARY_FILE).write_text(text, encoding="utf-8", newline="\n")
    return Path(folder)


def check_layout(path, layout):
    """Raises `FileExistsError` if a folder holds a model in another layout.

    Two models in one folder would hide each other.

    Raises:
        ValueError: If `path` is not on this machine.
    """
    if is_hub_source(path) or is_kerashub_source(path):
        raise ValueError(
            "Expected a folder on this machine to save to. Save there first, then "
            f"`keras_hub.upload_preset({str(path)!r}, folder)`. Received: {path}"
        )
    path = Path(str(path))
    try:
        folder = CheckpointFolder(path, find_layout(path))
    except FileNotFoundError:
        return
    if folder.layout != layout and (folder.has_weights or folder.config_file.exists()):
        raise FileExistsError(
            f"{folder.path} holds a model in the {folder.layout} layout, and this one is saved in "
            f"the {layout} layout. Save it to another folder, or remove the other model first."
        )


def _check_tokenizer(tokenizer):
    """Raises an error, or warns, for a tokenizer that would give other ids when it is read again.

    What bert4keras' tokenizer takes as an argument has to be passed each time, so it is a warning.
    """
    lost = getattr(tokenizer, "settings_beside_vocabulary", dict)()
    if not lost:
        return
    listed = ", ".join(f"{name}={value!r:.100}" for name, value in lost.items())
    message = (
        "The original format holds the vocabulary of a tokenizer, and has no place for "
        f"{listed}. The tokenizer of the folder would give other ids. Use "
        "`model.save_to_preset`. Or pass `vocabulary=tokenizer.get_vocabulary()` here, and give a "
        "tokenizer that reads the folder the same arguments."
    )
    if tokenizer.marked_tokens():
        raise ValueError(message)
    warnings.warn(message, stacklevel=3)


def has_original_format(backbone, tokenizer):
    """Whether the original format can hold a backbone and a tokenizer with all their settings."""
    try:
        family_of(backbone)
        original_config(backbone)
    except ValueError:
        return False
    return not tokenizer.settings_beside_vocabulary()


def original_tensors(binding):
    """Yields `(original name, float32 array)` for every variable of a `ModelBinding`."""
    for path, variables in binding.by_weight().items():
        weight = keras.ops.convert_to_numpy(binding.weight(path)).astype("float32", copy=False)
        for variable in variables:
            yield variable.name, variable.to_original(weight)


def save_preset(model, save, folder, stale=(), weights=None):
    """Calls KerasHub's `save_to_preset` so that it writes the folder completely or not at all.

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
        kept = weights is not None and _write_card(model, new, folder)
        add_digests(new, folder, stale=(*stale, CARD_FILE) if kept else stale)

    with replace_files(folder, remove=stale, before_moving=complete) as temporary:
        save(str(temporary))


class SavedWhole:
    """A part of a preset whose `save_to_preset` writes its folder completely or not at all."""

    def save_to_preset(self, preset_dir):
        """Saves to a folder that `from_preset` reads, completely or not at all."""
        save_preset(self, super().save_to_preset, preset_dir)


def _write_card(model, new, folder):
    """Writes a model card beside the new files of `folder`, unless a user wrote the one there.

    A card is a user's own if its digest is not the one in the folder's `SHA256SUMS`. Returns
    whether such a card is kept.
    """
    # a first call has left it if another process has made the folder meanwhile
    (new / CARD_FILE).unlink(missing_ok=True)
    card = folder / CARD_FILE
    if os.path.lexists(card):
        digests = read_digests(folder) if (folder / DIGESTS_FILE).is_file() else {}
        if not card.is_file() or digests.get(CARD_FILE) != file_digest(card):
            return True
    (new / CARD_FILE).write_text(_model_card(model), encoding="utf-8", newline="\n")
    return False


def _model_card(model):
    """Returns what a model is, and how to load and use it. The same model gives the same card."""
    names = [cls.__name__ for cls in type(model).__mro__]
    name = next((name for name in names if name in _CLASSES), names[0])
    task, use = _CLASSES.get(name, (None, None))  # a user's own class has neither
    tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
    tokens = [] if tokenizer is None else tokenizer.get_vocabulary()
    is_chinese = sum(bool(_CHINESE.search(token)) for token in tokens) > _MOSTLY * len(tokens)
    config = getattr(model, "backbone", model).get_config()
    facts = [(title, config[key]) for key, title in _FACTS.items() if config.get(key)]
    facts.append(("parameters", f"{model.count_params():,}"))
    labels = getattr(model, "labels", None)
    if labels:
        facts.append(("labels", ", ".join(map(str, labels)).replace("|", "\\|")))
    lines = ["---", "library_name: keras-hub", "license: unknown"]
    lines += ["language:", "- zh"] if is_chinese else []
    lines += [] if task is None else [f"pipeline_tag: {task}"]
    lines += ["tags:", "- roformer", "- keras", "- tensorflow", "---", ""]
    lines += [f"# {name}", ""]
    lines += [f"A `{name}` of roformer_tf, RoFormer for TensorFlow and Keras 3.", ""]
    lines += ["| | |", "|---|---|", *(f"| {key} | {fact} |" for key, fact in facts), ""]
    lines += ["## Use", "", "```python", "import roformer_tf", ""]
    without = ", preprocessor=None" if getattr(model, "preprocessor", 0) is None else ""
    lines += ['folder = "."  # of this file; or hf://user/name, where it is on the hub']
    lines += [f"model = roformer_tf.{name}.from_preset(folder{without})"]
    lines += [] if use is None or without else use.split("\n")
    lines += ["```", ""]
    lines += ["## Data, results and limits", "", "Not described yet.", ""]
    return "\n".join(lines)
