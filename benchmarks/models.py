"""The measured models. Each function builds one and returns `run(batch)`, which comes back when the work is done.

A process builds one model of one library: bert4keras needs Keras 2, the others do not. Weights are random: speed
does not depend on them. Dropout is 0.1 in every step, and off in inference.
"""

import os

from benchmarks.sizes import labels_everywhere

THREADS = int(os.environ.get("BENCHMARK_THREADS", "2"))
LEARNING_RATE = 1e-5
INPUTS = ("token_ids", "segment_ids", "padding_mask")


def import_tensorflow():
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    return tf


def ours(task, sizes, seed, dtype="float32"):
    """`RoFormerBackbone` by `predict_on_batch`; `RoFormerMaskedLM` by `train_on_batch`, as `fit` does."""
    import keras

    import roformer_tf
    from roformer_tf.optimizers import LayerwiseAdamW

    keras.utils.set_random_seed(seed)
    backbone = roformer_tf.RoFormerBackbone(
        **sizes.backbone_arguments(),
        dtype=dtype,
    )
    if task == "inference":
        return lambda batch: backbone.predict_on_batch({name: batch[name] for name in INPUTS})
    model = roformer_tf.RoFormerMaskedLM(backbone)
    optimizer = LayerwiseAdamW(LEARNING_RATE, num_layers=sizes.layers)
    model.compile(optimizer, weighted_metrics=None)

    def step(batch):
        inputs = {name: batch[name] for name in (*INPUTS, "mask_positions")}
        return model.train_on_batch(inputs, batch["labels"])

    return step


def bare(task, sizes, seed):
    """The hand-written TensorFlow model of `benchmarks/bare.py`."""
    tf = import_tensorflow()
    from benchmarks.bare import BareRoFormer

    tf.random.set_seed(seed)
    model = BareRoFormer(sizes, seed)
    if task == "inference":
        return lambda batch: model.infer(*(batch[name] for name in INPUTS)).numpy()
    names = (*INPUTS, "mask_positions", "labels")
    return lambda batch: float(model.step(*(tf.constant(batch[name]) for name in names)))


def bert4keras(task, sizes, seed):
    """The original code on tf-keras, its own Adam with weight decay, the loss of its `train.py`."""
    tf = import_bert4keras()
    from bert4keras.backend import keras
    from bert4keras.layers import Loss
    from bert4keras.models import build_transformer_model
    from bert4keras.optimizers import Adam, extend_with_weight_decay

    tf.random.set_seed(seed)
    path = write_config(sizes)
    if task == "inference":
        model = build_transformer_model(path, model="roformer")
        return lambda batch: model.predict_on_batch([batch["token_ids"], batch["segment_ids"]])

    class CrossEntropy(Loss):  # as in the original's train.py
        def compute_loss(self, inputs, mask=None):
            true, predicted = inputs
            weight = tf.cast(tf.not_equal(true, 0), "float32")
            loss = keras.backend.sparse_categorical_crossentropy(true, predicted, from_logits=True)
            return tf.reduce_sum(loss * weight) / tf.reduce_sum(weight)

    roformer = build_transformer_model(path, model="roformer", with_mlm="linear")
    labels = keras.layers.Input((None,), dtype="int64")
    output = CrossEntropy(1)([labels, roformer.output])
    model = keras.models.Model([*roformer.inputs, labels], output)
    optimizer = extend_with_weight_decay(Adam, name="AdamW")
    model.compile(
        optimizer(LEARNING_RATE, weight_decay_rate=0.01, exclude_from_weight_decay=["Norm", "bias"])
    )

    def step(batch):
        labels = labels_everywhere(batch, elsewhere=0)
        return model.train_on_batch([batch["token_ids"], batch["segment_ids"], labels])

    return step


def hugging_face(task, sizes, seed, dtype="float32"):
    """Transformers' PyTorch model, `torch.optim.AdamW`."""
    import torch
    from transformers import RoFormerConfig, RoFormerForMaskedLM, RoFormerModel

    torch.set_num_threads(THREADS)
    torch.manual_seed(seed)
    config = RoFormerConfig(**sizes.hugging_face_config())
    if task == "inference":
        model = RoFormerModel(config).to(getattr(torch, dtype)).eval()

        def infer(batch):
            with torch.inference_mode():
                return model(**torch_inputs(batch)).last_hidden_state.float().numpy()

        return infer
    model = RoFormerForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01)

    def step(batch):
        labels = torch.from_numpy(labels_everywhere(batch, elsewhere=-100))
        optimizer.zero_grad()
        loss = model(**torch_inputs(batch), labels=labels).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def torch_inputs(batch):
    import torch

    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids"}
    names["padding_mask"] = "attention_mask"
    return {theirs: torch.from_numpy(batch[name]).long() for name, theirs in names.items()}


def matmul(task, sizes, seed, dtype="float32"):
    """Multiplies two square matrices by TensorFlow, without a model, for the machine's rate."""
    tf = import_tensorflow()
    size = matmul_size(sizes)
    a = tf.cast(tf.random.stateless_normal((size, size), [seed, 0]), dtype)
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(a, a)[0]))
    return lambda batch: float(product())


def matmul_size(sizes):
    """3072 at base size."""
    return min(3072, 4 * sizes.intermediate)


def import_bert4keras():
    """Makes bert4keras run on a current TensorFlow, with its code unedited; returns TensorFlow."""
    # bert4keras on tf.keras, as the original's train.py requires; and tf.keras is tf-keras (Keras 2)
    os.environ.update(TF_KERAS="1", TF_USE_LEGACY_KERAS="1")
    tf = import_tensorflow()
    # its optimizers are written for the older class
    tf.keras.optimizers.Optimizer = tf.keras.optimizers.legacy.Optimizer
    import bert4keras.models  # noqa: F401

    return tf


def bert4keras_tokenizer(vocabulary, word_level=True):
    """bert4keras' `Tokenizer` as the original makes it, of a file or of a dict from token to id."""
    import jieba
    from bert4keras.tokenizers import Tokenizer

    jieba.initialize()
    cut = (lambda text: jieba.cut(text, HMM=False)) if word_level else None
    return Tokenizer(vocabulary, do_lower_case=True, pre_tokenize=cut)


def write_config(sizes):
    import json
    import tempfile

    path = os.path.join(tempfile.mkdtemp(), "bert_config.json")
    with open(path, "w") as stream:
        json.dump(sizes.config(), stream)
    return path


IMPLEMENTATIONS = {
    "ours": (ours, {}),
    "ours_bfloat16": (ours, {"dtype": "mixed_bfloat16"}),
    "ours_bfloat16_weights": (ours, {"dtype": "bfloat16"}),
    "bare": (bare, {}),
    "bert4keras": (bert4keras, {}),
    "hugging_face": (hugging_face, {}),
    "hugging_face_bfloat16": (hugging_face, {"dtype": "bfloat16"}),
    "matmul": (matmul, {}),
    "matmul_bfloat16": (matmul, {"dtype": "bfloat16"}),
}


def build(name, task, sizes, seed):
    """Returns `run(batch)` of an implementation."""
    function, options = IMPLEMENTATIONS[name]
    return function(task, sizes, seed, **options)
