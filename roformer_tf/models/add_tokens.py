"""A model for more tokens than it was trained with."""

import copy
import tempfile

import numpy as np
from keras import ops

from roformer_tf.models.roformer_task import RoFormerTask
from roformer_tf.text import RoFormerTokenizer
from roformer_tf.text.marked_tokens import checked_new_tokens


def add_tokens(task: RoFormerTask, tokens: list[str]) -> RoFormerTask:
    """Returns a copy of a task that knows more tokens.

    The tokenizer finds them in a text as they are written (see `RoFormerTokenizer.add_tokens`). It
    takes milliseconds for a line of text if there are some 5,000 names in Chinese.
    Each new token starts with the mean of the embeddings that its text had so far, and with the
    mean of all output biases. Everything else is copied. The given task does not change; compile
    the copy before you train it in another way than by default.

    Args:
        task: A task with a preprocessor and a `RoFormerTokenizer`, such as `RoFormerMaskedLM`.
        tokens: list of str without white space.

    Returns:
        A task of the same class.

    Raises:
        ValueError: If the task has no such tokenizer, or one with more tokens than the model; is
            quantized or has LoRA weights; or a token is empty, no string, or has white space.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.models import add_tokens
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
    >>> masked_lm = add_tokens(roformer_tf.RoFormerMaskedLM(backbone, preprocessor), ["天气"])
    >>> masked_lm.preprocessor.tokenizer(["天气好"]), masked_lm.backbone.vocabulary_size
    ([[8, 7]], 9)
    """
    tokenizer = getattr(getattr(task, "preprocessor", None), "tokenizer", None)
    if not isinstance(task, RoFormerTask) or not isinstance(tokenizer, RoFormerTokenizer):
        raise ValueError(
            "`task` must be a task with a preprocessor and a RoFormerTokenizer, such as "
            f"RoFormerMaskedLM. Received: {type(task).__name__}"
        )
    if any(layer.quantization_mode for layer in task._flatten_layers()):
        raise ValueError("A quantized model cannot grow. Add the tokens before `quantize`.")
    if any(getattr(layer, "lora_enabled", False) for layer in task._flatten_layers()):
        raise ValueError("A model with LoRA cannot grow. Add the tokens before `enable_lora`.")
    old_size = task.backbone.vocabulary_size
    first = tokenizer.vocabulary_size()  # the model may have more, unused ones
    if first > old_size:
        raise ValueError(
            f"The tokenizer has {first} tokens, more than the {old_size} of the model. Make it from "
            "the model's folder again, and leave `tokenizer.add_tokens` to this function."
        )
    new = [x for x in checked_new_tokens(tokens) if x not in set(tokenizer.get_vocabulary())]
    # without the padding of the tokenizer's `sequence_length`
    rows = tokenizer.tokenize_with_offsets(new)[0] if new else []
    pieces = [list(ids) or [tokenizer.unk_token_id] for ids in rows]

    config = copy.deepcopy(task.get_config())
    config["backbone"]["config"]["vocabulary_size"] = old_size + len(new)
    grown = type(task).from_config(config)
    with tempfile.TemporaryDirectory() as folder:  # with its dictionary
        tokenizer.save_assets(folder)
        grown.preprocessor.tokenizer.load_assets(folder)
    grown.preprocessor.tokenizer.add_tokens(tokens)
    for source, target in zip(task.weights, grown.weights, strict=True):
        values = ops.convert_to_numpy(source.value)
        if tuple(source.shape) != tuple(target.shape):  # the embeddings, and the output bias
            is_bias = values.ndim == 1
            rows = [values[:first].mean() if is_bias else values[ids].mean(0) for ids in pieces]
            values = np.concatenate([values[:first], np.stack(rows), values[first:]])
        target.assign(values)
    return grown
