import keras
import keras_hub

from roformer_tf.checks import check_one_of
from roformer_tf.layers import (
    ConditionalRandomField,
    EfficientGlobalPointer,
    GlobalPointer,
    MultilabelSpanCrossentropy,
)
from roformer_tf.models.answer_spans import (
    best_tags,
    entities_of_spans,
    mask_tags,
    spans_of_scores,
    spans_of_tags,
    to_tensorflow,
)
from roformer_tf.models.answering_task import AnsweringTask
from roformer_tf.models.entities import check_entities, entity_array
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
        super().__init__(
            inputs=backbone.input, outputs=self.compute_outputs(backbone.input), **kwargs
        )

    def compute_outputs(self, inputs, training=None):
        x = sequence_output(self.backbone(inputs, training=training))
        x = self.output_dropout(x, training=training)
        mask = inputs["padding_mask"]
        if self.head in POINTERS:
            return self.pointer(x, padding_mask=mask)
        logits = self.tag_dense(x)
        if self.head == "crf":
            return self.field(logits, padding_mask=mask)
        return mask_tags(logits, mask)

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
        """Returns lists of entities as an int32 array `(texts, count, 3)`, padded with -1."""
        return None if y is None else entity_array(y, self.labels)

    def check_examples(self, x, y):
        check_entities(y, x, may_overlap=self.head in POINTERS)

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

    def get_config(self):
        return {
            **super().get_config(),
            "labels": self.labels,
            "head": self.head,
            "head_dim": self.head_dim,
            "dropout": self.dropout,
            "lr_multiplier": self.lr_multiplier,
        }
