import contextlib
import itertools
import weakref
from functools import partial
from pathlib import Path
from typing import Self

import keras
import numpy as np
from keras import ops

from roformer_tf.checkpoint.folder import checked_folder, is_kerashub_source
from roformer_tf.checkpoint.loading import check_finite
from roformer_tf.checkpoint.saving import STALE_PARTS, STALE_WEIGHTS, save_preset
from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.self_attention import inputs_up_to, short_up_to
from roformer_tf.models.presets import (
    arguments_for_preset,
    check_backbone_class,
    from_checkpoint,
    load_head,
    with_new_head,
)
from roformer_tf.naming import automatic_name
from roformer_tf.portable import inference_only, portable_operations, trace_quietly
from roformer_tf.text.familiar_names import FamiliarName


class RoFormerModel:
    """Base class of our backbones and tasks. Subclasses list it before KerasHub's.

    It adds to a functional `keras.Model`:

    * `from_preset` reads every kind of folder.
    * A call takes any of the inputs beside the token ids; the graph has those that a preprocessor
      makes. Keras demands all inputs of the graph, and no others.
    * A model quantized by `quantize("int8")` is quantized again when it is made from its config.
      KerasHub keeps a map from layer paths to dtype policies in the config of the backbone, which
      does not reach the layers of a head.
    * An unknown argument raises an error. Keras' functional models ignore it.

    Class attributes:
        backbone_cls: The class of a task's backbone; `None` in a backbone.
        saved_masking: str. The masking that a task gives a bidirectional backbone, or `None`.
        needs_pooler: bool. Whether the task needs a backbone with a pooler.
        head_arguments: Names of the arguments that decide the weights of a head. `from_preset`
            makes a new head if one of them differs from what was saved.
    """

    backbone_cls = None
    saved_masking = None
    needs_pooler = False
    head_arguments = ()
    # name of each input that a call may have: its dtype
    input_dtypes = {}
    keras_arguments = ("trainable", "dtype")
    from_pretrained = FamiliarName()

    def __init__(self, inputs, name=None, **kwargs):
        unknown = sorted(set(kwargs) - set(self.keras_arguments))
        if unknown:
            raise TypeError(
                f"`{type(self).__name__}` has no such arguments. Received: {', '.join(unknown)}"
            )
        super().__init__(
            inputs=inputs,
            outputs=self.compute_outputs(inputs),
            name=name or automatic_name(type(self)),
            **kwargs,
        )
        # Keras would demand every input of the graph; `complete_inputs` checks them
        self.input_spec = None
        # all models that share these layers: a backbone and its tasks
        backbone = getattr(self, "backbone", None)
        self._relatives = getattr(backbone, "_relatives", weakref.WeakSet())
        self._relatives.add(self)

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, dict):
            inputs = {name: value for name, value in inputs.items() if value is not None}
            self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=None, mask=None):
        return self.compute_outputs(self.complete_inputs(inputs), training)

    def compute_output_spec(self, inputs, training=None, mask=None):
        if isinstance(inputs, dict) and set(inputs) == set(self.input):
            return super().compute_output_spec(inputs)
        return self.compute_outputs(self.complete_inputs(inputs), training)

    def compute_outputs(self, inputs, training=None):
        """Computes the outputs from a dictionary of inputs that `complete_inputs` returned.

        The functional graph of a model is this method's, and so is every call. It is not named
        `forward`, which on PyTorch calls the layer.
        """
        raise NotImplementedError

    def check_inputs(self, inputs):
        """Raises `ValueError` if ids or masks are out of range, or have the wrong shape.

        Checks arrays and eager tensors. In a graph the values are not known yet.
        """
        backbone = getattr(self, "backbone", self)
        arrays = {name: _values(x) for name, x in inputs.items() if name in self.input_dtypes}
        for name, array in arrays.items():
            if array is None or name == "position_ids":  # which may be any numbers
                continue
            tokens = arrays.get(f"{name.split('_')[0]}_token_ids", arrays.get("token_ids"))
            same = tokens is not None and name.endswith(("segment_ids", "padding_mask"))
            rank = len(self.input[name].shape) if name in self.input else 2
            is_wrong = array.dtype.kind not in "biuf" or array.ndim != rank
            if is_wrong or (same and array.shape != tokens.shape):
                wanted = f", as the token ids: {tokens.shape}" if same else ""
                raise ValueError(
                    f"`{name}` must hold whole numbers of shape (batch, length){wanted}, and of "
                    f"rank {rank}. Received: an array of shape {array.shape} and dtype {array.dtype}"
                )
            highest = np.inf
            if name.endswith("padding_mask"):
                highest = 1
            elif name.endswith("token_ids"):
                highest = backbone.vocabulary_size - 1
            elif name == "segment_ids" and backbone.num_segments:
                highest = backbone.num_segments - 1
            elif name in ("mask_positions", "output_positions") and tokens is not None:
                highest = tokens.shape[1] - 1
                if len(array) != len(tokens):
                    raise ValueError(
                        f"`{name}` must have a row for each sequence of `token_ids`, {len(tokens)}. "
                        f"Received: an array of shape {array.shape}"
                    )
            wrong = array[~((array >= 0) & (array <= highest) & (array == np.floor(array)))]
            if wrong.size:
                span = " of at least 0" if highest == np.inf else f" from 0 to {highest}"
                raise ValueError(
                    f"`{name}` must hold whole numbers{span}. Received: {wrong[0]} as one of them"
                )

    def complete_inputs(self, inputs):
        """Converts inputs to tensors and adds those that are left out.

        Segment ids default to 0, and padding masks to 1 where the token id is not 0, `[PAD]`.

        Raises:
            ValueError: If token ids are missing, or an input is unknown or has the wrong rank.
        """
        required = [name for name in self.input_dtypes if name.endswith("token_ids")]
        if not isinstance(inputs, dict) or not set(required) <= set(inputs) <= set(
            self.input_dtypes
        ):
            found = list(inputs) if isinstance(inputs, dict) else type(inputs).__name__
            optional = [name for name in self.input_dtypes if name not in required]
            raise ValueError(
                f"{type(self).__name__} takes a dictionary with {' and '.join(required)}, and "
                f"optionally {', '.join(optional)}. Received: {found}"
            )
        tensors = {}
        for name, dtype in self.input_dtypes.items():  # token ids come first
            x = inputs.get(name)
            if isinstance(x, keras.KerasTensor):
                tensors[name] = x
            elif x is not None:
                tensors[name] = ops.convert_to_tensor(x, dtype)
            elif name.endswith("padding_mask"):
                token_ids = tensors[name.replace("padding_mask", "token_ids")]
                tensors[name] = ops.cast(ops.not_equal(token_ids, 0), "int32")
            elif name == "segment_ids":
                tensors[name] = ops.zeros_like(tensors["token_ids"])
        return tensors

    def export(self, filepath, format="tf_saved_model", **kwargs):
        """Exports the model; see `keras.Model.export`.

        LiteRT and ONNX get a model without chunked attention, which holds all scores of a long
        input at once. For a model of your own around a backbone, call `export` within
        `roformer_tf.portable.portable_operations()`.

        Args:
            filepath: str or path.
            format: `"tf_saved_model"`, `"litert"` or `"onnx"`.
            **kwargs: Arguments of `keras.Model.export`.

        Raises:
            ValueError: If the model computes in bfloat16, or for LiteRT in float16 or int8, which
                the runtime of the format lacks.
        """
        self._check_runs_as(format)
        filepath = str(filepath)  # some formats take no path
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)  # as for a SavedModel
        self(self.input)  # Keras exports no model to ONNX that was never called
        context = portable_operations() if format in ("litert", "onnx") else inference_only()
        with context:
            if format == "litert" and getattr(self, "preprocessor", None) is not None:
                # a model of the same layers, without the tokenizer's tables, which LiteRT lacks
                model = keras.Model(self.input, self.output)
                model.call = self.call  # the graph of `Input`s knows no length to reshape to
                model.export(filepath, format=format, **kwargs)
            else:
                super().export(filepath, format=format, **kwargs)

    def _check_runs_as(self, format):
        lacking = {"onnx": {"bfloat16"}, "litert": {"bfloat16", "float16", "int8"}}.get(format, ())
        if found := sorted(computed_in(self).intersection(lacking)):
            raise ValueError(
                f"A model in {format!r} format cannot compute in {' and '.join(found)}, which its "
                "runtime lacks. Load the model with `dtype='float32'`, and quantize the exported "
                f"file instead. Received: a model that computes in {', '.join(found)}"
            )

    def enable_lora(self, rank, target_layer_names=None):
        """See `keras_hub.models.Backbone.enable_lora`."""
        check_positive_integer("rank", rank)
        super().enable_lora(rank, target_layer_names)
        self._forget_graphs()

    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        """Quantizes the weights; see `keras.Model.quantize`."""
        if getattr(self, "preprocessor", None) is not None:
            # Keras quantizes no model with a layer that was never called.
            self.preprocessor.tokenizer.built = True
        # Keras warns about every kind of layer that has nothing to quantize.
        filters = _can_be_quantized if filters is None else filters
        super().quantize(mode, config=config, filters=filters, **kwargs)
        self._forget_graphs()

    def _forget_graphs(self):
        """Drops the graphs of all models of these layers, which lack a change of them."""
        for model in self._relatives:
            model.train_function = model.test_function = model.predict_function = None
            model.generate_function = None

    def save_task_weights(self, filepath):
        with _without_optimizer(self):
            super().save_task_weights(filepath)

    def load_task_weights(self, filepath):
        with _without_optimizer(self):
            super().load_task_weights(filepath)

    def make_train_function(self, force=False):
        is_new = force or self.train_function is None
        super().make_train_function(force)
        if is_new:
            self.train_function = self._traced_once(self.train_function)
        return self.train_function

    def make_test_function(self, force=False):
        is_new = force or self.test_function is None
        super().make_test_function(force)
        if is_new:
            self.test_function = self._traced_once(self.test_function)
        return self.test_function

    def _traced_once(self, function):
        """Builds metrics that are names, as "accuracy", before the first step.

        TensorFlow traces a step that creates variables twice, and then runs both graphs once.
        """
        trace_quietly(function)
        if keras.backend.backend() != "tensorflow":
            return function
        import tensorflow as tf

        def call(batches):
            metrics = self._compile_metrics
            if metrics is not None and not metrics.built:
                if isinstance(batches, tf.data.Iterator):
                    batch = batches.element_spec
                else:
                    batch = next(batches)
                    batches = itertools.chain([batch], batches)
                metrics.build(keras.utils.unpack_x_y_sample_weight(batch)[1], self.output)
            return function(batches)

        return call

    def make_predict_function(self, force=False):
        """Builds the function of `predict`, which serves all batch sizes and widths.

        On TensorFlow without XLA it is traced once, and once more when the first long input comes.
        """
        if self.predict_function is None or force:
            function = self._make_keras_predict_function()
            is_graph = not (self.run_eagerly or self.jit_compile)
            if is_graph and keras.backend.backend() == "tensorflow":
                for_any = self._make_keras_predict_function()
                self.predict_function = _with_any_shape(self, function, for_any)
        return self.predict_function

    def _make_keras_predict_function(self):
        super().make_predict_function(force=True)
        trace_quietly(self.predict_function)
        return self.predict_function

    def get_config(self):
        config = super().get_config()
        if isinstance(self.dtype_policy, keras.dtype_policies.DTypePolicyMap):
            return config  # which contains the mode of each layer
        modes = {layer.quantization_mode for layer in self._flatten_layers()} - {None}
        if modes:
            config["quantization"] = min(modes)
            if "dtype" in config:
                config["dtype"] = keras.dtype_policies.serialize(self.dtype_policy)
        return config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        mode = config.pop("quantization", None)
        model = super().from_config(config)
        model.quantize_new_layers(mode)
        return model

    def quantize_new_layers(self, mode):
        """Quantizes what is not quantized yet, unless the mode is `None`."""
        if mode is not None:
            for layer in list(self._flatten_layers(include_self=False)):
                # The backbone inside a task is quantized already.
                is_new = not isinstance(layer, keras.Model) and not layer.quantization_mode
                if is_new and _can_be_quantized(layer):
                    layer.quantize(mode)

    def save_to_preset(self, preset_dir, max_shard_size=10):
        """Saves the model to a folder that `from_preset` reads, completely or not at all.

        Writes a model card, `README.md`, too, unless you have written or changed the one there.
        Files of another model of which nothing is written, such as the head of a task that was
        saved there before, are removed. A backbone leaves a tokenizer where it is.

        Args:
            preset_dir: str or path. Created if it does not exist.
            max_shard_size: float. Gigabytes of a file of weights, or `None` for a single file.

        Raises:
            FileExistsError: If the folder holds an original or Hugging Face checkpoint.
            OSError: If the files cannot be written, for instance because the disk is full. The
                folder is as it was.
        """
        is_task = self.backbone_cls is not None
        save_preset(
            self,
            partial(super().save_to_preset, max_shard_size=max_shard_size),
            preset_dir,
            STALE_WEIGHTS + (STALE_PARTS if is_task else ()),
            self.weights,
        )

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs) -> Self:
        """Builds the model from a folder.

        Sizes, family (RoFormer v1, v2, BERT, NEZHA), pooler, vocabulary and weights come from its
        files. Not all original and Hugging Face folders contain the masking, so the class decides:
        `RoFormerCausalLM` is causal, or UniLM if the files show it, RoFormer-Sim's classes are
        UniLM, and all other tasks are bidirectional. A bare backbone follows the files. Language
        models of all classes have the same head.

        Args:
            preset: str or path. An original folder (`bert_config.json`, `bert_model.ckpt.*`,
                `vocab.txt`), a Hugging Face folder (`config.json`, `vocab.txt` or `tokenizer.json`,
                and `model.safetensors`, `tf_model.h5` or `pytorch_model.bin`), or one written by
                `save_to_preset`; a `.zip` file of one (`"x.zip"`, or `"x.zip/folder"`); or a model
                on the Hugging Face hub, `"hf://user/name"` or `"hf://user/name@revision"`.
                KerasHub's other handles (`"kaggle://…"`) work, too.
            load_weights: bool. `False` leaves the weights random.
            **kwargs: Arguments of the class (`num_classes`, …), of its backbone (`masking`, …; an
                argument that both have is the task's) and of its preprocessor (`sequence_length`,
                …). For checkpoints also those of `RoFormerTokenizer` (`vocabulary`, …) and
                `family`, `strict`, `keep_tokens`, `compound_tokens` and `nsp_head` of
                `load_checkpoint`. With `compound_tokens`, pass the new `vocabulary` too, or
                `preprocessor=None`.

        Raises:
            FileNotFoundError: If there is no such folder, or a file is missing.
            ValueError: If a file is damaged, the parts do not fit each other, or the folder lacks
                what the class needs. The message names the class that can be built from it.
            TypeError: If there is no such argument.

        Warns:
            UserWarning: If only the name of the folder showed the masking or the family.
        """
        if is_kerashub_source(preset):  # KerasHub downloads it
            return super().from_preset(str(preset), load_weights=load_weights, **kwargs)
        with checked_folder(preset, weights=load_weights) as folder:
            check_backbone_class(cls, folder)
            if folder.layout != "preset":
                return from_checkpoint(cls, folder, load_weights, kwargs)
            model = with_new_head(cls, folder, load_weights, kwargs)
            if model is not None:
                return model
            kwargs = arguments_for_preset(cls, folder, load_weights, kwargs)
            model = super().from_preset(str(folder.path), load_weights=load_weights, **kwargs)
            if load_weights:
                if "num_classes" not in kwargs:  # which asks for a new head
                    load_head(model, folder)
                check_finite(model.weights, folder.path)
            return model


def computed_in(model):
    """Returns the compute dtypes and quantization modes of a model's layers, as a set of names."""
    layers = [layer for layer in model._flatten_layers() if layer.weights]
    modes = {layer.quantization_mode for layer in layers} - {None}
    return {layer.compute_dtype for layer in layers} | modes


@contextlib.contextmanager
def _without_optimizer(task):
    """Hides the optimizer from Keras: a preset does not say how to train, so has no state of it."""
    optimizer, task.optimizer = task.optimizer, None
    try:
        yield
    finally:
        task.optimizer = optimizer


def _can_be_quantized(layer):
    return type(layer).quantize is not keras.Layer.quantize


def _with_any_shape(model, for_short, for_any):
    """Returns a function of batches that traces its first batch with unknown sizes.

    It calls the traced graphs themselves: a `tf.function` looks each shape up among all that it has
    met, which takes 4 ms after 480 of them, as long as a small model. `for_short` and `for_any` are
    `tf.function`s of `[(inputs,)]`, for short inputs and all others.
    """
    import tensorflow as tf

    graphs = {}

    def as_tensors(batch):
        is_inputs = isinstance(batch, tuple) and isinstance(batch[0], dict)
        if not is_inputs:
            return batch
        inputs = {name: tf.cast(x, model.input_dtypes.get(name)) for name, x in batch[0].items()}
        return inputs, *batch[1:]

    def call(data):
        if any(isinstance(x, tf.distribute.DistributedValues) for x in tf.nest.flatten(data)):
            return for_any(data)
        data = [as_tensors(batch) for batch in data]
        leaves = tf.nest.flatten(data)
        if tf.config.functions_run_eagerly() or not all(map(tf.is_tensor, leaves)):
            return for_any(data)
        widths = [x.shape[1] for x in leaves if x.shape.rank > 1]
        longest = None if None in widths else short_up_to(max(widths, default=0))
        specs = [tf.TensorSpec([None] * x.shape.rank, x.dtype) for x in leaves]
        specs = tf.nest.pack_sequence_as(data, specs)
        key = longest, str(specs)
        if key not in graphs:
            function = for_any if longest is None else for_short
            with inputs_up_to(longest):
                graph = function.get_concrete_function(specs)
            graphs[key] = _in_one_thread(graph) if runs_on_one_device(model) else graph
        return graphs[key](data)

    return call


def runs_on_one_device(model):
    """Whether a batch runs on one device, not divided by a strategy or distribution."""
    if keras.distribution.distribution() is not None:
        return False
    strategy = getattr(model, "distribute_strategy", None)
    return strategy is None or strategy.num_replicas_in_sync == 1


def _in_one_thread(graph):
    """Returns a function that runs the operations of a graph one after another in one thread.

    Each still takes all cores. Several threads would wait for each other at every operation, which
    costs a short text a tenth of its time on two cores. Graphs with conditions or loops are
    returned as they are: this executor may wait for ever for their parts.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context  # has no public name

    is_on_cpu = {device.device_type for device in tf.config.list_logical_devices()} == {"CPU"}
    if not is_on_cpu or graph.graph.as_graph_def().library.function:
        return graph

    def run(data):
        with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            return graph(data)

    return run


def _values(x):
    """Returns the numbers of an array or eager tensor, or `None` if they are not known."""
    if isinstance(x, keras.KerasTensor):
        return None
    try:
        return np.asarray(x)
    except Exception:  # each backend has another error for a tensor in a graph
        return None
