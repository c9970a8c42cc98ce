"""Classes without training: a masked language model fills in the word of a class."""

import numpy as np
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.models.fill_mask import check_masked_lm
from roformer_tf.models.labels import ranked, softmax
from roformer_tf.models.length_batches import length_batches
from roformer_tf.models.prediction import predict_logits

TEXT, MASK = "{text}", "{mask}"


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
        ValueError: If the task is no `RoFormerMaskedLM` with a preprocessor, the pattern lacks one
            of its two parts or leaves no room for a text, a word has no tokens, there are no words,
            `batch_size` is not positive, or the outputs are NaN.

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
    is_single = isinstance(texts, str | bytes)
    texts = [texts] if is_single else list(texts)
    if not texts:
        return []
    ids = _ids_of_words(masked_lm, words)
    scores = np.empty((len(texts), len(ids)))
    for count in sorted({len(word) for word in ids}):
        prompts = _prompts(masked_lm, texts, pattern, count)
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
    """Returns examples to train a masked language model on the words of classes, for few shots.

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
    >>> from roformer_tf.models import cloze_examples
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好", "坏"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
    >>> classes = {"positive": "好", "negative": "坏"}
    >>> examples = cloze_examples(masked_lm, ["天气"], ["positive"], "{text}{mask}", classes)
    >>> examples[1].tolist()
    [[7]]
    >>> history = masked_lm.fit(*examples, verbose=0)
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
    ids = masked_lm.preprocessor.tokenizer(list(words.values()))
    empty = [label for label, word in zip(words, ids, strict=True) if not word]
    if empty:
        raise ValueError(
            f"Every word must have tokens. Received: {words[empty[0]]!r} for {empty[0]!r}"
        )
    return ids


def _prompts(masked_lm, texts, pattern, count):
    """Returns the texts in the pattern with a number of masks, cut so that these have room."""
    if not isinstance(pattern, str) or pattern.count(TEXT) != 1 or pattern.count(MASK) != 1:
        raise ValueError(
            f"`pattern` must have '{TEXT}' and '{MASK}' once each. Received: pattern={pattern!r}"
        )
    preprocessor = masked_lm.preprocessor
    tokenizer = preprocessor.tokenizer
    pattern = pattern.replace(MASK, tokenizer.mask_token * count)
    rest = sum(map(len, tokenizer(pattern.replace(tokenizer.mask_token, TEXT).split(TEXT))))
    room = preprocessor.sequence_length - 2 - count - rest
    if room < 1:
        raise ValueError(
            "The pattern leaves no room for a text: raise the preprocessor's `sequence_length`. "
            f"Received: sequence_length={preprocessor.sequence_length}, pattern={pattern!r}"
        )
    texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts]
    _, _, ends = tokenizer.tokenize_with_offsets(texts)
    cut = [text if len(end) <= room else text[: end[room - 1]] for text, end in zip(texts, ends)]
    return [pattern.replace(TEXT, text) for text in cut]
