"""A task and its preprocessor as one SavedModel."""

import os
import tempfile
from pathlib import Path

import tensorflow as tf

from roformer_tf.checks import check_positive_integer, check_tensorflow_backend
from roformer_tf.export.served_models import SERVED, served_model
from roformer_tf.files import replace_files
from roformer_tf.models import (
    RoFormerBackbone,
    RoFormerMaskedLM,
    RoFormerQuestionAnswering,
    RoFormerTextClassifier,
    RoFormerTextClassifierPreprocessor,
)
from roformer_tf.models.fill_mask import check_top_k
from roformer_tf.models.labels import check_label_names
from roformer_tf.models.roformer_backbone import check_pooling
from roformer_tf.models.roformer_preprocessor import RoFormerPreprocessor
from roformer_tf.portable import inference_only

SAVED_MODEL_FILE = "saved_model.pb"


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
    Texts are truncated and padded as the preprocessor does; batch size and length are free. An
    empty text becomes `[CLS] [SEP]`, an invalid byte U+FFFD. An empty batch gives empty outputs.

    A request may have any number of texts: the model runs on at most 32 at a time, of similar length
    if the outputs have no axis of tokens.

    The loaded model is called as `serving_default` is: `served(["…"])`, with lists or tensors.

    Signatures and their inputs:

    * `serving_default`: `texts`, strings `(batch,)`;
    * `pairs`: `first` and `second`, strings `(batch,)` (not for masked language models,
      RoFormer-Sim and translation);
    * `token_ids`: `token_ids`, `segment_ids`, `padding_mask`, int32 `(batch, length)`; for masked
      language models `mask_positions` `(batch, masks)` too.

    The three tasks that answer in the words of the texts have signatures of their own:

    * entities: `serving_default` alone;
    * reading: `serving_default` with `question` and `context`, strings `(batch,)`;
    * choices: `serving_default` with `context`, `question`, strings `(batch,)`, and `choices`,
      strings `(batch, choices)` padded with `""`; `questions` without `context`; `gaps` with
      `left`, `choices` and `right`.

    Outputs, floats in float32 whatever the model computes in:

    * classifier: `probabilities` and `logits` `(batch, num_classes)`; `class_id` int32 `(batch,)`
      of the most probable class (for a single probability: 1 above 0.5); with `labels` its name
      `label`, string `(batch,)`. Regression and other activations: `scores` `(batch, num_classes)`,
      the model's own output.
    * token classifier: `start` and `end`, int32 characters of the text, `label` and `score` of its
      entities, each `(batch, entities)`, padded with -1, `""` and 0.
    * question answering: `start`, `end`, `text` and `score` of the best answers, each `(batch,
      top_k)`, padded with 0, 0, `""` and -1; `no_answer` `(batch,)`, the probability that there is
      none.
    * multiple choice: `index`, `choice` and `probability`, each `(batch, choices)`, the most
      probable first; padding has the choice `""` and the probability -1.
    * backbone: `sequence_output` `(batch, length, hidden_dim)`, `padding_mask` int32, `embedding`
      `(batch, hidden_dim)`, and with a pooler `pooled_output`.
    * masked language model: the most probable tokens for every `[MASK]` in a text, the best first:
      `tokens` (string), `ids` (int32) and `probabilities`, each `(batch, masks, top_k)`, and
      `mask_positions` int32 `(batch, masks)`, the positions of the masks among the text's tokens.
      Texts with fewer masks, and masks lost to truncation, are padded with the token `""`, the id
      and position -1, and the probability 0. `token_ids` gives `logits` `(batch, masks,
      vocabulary_size)`.
    * causal language model: `log_likelihood` (natural logarithm), `num_tokens` int32, `perplexity`,
      each `(batch,)`; `pairs` scores the second text. `token_ids` gives `logits` `(batch, length,
      vocabulary_size)`. `generate` takes `texts` and `max_length`, int32, and gives `texts`, string
      `(batch,)`, as `RoFormerCausalLM.generate` does.
    * RoFormer-Sim: `serving_default` and `embed` give `embedding` `(batch, hidden_dim)`, of length
      1. `similar` takes `texts` and the numbers `n`, `k`, `max_length`, int32, of
      `RoFormerSim.similar`, and gives `texts` (string) and `similarities`, each `(batch, min(n,
      k))`, the most similar first, padded with `""` and 0. `token_ids` gives `logits` and
      `pooled_output`.
    * translation model: `translations`, string `(batch,)`. Its tokenizer needs `import
      tensorflow_text` in the serving process. `token_ids` takes the four inputs of the model and
      gives `logits` `(batch, length, vocabulary_size)`.

    Texts are generated by the sampler that the model has when it is exported.

    Args:
        task: Any task of this package but `RoFormerSimClassifier`, or a `RoFormerBackbone`.
        folder: str or path of the folder to write. It appears complete or not at all.
        labels: Names of a classifier's classes, in their order; by default its own `labels`. For a
            single probability, the names of the classes below and above 0.5. Looked up in
            `assets/labels.txt`.
        top_k: int. Number of tokens for each mask of a masked language model, or of answers to
            a question.
        preprocessor: Preprocessor to use instead of `task.preprocessor`. A backbone has none and
            also takes a `RoFormerTokenizer` (texts are then truncated to 512 tokens).
        embedding: Only for a backbone: `"mean"` over the real tokens (default), `"cls"` (vector of
            the first token) or `"pooler"`.
        normalize: bool. Only for a backbone: whether to scale `embedding` to length 1.
        overwrite: bool. Whether to replace an existing SavedModel. It is removed only when the new
            one is complete.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ValueError: If `task` is not such a model, has no preprocessor, the labels do not fit, or an
            option belongs to another kind of model; if the Keras backend is not TensorFlow.
        FileExistsError: If `folder` exists and `overwrite` is `False`, or it is not a SavedModel.

    Example:

    >>> import os, tempfile
    >>> import roformer_tf
    >>> import tensorflow as tf
    >>> from roformer_tf.export import export_saved_model
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    >>> classifier = roformer_tf.RoFormerTextClassifier(backbone, 2, preprocessor)
    >>> folder = os.path.join(tempfile.mkdtemp(), "served")
    >>> folder = export_saved_model(classifier, folder, labels=["bad", "good"])
    >>> served = tf.saved_model.load(folder)
    >>> answer = served(["天气好", "好"])
    >>> sorted(answer), answer["probabilities"].shape
    (['class_id', 'label', 'logits', 'probabilities'], TensorShape([2, 2]))
    >>> same = served.signatures["serving_default"](texts=tf.constant(["天气好", "好"]))
    >>> bool(tf.reduce_all(answer["logits"] == same["logits"]))
    True
    """
    check_backend()
    preprocessor = checked_preprocessor(task, preprocessor)
    labels, options = checked_options(task, labels, top_k, embedding, normalize)
    check_target(folder, overwrite)
    with tempfile.TemporaryDirectory() as assets:
        files = Path(assets)
        vocabulary = preprocessor.tokenizer.get_vocabulary()
        vocabulary_file = _write_lines(files / "vocabulary.txt", vocabulary)
        if labels is not None:
            options["labels_file"] = _write_lines(files / "labels.txt", labels)
        module = served_model(task, preprocessor, vocabulary_file, **options)
        with replace_files(folder, whole=True) as temporary:
            with inference_only():  # saving may trace a function again
                tf.saved_model.save(module, str(temporary), signatures=module.signatures())
            check_target(folder, overwrite)  # writing takes a while
    return Path(folder)


def check_backend():
    """Raises `ValueError` if the Keras backend is not TensorFlow."""
    check_tensorflow_backend(
        "Exporting",
        "Save the model (`task.save('model.keras')`) and export it in a process with "
        "KERAS_BACKEND=tensorflow, or by `KERAS_BACKEND=tensorflow python -m roformer_tf export "
        "model.keras FOLDER`.",
    )


def check_target(folder, overwrite, file=SAVED_MODEL_FILE):
    """Raises an error if `folder` is no local path, or exists and must not be replaced.

    Only a folder that has `file` may be.
    """
    is_path = isinstance(folder, str | os.PathLike)
    if not is_path or not str(folder) or "://" in str(folder):  # "" is the current folder of `Path`
        raise ValueError(
            "`folder` must be the path of the local folder to write, from which it can be copied to "
            f"a bucket. Received: folder={folder!r}"
        )
    folder = Path(folder)
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if is_empty or not os.path.lexists(folder):
        return
    if not overwrite:
        raise FileExistsError(
            f"{folder} already exists. Pass another folder, or `overwrite=True` (--overwrite) to "
            "replace it."
        )
    if not (folder / file).is_file() or folder.is_symlink():
        kind = "a SavedModel" if file == SAVED_MODEL_FILE else "an exported ONNX model"
        raise FileExistsError(
            f"Only {kind} can be overwritten, and {folder} is not one (it has no {file}). Pass "
            "another folder, or remove this one yourself."
        )


def checked_preprocessor(task, preprocessor):
    """Returns the preprocessor of the export, or raises `ValueError` if there is none that fits."""
    if not isinstance(task, tuple(SERVED)):
        names = ", ".join(kind.__name__ for kind in SERVED)
        raise ValueError(f"`task` must be one of {names}. Received: {type(task).__name__}")
    if preprocessor is None:
        preprocessor = getattr(task, "preprocessor", None)
    wanted = getattr(task, "preprocessor_cls", RoFormerTextClassifierPreprocessor)
    if isinstance(preprocessor, wanted.tokenizer_cls):
        preprocessor = wanted(preprocessor)
    if preprocessor is None:
        raise ValueError(
            "The model has no preprocessor, so it cannot take strings. Pass "
            f"`preprocessor=roformer_tf.{wanted.__name__}(tokenizer, sequence_length=512)`, with "
            f"`tokenizer = roformer_tf.{wanted.tokenizer_cls.__name__}.from_preset(folder)`."
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


def checked_options(task, labels, top_k, embedding, normalize):
    """Returns the labels and the `ServedModel`'s arguments, or raises `ValueError` for a wrong one."""
    if labels is None and isinstance(task, RoFormerTextClassifier):
        labels = task.labels
    if labels is not None:
        if not isinstance(task, RoFormerTextClassifier):
            raise ValueError(
                "`labels` are for a RoFormerTextClassifier; a RoFormerTokenClassifier has its own. "
                f"Received: a {type(task).__name__}"
            )
        check_label_names(labels, task.num_classes, task.activation)
    if isinstance(task, RoFormerQuestionAnswering):
        check_positive_integer("top_k", top_k)
    if isinstance(task, RoFormerMaskedLM):
        check_top_k(top_k, task.backbone.vocabulary_size)
    if not isinstance(task, RoFormerBackbone):
        if embedding is not None or normalize:
            raise ValueError(
                "`embedding` and `normalize` are options of a backbone: export `task.backbone` "
                f"with `preprocessor=task.preprocessor`. Received: a {type(task).__name__}"
            )
        has_best = isinstance(task, RoFormerMaskedLM | RoFormerQuestionAnswering)
        return labels, {"top_k": top_k} if has_best else {}
    embedding = "mean" if embedding is None else embedding
    check_pooling(task, embedding, "embedding")
    return labels, {"embedding": embedding, "normalize": bool(normalize)}


def _write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(path)
