"""Scores of whole answers, with the values of the tasks' official scripts."""

import difflib
import re

# What the script of CMRC 2018 takes for punctuation.
PUNCTUATION = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』") | {"……"}
CHINESE = re.compile("[\u4e00-\u9fa5]")
# The signs that NLTK's tokenizer splits off: these, colons and commas before what is no digit,
# ellipses, the point at the end, and a quote before a word.
SIGN = (
    r"""[;@#$%&?!*\[\](){}<>"‒–—―]|[:,](?!\d)|\.{2,}|\.(?=[\])}>"' ]*$)"""
    r"""|(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)"""
)
WORD = re.compile(rf"{SIGN}|(?:(?!{SIGN})\S)+")
# The ends of words that it splits off, as in "Ada's" and "don't", in this order.
CLITICS = [re.compile(rf"(.*[^'])({ends})") for ends in ("'s|'m|'d|'", "'ll|'re|'ve|n't")]


def entity_f1(y_true, answers):
    """Returns precision, recall and F1 of entities. One is right if start, end and type match.

    Args:
        y_true: For each text the list of its entities `(start, end, type)`.
        answers: The same, as `RoFormerTokenClassifier.predict` returns them, with scores.

    Returns:
        Dictionary of `precision`, `recall` and `f1`, over the entities of all texts.

    Example:

    >>> from roformer_tf.models import entity_f1
    >>> entity_f1([[(0, 2, "LOC"), (3, 5, "PER")]], [[(0, 2, "LOC", 0.9)]])
    {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666}

    Reference: `evaluate` of the original's `clue/cluener.py`; micro-averaged F1 of `seqeval`.
    """
    right = wanted = found = 0
    for of_text, predicted in zip(y_true, answers, strict=True):
        of_text = {tuple(entity[:3]) for entity in of_text}
        predicted = {tuple(entity[:3]) for entity in predicted}
        right += len(of_text & predicted)
        wanted += len(of_text)
        found += len(predicted)
    return {
        "precision": right / max(found, 1),
        "recall": right / max(wanted, 1),
        "f1": 2 * right / max(wanted + found, 1),
    }


def reading_scores(y_true, answers):
    """Returns exact match and F1 of answers, as the script of CMRC 2018 computes them.

    Punctuation does not count. F1 is that of the longest common substring, of Chinese characters
    and other words. Of several references the best one counts.

    Args:
        y_true: For each question the list of its right answers, strings; `[""]` for none.
        answers: As `RoFormerQuestionAnswering.predict` returns them, of which the first counts; or
            strings.

    Returns:
        Dictionary of `exact_match` and `f1`, means over the questions, from 0 to 1.

    Example:

    >>> from roformer_tf.models import reading_scores
    >>> reading_scores([["北京市"], ["1998年"]], [[(0, 2, "北京", 0.9)], "1998年。"])
    {'exact_match': 0.5, 'f1': 0.9}

    Reference: `cmrc2018_evaluate.py` of https://github.com/ymcui/cmrc2018. It splits runs of Latin
    letters with NLTK. This function follows the rules of NLTK's word tokenizer, and takes a run for
    one sentence.
    """
    matches, scores = [], []
    for references, answer in zip(y_true, answers, strict=True):
        if not isinstance(answer, str):
            answer = answer[0][2] if answer else ""
        matches.append(any(_plain(answer) == _plain(reference) for reference in references))
        scores.append(max(_f1(_segments(answer), _segments(ref)) for ref in references))
    count = max(len(scores), 1)
    return {"exact_match": sum(matches) / count, "f1": sum(scores) / count}


def choice_accuracy(y_true, answers):
    """Returns the share of questions whose most probable choice is right.

    Args:
        y_true: list of ints, the index of the right choice of each question.
        answers: As `RoFormerMultipleChoice.predict` returns them.

    Returns:
        Dictionary of `accuracy`.

    Example:

    >>> from roformer_tf.models import choice_accuracy
    >>> choice_accuracy([0, 1], [[(0, "a", 0.9), (1, "b", 0.1)], [(0, "a", 0.6), (1, "b", 0.4)]])
    {'accuracy': 0.5}
    """
    right = [row[0][0] == index for index, row in zip(y_true, answers, strict=True)]
    return {"accuracy": sum(right) / max(len(right), 1)}


def _plain(text):
    return "".join(c for c in text.lower().strip() if c not in PUNCTUATION)


def _segments(text):
    """Splits into Chinese characters, and words of the runs between them, without punctuation."""
    segments, run = [], ""
    for character in text.lower().strip():
        if character in PUNCTUATION:
            continue  # joins the runs on both sides, as in the script
        if CHINESE.match(character):
            segments += [*_words(run), character]
            run = ""
        else:
            run += character
    return segments + _words(run)


def _words(run):
    """Splits text without Chinese characters into words, as NLTK's tokenizer of a sentence does."""
    words = []
    for match in WORD.finditer(run):
        word, ends = match[0], []
        if word == '"':  # an opening quote differs from a closing one
            opens = match.start() == 0 or run[match.start() - 1] in " ([{<"
            word = "``" if opens else "''"
        for clitics in CLITICS:
            if found := clitics.fullmatch(word):
                word, ends = found[1], [found[2], *ends]
        words += [word, *ends]
    return words


def _f1(found, wanted):
    matcher = difflib.SequenceMatcher(None, found, wanted, autojunk=False)
    longest = matcher.find_longest_match().size
    if not longest:
        return 0.0
    precision, recall = longest / len(found), longest / len(wanted)
    return 2 * precision * recall / (precision + recall)
