"""Texts of any number to translations."""

from roformer_tf.models.batches import check_batch_size


def translate(task, texts, batch_size=32, max_length=None):
    """Translations of texts, in batches of similar length.

    Args:
        task: a `RoFormerSeq2SeqLM` with a preprocessor; its `sampler` chooses the tokens.
        texts: list of strings, or a single string.
        batch_size: positive integer, how many texts at once.
        max_length: positive integer, the most tokens of a translation; by default 50 more than the source has.

    Returns:
        List of strings, in the order of `texts`, or a string for a string. An empty text has an empty translation.

    Raises:
        ValueError: if the task has no preprocessor, or `batch_size` is not positive.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.models import translate
    >>> from roformer_tf.text import train_sentencepiece
    >>> tokenizer = roformer_tf.RoFormerSentencePieceTokenizer(train_sentencepiece(["a cat", "ein Hund"], 20))
    >>> backbone = roformer_tf.RoFormerSeq2SeqBackbone(
    ...     vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerSeq2SeqLMPreprocessor(tokenizer)
    >>> translator = roformer_tf.RoFormerSeq2SeqLM(backbone, preprocessor)
    >>> translator.compile(sampler="greedy")
    >>> len(translate(translator, ["a cat", "", "a"], max_length=5))
    3
    """
    if task.preprocessor is None:
        raise ValueError(
            "The model has no preprocessor, so it knows no strings. Set one: "
            "`task.preprocessor = RoFormerSeq2SeqLMPreprocessor(tokenizer)`."
        )
    check_batch_size(batch_size)
    if isinstance(texts, str):
        return translate(task, [texts], batch_size, max_length)[0]
    translations = [""] * len(texts)
    order = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]
        for i, text in zip(part, task.generate([texts[i] for i in part], max_length=max_length)):
            translations[i] = text
    return translations
