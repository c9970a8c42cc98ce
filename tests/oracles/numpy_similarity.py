"""The losses of RoFormer-Sim in float64 NumPy, from its training scripts."""

import numpy as np


def neighbours(rows):
    """Returns the pair numbers `(rows, 1)`: rows 2i and 2i + 1 are a pair."""
    return np.arange(rows)[:, None] // 2


def unit(vectors):
    vectors = np.asarray(vectors, np.float64)
    return vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))


def contrastive(vectors, scale=20.0):
    """stage1.py: softmax of scale * cosine over the other rows; the label is the neighbour."""
    scores = scale * (unit(vectors) @ unit(vectors).T - 1e12 * np.eye(len(vectors)))
    scores = scores - scores.max(axis=1, keepdims=True)
    log_shares = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(vectors))
    return -log_shares[rows, rows + 1 - rows % 2 * 2].mean()


def distillation(teacher, vectors):
    """stage2.py: 100 times the mean squared difference of the cosines."""
    return 100 * ((unit(vectors) @ unit(vectors).T - unit(teacher) @ unit(teacher).T) ** 2).mean()


def language_model(logits, next_tokens, counted):
    """stage1.py: cross entropy of the next tokens, over the counted ones."""
    logits = np.asarray(logits, np.float64)
    log_sum = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    chosen = np.take_along_axis(logits, np.asarray(next_tokens)[..., None], -1)[..., 0]
    return ((log_sum - chosen) * counted).sum() / np.sum(counted)


def grouped(labels, logits, groups):
    """supervised.py: cross entropy within the label's group of classes."""
    logits, ends = np.asarray(logits, np.float64), np.cumsum(groups)
    total = 0.0
    for label, row in zip(labels, logits, strict=True):
        group = np.searchsorted(ends, label, side="right")
        own = row[ends[group] - groups[group] : ends[group]]
        total += np.log(np.exp(own).sum()) - row[label]
    return total / len(labels)
