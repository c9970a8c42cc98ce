"""Examples of a reading task, and what its chunks and its loss must be."""

import json

import numpy as np

from tests.oracles.numpy_roformer import rotary_interleaved
from tests.pretraining import small_corpus

# An answer is this word. Its characters are not elsewhere.
ANSWER = "".join(small_corpus.CHARACTERS[-2:])
QUESTION = "".join(small_corpus.CHARACTERS[:3])
FIELDS = {"question": "question", "context": "context", "answers": "answers"}


def write(folder, count=120, seed=2):
    """Writes questions and contexts; every third has no answer."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        text = "".join(rng.choice(small_corpus.CHARACTERS[3:-2], size=rng.integers(8, 60)))
        answers = []
        if number % 3:
            start = int(rng.integers(len(text)))
            text = text[:start] + ANSWER + text[start:]
            answers = [[ANSWER, start]]
        lines.append({"question": QUESTION, "context": text, "answers": answers})
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "questions.json").write_text(text, encoding="utf-8")


def sliding_chunks(question, context, spans, max_length, step):
    """The sequences of one example whose tokens are characters, as in the original's files."""
    room, first, made = max_length - len(question) - 3, 0, []
    step = min(step, room - room // 2)  # shorter chunks share half
    while True:
        last = first + room
        inside = [(s, e) for s, e in spans if first <= s < e <= last]
        shift = len(question) + 2 - first
        labels = [(s + shift, e - 1 + shift) for s, e in inside] or [(0, 0)]
        made += [(question, context[first:last], label) for label in labels]
        if last >= len(context):
            return made
        first += step


def oracle_loss(features, batch, kernel):
    """Sum of losses and number of right spans in float64, from the outputs of the backbone."""
    features, kernel = features.astype("float64"), kernel.astype("float64")
    dim = kernel.shape[1] // 2
    total, right = 0.0, 0
    for x, mask, label, (weight,) in zip(
        features, batch["answer_mask"], batch["labels"][:, 0], batch["label_weights"]
    ):
        width = len(x)
        query, key = (
            rotary_interleaved(part[None, :, None], np.arange(width))[0, :, 0]
            for part in np.split(x @ kernel, 2, axis=-1)
        )
        scores = query @ key.T / np.sqrt(dim)
        spans = [(m, n) for m in range(width) for n in range(m, width) if mask[m] and mask[n]]
        logits = np.array([scores[span] for span in spans])
        true = spans.index(divmod(int(label), width))
        total += weight * (
            np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[true]
        )
        right += weight * (logits.argmax() == true)
    return total, right
