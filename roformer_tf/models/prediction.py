"""`predict`, `evaluate` and `embed` of texts, without a new `tf.data` iterator."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import ops, tree
from keras_hub.src.utils.tensor_utils import convert_to_numpy, no_convert_scope

from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.models.batches import (
    count_rows,
    is_dataset,
    take_rows,
    text_batch,
)
from roformer_tf.models.in_batch_contrastive import unit_vectors
from roformer_tf.models.length_batches import (
    DEFAULT_BATCH_SIZE,
    batches_of_texts,
    check_batch_limits,
    ladder_width,
)
from roformer_tf.models.roformer_backbone import POOLINGS, RoFormerBackbone, pool

WINDOW = 32  # batches of a dataset whose rows are grouped together


def predict_batches(task, x, batch_size, verbose, steps, callbacks, max_tokens, answer=None):
    """Returns the outputs of a task for each example, in the order given.

    Texts run in batches of similar length if each has outputs of one shape, as a classifier's, and
    no callbacks ask for the batches as given.

    Args:
        task: a `RoFormerTask` on one device.
        x: Tensors of examples, see `to_columns`; or a `tf.data.Dataset` of batches of texts.
        batch_size, verbose, steps, callbacks: See `keras.Model.predict`.
        max_tokens: int. Maximum number of tokens in a batch, padding included, or `None`.
        answer: Function from the tensors of a batch to what is returned of it, an array. By default
            it is the outputs of the model.
    """
    # Whether all examples have outputs of one shape, whatever their number of tokens.
    is_one_shape = answer is not None or all(
        None not in output.shape[1:] for output in tree.flatten(task.output)
    )
    groups = is_one_shape and not callbacks

    def outputs_of(examples):
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(task.preprocess_samples(examples))
        return predict_inputs(task, inputs, may_pad=is_one_shape)

    answer = answer or outputs_of

    def divided(columns):
        return columns, _batches(task, columns, batch_size, max_tokens, groups)

    if is_dataset(x):
        if batch_size is not None:
            raise ValueError(
                "A dataset gives batches, so `batch_size` is its own: `dataset.batch(16)`. "
                f"Received: batch_size={batch_size}"
            )
        # the choices of two batches may differ in width, so they are not joined in a window
        batch_size, windows = _windows(x, steps, WINDOW if answer is outputs_of else 1)
        windows, num_batches = map(divided, windows), None
    else:
        count = None if steps is None else steps * (batch_size or DEFAULT_BATCH_SIZE)
        windows = [divided(tree.map_structure(lambda column: column[:count], x))]
        num_batches = len(windows[0][1])
    callbacks = callback_list(task, callbacks, verbose, num_batches)
    task.stop_predicting = False
    step, outputs = 0, []
    callbacks.on_predict_begin()
    for columns, batches in windows:
        order, found = [], []
        for rows in batches:
            callbacks.on_predict_batch_begin(step)
            found.append(answer(take_rows(columns, rows)))
            callbacks.on_predict_batch_end(step, {"outputs": found[-1]})
            order.append(rows)
            step += 1
            if task.stop_predicting:
                break
        outputs.append(_joined(found, order if groups else None))
        if task.stop_predicting:
            break
    callbacks.on_predict_end()
    if not outputs:
        raise ValueError("The dataset is empty: it gave no batch to predict.")
    return _joined(outputs)


def evaluate_batch(task, columns, verbose, return_dict):
    """Evaluates one batch of examples; see `keras.Model.evaluate`."""
    progress = callback_list(task, None, verbose, num_batches=1)
    progress.on_test_begin()
    progress.on_test_batch_begin(0)
    logs = task.test_on_batch(*columns, return_dict=True)
    progress.on_test_batch_end(0, logs)
    progress.on_test_end(logs)
    return logs if return_dict else task._flatten_metrics_in_order(logs)


def callback_list(task, callbacks, verbose, num_batches):
    """Returns callbacks as a `CallbackList`, with a progress bar unless they are one already."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=1,
        steps=num_batches,
        model=task,
    )


def predict_inputs(task, inputs, may_pad):
    """Returns the outputs of one batch of model inputs, as NumPy arrays.

    `may_pad` says whether the outputs may be wider than the inputs. Then inputs are padded to few
    shapes if XLA compiles a program for each shape.
    """
    count = count_rows(inputs)  # a pair of texts may be two rows
    if keras.backend.backend() != "tensorflow":
        inputs = tree.map_structure(convert_to_numpy, inputs)
    if may_pad and has_program_for_each_shape(task):
        inputs = pad_to_ladder(inputs)
    # KerasHub's `predict_on_batch` would preprocess the inputs again.
    outputs = keras.Model.predict_on_batch(task, inputs)
    # padding adds rows, and each of several replicas gives all rows
    return tree.map_structure(lambda output: output[:count], outputs)


def predict_logits(task, inputs):
    """Returns the logits of one batch of model inputs, a float32 NumPy array.

    Args:
        task: a masked or causal language model.
        inputs: Dictionary of tensors or arrays.

    Raises:
        ValueError: If they are NaN or infinite.
    """
    outputs = predict_inputs(task, inputs, may_pad=False)
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return check_finite_outputs(np.asarray(logits, "float32"), task)


def has_program_for_each_shape(model):
    """Whether XLA compiles a program for each shape of a batch: on JAX, or as the user asked."""
    return keras.backend.backend() == "jax" or bool(model.jit_compile)


def pad_to_ladder(inputs):
    """Pads model inputs to few widths, and to a number of examples that is a power of two."""

    def pad(x):
        x = np.asarray(x)
        rows = 2 ** int(len(x) - 1).bit_length() - len(x)
        width = ladder_width(x.shape[-1]) - x.shape[-1]
        x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width)])
        return np.pad(x, [(0, rows)] + [(0, 0)] * (x.ndim - 1), mode="edge")

    return {name: pad(x) for name, x in inputs.items()}


def _windows(dataset, steps, size):
    """Returns the batch size of a dataset, and its texts in windows of `size` batches."""
    elements = dataset if steps is None else dataset.take(steps)
    batches = (keras.utils.unpack_x_y_sample_weight(element)[0] for element in elements)
    first = next(batches, None)
    if first is None:
        return None, ()

    def windows():
        rest = itertools.chain([first], batches)
        while window := list(itertools.islice(rest, size)):
            yield tree.map_structure(lambda *columns: tf.concat(columns, 0), *window)

    return max(1, count_rows(first)), windows()


def _batches(task, columns, batch_size, max_tokens, groups):
    """Returns the indices of the examples of each batch."""
    if task.are_texts(columns) and (groups or max_tokens is not None):
        few_shapes = has_program_for_each_shape(task)
        return batches_of_texts(
            task.preprocessor, columns, batch_size, max_tokens, not groups, few_shapes
        )
    check_batch_limits(batch_size, max_tokens)
    count, size = count_rows(columns), batch_size or DEFAULT_BATCH_SIZE
    return np.split(np.arange(count), np.arange(size, count, size))


def _joined(outputs, order=None):
    """Joins the outputs of batches, by `order`, the indices of their examples, if it is given."""
    back = None if order is None else np.argsort(np.concatenate(order), kind="stable")

    def join(*parts):
        is_ragged = any(isinstance(part, tf.RaggedTensor) for part in parts)
        if is_ragged or len({part.shape[1:] for part in parts}) > 1:  # batches differ in width
            return tf.concat([as_ragged(part) for part in parts], axis=0)
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return joined if back is None else joined[back]

    def as_ragged(part):
        return part if isinstance(part, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(part)

    return tree.map_structure(join, *outputs)


def check_finite_outputs(outputs, model):
    """Returns outputs, NumPy or ragged. Raises `ValueError` if they are NaN or infinite."""
    flat = keras.tree.flatten(outputs)
    arrays = (np.asarray(getattr(output, "flat_values", output)) for output in flat)
    masked = -np.inf if getattr(model, "has_masked_outputs", False) else 0
    if all((np.isfinite(array) | (array == masked)).all() for array in arrays):
        return outputs
    raise not_finite_error(model)


def not_finite_error(model):
    """Returns the error to raise if outputs of a model are NaN or infinite."""
    reason = "Its weights are NaN, or training diverged: use an earlier checkpoint."
    if "float16" in {layer.compute_dtype for layer in model._flatten_layers()}:
        reason = (
            "float16 holds no number above 65,504, which some activations exceed: load the model "
            "with dtype='mixed_bfloat16' or 'float32'."
        )
    return ValueError(f"The model's outputs are NaN or infinite. {reason}")


def text_vectors(backbone, preprocessor, texts, pooling=None, normalize=True, batch_size=32):
    """Returns the vector of each text, computed by a backbone; see `RoFormerTask.embed`."""
    check_positive_integer("batch_size", batch_size)
    pooling = checked_pooling(backbone, pooling)
    texts, is_single = text_batch(texts)
    if not backbone.compiled and keras.backend.backend() == "tensorflow":
        # On a GPU Keras would use XLA, which compiles a program for each length of a batch.
        backbone.jit_compile = False
    vectors = np.empty((len(texts), backbone.hidden_dim), "float32")
    few_shapes = has_program_for_each_shape(backbone)
    for rows in batches_of_texts(preprocessor, texts, batch_size, few_shapes=few_shapes):
        with no_convert_scope():
            inputs = preprocessor.pack(take_rows(texts, rows))
        if pooling != "mean":
            inputs["output_positions"] = np.zeros((len(rows), 1), "int32")  # of [CLS]
        outputs = predict_inputs(backbone, inputs, may_pad=True)
        vectors[rows] = pool(outputs, inputs["padding_mask"], pooling, _mean)
    check_finite_outputs(vectors, backbone)
    if normalize:
        vectors = ops.convert_to_numpy(unit_vectors(ops.convert_to_tensor(vectors)))
    return vectors[0] if is_single else vectors


def checked_pooling(backbone, pooling):
    """Returns the pooling to use, by default that of the backbone's pooler.

    Raises:
        ValueError: If the backbone cannot pool in this way.
    """
    check_one_of("pooling", pooling, POOLINGS, optional=True)
    if not isinstance(backbone, RoFormerBackbone):
        raise ValueError(
            "`embed` needs a model with a `RoFormerBackbone`, which reads one sequence. "
            f"Received: a model with a {type(backbone).__name__}"
        )
    if pooling in (None, "pooler") and backbone.pooler is None:
        raise ValueError(
            "The model has no pooler, so say how the vectors of the tokens become that of the "
            "text: `pooling='mean'` averages them, `pooling='cls'` takes that of [CLS]. "
            f"Received: pooling={pooling!r}, and a backbone with pooler=None"
        )
    if pooling == "cls" and backbone.masking == "causal":
        raise ValueError(
            "In a causal model [CLS] sees no other token, so its vector is the same for all texts. "
            "Use `pooling='mean'`. Received: pooling='cls', and a backbone with masking='causal'"
        )
    return pooling or "pooler"


def _mean(tokens, padding_mask):
    weights = np.asarray(padding_mask, "float32")
    tokens = np.asarray(tokens, "float32")[:, : weights.shape[1]]  # may be wider than the inputs
    return np.einsum("blh,bl->bh", tokens, weights) / weights.sum(axis=1, keepdims=True)
