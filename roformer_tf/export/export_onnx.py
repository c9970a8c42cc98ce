"""A task and its tokenizer as a folder for ONNX Runtime."""

import contextlib
import importlib.util
import json
import logging
import shutil
import tempfile
import threading
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from roformer_tf.checkpoint.vocabulary import assign_ids
from roformer_tf.checks import check_one_of
from roformer_tf.export.export_saved_model import (
    check_backend,
    check_target,
    checked_options,
    checked_preprocessor,
)
from roformer_tf.export.served_models import served_model
from roformer_tf.files import replace_files
from roformer_tf.models import RoFormerCausalLM, RoFormerMaskedLM, RoFormerSeq2SeqLM, RoFormerSim
from roformer_tf.models.answering_task import AnsweringTask
from roformer_tf.models.roformer_model import computed_in
from roformer_tf.portable import fused_operations, portable_operations
from roformer_tf.text.tokenizer_tables import CONTROL, ISOLATED, character_kinds

CLIENT = Path(__file__).resolve().parent / "onnx_client"
MODEL_FILE = "model.onnx"
OPSET = 18
TRUNCATION = {"right": -1, "left": 0}
PACKAGES = "onnx", "tf2onnx"
_MAX_BYTES = 2**31 - 2**24  # of the weights in `model.onnx`; the rest is room for the graph


def export_onnx(
    task,
    folder,
    labels=None,
    preprocessor=None,
    embedding=None,
    normalize=False,
    top_k=5,
    quantize=None,
    overwrite=False,
):
    """Writes a folder that answers texts with ONNX Runtime alone, without TensorFlow.

    It holds `model.onnx`, which takes token ids of any batch size and length, the vocabulary and
    dictionary, and two short Python files: `tokenizer.py`, which gives the ids of the task's
    tokenizer, and `client.py`, to run or to import:

    ```
    python FOLDER/client.py "房间很干净" "早餐不好"        # a line of JSON for each text
    ```

    Outputs, as of `export_saved_model`: `probabilities`, `logits`, `class_id` of a classifier, or
    `scores`; `logits` `(batch, masks, vocabulary_size)` of a masked language model, of which the
    client takes the `top_k` best tokens; `embedding` `(batch, hidden_dim)` of a backbone or
    RoFormer-Sim. Needs `pip install "roformer-tf[export]"` to write, and onnxruntime to run.

    Args:
        task: `RoFormerTextClassifier`, `RoFormerMaskedLM`, `RoFormerSim` or `RoFormerBackbone`, in
            float32.
        folder: str or path of the folder to write. It appears complete or not at all.
        labels, preprocessor, embedding, normalize, top_k: See `export_saved_model`.
        quantize: `None`, or `"int8"` for int8 weights, and activations quantized at each call: a
            quarter of the size, and faster on most processors. Measure the accuracy it costs.
        overwrite: bool. Whether to replace a folder that `export_onnx` wrote.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ImportError: If tf2onnx or onnx are not installed, or onnxruntime for `quantize`.
        ValueError: If the task generates text or answers in the words of its texts (entities,
            questions, choices), is not in float32, has no preprocessor, or one that the client
            cannot follow, such as a class of your own; if an option does not fit the task; if the
            Keras backend is not TensorFlow.
        FileExistsError: If `folder` exists and `overwrite` is `False`, or it is not such a folder.

    Example:

    >>> import os, tempfile
    >>> import roformer_tf
    >>> from roformer_tf.export import export_onnx
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
    >>> classifier = roformer_tf.RoFormerTextClassifier(backbone, 2, preprocessor)
    >>> folder = os.path.join(tempfile.mkdtemp(), "onnx")
    >>> folder = export_onnx(classifier, folder, labels=["bad", "good"])  # doctest: +SKIP
    >>> sorted(os.listdir(folder))  # doctest: +SKIP
    ['client.py', 'model.onnx', 'settings.json', 'tokenizer.py', 'vocabulary.json', 'words.json']
    """
    check_backend()
    packages = (*PACKAGES, "onnxruntime") if quantize else PACKAGES
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f'Exporting to ONNX needs {" and ".join(missing)}: `pip install "roformer-tf[export]"`.'
        )
    check_one_of("quantize", quantize, (None, "int8"))
    generates = isinstance(task, RoFormerSeq2SeqLM | RoFormerCausalLM)
    if generates and not isinstance(task, RoFormerSim):
        raise ValueError(
            f"A {type(task).__name__} generates text, and `model.onnx` has no loop for it. Use "
            "`export_saved_model`, or `task.export(path, format='onnx')` for its logits."
        )
    if isinstance(task, AnsweringTask):
        raise ValueError(
            f"The client of an ONNX folder has no answers of a {type(task).__name__}. Use "
            "`export_saved_model`, or `task.export(path, format='onnx')` for the model's outputs."
        )
    preprocessor = checked_preprocessor(task, preprocessor)
    labels, options = checked_options(task, labels, top_k, embedding, normalize)
    used = computed_in(task)
    if used != {"float32"}:
        raise ValueError(
            "Export a model in float32: load it with `dtype='float32'`, and pass "
            f"`quantize='int8'` for int8. Received: {', '.join(sorted(used))}"
        )
    fills_masks = isinstance(task, RoFormerMaskedLM)
    _check_client_can_follow(preprocessor, fills_masks)
    _check_positions(getattr(task, "backbone", task), preprocessor.sequence_length)
    check_target(folder, overwrite, MODEL_FILE)
    with tempfile.NamedTemporaryFile() as vocabulary_file:
        served = served_model(task, preprocessor, vocabulary_file.name, **options)
    model = _convert(task, served, fills_masks)
    with replace_files(folder, whole=True) as temporary:
        _save(model, temporary / MODEL_FILE, quantize)
        write_client(temporary, preprocessor, top_k if fills_masks else None, labels)
        check_target(folder, overwrite, MODEL_FILE)  # writing takes a while
    return Path(folder)


def _check_client_can_follow(preprocessor, fills_masks):
    """Raises `ValueError` if `tokenizer.py` would give other ids than a preprocessor."""
    check_one_of("truncate_from", preprocessor.truncate_from, tuple(TRUNCATION))
    tokenizer = preprocessor.tokenizer
    for part in (preprocessor, tokenizer):
        if not type(part).__module__.startswith("roformer_tf."):
            raise ValueError(
                "The client of an ONNX folder repeats the preprocessing of this package, and "
                "nothing that a class of your own adds to it. Use `export_saved_model`, or pass a "
                f"`preprocessor` of this package. Received: a {type(part).__name__}"
            )
    if tokenizer.sequence_length is not None:
        raise ValueError(
            "The client of an ONNX folder pads texts as the preprocessor does. Create the "
            "tokenizer without `sequence_length`. Received: a tokenizer with "
            f"sequence_length={tokenizer.sequence_length}"
        )
    if fills_masks and tokenizer.mask_token is None:
        raise ValueError("The tokenizer has no mask token, so there is nothing to fill in.")


def _check_positions(backbone, sequence_length):
    """Raises `ValueError` if a text could be longer than a table of positions.

    A graph of TensorFlow says so at run time. An ONNX file would answer with NaN.
    """
    length = getattr(backbone.position_scheme, "max_sequence_length", None)
    if length is not None and sequence_length > length:
        raise ValueError(
            f"The model has learned positions for {length} tokens only. Pass a preprocessor with "
            f"`sequence_length={length}` (--sequence-length {length}) or less. Received: a "
            f"preprocessor with sequence_length={sequence_length}"
        )


def _convert(task, served, has_masks):
    """Returns the ONNX model of a task."""
    import onnx
    import tf2onnx

    weights = task.weights
    names = ["token_ids", "segment_ids", "padding_mask"] + ["mask_positions"] * has_masks
    specs = [tf.TensorSpec([None, None], tf.int32, name=name) for name in names]
    # Weights are inputs: constants would be copied some thirty times, and must not exceed 2 GB.
    specs += [
        tf.TensorSpec(weight.shape, weight.dtype, name=f"weight_{i}")
        for i, weight in enumerate(weights)
    ]

    def answer(*tensors):
        inputs = dict(zip(names, tensors[: len(names)], strict=True))
        values = zip(weights, tensors[len(names) :], strict=True)
        with keras.StatelessScope(state_mapping=list(values)):
            if isinstance(task, RoFormerSim):
                return {"embedding": served.vectors(inputs)}
            outputs = served.answer(inputs)
        wanted = ("probabilities", "logits", "class_id", "scores")
        if "embedding" in outputs:
            wanted = ("embedding",)
        return {name: outputs[name] for name in wanted if name in outputs}

    with portable_operations(), fused_operations(_operation), _without_warnings():
        model, _ = tf2onnx.convert.from_function(
            tf.function(answer, autograph=False),
            input_signature=specs,
            opset=OPSET,
            custom_op_handlers={"PyFuncStateless": (_replace_operation, [])},
            extra_opset=[onnx.helper.make_opsetid("com.microsoft", 1)],
        )
    graph = model.graph
    inputs = {each.name: each for each in graph.input}
    for i, weight in enumerate(weights):
        name = f"weight_{i}"
        if name in inputs:  # others have no part in the outputs
            graph.initializer.append(
                onnx.numpy_helper.from_array(keras.ops.convert_to_numpy(weight), name)
            )
            graph.input.remove(inputs[name])
    return model


@contextlib.contextmanager
def _without_warnings():
    """Drops what the conversion warns of, in this thread only."""
    thread = threading.get_ident()

    def is_kept(record):
        return record.levelno > logging.WARNING or threading.get_ident() != thread

    # They warn of each operation of `_replace_operation`, and of tables outside the graph.
    loggers = [logging.getLogger(name) for name in ("tf2onnx.shape_inference", "tensorflow")]
    for logger in loggers:
        logger.addFilter(is_kept)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_kept)


def _operation(name, inputs):
    """Returns a tensor that `_replace_operation` makes the output of an ONNX operation.

    ONNX Runtime has fast kernels for these, in place of a dozen operations.
    """
    inputs = [tf.convert_to_tensor(x, tf.float32) for x in inputs]
    x = tf.numpy_function(lambda *x: x[0], inputs, tf.float32, stateful=False, name=name)
    return tf.ensure_shape(x, inputs[0].shape)


def _replace_operation(context, node, name, arguments):
    node.type = node.name.split("/")[-1].split("_")[0]
    for attribute in list(node.attr):
        del node.attr[attribute]
    if node.type == "LayerNormalization":
        node.set_attr("axis", -1)
        node.set_attr("epsilon", float(node.inputs[3].get_tensor_value()))
        context.replace_inputs(node, node.input[:3])
    else:
        node.domain = "com.microsoft"


def _save(model, path, quantize):
    import onnx

    if not quantize:
        # no ONNX file is larger than 2 GB, and `ByteSize` fails for a larger model
        is_large = sum(len(each.raw_data) for each in model.graph.initializer) > _MAX_BYTES
        onnx.save(model, path, save_as_external_data=is_large, location=f"{path.name}.data")
        return
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # Weights of 7 bits: processors without VNNI add two products in 16 bits, which 8 bits overflow.
    quantize_dynamic(model, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


def write_client(folder, preprocessor, top_k=None, labels=None):
    """Writes the client, and the files from which it makes token ids.

    Args:
        folder: Path.
        preprocessor: `RoFormerPreprocessor`.
        top_k: int. Number of tokens for each mask in a text, or `None` for a model without masks.
        labels: Names of a classifier's classes, or `None`.
    """
    tokenizer = preprocessor.tokenizer
    kinds = character_kinds()
    dictionary = tokenizer.segmentation_dictionary()
    settings = {
        "top_k": top_k,
        "labels": labels,
        "word_level": tokenizer.word_level,
        "lowercase": tokenizer.lowercase,
        "word_maxlen": tokenizer.word_maxlen,
        "words_total": dictionary.total if dictionary else 1,
        "mask_token": tokenizer.mask_token,
        "marked_tokens": tokenizer.marked_tokens(),
        **{
            f"{name}_id": getattr(tokenizer, f"{name}_token_id")
            for name in ("pad", "unk", "start", "end", "mask")
        },
        "sequence_length": preprocessor.sequence_length,
        "truncate_index": TRUNCATION[preprocessor.truncate_from],
        "pair_segments": preprocessor.pair_segments,
        "dropped": _character_class(np.flatnonzero(kinds == CONTROL)),
        "isolated": _character_class(np.flatnonzero(kinds == ISOLATED)),
    }
    frequencies = dictionary.frequencies if dictionary else {}
    words = {word: count for word, count in frequencies.items() if count}
    files = {
        "settings": settings,
        "vocabulary": assign_ids(tokenizer.get_vocabulary()),
        "words": words,
    }
    for name, value in files.items():
        text = json.dumps(value, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    for name in ("client.py", "tokenizer.py"):
        shutil.copyfile(CLIENT / name, folder / name)


def _character_class(code_points):
    """Returns a regular expression of the characters."""
    code_points = code_points[(code_points < 0xD800) | (code_points >= 0xE000)]
    runs = np.split(code_points, np.flatnonzero(np.diff(code_points) > 1) + 1)
    return "[" + "".join(f"\\U{run[0]:08x}-\\U{run[-1]:08x}" for run in runs) + "]"
