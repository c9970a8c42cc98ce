"""Entities of raw data: lists of `(start, end, type)` in characters."""

import numpy as np


def entity_array(entities, labels):
    """Converts the entities of each text to an array.

    Args:
        entities: For each text a list of `(start, end, type)`: characters of the text, the end
            excluded, and a name of `labels` or its number. Or an array or tensor as returned.
        labels: list of strings, the types in their order.

    Returns:
        int32 array `(texts, count, 3)`, padded with -1.

    Raises:
        ValueError: If an entity is not of this form, is empty, or has an unknown type.
    """
    if hasattr(entities, "dtype") and str(entities.dtype) != "object":
        return entities
    if not isinstance(entities, list | tuple | np.ndarray):
        raise ValueError(
            "Entities must be a list with a list of `(start, end, type)` for each text. "
            f"Received: {entities!r}"
        )
    numbers = {name: number for number, name in enumerate(labels)}
    rows = []
    for i, row in enumerate(entities):
        rows.append([_entity(entity, numbers, labels, i) for entity in _entries(row, i)])
    array = np.full((len(rows), max([1, *map(len, rows)]), 3), -1, "int32")
    for target, row in zip(array, rows, strict=True):
        target[: len(row)] = np.reshape(np.array(row, "int32"), (-1, 3))
    return array


def _entries(row, i):
    if isinstance(row, np.ndarray):
        row = [entity for entity in row.tolist() if entity[0] != -1]
    if not isinstance(row, list | tuple):
        raise ValueError(
            f"The entities of text {i} must be a list of `(start, end, type)`. Received: {row!r}"
        )
    return row


def _entity(entity, numbers, labels, i):
    try:
        start, end, kind = entity
    except (TypeError, ValueError):
        start = end = kind = None
    is_number = not isinstance(kind, str) and isinstance(kind, int | np.integer)
    number = int(kind) if is_number else numbers.get(kind) if isinstance(kind, str) else None
    whole = all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in (start, end))
    if not whole or not 0 <= start < end < 2**31:
        raise ValueError(
            "An entity must be `(start, end, type)` with 0 <= start < end, in characters of the "
            f"text, the end excluded. Received: {entity!r} in text {i}"
        )
    if number is None or not 0 <= number < len(labels):
        raise ValueError(
            f"The type of an entity must be among {list(labels)}, or its number. Received: "
            f"{entity!r} in text {i}"
        )
    return int(start), int(end), number


def check_entities(entities, texts, may_overlap):
    """Raises `ValueError` for entities beyond the end of their text, or ones that overlap.

    Args:
        entities: See `entity_array`.
        texts: list of strings, or anything else, which is not checked.
        may_overlap: bool.
    """
    for i, row in enumerate(entities if isinstance(entities, list) else ()):
        ordered = sorted(tuple(entity[:2]) for entity in row)
        text = texts[i] if isinstance(texts, list) and i < len(texts) else None
        if isinstance(text, str) and ordered and max(end for _, end in ordered) > len(text):
            raise ValueError(
                f"An entity must lie within its text. Received: {row!r} in text {i}, which has "
                f"{len(text)} characters"
            )
        pairs = zip(ordered, ordered[1:])
        if not may_overlap and any(second[0] < first[1] for first, second in pairs):
            raise ValueError(
                "Entities that overlap need `head='global_pointer'` or 'efficient_global_pointer'. "
                f"Received: {row!r} in text {i}"
            )


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
