"""Runs a golden case of bert4keras through our models, as a user would load them."""

import json

import keras
import numpy as np

import roformer_tf
from tests.layers.harness import numpy

MASKING = {"encoder": "bidirectional", "lm": "causal", "unilm": "unilm"}


def assert_same_model(found, expected):
    """Checks that two models give the same numbers for a text."""
    inputs = {"token_ids": np.array([[2, 7, 9, 3]])}
    np.testing.assert_array_equal(numpy(found(inputs)), numpy(expected(inputs)))


def read_manifest(shared_dir):
    return json.loads((shared_dir / "golden" / "manifest.json").read_text(encoding="utf-8"))


def read_case(shared_dir, name):
    """Returns a case of the manifest, the folder of its checkpoint, and its arrays."""
    golden = shared_dir / "golden"
    case = next(case for case in read_manifest(shared_dir)["cases"] if case["name"] == name)
    arrays = np.load(golden / "cases" / f"{name}.npz")
    return case, golden / "checkpoints" / case["checkpoint"], arrays


def model_inputs(npz):
    """Our inputs for those of a golden file."""
    ids = npz["input_token_ids"]
    segments = npz["input_segment_ids"] if "input_segment_ids" in npz else np.zeros_like(ids)
    inputs = inputs_of(ids, segments)
    if "input_position_ids" in npz:
        inputs["position_ids"] = npz["input_position_ids"].astype("float32")
    return inputs


def inputs_of(ids, segments):
    """With the original's mask, which is `ids != 0` and never masks position 0."""
    mask = (ids != 0).astype("int32")
    mask[:, 0] = 1
    return {
        "token_ids": ids.astype("int32"),
        "segment_ids": segments.astype("int32"),
        "padding_mask": mask,
    }


def training_loss(model, inputs, labels):
    """The loss of the original's `train.py`, without dropout: a mean over labels that are not 0."""
    logits = model(inputs, training=False)
    mask = keras.ops.cast(labels != 0, "float32")
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return keras.ops.sum(losses * mask) / keras.ops.sum(mask)


def compound_tokens(items):
    """JSON has lists where the weighted form `(ids, weights)` is a tuple."""
    return items and [tuple(i) if isinstance(i[0], list) else i for i in items]


def run_case(case, folder, inputs, layer_norm_epsilon):
    """Our outputs for a case of the manifest, in bert4keras' order: list of arrays."""
    kwargs = case["kwargs"]
    options = {
        "family": case["model"],
        "keep_tokens": kwargs.get("keep_tokens"),
        "compound_tokens": compound_tokens(kwargs.get("compound_tokens")),
    }
    pool = kwargs.get("with_pool")
    backbone_options = {
        "masking": MASKING[case["application"]],
        "pooler": {True: "tanh", None: None}.get(pool, pool),
        "layer_norm_epsilon": layer_norm_epsilon,
        **options,
    }
    options["preprocessor"] = None
    if "hidden_act" in kwargs:
        backbone_options["activation"] = kwargs["hidden_act"]
    if "segment_vocab_size" in kwargs:
        backbone_options["num_segments"] = kwargs["segment_vocab_size"]
    backbone = roformer_tf.RoFormerBackbone.from_preset(folder, **backbone_options)
    mlm = kwargs.get("with_mlm", case["application"] != "encoder")
    outputs = []
    if kwargs.get("with_nsp"):
        classifier = roformer_tf.RoFormerTextClassifier.from_preset(
            folder,
            backbone=backbone,
            num_classes=2,
            pooling="pooler",
            activation="softmax",
            nsp_head=True,
            **options,
        )
        outputs.append(numpy(classifier(inputs)))
    elif pool:
        outputs.append(numpy(backbone(inputs)["pooled_output"]))
    if mlm:
        lm = case["application"] != "encoder"
        cls = roformer_tf.RoFormerCausalLM if lm else roformer_tf.RoFormerMaskedLM
        logits = cls.from_preset(folder, backbone=backbone, **options)(inputs)
        outputs.append(numpy(logits if mlm == "linear" else keras.ops.softmax(logits)))
    if case.get("head") == "all_layers":
        layers = [backbone.embeddings, *backbone.encoder_blocks]
        inner = keras.Model(backbone.input, [layer.output for layer in layers])
        return [numpy(x) for x in inner(inputs)]
    if case.get("head") == "masked_mean":
        pooling = roformer_tf.layers.MeanPooling()
        return [numpy(pooling(backbone(inputs), inputs["padding_mask"]))]
    return outputs or [numpy(backbone(inputs))]
