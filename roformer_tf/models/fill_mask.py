import functools

import keras
import numpy as np
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.batches import string_tensors
from roformer_tf.models.length_batches import batches_of_texts
from roformer_tf.models.prediction import predict_logits
from roformer_tf.models.roformer_masked_lm import RoFormerMaskedLM


def fill_mask(task, texts, top_k=5, batch_size=32):
    """Predicts the tokens at each `[MASK]` written in a text.

    Args:
        task: a `RoFormerMaskedLM` with a preprocessor.
        texts: string or list of strings with any number of `[MASK]` (the tokenizer's mask token).
            All masks of a text are filled at once, independently of each other.
        top_k: int. Number of tokens for each mask.
        batch_size: int. Number of texts that run at once, those of similar length together.

    Returns:
        For each text a list with one entry for each mask, from left to right: a list of `top_k`
        `(token, probability)`, the most probable first. For a single string its list alone.

    Raises:
        ValueError: If the task is no `RoFormerMaskedLM` with a preprocessor, its tokenizer has no
            mask token, `top_k` is not in `[1, vocabulary_size]`, `batch_size` is not positive, a
            mask lies beyond the preprocessor's `sequence_length`, or the model's outputs are NaN.
        TypeError: If a text is not a string.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.models import fill_mask
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    >>> masks = fill_mask(masked_lm, "天[MASK]好[MASK]", top_k=3)
    >>> len(masks), len(masks[0])
    (2, 3)
    >>> token, probability = masks[0][0]

    Reference: `predict` in the `test_mlm.py` of the original repository; section 3.1 of BERT,
    arXiv 1810.04805.
    """
    check_masked_lm(task)
    check_top_k(top_k, task.backbone.vocabulary_size)
    check_positive_integer("batch_size", batch_size)
    is_single = isinstance(texts, str | bytes)
    texts = [texts] if is_single else list(texts)
    tokenizer = task.preprocessor.tokenizer
    mask_token = tokenizer.mask_token
    if not texts:
        return []
    results = [None] * len(texts)
    for rows in batches_of_texts(task.preprocessor, string_tensors(texts), batch_size):
        part = [texts[row] for row in rows]
        inputs, found = task.preprocessor.pack_masks(part)
        found = ops.convert_to_numpy(found)
        counts = [
            text.count(mask_token.encode() if isinstance(text, bytes) else mask_token)
            for text in part
        ]
        lost = np.flatnonzero(found.sum(-1) < counts)
        if lost.size:
            raise ValueError(
                f"Text {rows[lost[0]]} has {counts[lost[0]]} masks, and truncation to "
                f"sequence_length={task.preprocessor.sequence_length} leaves "
                f"{found[lost[0]].sum()}. Shorten the text, or make the preprocessor with a larger "
                "`sequence_length`."
            )
        if not found.any():
            for row in rows:
                results[row] = []
            continue
        logits = predict_logits(task, inputs)
        ids, probabilities = map(ops.convert_to_numpy, _top_tokens_function(top_k)(logits))
        for row, count, text_ids, shares in zip(rows, counts, ids, probabilities, strict=True):
            masks = zip(text_ids[:count], shares[:count], strict=True)
            results[row] = [
                [(token_of(tokenizer, i), float(p)) for i, p in zip(*mask)] for mask in masks
            ]
    return results[0] if is_single else results


def check_masked_lm(task):
    """Raises `ValueError` unless a task is a `RoFormerMaskedLM` with a preprocessor."""
    if not isinstance(task, RoFormerMaskedLM):
        raise ValueError(
            f"Expected a RoFormerMaskedLM. Received: {type(task).__name__}. Build one with "
            "`RoFormerMaskedLM.from_preset(folder)`."
        )
    task.check_preprocessor()


@functools.cache
def _top_tokens_function(top_k):
    """Returns `top_tokens`, on TensorFlow as one graph for all batches."""
    function = functools.partial(top_tokens, top_k=top_k)
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    logits = tf.TensorSpec([None, None, None], tf.float32)
    return tf.function(lambda x: function(x), input_signature=[logits], autograph=False)


def token_of(tokenizer, id):
    """Returns the token of an id, or an empty string: a model may have more ids than there are."""
    try:
        return tokenizer.id_to_token(id)
    except ValueError:
        return ""


def top_tokens(logits, top_k):
    """Returns ids and float32 probabilities of the `top_k` highest logits, the highest first."""
    logits = ops.cast(logits, "float32")
    _, ids = ops.top_k(logits, top_k, sorted=True)
    return ids, ops.take_along_axis(ops.softmax(logits, axis=-1), ids, axis=-1)


def check_top_k(top_k, vocabulary_size):
    """Raises `ValueError` unless `top_k` is in `[1, vocabulary_size]`."""
    is_integer = isinstance(top_k, int) and not isinstance(top_k, bool)
    if not is_integer or not 1 <= top_k <= vocabulary_size:
        raise ValueError(
            f"`top_k` must be an integer from 1 to the size of the vocabulary, {vocabulary_size}. "
            f"Received: top_k={top_k!r}"
        )
