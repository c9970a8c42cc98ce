"""What a masked-language model would write in the place of `[MASK]`."""

import keras
import numpy as np
from keras import ops

from roformer_tf.checkpoint.vocabulary import assign_ids
from roformer_tf.models.batches import check_batch_size
from roformer_tf.models.roformer_masked_lm import RoFormerMaskedLM


def fill_mask(task, texts, top_k=5, batch_size=32):
    """The most probable tokens in the place of each mask that is written out in a text.

    Args:
        task: `RoFormerMaskedLM` with a preprocessor.
        texts: string or list of strings with any number of `[MASK]` (the mask token of the tokenizer). All masks of a
            text are filled at once, each without knowing what goes into the others.
        top_k: positive integer, how many tokens for each mask.
        batch_size: positive integer.

    Returns:
        For each text a list with one entry for each mask, from left to right: the list of its `top_k`
        `(token, probability)`, the most probable first. For a single string that string's list alone.

    Raises:
        ValueError: if the task has no preprocessor or its tokenizer no mask token, if `top_k` is no integer from 1 to
            the size of the vocabulary, if `batch_size` is not positive, or if a mask lies beyond the preprocessor's
            `sequence_length`.

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

    Reference: `predict` in the `test_mlm.py` of the original repository; section 3.1 of BERT, arXiv 1810.04805.
    """
    check_task(task)
    check_top_k(top_k, task.backbone.vocabulary_size)
    check_batch_size(batch_size)
    single = isinstance(texts, str | bytes)
    texts = [texts] if single else list(texts)
    tokens = tokens_by_id(task.preprocessor.tokenizer, task.backbone.vocabulary_size)
    results = []
    for start in range(0, len(texts), batch_size):
        part = texts[start : start + batch_size]
        inputs, found = task.preprocessor.pack_masks(part)
        found = ops.convert_to_numpy(found)
        counts = [_count_masks(text, task.preprocessor.tokenizer.mask_token) for text in part]
        lost = np.flatnonzero(found.sum(-1) < counts)
        if lost.size:
            raise ValueError(
                f"Text {start + lost[0]} has {counts[lost[0]]} masks, of which truncation to "
                f"sequence_length={task.preprocessor.sequence_length} leaves {found[lost[0]].sum()}. Shorten the "
                "text, or make the preprocessor with a larger `sequence_length`."
            )
        if not found.any():
            results += [[] for _ in part]
            continue
        # KerasHub's own would take the inputs for strings and preprocess them
        logits = keras.Model.predict_on_batch(task, inputs)
        ids, probabilities = most_probable(logits, top_k)
        ids, probabilities = ops.convert_to_numpy(ids), ops.convert_to_numpy(probabilities)
        for row, count in enumerate(counts):
            results.append(
                [
                    [(tokens[i], float(p)) for i, p in zip(ids[row, m], probabilities[row, m])]
                    for m in range(count)
                ]
            )
    return results[0] if single else results


def _count_masks(text, mask_token):
    return text.count(mask_token.encode() if isinstance(text, bytes) else mask_token)


def most_probable(logits, top_k):
    """Ids and probabilities, float32, of the `top_k` highest logits on the last axis, the highest first."""
    logits = ops.cast(logits, "float32")
    _, ids = ops.top_k(logits, top_k, sorted=True)
    return ids, ops.take_along_axis(ops.softmax(logits, axis=-1), ids, axis=-1)


def tokens_by_id(tokenizer, size):
    """List of `size` tokens; an id that has none is the empty string."""
    tokens = [""] * size
    for token, i in assign_ids(tokenizer.get_vocabulary()).items():
        tokens[i] = token
    return tokens


def check_task(task):
    """Refuses what cannot fill masks in texts."""
    if not isinstance(task, RoFormerMaskedLM):
        raise ValueError(
            f"Expected a RoFormerMaskedLM. Received: {type(task).__name__}. Build one with "
            "`RoFormerMaskedLM.from_preset(folder)`."
        )
    if task.preprocessor is None:
        raise ValueError(
            "The model has no preprocessor, so it knows no strings. Set one: "
            "`task.preprocessor = RoFormerMaskedLMPreprocessor(tokenizer)`."
        )


def check_top_k(top_k, vocabulary_size):
    """Refuses a `top_k` that the vocabulary does not have."""
    whole = isinstance(top_k, int) and not isinstance(top_k, bool)
    if not whole or not 1 <= top_k <= vocabulary_size:
        raise ValueError(
            f"`top_k` must be an integer from 1 to the size of the vocabulary, {vocabulary_size}. "
            f"Received: top_k={top_k!r}"
        )
