"""Reads files with a tag for each word, as those of CoNLL 2003."""

from roformer_tf.files import open_compressed
from roformer_tf.models.entities import entities_from_words


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
            # the whole is checked: without a tag, -1 would be the word
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
