"""What bert4keras and jieba do with each character, from Python's own Unicode data.

ICU and TensorFlow Text are not used: they follow other versions of Unicode and fold more
characters than `str.lower` does.
"""

import functools
import re
import unicodedata

import numpy as np

from roformer_tf.checkpoint.vocabulary import CJK_BLOCKS, is_cjk, is_punctuation

# Kinds of characters, and the symbols of characters without a symbol of their own. HAN is only a
# symbol: an ISOLATED character in the range that jieba treats as Chinese.
CONTROL, SPACE, ISOLATED, LETTER, HAN = range(1, 6)
CODE_POINTS = 0x110000
JIEBA_HAN = slice(0x4E00, 0x9FD6)
IN_BLOCK = re.compile(r"[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-]")  # jieba.re_han_default
ALPHANUMERIC = re.compile(r"[a-zA-Z0-9]")  # jieba.re_eng
FINAL_SIGMA, SIGMA, CAPITAL_SIGMA = "\u03c2", "\u03c3", "\u03a3"
# The tokenizer treats all million characters of these categories alike
UNASSIGNED, PRIVATE, SURROGATE = "Cn", "Co", "Cs"


def normalize(text):
    """Lower-cases a text, then decomposes it (NFD) and drops nonspacing marks.

    >>> normalize("Ｃafé")
    'ｃafe'

    Source: `lowercase_and_normalize` of bert4keras 0.11.5.
    """
    text = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def character_kind(char):
    r"""Classifies a character: CONTROL (dropped), SPACE, ISOLATED (its own word) or LETTER.

    >>> [character_kind(c) for c in ("\0", "\u2028", "追", "a", "€")] == [
    ...     CONTROL, SPACE, ISOLATED, LETTER, LETTER]
    True

    Source: `Tokenizer._tokenize` of bert4keras 0.11.5.
    """
    category = unicodedata.category(char)
    if is_punctuation(char) or is_cjk(char):
        return ISOLATED
    if char in " \n\r\t" or category == "Zs":
        return SPACE
    if char in "\0\ufffd" or category in ("Cc", "Cf"):
        return CONTROL
    return SPACE if char.isspace() else LETTER  # str.split() splits at U+2028 and U+2029


@functools.cache
def _individual_code_points():
    """Lists all code points that `normalize` may change or that may have a special kind."""
    alike = {UNASSIGNED, PRIVATE, SURROGATE}
    return [
        c
        for c in range(CODE_POINTS)
        if unicodedata.category(chr(c)) not in alike
        and not (0x3400 <= c < 0x4DC0 or 0x4E00 <= c < 0xA000 or 0x20000 <= c < 0x2F800)
    ]


@functools.cache
def character_kinds():
    """Returns the kind of every code point, int32 `(0x110000,)`."""
    kinds = np.full(CODE_POINTS, LETTER, np.int32)
    for c in _individual_code_points():
        kinds[c] = character_kind(chr(c))
    for first, last in CJK_BLOCKS:
        kinds[first : last + 1] = ISOLATED
    kinds[0xD800:0xE000] = CONTROL  # cannot occur in UTF-8
    kinds.flags.writeable = False
    return kinds


@functools.cache
def normalized_images():
    """Maps each code point that `normalize` changes to its normalized string."""
    images = {c: normalize(chr(c)) for c in _individual_code_points()}
    return {c: image for c, image in images.items() if image != chr(c)}


@functools.cache
def case_classes():
    """Returns int8 `(0x110000,)`: 1 for cased, 2 for case-ignorable characters, 0 for others.

    They decide whether `str.lower` makes a capital sigma a final one, and come from `str.lower`.
    """
    classes = np.zeros(CODE_POINTS, np.int8)
    for c in _individual_code_points():
        if ("A" + CAPITAL_SIGMA + chr(c)).lower()[1] == SIGMA:
            classes[c] = 1
        elif ("A" + CAPITAL_SIGMA + chr(c) + "A").lower()[1] == SIGMA:
            classes[c] = 2
    classes.flags.writeable = False
    return classes
