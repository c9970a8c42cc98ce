import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.layers import GlobalPointer, SpanCrossentropy
from roformer_tf.models.answer_spans import answer_lists, answers_of_scores
from roformer_tf.models.answering_task import AnsweringTask
from roformer_tf.models.batches import string_tensors
from roformer_tf.models.roformer_backbone import (
    TOKEN_INPUTS,
    RoFormerBackbone,
    head_dense,
    initializer_of,
    sequence_output,
)
from roformer_tf.models.roformer_question_answering_preprocessor import (
    RoFormerQuestionAnsweringPreprocessor,
    question_and_context,
)

HEADS = ("joint", "separate")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerQuestionAnswering(AnsweringTask, keras_hub.models.Task):
    """Answers questions by spans of characters of a context of any length.

    `fit` takes `{"question": [...], "context": [...]}`, and for each question the answer
    `(start, end)`, so that `context[start:end]` is its text, or `None` if there is no answer.
    `predict` returns the best answers to each question, a list of `(start, end, text, score)`.
    Contexts longer than the preprocessor's `sequence_length` are cut into overlapping chunks.

    Args:
        backbone: a `RoFormerBackbone`.
        preprocessor: a `RoFormerQuestionAnsweringPreprocessor`, or `None` to take token ids instead
            of strings.
        head: `"joint"` scores each pair of a start and an end by a `GlobalPointer`, as the reading
            script of the original's v2; `"separate"` scores starts and ends, as Hugging Face.
        head_dim: even int. Size of the queries and keys of the pointer.
        dropout: float. Dropout rate before the head.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`, and `answer_mask`, int `(batch,
            length)`, 1 for `[CLS]` and for tokens where an answer may start and end. Defaults to
            all real tokens.

    Returns:
        float32 scores `(batch, start, end)`, or with `head="separate"` `(batch, length, 2)` of
        starts and ends. Minus infinity where no answer may be. The span of `[CLS]` alone stands for
        no answer.

    Raises:
        ValueError: If `head` is unknown.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "谁", "我", "和", "你"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> reader = roformer_tf.RoFormerQuestionAnswering(
    ...     backbone, roformer_tf.RoFormerQuestionAnsweringPreprocessor(tokenizer)
    ... )
    >>> x = {"question": ["谁"], "context": ["我和你"]}
    >>> history = reader.fit(x, [(2, 3)], verbose=0)
    >>> ((start, end, text, score),) = reader.predict(x, verbose=0)[0]
    >>> x["context"][0][start:end] == text
    True

    Reference: `clue/cmrc2018.py` of the original's v2; `RoFormerForQuestionAnswering` of Hugging
    Face.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerQuestionAnsweringPreprocessor
    head_arguments = ("head", "head_dim")
    input_dtypes = {**TOKEN_INPUTS, "answer_mask": "int32"}

    def __init__(
        self, backbone, preprocessor=None, head="joint", head_dim=64, dropout=0.1, **kwargs
    ):
        check_one_of("head", head, HEADS)
        # === Config (before the model, whose constructor compiles it) ===
        self.head = head
        self.head_dim = head_dim
        self.dropout = dropout

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_dropout = keras.layers.Dropout(dropout, dtype="float32", name="output_dropout")
        if head == "joint":
            self.pointer = GlobalPointer(
                1,
                head_dim,
                use_bias=False,
                kernel_initializer=initializer_of(backbone.norm, backbone.num_layers),
                dtype="float32",  # under every policy: scores and losses need the precision
                name="pointer",
            )
        else:
            self.span_dense = head_dense(backbone, 2, "span")

        # === Functional model ===
        answer_mask = keras.Input((None,), dtype="int32", name="answer_mask")
        inputs = {**backbone.input, "answer_mask": answer_mask}
        super().__init__(inputs, **kwargs)

    def compute_outputs(self, inputs, training=None):
        inputs = dict(inputs)
        mask = inputs.pop("answer_mask", None)
        mask = inputs["padding_mask"] if mask is None else mask
        return self.head_outputs(self.backbone(inputs, training=training), mask, training)

    def head_outputs(self, outputs, answer_mask, training=None):
        """Computes the outputs from those of the backbone."""
        x = self.output_dropout(sequence_output(outputs), training=training)
        if self.head == "joint":
            return self.pointer(x, padding_mask=answer_mask)[:, 0]
        may_be = ops.expand_dims(ops.cast(answer_mask, "bool"), -1)
        return ops.where(may_be, self.span_dense(x), float("-inf"))

    def default_loss(self):
        """Returns `SpanCrossentropy`."""
        return SpanCrossentropy()

    def predict(
        self,
        x,
        batch_size=None,
        verbose="auto",
        steps=None,
        callbacks=None,
        max_tokens_per_batch=None,
        n_best=1,
        no_answer=False,
        max_answer_length=64,
    ):
        """Returns the best answers to each question, in the order given.

        Args:
            x: dictionary of `question` and `context`, lists of strings; or batches of them.
            batch_size, verbose, steps, callbacks, max_tokens_per_batch: See `RoFormerTask.predict`.
            n_best: int. Number of answers.
            no_answer: bool. Whether `(0, 0, "", score)`, no answer, is among them.
            max_answer_length: int. Maximum number of tokens in an answer.

        Returns:
            For each question a list of up to `n_best` `(start, end, text, score)`, the most
            probable first: characters of the context, and the probability of the answer in its
            chunk. The probability of no answer is the smallest one of all chunks.

        Raises:
            ValueError: As `fit`; and if the outputs are NaN.
            TypeError: As `fit`.
        """
        check_positive_integer("n_best", n_best)
        check_positive_integer("max_answer_length", max_answer_length)
        found = super().predict(
            x,
            batch_size,
            verbose,
            steps,
            callbacks,
            max_tokens_per_batch,
            n_best=n_best,
            no_answer=no_answer,
            max_answer_length=max_answer_length,
        )
        contexts = x.get("context") if isinstance(x, dict) else None
        if not isinstance(contexts, list):
            return found
        # words of the given strings, as a tensor cannot hold lone surrogates
        return [
            [(start, end, context[start:end], score) for start, end, _, score in answers]
            if isinstance(context, str)
            else answers
            for context, answers in zip(contexts, found)
        ]

    def run_on(self, texts):
        contexts = [text[4:] for text in texts]  # for the question and another [SEP]
        self.predict({"question": ["a"] * len(texts), "context": contexts}, verbose=0)

    def text_tensors(self, x):
        columns = question_and_context(x)
        return string_tensors(tuple(list(c) if isinstance(c, tuple) else c for c in columns))

    def encode_labels(self, y):
        """Returns answers, a list of `(start, end)` or `None`, as an int32 array `(batch, 2)`."""
        if not isinstance(y, list | tuple):
            return y
        rows = []
        for i, answer in enumerate(y):
            row = (-1, -1) if answer is None else answer
            is_pair = isinstance(row, tuple | list | np.ndarray) and len(row) == 2
            if not is_pair or not all(isinstance(n, int | np.integer) for n in row):
                raise ValueError(
                    "An answer must be `(start, end)` in characters of the context, the end "
                    f"excluded, or None. Received: {answer!r} as answer {i}"
                )
            if tuple(row) != (-1, -1) and not 0 <= row[0] < row[1] < 2**31:
                raise ValueError(
                    f"An answer must have 0 <= start < end. Received: {answer!r} as answer {i}"
                )
            rows.append(row)
        return np.array(rows, "int32").reshape(-1, 2)

    def check_examples(self, x, y):
        if not isinstance(x, dict) or not isinstance(x.get("context"), list):
            return
        for i, (context, answer) in enumerate(zip(x["context"], y if y is not None else ())):
            is_pair = isinstance(answer, tuple | list) and len(answer) == 2
            if isinstance(context, str) and is_pair and answer[1] > len(context):
                raise ValueError(
                    f"An answer must lie within its context. Received: {answer!r} as answer {i}, "
                    f"for a context of {len(context)} characters"
                )

    def pack(self, x):
        """Returns the inputs of questions and contexts, and details for `decode`."""
        question, context = question_and_context(x)
        inputs, details = self.preprocessor.pack_chunks(question, context)
        return inputs, {**details, "context": context}

    def crop(self, outputs, width):
        return outputs[:, :width, :width] if self.head == "joint" else outputs[:, :width]

    decode = staticmethod(answers_of_scores)

    def to_answers(self, tensors):
        """Returns a list of `(start, end, text, score)` for each question."""
        return answer_lists(tensors, ("start", "end", "text", "score"))
