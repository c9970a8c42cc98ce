"""`bert4keras.models`: models made of this library's backbone and heads."""

import itertools
import json
from pathlib import Path

import keras as _keras  # the public `keras` is that of `backend`
import tensorflow as tf
from keras import ops

from roformer_tf.checkpoint.loading import ModelBinding, load_checkpoint
from roformer_tf.checkpoint.mapping import FAMILIES
from roformer_tf.checkpoint.model_files import DIGESTS_FILE, add_digests
from roformer_tf.checkpoint.original_config import backbone_arguments
from roformer_tf.checkpoint.original_files import write_tensors
from roformer_tf.checkpoint.saving import original_tensors
from roformer_tf.checkpoint.vocabulary import edited_size
from roformer_tf.compat import names_not_offered
from roformer_tf.compat.bert4keras.backend import gelu_tanh, get_available_gpus
from roformer_tf.compat.bert4keras.layers import *  # noqa: F403
from roformer_tf.compat.keras.models import Model
from roformer_tf.files import replace_files
from roformer_tf.models import RoFormerBackbone
from roformer_tf.models.roformer_backbone import call_position_schemes, initializer_of
from roformer_tf.models.roformer_masked_lm import language_model_head

_FAMILIES = {name: name for name in FAMILIES} | {"roberta": "bert"}
_MASKINGS = {"encoder": "bidirectional", "lm": "causal", "unilm": "unilm"}
_OTHERS = "ALBERT, ELECTRA, GPT, GPT-2 and T5 are in KerasHub: keras.io/keras_hub/api/models."
# Arguments of bert4keras' models that are not offered -> what to do instead.
_NOT_OFFERED = {
    "additional_input_layers": "call `keras.models.Model` with further inputs",
    "attention_caches": "use `call_with_cache` of roformer_tf.RoFormerBackbone",
    "autoresize_weights": "load weights of the same sizes",
    "hierarchical_position": "use RoFormer, whose positions have no bound",
    "layer_norm_cond": "add the condition to the inputs of a layer of your own",
    "layers": "call the same model twice",
    "prefix": "pass `name`",
    "residual_attention_scores": "use BERT's attention",
    "shared_segment_embeddings": "use the segment embeddings of BERT",
}


@_keras.saving.register_keras_serializable(package="bert4keras")
class Point(_keras.layers.Layer):
    """Names a tensor of the graph as bert4keras does, and carries the padding mask.

    So `model.get_layer("Transformer-11-FeedForward-Norm").output` is the same as in bert4keras.

    Call arguments:
        inputs: list of a tensor `(batch, length, …)` and the padding mask `(batch, length)`.
    """

    def call(self, inputs):
        return inputs[0]

    def compute_mask(self, inputs, mask=None):
        return ops.cast(inputs[1], "bool")

    def compute_output_spec(self, inputs):
        return _keras.KerasTensor(inputs[0].shape, inputs[0].dtype)


@_keras.saving.register_keras_serializable(package="bert4keras")
class NoMask(_keras.layers.Layer):
    """Stops the mask before layers that do not use it."""

    def call(self, inputs):
        return tf.identity(inputs)

    def compute_mask(self, inputs, mask=None):
        return None


@_keras.saving.register_keras_serializable(package="bert4keras")
class PaddingMask(_keras.layers.Layer):
    """Returns token ids as int32, and a mask: 1 where the id is not 0, and at the first token."""

    def call(self, inputs):
        ids = ops.cast(inputs, "int32")
        real = ops.not_equal(ids, 0)
        first = ops.arange(ops.shape(ids)[1], dtype="int32")[None] == 0
        return ids, ops.cast(ops.logical_or(real, first), "int32")


@_keras.saving.register_keras_serializable(package="bert4keras")
class V2Initializer(_keras.initializers.Initializer):
    """The initializer of RoFormer v2: a truncated normal, scaled to inputs and layers.

    Reference: `RoFormerV2.initializer` of bert4keras 0.11.5.
    """

    def __init__(self, num_hidden_layers):
        self.num_hidden_layers = num_hidden_layers

    def __call__(self, shape, dtype=None):
        is_table = shape[0] > 10000 or shape[0] < 10
        size = shape[1] if is_table and len(shape) > 1 else shape[0]
        stddev = 1.13684723 / size**0.5 * self.num_hidden_layers ** (-1 / 2)
        return _keras.random.truncated_normal(shape, stddev=stddev, dtype=dtype)

    def get_config(self):
        return {"num_hidden_layers": self.num_hidden_layers}


class Transformer:
    """What `build_transformer_model(…, return_keras_model=False)` returns.

    Attributes:
        model: `keras.models.Model` of `Input-Token` and `Input-Segment`, both float32.
        inputs, outputs, input, output: Its tensors.
        backbone: The `RoFormerBackbone` whose layers it has.
        initializer: Initializer of its kernels.
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, attention_head_size,
            attention_key_size, intermediate_size, embedding_size: ints.
    """

    # `ModelBinding` asks for them if there is a next-sentence head
    pooling, num_classes = "pooler", 2

    def __init__(
        self,
        config,
        family,
        application="encoder",
        with_pool=False,
        with_nsp=False,
        with_mlm=False,
        keep_tokens=None,
        compound_tokens=None,
        ignore_invalid_weights=False,
        custom_position_ids=False,
        sequence_length=None,
        name=None,
        **settings,
    ):
        config = {**config, **settings}
        # what `set_gelu` of `backend` says
        if config.get("hidden_act") == "gelu" and _keras.activations.get("gelu") is gelu_tanh:
            config["hidden_act"] = "gelu_tanh"
        self.name = name
        self.edits = {"keep_tokens": keep_tokens, "compound_tokens": compound_tokens}
        self.ignore_invalid_weights = ignore_invalid_weights
        is_v2 = family == "roformer_v2"  # bert4keras gives it no pooler, whatever is asked for
        self.with_pool = not is_v2 and (with_pool or with_nsp)
        self.with_nsp = not is_v2 and with_nsp
        self.with_mlm = with_mlm or application != "encoder"
        arguments = backbone_arguments(config, family)
        arguments["vocabulary_size"] = edited_size(arguments["vocabulary_size"], **self.edits)
        if "layer_norm_eps" not in config and family != "bert":
            arguments["layer_norm_epsilon"] = 1e-7  # `K.epsilon()`, from version 0.11.4 on
        pooler = {True: "tanh"}.get(self.with_pool, self.with_pool) or None
        backbone = RoFormerBackbone(**arguments, masking=_MASKINGS[application], pooler=pooler)
        self.backbone = backbone
        self.vocab_size = backbone.vocabulary_size
        self.hidden_size = backbone.hidden_dim
        self.num_hidden_layers = backbone.num_layers
        self.num_attention_heads = backbone.num_heads
        self.attention_head_size = self.attention_key_size = backbone.head_dim
        self.intermediate_size = backbone.intermediate_dim
        self.embedding_size = backbone.embedding_dim
        self.initializer = initializer_of(backbone.norm, backbone.num_layers)
        if is_v2:
            self.initializer = V2Initializer(backbone.num_layers)
        if self.with_mlm:
            self.head = language_model_head(backbone, epsilon=1e-12)
        if self.with_nsp:
            self.logits_dense = _keras.layers.Dense(
                2, kernel_initializer=self.initializer, name="NSP-Proba"
            )
        names = ["Input-Token"]
        names += ["Input-Segment"] if backbone.num_segments else []
        names += ["Input-Position"] if custom_position_ids else []
        inputs = {name: _keras.Input((sequence_length,), name=name) for name in names}
        token_ids, self.padding_mask = PaddingMask(name="Padding-Mask")(inputs["Input-Token"])
        segment_ids = inputs.get("Input-Segment")
        segment_ids = ops.cast(token_ids * 0 if segment_ids is None else segment_ids, "int32")
        outputs = self._encode(token_ids, segment_ids, inputs.get("Input-Position"))
        self.inputs = list(inputs.values())
        self.input = self.inputs if len(self.inputs) > 1 else self.inputs[0]
        self.output = self.apply_final_layers(outputs)
        self.outputs = self.output if isinstance(self.output, list) else [self.output]
        self.model = Model(self.inputs, self.outputs, name=name)

    def _encode(self, token_ids, segment_ids, position_ids):
        """Computes what `RoFormerBackbone.compute_outputs` does, with named points."""
        backbone, mask = self.backbone, self.padding_mask
        positions = call_position_schemes(backbone.position_schemes, token_ids, position_ids, mask)
        bias = backbone.attention_mask(mask, segment_ids)
        in_input = backbone.position_scheme.added_to_input
        x = backbone.embeddings(token_ids, segment_ids, positions[0] if in_input else None)
        x = Point(name="Embedding-Norm")([x, mask])
        for i, block in enumerate(backbone.encoder_blocks):
            position = None if in_input else positions[i]
            x = block(x, attention_bias=bias, position=position)
            x = Point(name=f"Transformer-{i}-FeedForward-Norm")([x, mask])
        return x

    def apply_final_layers(self, inputs):
        """Applies pooler and masked-LM head to hidden states `(batch, length, hidden_size)`.

        Returns their outputs, in a list if there are both.
        """
        outputs = []
        if self.with_pool:
            x = self.backbone.pooler(inputs)
            if self.with_nsp:
                x = _keras.layers.Activation("softmax", name="NSP-Softmax")(self.logits_dense(x))
            outputs.append(x)
        if self.with_mlm:
            x = self.head(NoMask()(inputs))
            activation = "softmax" if self.with_mlm is True else self.with_mlm
            x = _keras.layers.Activation(activation)(x)
            outputs.append(Point(name="MLM-Activation")([x, self.padding_mask]))
        if not outputs:
            return inputs
        return outputs[0] if len(outputs) == 1 else outputs

    def load_weights_from_checkpoint(self, checkpoint, mapping=None):
        """Loads the weights of a checkpoint, such as `"folder/bert_model.ckpt"`.

        Other variables in it are ignored.

        Raises:
            ValueError: If a variable is missing, unless `ignore_invalid_weights`, or has another
                shape; or there is a `mapping`.
        """
        if mapping is not None:
            raise ValueError(
                "`mapping` is not offered: the names are those of roformer_tf/checkpoint/mapping.py. "
                "Rename the variables of the file, or load it with roformer_tf.checkpoint."
            )
        options = {"nsp_head": self.with_nsp, **self.edits}
        family = ModelBinding(self, self.with_nsp).family
        report = load_checkpoint(self, checkpoint, strict=False, family=family, **options)
        shapes = report.wrong_shape.items()
        wrong = [f"{name}: {ours} here, {theirs} there" for name, (ours, theirs) in shapes]
        if not self.ignore_invalid_weights:
            wrong += [f"{name} is missing" for name in report.missing]
        if wrong:
            raise ValueError(
                f"{checkpoint} does not fit the model: {'; '.join(wrong)}. Pass the `config_path` of "
                "the same release. `ignore_invalid_weights=True` leaves what is missing random."
            )

    def save_weights_as_checkpoint(self, filename, mapping=None, dtype=None):
        """Writes a checkpoint, such as `"folder/bert_model.ckpt"`, for bert4keras and `from_preset`.

        Its weights are float32. `mapping` and `dtype` must be `None`.
        """
        if mapping is not None or dtype is not None:
            raise ValueError(
                "`mapping` and `dtype` are not offered. Leave them out: the names are the original's "
                f"and weights float32. Received: mapping={mapping!r}, dtype={dtype!r}"
            )
        path = Path(filename)
        tensors = original_tensors(ModelBinding(self, self.with_nsp))
        # the digests of the old weights would refuse the new ones
        add = add_digests if (path.parent / DIGESTS_FILE).is_file() else None
        with replace_files(path.parent, before_moving=add) as temporary:
            write_tensors(temporary / path.name, tensors)


def build_transformer_model(
    config_path=None,
    checkpoint_path=None,
    model="bert",
    application="encoder",
    return_keras_model=True,
    **kwargs,
):
    """Builds a model from the original's settings, and loads its weights.

    `roformer_tf.RoFormerBackbone.from_preset(folder)` and the tasks are this library's own way.

    Args:
        config_path: Path of `bert_config.json`, or `None` if `kwargs` has all settings.
        checkpoint_path: Path of `bert_model.ckpt`, or `None` for random weights.
        model: `"bert"`, `"roberta"`, `"nezha"`, `"roformer"` or `"roformer_v2"`.
        application: `"encoder"`, `"lm"` or `"unilm"`.
        return_keras_model: bool. Whether to return the `keras.models.Model` or a `Transformer`.
        **kwargs: `with_pool`, `with_nsp`, `with_mlm` (`True` or an activation), `keep_tokens`,
            `compound_tokens`, `ignore_invalid_weights`, `custom_position_ids`, `sequence_length`,
            `name`, and settings that replace those of the file, such as `dropout_rate`.
            `layer_norm_eps=1e-12` gives the numbers of bert4keras up to 0.11.3.

    Raises:
        ValueError: If there is no such model or application, or the checkpoint does not fit.
        TypeError: If an argument is not offered.

    >>> settings = dict(
    ...     vocab_size=100, hidden_size=16, num_attention_heads=2, num_hidden_layers=2,
    ...     intermediate_size=32, hidden_act="gelu",
    ... )
    >>> model = build_transformer_model(model="roformer", with_mlm="linear", **settings)
    >>> [tensor.name for tensor in model.inputs], model.output.shape
    (['Input-Token', 'Input-Segment'], (None, None, 100))
    """
    if not isinstance(model, str):
        raise TypeError(
            "`model` must be the name of a model. For one of your own, put together "
            f"roformer_tf.layers: docs/layers. Received: {model!r}"
        )
    if model.lower() not in _FAMILIES:
        raise ValueError(
            f"`model` must be one of {', '.join(map(repr, _FAMILIES))}. {_OTHERS} "
            f"Received: model={model!r}"
        )
    application = application.lower()
    if application not in _MASKINGS:
        raise ValueError(
            f"`application` must be 'encoder', 'lm' or 'unilm'. Received: {application!r}"
        )
    for key, instead in _NOT_OFFERED.items():
        if kwargs.pop(key, None):
            raise TypeError(f"`{key}` is not offered: {instead}.")
    config = {}
    if config_path is not None:
        config = json.loads(Path(config_path).read_text(encoding="utf-8"))
    transformer = Transformer(config, _FAMILIES[model.lower()], application, **kwargs)
    if checkpoint_path is not None:
        transformer.load_weights_from_checkpoint(checkpoint_path)
    return transformer.model if return_keras_model else transformer


class _Parallel(_keras.layers.Layer):
    """Runs a model on parts of the batch, each on a device."""

    def __init__(self, model, devices, parts):
        super().__init__(name="Data-Parallel")
        self.model, self.devices, self.parts = model, devices, parts

    def call(self, inputs, training=None):
        size, shares = tf.shape(inputs[0])[0], [0, *itertools.accumulate(self.parts)]
        bounds = [size * share // shares[-1] for share in shares]
        rows = []
        for device, start, end in zip(self.devices, bounds, bounds[1:]):
            with tf.device(device):
                outputs = self.model([x[start:end] for x in inputs], training=training)
                rows.append(_keras.tree.flatten(outputs))
        return [tf.concat(column, axis=0) for column in zip(*rows)]


def data_parallel(model, devices=None, parts=None):
    """Returns a model that runs each part of the batch on a GPU of its own.

    `tf.distribute.MirroredStrategy` does more: it also updates the weights on each GPU.

    Args:
        model: `keras.models.Model`, which is returned itself for fewer than two devices.
        devices: list of str, or int: the number of GPUs; all by default.
        parts: list of int. Shares of the batch, equal by default.
    """
    if devices is None:
        devices = get_available_gpus()
    elif isinstance(devices, int):
        devices = [f"/device:GPU:{i}" for i in range(devices)]
    if len(devices) < 2:
        return model
    parts = [1] * len(devices) if parts is None else parts
    if len(parts) != len(devices):
        raise ValueError(
            f"`parts` must have an entry for each device. Received: {parts}, {devices}"
        )
    return Model(model.inputs, _Parallel(model, devices, parts)(model.inputs))


_HINTS = {
    "BERT|NEZHA|RoFormer|RoFormerV2": (
        "Call `build_transformer_model`. For a model of your own, put together roformer_tf.layers: "
        "docs/layers."
    ),
    "(LM|UniLM)_Mask|extend_with_(unified_)?language_model": (
        "Pass `application='lm'` or `'unilm'` to `build_transformer_model`."
    ),
}
__getattr__ = names_not_offered(__name__, _HINTS, _OTHERS)
