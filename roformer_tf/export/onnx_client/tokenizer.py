"""The tokenizer of the model beside this file, in plain Python."""

import json
import re
import unicodedata
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RUN = re.compile("([\u4e00-\u9fd5a-zA-Z0-9+#&._%-]+)")  # what jieba segments together


def read(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


SETTINGS, IDS, SCORES = read("settings.json"), read("vocabulary.json"), read("words.json")
UNKNOWN = IDS[SETTINGS["unk_token"]]
LONGEST = max(map(len, SCORES), default=1)
DROPPED, ISOLATED = (re.compile(SETTINGS[name]) for name in ("dropped", "isolated"))


def segment(run):
    """Splits a run of letters into words, as `jieba.cut(run, HMM=False)`."""
    best = {len(run): (0.0, 0)}
    for i in reversed(range(len(run))):
        ends = [j for j in range(i + 1, min(i + LONGEST, len(run)) + 1) if run[i:j] in SCORES]
        scores = [
            (SCORES.get(run[i:j], SETTINGS["unknown_score"]) + best[j][0], j)
            for j in ends or [i + 1]
        ]
        best[i] = max(scores)
    words, i, joins = [], 0, False
    while i < len(run):
        j = best[i][1]
        is_alphanumeric = j == i + 1 and run[i].isascii() and run[i].isalnum()
        if joins and is_alphanumeric:
            words[-1] += run[i]
        else:
            words.append(run[i:j])
        i, joins = j, is_alphanumeric
    return words


def word_pieces(word):
    """Splits a word into the longest pieces of the vocabulary, from the left."""
    ids, start = [], 0
    while start < len(word) <= SETTINGS["word_maxlen"]:
        for end in range(len(word), start, -1):
            piece = "##" * (start > 0) + word[start:end]
            if piece in IDS:
                break
        else:
            return [UNKNOWN]
        ids.append(IDS[piece])
        start = end
    return ids or [IDS.get(word, UNKNOWN)]


def tokenize(text):
    """Returns the token ids of a text, without special tokens."""
    if SETTINGS["lowercase"]:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    words = [text]
    if SETTINGS["word_level"]:
        runs = RUN.split(text)  # every second one is a run
        words = [w for i, run in enumerate(runs) for w in (segment(run) if i % 2 else run)]
    ids = []
    for word in words:
        if SETTINGS["word_level"] and word in IDS:
            ids.append(IDS[word])
            continue
        for piece in ISOLATED.sub(r" \g<0> ", DROPPED.sub("", word)).split():
            ids += word_pieces(piece)
    return ids


def encode(*texts):
    """Returns token ids and segment ids of a text, or of a pair of texts, with special tokens."""
    rows = []
    for text in texts:
        row = []
        for i, part in enumerate(
            text.split(SETTINGS["mask_token"]) if SETTINGS["masks"] else [text]
        ):
            row += [SETTINGS["mask_id"]] * (i > 0) + tokenize(part)
        rows.append(row)
    while sum(map(len, rows)) > SETTINGS["sequence_length"] - len(rows) - 1:
        max(rows, key=len).pop(SETTINGS["truncate_index"])
    token_ids, segment_ids = [SETTINGS["start_id"]], [0]
    for i, row in enumerate(rows):
        token_ids += [*row, SETTINGS["end_id"]]
        segment_ids += [i] * (len(row) + 1)
    return token_ids, segment_ids
