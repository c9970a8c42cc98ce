import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.layers import MeanPooling
from roformer_tf.models.answer_spans import answer_lists, answers_of_logits
from roformer_tf.models.answering_task import AnsweringTask
from roformer_tf.models.batches import squeeze_labels, string_tensors
from roformer_tf.models.labels import class_weights
from roformer_tf.models.roformer_backbone import (
    TEXT_INPUTS,
    RoFormerBackbone,
    check_pooling,
    head_dense,
    pool,
    pooled_positions,
)
from roformer_tf.models.roformer_multiple_choice_preprocessor import (
    RoFormerMultipleChoicePreprocessor,
    choice_tensor,
    form_of,
)

MOST_CHOICES = 1000  # for `class_weight`, which Keras takes with an entry for each place


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerMultipleChoice(AnsweringTask, keras_hub.models.Task):
    """Chooses one of any number of answers to a question, or of candidates for a gap.

    `fit` takes `{"context": [...], "question": [...], "choices": [[...], ...]}`, the context being
    optional, or `{"left": [...], "choices": [[...], ...], "right": [...]}` for a gap in a text, and
    for each the index of the right choice. `predict` returns for each a list of `(index, choice,
    probability)`, the most probable first.

    Args:
        backbone: a `RoFormerBackbone`.
        preprocessor: a `RoFormerMultipleChoicePreprocessor`, or `None` to take token ids instead of
            strings.
        dropout: float. Dropout rate of the vector that a choice is judged by.
        pooling: What that vector is: `"cls"` (of the first token), `"mean"` (over tokens), or
            `"pooler"` (if the backbone has one). A model that was pretrained without a task for
            `[CLS]` learns more from few examples with `"mean"`.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of `token_ids`, and optionally `segment_ids` and `padding_mask`, int
            `(batch, choices, length)`.

    Returns:
        float32 logits `(batch, choices)`, minus infinity for choices that are padding.

    Raises:
        ValueError: If `pooling` is unknown, or is `"pooler"` for a backbone without one.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "谁", "我", "和", "你"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> chooser = roformer_tf.RoFormerMultipleChoice(
    ...     backbone, roformer_tf.RoFormerMultipleChoicePreprocessor(tokenizer)
    ... )
    >>> x = {"question": ["谁", "谁"], "choices": [["我", "你"], ["你", "我", "和"]]}
    >>> history = chooser.fit(x, [0, 1], verbose=0)
    >>> answers = chooser.predict(x, verbose=0)
    >>> [len(answer) for answer in answers]
    [2, 3]
    >>> index, choice, probability = answers[0][0]

    Reference: `clue/c3.py` and `clue/chid.py` of the original's v2.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerMultipleChoicePreprocessor
    input_dtypes = TEXT_INPUTS
    text_ranks = (1, 2)  # choices are a matrix

    def __init__(self, backbone, preprocessor=None, dropout=0.1, pooling="cls", **kwargs):
        check_pooling(backbone, pooling)
        # === Config (before the model, whose constructor compiles it) ===
        self.dropout = dropout
        self.pooling = pooling

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.mean_pooling = MeanPooling(name="mean_pooling") if pooling == "mean" else None
        self.output_dropout = keras.layers.Dropout(dropout, dtype="float32", name="output_dropout")
        self.logits_dense = head_dense(backbone, 1, "logits")

        # === Functional model ===
        inputs = {
            name: keras.Input((None, None), dtype="int32", name=name) for name in self.input_dtypes
        }
        super().__init__(inputs, **kwargs)

    def compute_outputs(self, inputs, training=None):
        shape = ops.shape(inputs["token_ids"])
        flat = {name: ops.reshape(x, (-1, shape[2])) for name, x in inputs.items()}
        positions = pooled_positions(flat["token_ids"], self.pooling)
        outputs = self.backbone({**flat, "output_positions": positions}, training=training)
        x = pool(outputs, flat["padding_mask"], self.pooling, self.mean_pooling)
        logits = self.logits_dense(self.output_dropout(x, training=training))
        logits = ops.reshape(logits, (-1, shape[1]))
        return ops.where(ops.any(inputs["padding_mask"] > 0, axis=-1), logits, float("-inf"))

    def default_loss(self):
        """Returns the cross entropy over the choices."""
        return choice_crossentropy

    def default_metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy()]

    def weight_of_classes(self, class_weight):
        return class_weights(class_weight, MOST_CHOICES)  # of the places of the right choices

    def run_on(self, texts):
        choices = [[text[4:]] for text in texts]  # for the question and another [SEP]
        self.predict({"question": ["a"] * len(texts), "choices": choices}, verbose=0)

    def text_tensors(self, x):
        form_of(x)
        columns = {name: x[name] for name in x if name != "choices"}
        columns = dict(zip(columns, string_tensors(tuple(columns.values()))))
        return {**columns, "choices": choice_tensor(x["choices"])}

    def check_examples(self, x, y):
        choices = x.get("choices") if isinstance(x, dict) else None
        if not isinstance(y, list | np.ndarray) or not isinstance(
            choices, list | tuple | np.ndarray
        ):
            return
        for i, (options, index) in enumerate(zip(choices, squeeze_labels(y))):
            is_index = isinstance(index, int | np.integer) and 0 <= index < len(options)
            if not is_index or options[index] in ("", b""):  # padding of a matrix
                raise ValueError(
                    "A label must be the index of the right choice. Received: "
                    f"{index} as label {i}, for {len(options)} choices"
                    + (", of which it is an empty one" if is_index else "")
                )

    def pack(self, x):
        """Returns the inputs of questions, and details for `decode`."""
        return self.preprocessor(x), {"choices": x["choices"]}

    def decode(self, outputs, details, num_examples):
        """Returns `index`, `choice` and `probability`, tensors `(batch, choices)`, -1 for padding.

        The most probable choice is first.
        """
        return answers_of_logits(outputs, details["choices"])

    def to_answers(self, tensors):
        """Returns a list of `(index, choice, probability)` for each question."""
        return answer_lists(tensors, ("index", "choice", "probability"))


@keras.saving.register_keras_serializable(package="roformer_tf")
def choice_crossentropy(y_true, y_pred):
    """Returns the cross entropy `(batch,)` over the choices, logits of minus infinity included."""
    # JAX multiplies all logits by 0 or 1, and 0 times minus infinity is NaN
    logits = ops.maximum(y_pred, -1e9)
    return keras.losses.sparse_categorical_crossentropy(y_true, logits, from_logits=True)
