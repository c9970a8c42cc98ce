"""A task and its preprocessor as one SavedModel."""

import tempfile
from pathlib import Path

import keras
import tensorflow as tf

from roformer_tf.export.folders import check_target, new_folder
from roformer_tf.export.served_backbone import EMBEDDINGS, ServedBackbone
from roformer_tf.export.served_causal_lm import ServedCausalLM
from roformer_tf.export.served_classifier import ServedClassifier, output_kind
from roformer_tf.export.served_masked_lm import ServedMaskedLM
from roformer_tf.export.served_seq_2_seq_lm import ServedSeq2SeqLM
from roformer_tf.export.served_sim import ServedSim
from roformer_tf.models import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerSeq2SeqLM,
    RoFormerSim,
    RoFormerTextClassifier,
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.models.fill_mask import check_top_k
from roformer_tf.models.roformer_preprocessor import RoFormerPreprocessor
from roformer_tf.text import RoFormerTokenizer

SERVED = {
    RoFormerTextClassifier: ServedClassifier,
    RoFormerMaskedLM: ServedMaskedLM,
    RoFormerSim: ServedSim,  # before its parent
    RoFormerCausalLM: ServedCausalLM,
    RoFormerSeq2SeqLM: ServedSeq2SeqLM,
    RoFormerBackbone: ServedBackbone,
}
LABELS_FILE = "labels.txt"
VOCABULARY_FILE = "vocabulary.txt"


def export_saved_model(
    task,
    folder,
    labels=None,
    top_k=5,
    preprocessor=None,
    embedding=None,
    normalize=False,
    overwrite=False,
):
    """Writes a SavedModel that takes raw strings and needs only TensorFlow to serve.

    It holds the tokenizer, vocabulary, dictionary, weights and labels, and the folder can be moved.
    Texts are truncated and padded as the preprocessor does; batch size and length are free.
    Signatures and their inputs:

    * `serving_default`: `texts`, strings `(batch,)`;
    * `pairs`: `first` and `second`, strings `(batch,)` (not for masked language models and
      RoFormer-Sim);
    * `token_ids`: `token_ids`, `segment_ids`, `padding_mask`, int32 `(batch, length)`; for masked
      language models `mask_positions` `(batch, masks)` too.

    Outputs, floats in float32 whatever the model computes in:

    * classifier: `probabilities` and `logits` `(batch, num_classes)`, `class_id` int32 `(batch,)`
      of the most probable class (for a single probability: 1 above 0.5), and with `labels` its name
      `label`, string `(batch,)`. Regression and unusual activations: `scores` `(batch,
      num_classes)`, the model's own output.
    * backbone: `sequence_output` `(batch, length, hidden_dim)`, `padding_mask` int32, `embedding`
      `(batch, hidden_dim)`, and with a pooler `pooled_output`.
    * masked language model: every `[MASK]` written out in a text asks for a token. `tokens`
      (string), `ids` (int32), `probabilities`, each `(batch, masks, top_k)`, the most probable
      first, and `mask_positions` int32 `(batch, masks)`, the place of the mask among the text's
      tokens. Where a text has fewer masks than another, and for masks lost to truncation, the token
      is `""`, the id and the position -1, the probability 0. `token_ids` gives `logits` `(batch,
      masks, vocabulary_size)`.
    * causal language model: `log_likelihood` (natural logarithm), `num_tokens` int32, `perplexity`,
      each `(batch,)`; of `pairs` the second text is scored. `token_ids` gives `logits` `(batch,
      length, vocabulary_size)`. `generate` takes `texts` and `max_length`, int32, and gives
      `texts`, string `(batch,)`, as `RoFormerCausalLM.generate` does, by the sampler of the model
      when it is exported.
    * RoFormer-Sim: `serving_default` and `embed` give `embedding` `(batch, hidden_dim)`, of length
      1. `similar` takes `texts` and the numbers `n`, `k`, `max_length`, int32, of
      `RoFormerSim.similar`, and gives `texts` (string) and `similarities`, each `(batch, min(n,
      k))`, the most similar first; `""` and 0 where there are fewer. The sampler is that of the
      model when it is exported. `token_ids` gives `logits` and `pooled_output`.
    * translation model: `translations`, string `(batch,)`, found by the sampler of the model when
      it is exported. Its tokenizer is of TensorFlow Text, so that the process needs `import
      tensorflow_text` besides. `token_ids` takes the four inputs of the model and gives `logits`
      `(batch, length, vocabulary_size)`.

    An empty text becomes `[CLS] [SEP]`, an invalid byte U+FFFD. An empty batch gives empty outputs.

    Args:
        task: `RoFormerTextClassifier`, `RoFormerMaskedLM`, `RoFormerCausalLM`, `RoFormerSim`,
            `RoFormerSeq2SeqLM` or `RoFormerBackbone`.
        folder: str or path of the folder to write. It appears complete or not at all.
        labels: Names of a classifier's classes, in their order; of a single probability those of
            below and above 0.5. Written to `assets/labels.txt`, where they are looked up.
        top_k: int. Number of tokens for each mask; of masked language models.
        preprocessor: Preprocessor to use instead of `task.preprocessor`. A backbone has none and
            also takes a `RoFormerTokenizer` (texts are then truncated to 512 tokens).
        embedding: of a backbone: `"mean"` over the real tokens (default), `"cls"` (vector of the
            first token) or `"pooler"`.
        normalize: bool, of a backbone: whether `embedding` is divided by its length.
        overwrite: bool. Whether to replace an existing SavedModel. It is removed only when the new
            one is complete.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: If `task` is not a model of this package, has no preprocessor, the labels do not
            fit, or an option belongs to another kind of model; if the Keras backend is not
            TensorFlow.
        FileExistsError: If `folder` exists and `overwrite` is `False`, or it is not a SavedModel.

    Example:

    >>> import os, tempfile
    >>> import roformer_tf
    >>> from roformer_tf.export import export_saved_model
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> classifier = roformer_tf.RoFormerTextClassifier(
    ...     backbone, num_classes=2, preprocessor=roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    ... )
    >>> folder = os.path.join(tempfile.mkdtemp(), "served")
    >>> folder = export_saved_model(classifier, folder, labels=["bad", "good"])
    >>> served = tf.saved_model.load(folder)
    >>> answer = served.signatures["serving_default"](texts=tf.constant(["天气好", "好"]))
    >>> sorted(answer), answer["probabilities"].shape
    (['class_id', 'label', 'logits', 'probabilities'], TensorShape([2, 2]))
    """
    if keras.config.backend() != "tensorflow":
        raise ValueError(
            f"Exporting needs the TensorFlow backend of Keras. Received: {keras.config.backend()!r}. Save the model "
            "(`task.save('model.keras')`) and export it in a process with KERAS_BACKEND=tensorflow, or by "
            "`KERAS_BACKEND=tensorflow python -m roformer_tf export model.keras FOLDER`."
        )
    kind = next((kind for kind in SERVED if isinstance(task, kind)), None)
    if kind is None:
        names = ", ".join(kind.__name__ for kind in SERVED)
        raise ValueError(f"`task` must be one of {names}. Received: {type(task).__name__}")
    preprocessor = _checked_preprocessor(task, preprocessor)
    options = _checked_options(task, labels, top_k, embedding, normalize)
    check_target(folder, overwrite)
    with tempfile.TemporaryDirectory() as assets:
        vocabulary_file = _write_lines(
            Path(assets) / VOCABULARY_FILE, preprocessor.tokenizer.get_vocabulary()
        )
        if labels is not None:
            options["labels_file"] = _write_lines(Path(assets) / LABELS_FILE, labels)
        module = SERVED[kind](task, preprocessor, vocabulary_file, **options)
        with new_folder(folder, overwrite) as temporary:
            tf.saved_model.save(module, str(temporary), signatures=module.signatures)
    return Path(folder)


def _checked_preprocessor(task, preprocessor):
    if preprocessor is None:
        preprocessor = getattr(task, "preprocessor", None)
    wanted = getattr(task, "preprocessor_cls", RoFormerTextClassifierPreprocessor)
    if isinstance(preprocessor, RoFormerTokenizer):
        preprocessor = wanted(preprocessor)
    if preprocessor is None:
        raise ValueError(
            "The model has no preprocessor, so it cannot take strings. Pass "
            f"`preprocessor=roformer_tf.{wanted.__name__}(tokenizer, sequence_length=512)`, with "
            "`tokenizer = roformer_tf.RoFormerTokenizer.from_preset(folder)`."
        )
    # a backbone needs no more than texts packed into ids
    accepted = RoFormerPreprocessor if isinstance(task, RoFormerBackbone) else wanted
    if not isinstance(preprocessor, accepted):
        raise ValueError(
            f"A {type(task).__name__} needs a {wanted.__name__}. Received: preprocessor of type "
            f"{type(preprocessor).__name__}"
        )
    backbone = getattr(task, "backbone", task)
    size = preprocessor.tokenizer.vocabulary_size()
    if size > backbone.vocabulary_size:
        raise ValueError(
            f"The tokenizer has {size} tokens, but the model only {backbone.vocabulary_size}. "
            "Create the tokenizer from the `vocab.txt` in the folder of the model."
        )
    return preprocessor


def _checked_options(task, labels, top_k, embedding, normalize):
    if labels is not None:
        _check_labels(task, labels)
    if isinstance(task, RoFormerMaskedLM):
        check_top_k(top_k, task.backbone.vocabulary_size)
    if not isinstance(task, RoFormerBackbone):
        if embedding is not None or normalize:
            raise ValueError(
                "`embedding` and `normalize` are options of a backbone: export `task.backbone` with "
                f"`preprocessor=task.preprocessor`. Received: a {type(task).__name__}"
            )
        return {"top_k": top_k} if isinstance(task, RoFormerMaskedLM) else {}
    embedding = "mean" if embedding is None else embedding
    if embedding not in EMBEDDINGS:
        raise ValueError(
            f"`embedding` must be one of {EMBEDDINGS}. Received: embedding={embedding!r}"
        )
    if embedding == "pooler" and task.pooler is None:
        raise ValueError(
            "`embedding='pooler'` needs a backbone with a pooler: build it with `pooler='tanh'` or "
            "`pooler='linear'`. Received: a backbone with pooler=None"
        )
    return {"embedding": embedding, "normalize": bool(normalize)}


def _check_labels(task, labels):
    if not isinstance(task, RoFormerTextClassifier):
        raise ValueError(f"Only a classifier has labels. Received: a {type(task).__name__}")
    kind = output_kind(task.num_classes, task.activation)
    if kind == "scores":
        raise ValueError(
            "A regression model has no classes to name. Leave `labels` out. "
            f"Received: labels={labels!r}"
        )
    expected = 2 if kind == "binary" else task.num_classes
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"`labels` must be a list of strings. Received: labels={labels!r}")
    if len(labels) != expected:
        raise ValueError(
            f"`labels` must name {expected} classes, in their order. Received: {len(labels)} labels, {labels!r}"
        )
    broken = [label for label in labels if label.splitlines() != [label]]
    if broken or len(set(labels)) != len(labels):
        raise ValueError(
            f"Every label must be one line of its own, and differ from the others. Received: labels={labels!r}"
        )


def _write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(path)
