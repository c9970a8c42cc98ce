"""The original's pretraining loop, for a current TensorFlow: bert4keras on tf-keras, fed by a Python generator.

It does what `train.py` of ZhuiyiTechnology/roformer does: it splits text at the ends of sentences, tokenizes with jieba
and bert4keras' tokenizer, draws masks token by token, pads batches with bert4keras' `DataGenerator`, computes logits of
all positions and the loss as a layer, and calls `fit` with Adam, weight decay and a piecewise linear learning rate. Two
things are left out, which can only make it faster here: `MirroredStrategy` and gradient accumulation.
"""

import json

import numpy as np

from benchmarks.models import LEARNING_RATE, bert4keras_tokenizer, import_bert4keras, write_config

TYPES = ("float32",) * 3
NAMES = ("Input-Token", "Input-Segment", "Input-Label")
MASKED, KEPT = 0.15, 0.1


def build(sizes, seed):
    """Builds the model that `fit` trains, from token ids, segment ids and labels to the loss."""
    tf = import_bert4keras()
    from bert4keras.backend import K, keras
    from bert4keras.layers import Loss
    from bert4keras.models import build_transformer_model
    from bert4keras.optimizers import (
        Adam,
        extend_with_piecewise_linear_lr,
        extend_with_weight_decay,
    )

    class CrossEntropy(Loss):
        def compute_loss(self, inputs, mask=None):
            labels, logits = inputs
            weights = K.cast(K.not_equal(labels, 0), K.floatx())
            right = keras.metrics.sparse_categorical_accuracy(labels, logits)
            accuracy = K.sum(right * weights) / K.sum(weights)
            self.add_metric(accuracy, name="accuracy", aggregation="mean")
            losses = K.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return K.sum(losses * weights) / K.sum(weights)

    tf.random.set_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    roformer = build_transformer_model(write_config(sizes), model="roformer", with_mlm="linear")
    labels = keras.layers.Input((None,), name="Input-Label")
    model = keras.models.Model(
        [*roformer.inputs, labels], CrossEntropy(1)([labels, roformer.output])
    )
    optimizer = extend_with_piecewise_linear_lr(extend_with_weight_decay(Adam))
    model.compile(
        optimizer(
            LEARNING_RATE,
            weight_decay_rate=0.01,
            exclude_from_weight_decay=["Norm", "bias"],
            lr_schedule={20000: 1},
        )
    )
    return model


def rows_dataset(rows, batch, vocabulary, mask_id):
    """Makes a dataset for `fit` of lists of token ids."""
    return _Rows(rows, batch, None, lambda row: row, vocabulary, mask_id).dataset()


class TextInput:
    """Batches of the documents in a file of JSON lines, which is read over and over.

    Args:
        path: str. The file, with documents in random order.
        vocabulary_path: str. `vocab.txt`.
        batch: int. Batch size; a batch is as wide as its longest sequence.
        max_length: int. The most tokens per sequence.
        buffer: int. Number of chunks among which the next one is chosen.
    """

    def __init__(self, path, vocabulary_path, batch, max_length, buffer=64):
        import_bert4keras()
        from bert4keras.snippets import text_segmentate

        tokenizer = bert4keras_tokenizer(vocabulary_path)
        self.batch = batch

        def chunks():
            while True:
                with open(path, encoding="utf-8") as lines:
                    for line in lines:
                        chunk = ""
                        for part in text_segmentate(json.loads(line)["text"], 32, "\n。"):
                            if chunk and len(chunk) + len(part) > 1.5 * max_length:
                                yield chunk
                                chunk = ""
                            chunk += part
                        if chunk:
                            yield chunk

        def encode(text):
            return tokenizer.encode(text, maxlen=max_length)[0]

        self.rows = _Rows(
            chunks(), batch, buffer, encode, tokenizer._vocab_size, tokenizer._token_mask_id
        )
        self.dataset = self.rows.dataset()

    def count(self, batches):
        """Counts the tokens and the places, padding included, of the next batches that were taken.

        The dataset makes batches ahead, so it may have made more sequences than these.
        """
        taken = slice(batches * self.batch)
        lengths = self.rows.lengths[taken]
        del self.rows.lengths[taken]
        groups = [lengths[i : i + self.batch] for i in range(0, len(lengths), self.batch)]
        return {
            "tokens": sum(lengths),
            "places": sum(len(group) * max(group) for group in groups),
        }


def _Rows(data, batch, buffer, encode, vocabulary, mask_id):
    """Makes a `DataGenerator` of bert4keras, a class that exists once bert4keras is imported."""
    from bert4keras.snippets import DataGenerator

    class Rows(DataGenerator):
        def __iter__(self, random=False):
            # of this iterator alone: an earlier one may still be making batches ahead
            self.lengths = lengths = []
            for _, item in self.sample(random):
                ids = encode(item)
                lengths.append(len(ids))
                yield *mask(ids, vocabulary, mask_id), [0] * len(ids)

        def dataset(self):
            # rows come as (tokens, labels, segments)
            names = (NAMES[0], NAMES[2], NAMES[1])
            return self.to_dataset(TYPES, ([None],) * 3, names, padded_batch=True)

    return Rows(data, batch, buffer)


def mask(ids, vocabulary, mask_id):
    """Masks token by token: 12 % become `[MASK]`, 1.5 % stay, 1.5 % become any token but the first.

    Draws from NumPy's global generator, as the original does.
    """
    shown, labels = [], []
    for draw, token in zip(np.random.random(len(ids)), ids):  # noqa: NPY002
        labels.append(token if draw < MASKED else 0)
        if draw < MASKED * (1 - 2 * KEPT):
            shown.append(mask_id)
        elif MASKED * (1 - KEPT) <= draw < MASKED:
            shown.append(np.random.choice(vocabulary - 1) + 1)  # noqa: NPY002
        else:
            shown.append(token)
    return shown, labels
