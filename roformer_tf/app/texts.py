"""The texts of the pages: examples in the model's language, and checks of what was typed."""


def example_texts(task, chinese, english):
    """Returns the Chinese texts if the model's vocabulary has Chinese characters."""
    return chinese if "的" in task.preprocessor.tokenizer.get_vocabulary() else english


def check_texts(**texts):
    """Raises `ValueError` if one of the texts is blank.

    Example:

    >>> from roformer_tf.app.texts import check_texts
    >>> check_texts(question=" ")
    Traceback (most recent call last):
    ValueError: Type a question first. Received: ' '
    """
    for name, text in texts.items():
        if not text.strip():
            raise ValueError(f"Type a {name} first. Received: {text!r}")


def lines_of(text, name, at_least=1):
    r"""Returns the lines of a text that are not blank.

    Raises:
        ValueError: If there are fewer than `at_least`.

    Example:

    >>> from roformer_tf.app.texts import lines_of
    >>> lines_of("Paris\n\n Rome", "choices")
    ['Paris', 'Rome']
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < at_least:
        raise ValueError(
            f"Type at least {at_least} {name}, one on each line. Received: {len(lines)} lines"
        )
    return lines
