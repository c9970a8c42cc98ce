"""Which pages a model has."""

import roformer_tf
from roformer_tf.app import (
    answers,
    choices,
    classify,
    entities,
    fill_mask,
    generate,
    paraphrases,
    similarity,
    translate,
)

# The first class that a model is an instance of gives its pages.
PAGES = (
    ("RoFormerMaskedLM", (fill_mask, similarity)),
    ("RoFormerTextClassifier", (classify,)),
    ("RoFormerTokenClassifier", (entities,)),
    ("RoFormerQuestionAnswering", (answers,)),
    ("RoFormerMultipleChoice", (choices,)),
    ("RoFormerSim", (similarity, paraphrases)),
    ("RoFormerSimClassifier", (similarity,)),
    ("RoFormerCausalLM", (generate,)),
    ("RoFormerSeq2SeqLM", (translate,)),
    ("RoFormerBackbone", (similarity,)),
)


def pages_of(model):
    """Returns the pages of a model: modules of this package.

    Args:
        model: a task or backbone of this package.

    Returns:
        Tuple of modules.

    Raises:
        ValueError: If it is another object.
    """
    for name, pages in PAGES:
        if isinstance(model, getattr(roformer_tf, name)):
            return pages
    raise ValueError(
        f"Expected one of {', '.join(name for name, _ in PAGES)}. Received: {type(model).__name__}"
    )
