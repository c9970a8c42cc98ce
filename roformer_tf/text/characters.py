"""What bert4keras and jieba do with each character, asked of Python's own Unicode data.

No other source of Unicode properties is used: ICU and TensorFlow Text follow other versions of
Unicode and fold more characters than `str.lower` does.
"""

import functools
import re
import unicodedata

import numpy as np

from roformer_tf.checkpoint.vocabulary import CJK_BLOCKS, is_cjk, is_punctuation

# Kinds of characters; also the symbols of the characters that have no symbol of their own.
# HAN is used in symbols only: ISOLATED inside the range that jieba treats as Chinese.
CONTROL, SPACE, ISOLATED, LETTER, HAN = range(1, 6)
CODE_POINTS = 0x110000
JIEBA_HAN = slice(0x4E00, 0x9FD6)
IN_BLOCK = re.compile(r"[\u4E00-\u9FD5a-zA-Z0-9+#&\._%\-]")  # jieba.re_han_default
ALPHANUMERIC = re.compile(r"[a-zA-Z0-9]")  # jieba.re_eng
FINAL_SIGMA, SIGMA, CAPITAL_SIGMA = "\u03c2", "\u03c3", "\u03a3"
# Of these every character is like every other here, and there are a million of them
UNASSIGNED, PRIVATE, SURROGATE = "Cn", "Co", "Cs"


def normalize(text):
    """Lower case, then canonical decomposition without nonspacing marks.

    >>> normalize("Ｃafé")
    'ｃafe'

    Source: `lowercase_and_normalize` of bert4keras 0.11.5.
    """
    text = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def character_kind(char):
    r"""CONTROL (dropped), SPACE, ISOLATED (a word by itself) or LETTER (any other).

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
    return SPACE if char.isspace() else LETTER  # U+2028 and U+2029: str.split() parts there


@functools.cache
def _individual_code_points():
    """All code points but those that are neither changed by `normalize` nor of any special kind."""
    alike = {UNASSIGNED, PRIVATE, SURROGATE}
    return [
        c
        for c in range(CODE_POINTS)
        if unicodedata.category(chr(c)) not in alike
        and not (0x3400 <= c < 0x4DC0 or 0x4E00 <= c < 0xA000 or 0x20000 <= c < 0x2F800)
    ]


@functools.cache
def character_kinds():
    """int32 (0x110000,): the kind of every code point."""
    kinds = np.full(CODE_POINTS, LETTER, np.int32)
    for c in _individual_code_points():
        kinds[c] = character_kind(chr(c))
    for first, last in CJK_BLOCKS:
        kinds[first : last + 1] = ISOLATED
    kinds[0xD800:0xE000] = CONTROL  # cannot come out of UTF-8
    kinds.flags.writeable = False
    return kinds


@functools.cache
def normalized_images():
    """Dict of code point -> what `normalize` makes of it, for those that it changes."""
    images = {c: normalize(chr(c)) for c in _individual_code_points()}
    return {c: image for c, image in images.items() if image != chr(c)}


@functools.cache
def case_classes():
    """int8 (0x110000,): 1 cased, 2 case-ignorable, 0 neither, as `str.lower` sees them.

    They decide whether a capital sigma becomes a final one; asked of `str.lower` itself.
    """
    classes = np.zeros(CODE_POINTS, np.int8)
    for c in _individual_code_points():
        if ("A" + CAPITAL_SIGMA + chr(c)).lower()[1] == SIGMA:
            classes[c] = 1
        elif ("A" + CAPITAL_SIGMA + chr(c) + "A").lower()[1] == SIGMA:
            classes[c] = 2
    classes.flags.writeable = False
    return classes
