import keras
import numpy as np
from keras import ops
from keras_hub.src.utils.tensor_utils import no_convert_scope

from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.models.batches import check_not_empty, is_dataset, string_tensors, take_rows
from roformer_tf.models.in_batch_contrastive import unit_vectors
from roformer_tf.models.length_batches import batches_of_texts
from roformer_tf.models.prediction import (
    check_finite_outputs,
    has_program_for_each_shape,
    pad_to_ladder,
)
from roformer_tf.models.roformer_backbone import POOLINGS, RoFormerBackbone, pool
from roformer_tf.models.roformer_multiple_choice_preprocessor import (
    RoFormerMultipleChoicePreprocessor,
)
from roformer_tf.models.roformer_text_classifier_preprocessor import (
    RoFormerTextClassifierPreprocessor,
)


def text_vectors(backbone, preprocessor, texts, pooling=None, normalize=True, batch_size=32):
    """Returns the vector of each text, computed by a backbone; see `RoFormerTask.embed`."""
    check_not_empty(texts)
    check_positive_integer("batch_size", batch_size)
    pooling = checked_pooling(backbone, pooling)
    is_single = isinstance(texts, str | bytes)
    texts = [texts] if is_single else list(texts) if isinstance(texts, tuple) else texts
    texts = string_tensors(texts)
    if is_dataset(texts):
        raise TypeError("`embed` takes a list or array of strings. Received: a dataset")
    if not backbone.compiled and keras.backend.backend() == "tensorflow":
        # On a GPU Keras would use XLA, which compiles a program for each length of a batch.
        backbone.jit_compile = False
    if isinstance(preprocessor, RoFormerMultipleChoicePreprocessor):  # which packs no single texts
        preprocessor = RoFormerTextClassifierPreprocessor(
            preprocessor.tokenizer, preprocessor.sequence_length
        )
    vectors = np.empty((len(texts), backbone.hidden_dim), "float32")
    few_shapes = has_program_for_each_shape(backbone)
    for rows in batches_of_texts(preprocessor, texts, batch_size, few_shapes=few_shapes):
        with no_convert_scope():
            inputs = preprocessor.pack(take_rows(texts, rows))
        inputs = {name: np.asarray(value) for name, value in inputs.items()}
        if few_shapes:
            inputs = pad_to_ladder(inputs)
        outputs = backbone.predict_on_batch(inputs)
        vectors[rows] = pool(outputs, inputs["padding_mask"], pooling, _mean)[: len(rows)]
    check_finite_outputs(vectors, backbone)
    if normalize:
        vectors = ops.convert_to_numpy(unit_vectors(ops.convert_to_tensor(vectors)))
    return vectors[0] if is_single else vectors


def checked_pooling(backbone, pooling):
    """Returns the pooling to use. Raises `ValueError` if the backbone cannot pool in this way."""
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
    total = np.einsum("blh,bl->bh", np.asarray(tokens, "float32"), weights)
    # a batch on JAX may have rows that are all padding
    return total / np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
