"""Writes the model card of a saved model, `README.md`, which the Hugging Face hub shows."""

import re
from pathlib import Path

from roformer_tf.checkpoint.digests import CARD_FILE, DIGESTS_FILE, file_digest, read_digests

_PREDICT = 'model.predict(["今天天气很好"])'
# Name of a class -> the hub's name of its task, and a line of Python that uses it.
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
_SETTINGS = {
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
_WORD = re.compile("[一-鿿]")
_MOSTLY = 0.1  # of the tokens; the English vocabularies of BERT have fewer Chinese characters


def model_card(model):
    """Returns the model card: what the model is, and how to load and use it.

    The same model gives the same card.

    Args:
        model: A backbone or task of this package.
    """
    names = [cls.__name__ for cls in type(model).__mro__]
    name = next((name for name in names if name in _CLASSES), names[0])
    task, use = _CLASSES.get(name, (None, None))  # a user's own subclass has none
    lines = ["---", "library_name: keras-hub", "license: unknown"]
    tokenizer = getattr(getattr(model, "preprocessor", None), "tokenizer", None)
    if tokenizer is not None and _is_chinese(tokenizer.get_vocabulary()):
        lines += ["language:", "- zh"]
    lines += [] if task is None else [f"pipeline_tag: {task}"]
    lines += ["tags:", "- roformer", "- keras", "- tensorflow", "---", ""]
    lines += [f"# {name}", ""]
    lines += [f"A `{name}` of roformer_tf, RoFormer for TensorFlow and Keras 3.", ""]
    lines += ["| | |", "|---|---|", *(f"| {key} | {fact} |" for key, fact in _facts(model)), ""]
    lines += ["## Use", "", "```python", "import roformer_tf", ""]
    without = ", preprocessor=None" if getattr(model, "preprocessor", 0) is None else ""
    lines += ['folder = "."  # of this file; or hf://user/name, where it is on the hub']
    lines += [f"model = roformer_tf.{name}.from_preset(folder{without})"]
    lines += [] if use is None or without else use.split("\n")
    lines += ["```", ""]
    lines += ["## Data, results and limits", "", "Not described yet.", ""]
    return "\n".join(lines)


def write_card(model, new, folder):
    """Writes the card of a model beside its new files, unless a user has written or changed it.

    A card is a user's own if its digest is not the one in the folder's `SHA256SUMS`.

    Args:
        model: See `model_card`.
        new: Path. The new files, before they are moved to `folder`.
        folder: Path. Where they are moved.

    Returns:
        bool. Whether a card that this package did not write is kept.
    """
    (new / CARD_FILE).unlink(missing_ok=True)  # of a first try, if another process was faster
    card = Path(folder) / CARD_FILE
    if card.is_symlink() or card.exists():
        digests = read_digests(folder) if (folder / DIGESTS_FILE).is_file() else {}
        if not card.is_file() or digests.get(CARD_FILE) != file_digest(card):
            return True
    (new / CARD_FILE).write_text(model_card(model), encoding="utf-8", newline="\n")
    return False


def _facts(model):
    backbone = getattr(model, "backbone", model)
    config = backbone.get_config()
    facts = [(title, config[key]) for key, title in _SETTINGS.items() if config.get(key)]
    facts.append(("parameters", f"{model.count_params():,}"))
    labels = getattr(model, "labels", None)
    if labels:
        facts.append(("labels", ", ".join(map(str, labels)).replace("|", "\\|")))
    return facts


def _is_chinese(vocabulary):
    chinese = sum(bool(_WORD.search(token)) for token in vocabulary)
    return chinese > _MOSTLY * len(vocabulary)
