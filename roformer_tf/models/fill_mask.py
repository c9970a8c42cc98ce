"""What a masked language model fills in: tokens, or the words of classes."""

import functools
import numbers

import keras
import numpy as np
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.batches import take_rows, text_batch
from roformer_tf.models.labels import ranked, softmax
from roformer_tf.models.length_batches import batches_of_texts, length_batches
from roformer_tf.models.prediction import predict_logits
from roformer_tf.models.roformer_masked_lm import RoFormerMaskedLM

TEXT, MASK = "{text}", "{mask}"


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
        ValueError: If there is no text, the task is no `RoFormerMaskedLM` with a preprocessor, its
            tokenizer has no mask token, `top_k` is not in `[1, vocabulary_size]`, `batch_size` is
            not positive, a mask lies beyond the preprocessor's `sequence_length`, or the model's
            outputs are NaN.
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
    texts, is_single = text_batch(texts)
    tokenizer = task.preprocessor.tokenizer
    mask_token = tokenizer.mask_token
    results = [None] * len(texts)
    for rows in batches_of_texts(task.preprocessor, texts, batch_size):
        part = take_rows(texts, rows)
        inputs, found = task.preprocessor.pack_masks(part)
        found = ops.convert_to_numpy(found)
        counts = [text.count(mask_token.encode()) for text in part.numpy()]
        lost = np.flatnonzero(found.sum(-1) < counts)
        if lost.size:
            start = part[lost[0]].numpy().decode("utf-8", "replace")[:20]
            raise ValueError(
                f"Text {rows[lost[0]]}, which begins with {start!r}, has {counts[lost[0]]} masks, "
                f"and truncation to sequence_length={task.preprocessor.sequence_length} leaves "
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
    is_integer = isinstance(top_k, numbers.Integral) and not isinstance(top_k, bool)
    if not is_integer or not 1 <= top_k <= vocabulary_size:
        raise ValueError(
            f"`top_k` must be an integer from 1 to the size of the vocabulary, {vocabulary_size}. "
            f"Received: top_k={top_k!r}"
        )


def zero_shot(masked_lm, texts, pattern, words, batch_size=32):
    """Returns the probabilities of classes by the words that a masked language model fills in.

    The score of a class is the mean log probability of the tokens of its word, each at a mask of
    its own.

    Args:
        masked_lm: a `RoFormerMaskedLM` with a preprocessor.
        texts: string or list of strings. A text that is too long loses tokens at its end, and the
            pattern none.
        pattern: string with `{text}` and `{mask}`, such as `"{text}。很{mask}！"`.
        words: dictionary, from the label of each class to its word.
        batch_size: int. Number of texts that run at once.

    Returns:
        For each text a list of `(label, probability)`, the most probable first; for a single string
        its list alone.

    Raises:
        ValueError: If there is no text, the task is no `RoFormerMaskedLM` with a preprocessor, the
            pattern lacks one of its two parts or leaves no room for a text, a text has a mask, a
            word has no tokens, there are no words, `batch_size` is not positive, or the outputs
            are NaN.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.models import zero_shot
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好", "坏"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    >>> classes = {"positive": "好", "negative": "坏"}
    >>> answer = zero_shot(masked_lm, "天气", "{text}{mask}", classes)
    >>> sorted(label for label, probability in answer)
    ['negative', 'positive']

    Reference: pattern-verbalizer pairs of PET, arXiv 2001.07676.
    """
    check_positive_integer("batch_size", batch_size)
    texts, is_single = text_batch(texts)
    ids = _ids_of_words(masked_lm, words)
    scores = np.empty((len(texts), len(ids)))
    for count in sorted({len(word) for word in ids}):
        prompts = _prompts(masked_lm, texts.numpy(), pattern, count)
        columns = [i for i, word in enumerate(ids) if len(word) == count]
        lengths = np.array([len(prompt) for prompt in prompts])
        for rows in length_batches(lengths, batch_size):
            inputs, _ = masked_lm.preprocessor.pack_masks([prompts[row] for row in rows])
            logits = predict_logits(masked_lm, inputs)
            logs = ops.convert_to_numpy(ops.log_softmax(logits, axis=-1))
            for column in columns:
                scores[rows, column] = logs[:, range(count), ids[column]].mean(-1)
    labels = list(words)
    results = [ranked(labels, row) for row in softmax(scores)]
    return results[0] if is_single else results


def cloze_examples(masked_lm, texts, labels, pattern, words):
    """Makes few-shot training examples: a masked language model learns the word of each class.

    Args:
        masked_lm, texts, pattern, words: See `zero_shot`.
        labels: list of strings, the label of each text.

    Returns:
        `(x, y, sample_weight)` for `masked_lm.fit`: model inputs with a mask for each token of the
        label's word, and these tokens.

    Raises:
        ValueError: As `zero_shot`; and if a label has no word, or there are not as many labels as
            texts.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好", "坏"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    >>> classes = {"positive": "好", "negative": "坏"}
    >>> x, y, weights = roformer_tf.models.cloze_examples(
    ...     masked_lm, ["天气"], ["positive"], "{text}{mask}", classes
    ... )
    >>> y.tolist()
    [[7]]
    >>> history = masked_lm.fit(x, y, weights, verbose=0)
    """
    if len(texts) != len(labels):
        raise ValueError(
            f"Expected a label for each text. Received: {len(texts)} texts, {len(labels)} labels"
        )
    unknown = [label for label in labels if label not in words]
    if unknown:
        raise ValueError(f"Labels must be among {list(words)}. Received: {unknown[0]!r}")
    ids = dict(zip(words, _ids_of_words(masked_lm, words), strict=True))
    prompts = [
        _prompts(masked_lm, [text], pattern, len(ids[label]))[0]
        for text, label in zip(texts, labels, strict=True)
    ]
    inputs, found = masked_lm.preprocessor.pack_masks(prompts)
    x = {name: ops.convert_to_numpy(value) for name, value in inputs.items()}
    weights = ops.convert_to_numpy(found).astype("float32")
    y = np.zeros(weights.shape, "int32")
    for row, label in zip(y, labels, strict=True):
        row[: len(ids[label])] = ids[label]
    return x, y, weights


def _ids_of_words(masked_lm, words):
    """Returns the token ids of the word of each class. Checks the model and the words."""
    check_masked_lm(masked_lm)
    if not isinstance(words, dict) or not words:
        raise ValueError(
            f"`words` must be a dictionary from labels to words. Received: words={words!r}"
        )
    ids = _tokens(masked_lm.preprocessor.tokenizer, list(words.values()))
    empty = [label for label, word in zip(words, ids, strict=True) if not word]
    if empty:
        raise ValueError(
            f"Every word must have tokens. Received: {words[empty[0]]!r} for {empty[0]!r}"
        )
    return ids


def _tokens(tokenizer, texts):
    """Returns a list of token ids for each text, without the padding of some tokenizers."""
    return tokenizer.tokenize_with_offsets(texts)[0]


def _prompts(masked_lm, texts, pattern, count):
    """Returns the texts in the pattern with a number of masks, cut so that these have room."""
    if not isinstance(pattern, str) or pattern.count(TEXT) != 1 or pattern.count(MASK) != 1:
        raise ValueError(
            f"`pattern` must have '{TEXT}' and '{MASK}' once each. Received: pattern={pattern!r}"
        )
    preprocessor = masked_lm.preprocessor
    tokenizer = preprocessor.tokenizer
    pattern = pattern.replace(MASK, tokenizer.mask_token * count)
    parts = pattern.replace(tokenizer.mask_token, TEXT).split(TEXT)
    rest = sum(map(len, _tokens(tokenizer, parts)))
    room = preprocessor.sequence_length - 2 - count - rest
    if room < 1:
        raise ValueError(
            "The pattern leaves no room for a text: raise the preprocessor's `sequence_length`. "
            f"Received: sequence_length={preprocessor.sequence_length}, pattern={pattern!r}"
        )
    texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts]
    for text in texts:
        if tokenizer.mask_token in text:
            raise ValueError(
                "A text must not have a mask of its own: the pattern has those of the words. "
                f"Received: {text!r}"
            )
    _, _, ends = tokenizer.tokenize_with_offsets(texts)
    cut = [text if len(end) <= room else text[: end[room - 1]] for text, end in zip(texts, ends)]
    return [pattern.replace(TEXT, text) for text in cut]
