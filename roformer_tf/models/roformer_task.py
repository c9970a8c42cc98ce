import warnings

import keras

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.config import own_arguments
from roformer_tf.layers.self_attention import inputs_up_to, short_up_to
from roformer_tf.models.batches import (
    batched,
    check_epochs,
    check_is_batched,
    check_not_empty,
    column_labels,
    count_rows,
    is_columns,
    is_dataset,
    is_stream,
    listed,
    longest_input,
    plain,
    plain_columns,
    split_columns,
    squeeze_labels,
    stream_to_dataset,
    string_tensors,
    to_columns,
)
from roformer_tf.models.labels import name_wrong_labels
from roformer_tf.models.length_batches import check_batch_limits, ladder
from roformer_tf.models.prediction import (
    check_finite_outputs,
    evaluate_batch,
    has_program_for_each_shape,
    predict_batches,
    text_vectors,
)
from roformer_tf.models.roformer_backbone import TOKEN_INPUTS
from roformer_tf.models.roformer_model import RoFormerModel, runs_on_one_device
from roformer_tf.models.training_data import (
    batches_of_columns,
    check_grouping,
    check_has_labels,
    check_targets_of_texts,
    grouped_batches,
    in_one_go,
    tensors_of_batch,
    validation_batches,
)


class RoFormerTask(RoFormerModel):
    """Base class of all tasks. Subclasses list it before KerasHub's base class.

    It adds to `keras_hub.models.Task`: `from_preset` for every kind of folder, checks of texts and
    labels whose errors name the example, a `fit` that shuffles lists and takes no step beyond the
    last batch, a full restore of a compiled model, LoRA and quantization of the whole task, and
    `embed`.
    """

    input_dtypes = TOKEN_INPUTS
    keras_arguments = ("trainable", "compile")
    needs_labels = False  # or the preprocessor makes them
    loss_is_mean_over_examples = False  # then any division into batches gives the same loss
    text_ranks = (1,)  # of the string tensors that the preprocessor takes
    has_masked_outputs = False  # whether outputs may be minus infinity
    _optimizer_was_built = False
    # number of tokens of the longest input: of the `fit` that runs, and of the last step traced
    _longest_input = _trained_up_to = None

    def fit(
        self,
        x=None,
        y=None,
        sample_weight=None,
        *,
        batch_size=None,
        validation_data=None,
        validation_split=None,
        shuffle=True,
        group_by_length=False,
        max_tokens_per_batch=None,
        class_weight=None,
        **kwargs,
    ):
        """Trains the model; see `keras.Model.fit`.

        Args:
            x: A list or array of strings, or for pairs a tuple of two of them, or what the class
                says. Or a dictionary of model inputs, which a preprocessor leaves as they are. Or
                batches `(x, y)` of these: a `tf.data.Dataset`, a `keras.utils.PyDataset` or a
                generator.
            y: Labels, unless `x` gives batches.
            sample_weight: Optional weights.
            batch_size: int, 32 by default. Not for batches.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or batches like `x`.
            validation_split: float. Share of the examples, the last ones, to validate on. Not for
                batches.
            shuffle: Whether to shuffle the examples, or the batches of a `PyDataset`, in every
                epoch. Datasets and generators keep their own order.
            group_by_length: Whether to make batches of texts of similar length, which saves most of
                the padding. With `shuffle` they differ in every epoch. The texts of a dataset or
                generator wait until a batch of their length is full; `batch_size` then applies.
            max_tokens_per_batch: int. Maximum number of tokens in a batch, padding included, for
                `group_by_length`. Without `batch_size` it alone decides how many texts make a
                batch.
            class_weight: dict. Weights for the losses of examples, by the numbers of their classes,
                or by names if the task has `labels`.
            **kwargs: Arguments of `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: If the data is empty, columns have different lengths, a label is out of
                range, a sample weight is NaN, `class_weight` does not fit the classes, or
                `group_by_length` and `max_tokens_per_batch` do not fit the data or each other.
            TypeError: If the task has a preprocessor and an example is not a string.
        """
        check_grouping(group_by_length, max_tokens_per_batch)
        class_weight = None if class_weight is None else self.weight_of_classes(class_weight)
        epochs = kwargs.get("epochs", 1)
        steps, validation_steps = map(kwargs.get, ("steps_per_epoch", "validation_steps"))
        check_epochs(epochs, "steps_per_epoch", x, steps)
        check_epochs(epochs, "validation_steps", validation_data, validation_steps)
        x, y = self.check_data(x, y, shuffle)
        check_has_labels(self, x, y)
        validation_data, validation_steps = validation_batches(
            self, validation_data, batch_size, validation_steps
        )
        if is_columns(x):
            # KerasHub would make a dataset too, but would not shuffle it.
            columns = to_columns(x, y, sample_weight)
            if validation_split and validation_data is None:
                columns, values = split_columns(columns, validation_split)
                values = batched(values, batch_size)
                validation_data, validation_steps = in_one_go(self, values, validation_steps)
            limits = batch_size, max_tokens_per_batch
            x = batches_of_columns(self, columns, group_by_length, *limits, shuffle)
            x, steps = in_one_go(self, x, steps, epochs)
            y = sample_weight = batch_size = validation_split = None
        elif group_by_length and is_dataset(x):
            x, batch_size = grouped_batches(self, x, batch_size, max_tokens_per_batch), None
        if is_dataset(x) and self.are_texts(x):
            self._longest_input = longest_input(self.preprocessor)
        with name_wrong_labels(), warnings.catch_warnings():
            if group_by_length:  # Keras warns at the end of a dataset of unknown length
                warnings.filterwarnings("ignore", "Your input ran out of data")
            try:
                history = super().fit(
                    x=x,
                    y=y,
                    sample_weight=sample_weight,
                    batch_size=batch_size,
                    validation_data=validation_data,
                    validation_split=validation_split,
                    shuffle=False,  # shuffled above; Keras would warn that it shuffles no dataset
                    class_weight=class_weight,
                    **{**kwargs, "steps_per_epoch": steps, "validation_steps": validation_steps},
                )
            finally:
                self._longest_input = None
        if history.epoch and not history.history:
            raise ValueError("The dataset is empty: it gave no batch to train on.")
        return history

    def evaluate(
        self,
        x=None,
        y=None,
        sample_weight=None,
        *,
        batch_size=None,
        verbose="auto",
        steps=None,
        callbacks=None,
        return_dict=False,
        max_tokens_per_batch=None,
        **kwargs,
    ):
        """Returns loss and metrics; see `keras.Model.evaluate`.

        Takes the same data and raises the same errors as `fit`. If the loss is a mean over
        examples, as a classifier's, texts run in batches of similar length, unless there are
        `callbacks`.

        Args:
            x, y, sample_weight, batch_size: See `fit`.
            verbose, steps, callbacks, return_dict: See `keras.Model.evaluate`.
            max_tokens_per_batch: int. Maximum number of tokens in a batch, padding included. Not
                for batches.
        """
        x, y = self.check_data(x, y)
        check_has_labels(self, x, y)
        options = {"callbacks": callbacks, "verbose": verbose, "return_dict": return_dict}
        if is_columns(x):
            columns = x, y, sample_weight = to_columns(x, y, sample_weight)
            most = check_batch_limits(batch_size, max_tokens_per_batch)
            is_one_batch = max_tokens_per_batch is None and count_rows(x) <= most
            if is_one_batch and runs_on_one_device(self) and not callbacks and not kwargs:
                with name_wrong_labels():
                    return evaluate_batch(self, columns, verbose, return_dict)
            if self.preprocessor is not None:
                # With Grain installed KerasHub would expect batches of one width.
                groups = self.loss_is_mean_over_examples and not callbacks and self.are_texts(x)
                x = batches_of_columns(self, columns, groups, batch_size, max_tokens_per_batch)
                x, steps = in_one_go(self, x, steps)
                y = sample_weight = batch_size = None
        with name_wrong_labels():
            return super().evaluate(
                x, y, batch_size, sample_weight, steps=steps, **options, **kwargs
            )

    def predict(
        self,
        x,
        batch_size=None,
        verbose="auto",
        steps=None,
        callbacks=None,
        max_tokens_per_batch=None,
    ):
        """Returns the model's outputs, in the order given; see `keras.Model.predict`.

        Texts of mixed length need no sorting: where each has outputs of one shape, as in a
        classifier, they run in batches of similar length, a dataset's within windows of 32 batches.
        With `callbacks` the batches are those given.

        Args:
            x: The same data as in `fit`, without labels.
            batch_size: int, 32 by default. Not for batches.
            verbose, steps, callbacks: See `keras.Model.predict`.
            max_tokens_per_batch: int. Maximum number of tokens in a batch, padding included, which
                bounds the memory. Without `batch_size` it alone decides how many texts run at once.
                A longer text is a batch of its own.

        Returns:
            NumPy array, or a structure of them as the model's outputs; a `tf.RaggedTensor` of
            outputs whose width differs from batch to batch.

        Raises:
            ValueError: As `fit`; and if the outputs are NaN or infinite.
            TypeError: As `fit`.
        """
        x, _ = self.check_data(x)
        check_positive_integer("batch_size", batch_size, optional=True)
        check_positive_integer("steps", steps, optional=True)
        in_memory = is_columns(x)
        x = to_columns(x)[0] if in_memory else x
        if runs_on_one_device(self) and (in_memory or (is_dataset(x) and self.are_texts(x))):
            outputs = predict_batches(
                self, x, batch_size, verbose, steps, callbacks, max_tokens_per_batch
            )
        else:
            if in_memory and self.preprocessor is not None:  # see `evaluate`
                x, batch_size = batched((x, None, None), batch_size), None
            options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
            outputs = super().predict(x, batch_size=batch_size, **options)
        return check_finite_outputs(outputs, self)

    def embed(self, texts, normalize=True, batch_size=32, pooling=None):
        """Returns a vector for each text, read as `[CLS] text [SEP]`.

        Args:
            texts: string, or list or array of strings. A text is truncated to the preprocessor's
                `sequence_length`.
            normalize: Whether vectors have length 1, so that their products are cosines.
            batch_size: int. Number of texts that run at once.
            pooling: `"pooler"`, the output of the backbone's pooler, which is the default if it has
                one; `"mean"`, the average of the last layer's vectors over all tokens, `[CLS]` and
                `[SEP]` included and padding not; or `"cls"`, the last layer's vector of `[CLS]`.

        Returns:
            float32 NumPy array `(texts, hidden_dim)`, or `(hidden_dim,)` for a single string.

        Raises:
            ValueError: If there is no text, the task has no preprocessor, its backbone cannot pool
                as asked (without a pooler, pass `pooling`), `batch_size` is not positive, or the
                vectors are NaN.
            TypeError: If a text is not a string.

        Example:

        >>> import roformer_tf
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
        >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
        >>> backbone = roformer_tf.RoFormerBackbone(
        ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
        ... )
        >>> preprocessor = roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
        >>> masked_lm = roformer_tf.RoFormerMaskedLM(backbone, preprocessor)
        >>> masked_lm.embed(["天气", "天气好"], pooling="mean").shape
        (2, 16)

        Reference: `test/retrieval.py` of the repository of RoFormer-Sim.
        """
        self.check_preprocessor()
        return text_vectors(self.backbone, self.preprocessor, texts, pooling, normalize, batch_size)

    def warmup(self, longest=512):
        """Builds what the first text would wait for: the graphs of tokenizer and model.

        On TensorFlow one graph serves texts of up to 2,048 tokens, and one all others. On JAX, and
        with `jit_compile=True`, a program is compiled for each of few widths.

        Args:
            longest: int. Number of tokens of the longest texts to come.

        Raises:
            ValueError: If the task has no preprocessor, or `longest` is not positive.

        Example:

        >>> import roformer_tf
        >>> vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气", "好"]
        >>> tokenizer = roformer_tf.RoFormerTokenizer(vocabulary, word_level=False)
        >>> backbone = roformer_tf.RoFormerBackbone(
        ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
        ... )
        >>> preprocessor = roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
        >>> classifier = roformer_tf.RoFormerTextClassifier(backbone, 2, preprocessor)
        >>> classifier.warmup()
        """
        check_positive_integer("longest", longest)
        self.check_preprocessor()
        widths = [16] if short_up_to(longest) == short_up_to(16) else [16, longest]
        if has_program_for_each_shape(self):
            widths = ladder(longest)
        for width in widths:
            self.run_on(["a " * (width - 2)])  # which has as many tokens, [CLS] and [SEP] included

    def run_on(self, texts):
        """Runs what the task is for on a list of texts, for `warmup`."""
        self.predict(texts, verbose=0)

    def convert_labels(self, x, y):
        """Converts labels of `fit` that are Python lists, such as a list of entities for each text.

        Args:
            x: The examples, as `fit` takes them.
            y: Their labels, or `None`.

        Raises:
            ValueError: If the labels are wrong, or do not fit their examples.
        """
        return y

    def encode_labels(self, y):
        """Returns labels as numbers."""
        return y

    def weight_of_classes(self, class_weight):
        """Returns `class_weight` of `fit` as Keras takes it; raises `ValueError` without classes."""
        raise ValueError(
            f"A {type(self).__name__} has no classes of examples to weigh. Use `sample_weight`. "
            f"Received: class_weight={class_weight}"
        )

    def check_labels(self, y):
        """Raises `ValueError` if an array `y` holds labels that the task cannot have."""

    def check_preprocessor(self):
        """Raises `ValueError` if the task has no preprocessor, which strings need."""
        if self.preprocessor is None:
            raise ValueError(
                "The model has no preprocessor, so it takes no strings. Set one: "
                f"`model.preprocessor = {self.preprocessor_cls.__name__}(tokenizer)`."
            )

    def are_texts(self, x):
        """Whether examples, or those of a dataset of batches, are texts for the preprocessor."""
        specs = []
        if is_dataset(x):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(x.element_spec)
            specs = keras.tree.flatten(x)
        return (
            self.preprocessor is not None
            and not self.is_preprocessed(x)
            and all(spec.dtype == "string" and spec.shape.rank in self.text_ranks for spec in specs)
        )

    @plain
    def preprocess_samples(self, x, y=None, sample_weight=None):
        shape = keras.tree.flatten(self.output)[0].shape
        if len(shape) == 2:  # labels of tokens have two axes
            y, sample_weight = squeeze_labels(y), squeeze_labels(sample_weight)
        y = self.encode_labels(y)
        if shape[1:] == (1,):
            y = column_labels(y)
        if self.is_preprocessed(x):
            self.check_inputs(x)
            return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
        check_targets_of_texts(self, y, sample_weight)
        return super().preprocess_samples(x, y, sample_weight)

    def is_preprocessed(self, x):
        """Whether `x` is a dictionary of model inputs, which a preprocessor leaves as they are."""
        return isinstance(x, dict) and set(x) <= set(self.input_dtypes)

    def check_data(self, x, y=None, shuffle=False):
        """Returns texts as string tensors, and converted labels. Checks both."""
        x, y = plain_columns((x, y))
        y = self.convert_labels(x, listed(y))
        if is_stream(x):
            return stream_to_dataset(x, self.check_data, self.encode_labels, shuffle), y
        check_not_empty(x)
        if is_dataset(x):
            if y is not None:
                raise ValueError(
                    "A dataset gives inputs and labels together: make it of `(texts, labels)`. "
                    f"Received: y of type {type(y).__name__} beside a dataset"
                )
            check_is_batched(x)
        elif self.is_preprocessed(x):
            self.check_inputs(x)
        elif self.preprocessor is not None:
            x = self.text_tensors(x)
        self.check_labels(y)
        return x, y

    def text_tensors(self, x):
        """Returns texts as string tensors."""
        return string_tensors(x)

    def get_config(self):
        config = own_arguments(self, RoFormerTask, parts=("backbone", "preprocessor"))
        is_built = self.optimizer is not None and self.optimizer.built
        return {**config, **super().get_config(), **({"optimizer_built": True} if is_built else {})}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        optimizer_built = config.pop("optimizer_built", False)
        model = super().from_config(config)
        model._optimizer_was_built = optimizer_built
        return model

    def compile_from_config(self, config):
        """Compiles a loaded model as it was saved, ready for the state of the optimizer.

        Keras skips this for classes with their own `compile`, which KerasHub's tasks have.
        """
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self._optimizer_was_built:
            self.optimizer.build(self.trainable_variables)

    def enable_lora(self, rank, target_layer_names=None):
        """Freezes the backbone except for low-rank updates of its projections.

        A new head stays trainable. Compile again afterwards, as an optimizer is built for the
        weights that it first sees. A saved model has the updates merged into its weights;
        `backbone.save_lora_weights` saves them separately.

        Args:
            rank: int. Rank of the updates.
            target_layer_names: Names of the layers to adapt, by default the projections to queries,
                keys and values.

        Reference: LoRA, arXiv 2106.09685.
        """
        self.backbone.enable_lora(rank, target_layer_names)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
        """Takes a step with one batch; see `keras.Model.train_on_batch`. `fit` describes the data."""
        class_weight = None if class_weight is None else self.weight_of_classes(class_weight)
        batch = tensors_of_batch(self, x, y, sample_weight)
        return keras.Model.train_on_batch(self, *batch, class_weight, **kwargs)

    def test_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Returns loss and metrics of one batch; see `keras.Model.test_on_batch`."""
        batch = tensors_of_batch(self, x, y, sample_weight)
        return keras.Model.test_on_batch(self, *batch, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds on the batch of one replica. Keras would add those of all, whose sizes may differ."""
        if iterator is not None and not runs_on_one_device(self):
            _, _, batches = next(iter(iterator))
            iterator, local = None, self.distribute_strategy.experimental_local_results
            data_batch = keras.tree.map_structure(lambda x: local(x)[0], next(batches))
        super()._maybe_symbolic_build(iterator, data_batch)

    def make_train_function(self, force=False):
        """Builds the optimizer before the first step, whose graph would build it twice."""
        if keras.config.backend() == "tensorflow" and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_weights)
        force = force or self._trained_up_to != self._longest_input
        self._trained_up_to = self._longest_input
        return super().make_train_function(force)

    def train_step(self, *args):
        if keras.config.backend() != "tensorflow":
            return super().train_step(*args)
        import tensorflow as tf

        # TensorFlow asks a dataset of unknown length for one batch too many. What does not depend on
        # the batch (step counter, weight decay, moving averages) would run before it ends.
        batch = [t for t in keras.tree.flatten(args) if tf.is_tensor(t)]
        with tf.control_dependencies(batch), inputs_up_to(self._longest_input):
            return super().train_step(*args)
