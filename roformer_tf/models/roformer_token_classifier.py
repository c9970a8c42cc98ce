import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.checks import check_one_of
from roformer_tf.layers import (
    ConditionalRandomField,
    EfficientGlobalPointer,
    GlobalPointer,
    MultilabelSpanCrossentropy,
    tag_probabilities,
    viterbi_decode,
)
from roformer_tf.models.answer_spans import (
    entities_of_spans,
    spans_of_scores,
    spans_of_tags,
    to_tensorflow,
)
from roformer_tf.models.answering_task import AnsweringTask
from roformer_tf.models.entity_tag_loss import EntityTagLoss
from roformer_tf.models.labels import check_names
from roformer_tf.models.roformer_backbone import (
    RoFormerBackbone,
    head_dense,
    initializer_of,
    sequence_output,
)
from roformer_tf.models.roformer_token_classifier_preprocessor import (
    RoFormerTokenClassifierPreprocessor,
)

POINTERS = {
    "global_pointer": GlobalPointer,
    "efficient_global_pointer": EfficientGlobalPointer,
}
HEADS = (*POINTERS, "crf", "softmax")
MINUS_INFINITY = np.float32("-inf")  # whatever `keras.config.floatx()` is


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerTokenClassifier(AnsweringTask, keras_hub.models.Task):
    """Finds entities in texts of any length, as spans of characters.

    `fit` takes texts, and for each a list of entities `(start, end, type)`: the characters
    `text[start:end]` in the string as it is, before any normalization. `predict` returns such
    lists, with a score: `(start, end, type, score)`. Texts longer than the preprocessor's
    `sequence_length` are cut into overlapping chunks and give one answer for each entity.

    An entity consists of whole tokens, so characters (`word_level=False`) suit the entities of
    Chinese texts better than words.

    Args:
        backbone: a `RoFormerBackbone`.
        labels: list of strings. Names of the types.
        preprocessor: a `RoFormerTokenClassifierPreprocessor`, or `None` to take token ids instead
            of strings.
        head: `"global_pointer"` or `"efficient_global_pointer"`, which score every span, so that
            entities may be nested; `"crf"` or `"softmax"`, which tag every token.
        head_dim: even int. Size of the queries and keys of a pointer.
        dropout: float. Dropout rate before the head.
        lr_multiplier: float. Factor of the learning rate of a CRF's transitions.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`.

    Returns:
        float32 tensor. Pointers: scores `(batch, types, start, end)`, above 0 for an entity.
        `"softmax"`: logits `(batch, length, tags)`; tag 0 is outside, 2k + 1 the first token of
        type k, 2k + 2 a later one. `"crf"`: `(batch, length, tags, tags)`; see
        `ConditionalRandomField`.

    Raises:
        ValueError: If `labels` are not different strings, or `head` is unknown.

    Example:

    >>> import roformer_tf
    >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "北", "京", "我", "在"]
    >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> tagger = roformer_tf.RoFormerTokenClassifier(
    ...     backbone,
    ...     labels=["PER", "LOC"],
    ...     preprocessor=roformer_tf.RoFormerTokenClassifierPreprocessor(tokenizer),
    ... )
    >>> texts, entities = ["我在北京", "北京"], [[(2, 4, "LOC")], [(0, 2, "LOC")]]
    >>> history = tagger.fit(texts, entities, verbose=0)
    >>> answers = tagger.predict(texts, verbose=0)
    >>> len(answers)
    2

    Reference: https://kexue.fm/archives/8373 and 8877; `clue/cluener.py` of the original's v2.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerTokenClassifierPreprocessor
    head_arguments = ("labels", "head", "head_dim")

    def __init__(
        self,
        backbone,
        labels,
        preprocessor=None,
        head="global_pointer",
        head_dim=64,
        dropout=0.1,
        lr_multiplier=100,
        **kwargs,
    ):
        check_names(labels)
        check_one_of("head", head, HEADS)
        # === Config (before the model, whose constructor compiles it) ===
        self.labels = list(labels)
        self.head = head
        self.head_dim = head_dim
        self.dropout = dropout
        self.lr_multiplier = lr_multiplier

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_dropout = keras.layers.Dropout(dropout, dtype="float32", name="output_dropout")
        if head in POINTERS:
            self.pointer = POINTERS[head](
                len(self.labels),
                head_dim,
                kernel_initializer=initializer_of(backbone.norm, backbone.num_layers),
                dtype="float32",  # under every policy: scores and losses need the precision
                name="pointer",
            )
        else:
            self.tag_dense = head_dense(backbone, 2 * len(self.labels) + 1, "tags")
        if head == "crf":
            self.field = ConditionalRandomField(lr_multiplier, dtype="float32", name="crf")

        # === Functional model ===
        super().__init__(backbone.input, **kwargs)

    def compute_outputs(self, inputs, training=None):
        x = sequence_output(self.backbone(inputs, training=training))
        x = self.output_dropout(x, training=training)
        mask = inputs["padding_mask"]
        if self.head in POINTERS:
            return self.pointer(x, padding_mask=mask)
        logits = self.tag_dense(x)
        if self.head == "crf":
            return self.field(logits, padding_mask=mask)
        # the tag of padding is certain: 0, outside
        outside = ops.where(ops.arange(logits.shape[-1]) == 0, 0.0, MINUS_INFINITY)
        return ops.where(ops.expand_dims(ops.cast(mask, "bool"), -1), logits, outside)

    def default_loss(self):
        """Returns the loss of the head: `MultilabelSpanCrossentropy`, or `EntityTagLoss`."""
        return MultilabelSpanCrossentropy() if self.head in POINTERS else EntityTagLoss()

    def text_tensors(self, x):
        if isinstance(x, tuple):
            raise ValueError(
                f"A token classifier takes a list of texts. Received: a tuple of {len(x)} columns"
            )
        return super().text_tensors(x)

    def encode_labels(self, y):
        """Converts the entities of each text to an array.

        Args:
            y: For each text a list of `(start, end, type)`: characters of the text, the end
                excluded, and a name of `labels` or its number. Or `None`, or an array or tensor as
                returned, or a ragged tensor of numbers.

        Returns:
            int32 array `(texts, count, 3)`, padded with -1.

        Raises:
            ValueError: If an entity is not of this form, is empty, or has an unknown type.
        """
        if hasattr(y, "to_tensor"):  # ragged
            return y.to_tensor(-1, shape=(None, None, 3))
        if y is None or hasattr(y, "dtype") and str(y.dtype) != "object":
            return y
        if not isinstance(y, list | tuple | np.ndarray):
            raise ValueError(
                "Entities must be a list with a list of `(start, end, type)` for each text. "
                f"Received: {y!r}"
            )
        numbers = {name: number for number, name in enumerate(self.labels)}
        rows = []
        for i, row in enumerate(y):
            if isinstance(row, np.ndarray):
                row = [entity for entity in row.tolist() if entity[0] != -1]
            if not isinstance(row, list | tuple):
                raise ValueError(
                    f"The entities of text {i} must be a list of `(start, end, type)`. "
                    f"Received: {row!r}"
                )
            rows.append([_entity(entity, numbers, i) for entity in row])
        array = np.full((len(rows), max([1, *map(len, rows)]), 3), -1, "int32")
        for target, row in zip(array, rows, strict=True):
            target[: len(row)] = np.reshape(np.array(row, "int32"), (-1, 3))
        return array

    def check_examples(self, x, y):
        """Raises `ValueError` for entities beyond the end of their text, or ones that overlap.

        Texts that are not in a list are not checked.
        """
        for i, row in enumerate(y if isinstance(y, list) else ()):
            ordered = sorted(tuple(entity[:2]) for entity in row)
            text = x[i] if isinstance(x, list) and i < len(x) else None
            if isinstance(text, str) and ordered and max(end for _, end in ordered) > len(text):
                raise ValueError(
                    f"An entity must lie within its text. Received: {row!r} in text {i}, which has "
                    f"{len(text)} characters"
                )
            pairs = zip(ordered, ordered[1:])
            if self.head not in POINTERS and any(second[0] < first[1] for first, second in pairs):
                raise ValueError(
                    "Entities that overlap need `head='global_pointer'` or "
                    f"'efficient_global_pointer'. Received: {row!r} in text {i}"
                )

    def pack(self, x):
        """Returns the inputs of texts, and details for `decode`."""
        return self.preprocessor.pack_chunks(x)

    def crop(self, outputs, width):
        if self.head in POINTERS:
            return outputs[:, :, :width, :width]
        return outputs[:, :width]

    def decode(self, outputs, details, num_examples):
        """Returns `start`, `end`, `type` and `score` of the entities, RaggedTensors of each text."""
        if self.head in POINTERS:
            spans = spans_of_scores(to_tensorflow(outputs))
        else:
            tags = best_tags(outputs, details["starts"])
            spans = spans_of_tags(*to_tensorflow(tags))
        return entities_of_spans(spans, details, num_examples)

    def to_answers(self, tensors):
        """Returns a list of `(start, end, type, score)` for each text."""
        columns = [tensors[name].to_list() for name in ("start", "end", "type", "score")]
        return [
            [(start, end, self.labels[kind], score) for start, end, kind, score in zip(*rows)]
            for rows in zip(*columns)
        ]


def _entity(entity, numbers, i):
    try:
        start, end, kind = entity
    except (TypeError, ValueError):
        start = end = kind = None
    is_number = isinstance(kind, int | np.integer)
    number = int(kind) if is_number else numbers.get(kind) if isinstance(kind, str) else None
    whole = all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in (start, end))
    if not whole or not 0 <= start < end < 2**31:
        raise ValueError(
            "An entity must be `(start, end, type)` with 0 <= start < end, in characters of the "
            f"text, the end excluded. Received: {entity!r} in text {i}"
        )
    if number is None or not 0 <= number < len(numbers):
        raise ValueError(
            f"The type of an entity must be among {list(numbers)}, or its number. Received: "
            f"{entity!r} in text {i}"
        )
    return int(start), int(end), number


def best_tags(outputs, starts):
    """Returns the most probable tags that make whole entities, and their probabilities.

    Args:
        outputs: Tensor `(chunks, length, tags)` of logits, or `(chunks, length, tags, tags)` of
            `ConditionalRandomField`.
        starts: int tensor `(chunks, length)`, -1 for tokens that belong to no entity.
    """
    outputs = ops.cast(ops.convert_to_tensor(outputs), "float32")
    size = outputs.shape[-1]
    if len(outputs.shape) == 3:
        probabilities = ops.softmax(outputs, axis=-1)
        scores = ops.log_softmax(outputs, axis=-1)[:, :, None]
    else:
        probabilities, scores = tag_probabilities(outputs), outputs
    tag = ops.arange(size, dtype="int32")
    is_later = (tag > 0) & (tag % 2 == 0)
    # a later token of an entity follows its first token, or another later one
    follows = ops.equal((tag[:, None] + 1) // 2, (tag[None] + 1) // 2)
    allowed = ops.logical_or(ops.logical_not(is_later)[None], follows)
    starts = starts if ops.is_tensor(starts) else ops.convert_to_tensor(np.asarray(starts))
    outside = ops.logical_or(starts[:, :, None] >= 0, tag == 0)
    scores = ops.where(allowed, scores, MINUS_INFINITY)
    tags = viterbi_decode(ops.where(outside[:, :, None], scores, MINUS_INFINITY))
    chosen = ops.take_along_axis(probabilities, tags[..., None], axis=-1)[..., 0]
    return tags, chosen
