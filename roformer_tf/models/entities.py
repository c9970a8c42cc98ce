"""Entities of raw data: lists of `(start, end, type)` in characters."""

from roformer_tf.files import open_compressed


def entities_from_words(words, tags, separator=" "):
    """Joins words with a tag each, as in CoNLL's files, to a text with entities.

    Args:
        words: list of strings.
        tags: list of strings, as many: `"O"` outside of entities; `"B-PER"`, `"I-PER"`, and also
            `"M-PER"` (inside), `"E-PER"` or `"L-PER"` (last), and `"S-PER"` or `"U-PER"` (single);
            or just `"PER"`.
        separator: string between words: `" "`, or `""` for Chinese characters.

    Returns:
        `(text, entities)`: string, and list of `(start, end, type)`.

    Raises:
        ValueError: If there are not as many tags as words.

    Example:

    >>> from roformer_tf.models import entities_from_words
    >>> entities_from_words(["Ada", "Lovelace", "spoke"], ["B-PER", "I-PER", "O"])
    ('Ada Lovelace spoke', [(0, 12, 'PER')])
    """
    if len(words) != len(tags):
        raise ValueError(
            f"Expected a tag for each word. Received: {len(words)} words and {len(tags)} tags"
        )
    entities, position, previous = [], 0, ""
    for word, tag in zip(words, tags, strict=True):
        prefix, kind = (tag[0], tag[2:]) if tag[1:2] == "-" else ("", tag)
        if tag == "O":
            kind = ""
        elif entities and kind == previous and prefix not in ("B", "S", "U"):
            entities[-1] = entities[-1][0], position + len(word), kind
        else:
            entities.append((position, position + len(word), kind))
        previous = "" if prefix in ("E", "L", "S", "U") else kind
        position += len(word) + len(separator)
    return separator.join(words), entities


def read_conll(path, separator=" ", word_column=0, tag_column=-1):
    r"""Reads a file with a word and its tag on each line, and a blank line between texts.

    Columns are separated by tabs, or by spaces if the line has no tab. Tags are BIO, BIOES, BMES,
    BILOU or plain types; see `entities_from_words`. Lines that begin with `-DOCSTART-` are left
    out.

    Args:
        path: str or path of a UTF-8 file, plain, .gz or .xz.
        separator: string between words: `" "`, or `""` for files with a Chinese character a line.
        word_column, tag_column: int. Columns of the word and its tag, from 0; -1 is the last.

    Returns:
        `(texts, entities)`: list of strings, and for each of them the list of
        `(start, end, type)`, as `RoFormerTokenClassifier.fit` takes them.

    Raises:
        ValueError: If a line has too few columns, or the file is not UTF-8. Names the line.

    Example:

    >>> import os, tempfile
    >>> from roformer_tf.models import read_conll
    >>> path = os.path.join(tempfile.mkdtemp(), "train.txt")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("我 O\n在 O\n北 B-LOC\n京 E-LOC\n\n张 B-PER\n三 I-PER\n")
    >>> read_conll(path, separator="")
    (['我在北京', '张三'], [[(2, 4, 'LOC')], [(0, 2, 'PER')]])

    Reference: https://www.clips.uantwerpen.be/conll2003/ner/
    """
    texts, entities, words, tags = [], [], [], []

    def end():
        if words:
            text, found = entities_from_words(words, tags, separator)
            texts.append(text)
            entities.append(found)
            words.clear()
            tags.clear()

    for number, line in _lines(path):
        if not line.strip() or line.startswith("-DOCSTART-"):
            end()
            continue
        columns = line.split("\t") if "\t" in line else line.split()
        if len(columns) == 1 and line[0].isspace():  # the word itself is a space
            columns.insert(0, line[0])
        try:
            # a line needs two columns: column -1 of a single one would be the word
            word, tag = columns[word_column], columns[tag_column].strip()
            complete = len(columns) > 1 and tag
        except IndexError:
            complete = False
        if not complete:
            raise ValueError(
                f"{path}, line {number}: expected a word in column {word_column} and its tag in "
                f"column {tag_column}. Received: {line!r}"
            )
        words.append(word)
        tags.append(tag)
    end()
    return texts, entities


def _lines(path):
    with open_compressed(path) as (file, _):
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: the file is not UTF-8.") from error
            yield number, text.rstrip("\r\n")
