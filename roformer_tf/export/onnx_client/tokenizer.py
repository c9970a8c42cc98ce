"""The tokenizer of the model beside this file, in plain Python: the ids of bert4keras."""

import json
import math
import re
import unicodedata
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RUN = re.compile("([\u4e00-\u9fd5a-zA-Z0-9+#&._%-]+)")  # what jieba splits into words


def read(name):
    """Returns what a file of JSON beside this file holds."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


SETTINGS, IDS, FREQUENCIES = read("settings.json"), read("vocabulary.json"), read("words.json")
UNKNOWN, LOG_TOTAL = SETTINGS["unk_id"], math.log(SETTINGS["words_total"])
SCORES = {word: math.log(count) - LOG_TOTAL for word, count in FREQUENCIES.items()}
LONGEST = max(map(len, SCORES), default=1)
DROPPED, ISOLATED = re.compile(SETTINGS["dropped"]), re.compile(SETTINGS["isolated"])
MARKED = SETTINGS["marked_tokens"]  # found in a text as they are written, the longest first
LONGEST_FIRST = sorted(MARKED, key=len, reverse=True)
MARKS = re.compile(f"({'|'.join(map(re.escape, LONGEST_FIRST))})") if MARKED else None


def segment(run):
    """Splits into the most probable words, as `jieba.lcut(run, HMM=False)`."""
    best = {len(run): (0.0, 0)}  # the score of the rest, and the end of its first word
    for i in reversed(range(len(run))):
        ends = range(i + 1, min(i + LONGEST, len(run)) + 1)
        ends = [end for end in ends if run[i:end] in SCORES] or [i + 1]
        best[i] = max((SCORES.get(run[i:end], -LOG_TOTAL) + best[end][0], end) for end in ends)
    words, start, joins = [], 0, False
    while start < len(run):
        end = best[start][1]
        is_alphanumeric = bool(re.fullmatch("[a-zA-Z0-9]", run[start:end]))
        if joins and is_alphanumeric:
            words[-1] += run[start:end]
        else:
            words.append(run[start:end])
        start, joins = end, is_alphanumeric
    return words


def word_pieces(word):
    """Splits into pieces of the vocabulary, from the left, the longest first."""
    if len(word) > SETTINGS["word_maxlen"]:
        return [IDS.get(word, UNKNOWN)]
    ids, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = "##" * (start > 0) + word[start:end]
            if piece in IDS:
                break
        else:
            return [UNKNOWN]
        ids.append(IDS[piece])
        start = end
    return ids


def tokenize(text):
    """Returns the ids of a text without special tokens around it."""
    ids = []
    for i, part in enumerate(MARKS.split(text) if MARKED else [text]):
        ids += [MARKED[part]] if i % 2 else tokenize_words(part)
    return ids


def tokenize_words(text):
    """Returns the ids of a text without special or added tokens."""
    if SETTINGS["lowercase"]:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    words = [text]
    if SETTINGS["word_level"]:
        parts = RUN.split(text)  # every second one is a run
        words = [
            word for i, part in enumerate(parts) for word in (segment(part) if i % 2 else part)
        ]
    ids = []
    for word in words:
        if SETTINGS["word_level"] and word in IDS:
            ids.append(IDS[word])
        else:
            for piece in ISOLATED.sub(r" \g<0> ", DROPPED.sub("", word)).split():
                ids += word_pieces(piece)
    return ids


def encode(*texts):
    """Returns token ids and segment ids of a text, or of a pair of texts, truncated to fit."""
    rows = []
    for text in texts:
        parts = text.split(SETTINGS["mask_token"]) if SETTINGS["top_k"] else [text]
        row = tokenize(parts[0])
        for part in parts[1:]:
            row += [SETTINGS["mask_id"], *tokenize(part)]
        rows.append(row)
    while sum(map(len, rows)) + len(rows) + 1 > SETTINGS["sequence_length"]:
        max(rows, key=len).pop(SETTINGS["truncate_index"])
    token_ids, segment_ids = [SETTINGS["start_id"]], [0]
    for i, row in enumerate(rows):
        token_ids += [*row, SETTINGS["end_id"]]
        segment_ids += [i * SETTINGS["pair_segments"]] * (len(row) + 1)
    return token_ids, segment_ids
