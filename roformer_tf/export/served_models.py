"""The signatures of the SavedModels, one class per kind of task.

A class lists its signatures and their inputs in `inputs`, and has a method of the same name for
each. `export_saved_model` documents what they return.
"""

import types

import tensorflow as tf

from roformer_tf.layers import MeanPooling
from roformer_tf.layers.self_attention import inputs_up_to
from roformer_tf.models import (
    RoFormerBackbone,
    RoFormerCausalLM,
    RoFormerMaskedLM,
    RoFormerMultipleChoice,
    RoFormerQuestionAnswering,
    RoFormerSeq2SeqLM,
    RoFormerSim,
    RoFormerTextClassifier,
    RoFormerTokenClassifier,
)
from roformer_tf.models.batches import longest_input
from roformer_tf.models.fill_mask import token_of, top_tokens
from roformer_tf.models.in_batch_contrastive import unit_vectors
from roformer_tf.models.labels import output_kind
from roformer_tf.models.length_batches import (
    COST_OF_A_BATCH,
    COST_OF_GENERATION,
    DEFAULT_BATCH_SIZE,
)
from roformer_tf.models.roformer_backbone import TEXT_INPUTS, pool, pooled_positions

STRINGS = {"texts", "first", "second", "question", "context", "left", "right"}
NUMBERS = {"n", "k", "max_length"}
TOKEN_IDS = tuple(TEXT_INPUTS)


class ServedModel(tf.Module):
    """Serves texts, pairs of texts and token ids with the subclass's `answer`.

    Holds the task's weights and tokenizer, but no optimizer, metrics or Keras objects.
    """

    inputs = {"serving_default": ("texts",), "pairs": ("first", "second"), "token_ids": TOKEN_IDS}
    by_length = True  # whether batches of texts may be narrower than the longest of all

    def __init__(self, task, preprocessor, vocabulary_file, **options):
        super().__init__()
        # In a plain object, which TensorFlow does not look into: saving a model saves its
        # optimizer too.
        self._python = types.SimpleNamespace(task=task, preprocessor=preprocessor, **options)
        self.weights = {weight.path: weight.value for weight in task.weights}
        self.tokenizer = preprocessor.tokenizer.graph
        self.vocabulary_file = tf.saved_model.Asset(vocabulary_file)
        if hasattr(task, "sampler"):
            # saved too, so each call continues the random draws of the call before
            self.seeds = [variable.value for variable in task.sampler.variables]

    def signatures(self):
        """Returns the function of every signature, by name.

        The function of `serving_default` is also that of a call: `served(["…"])`. TensorFlow traces
        it when it saves it, and would do so again if it was traced before.
        """
        signatures = {}
        for name, arguments in self.inputs.items():
            # `pack` truncates texts; token ids, and texts that are generated, have any length
            is_packed = not {"token_ids", "max_length"} & {*arguments}
            longest = longest_input(self._python.preprocessor) if is_packed else None
            function = inputs_up_to(longest)(getattr(self, name))
            specs = {argument: _spec(argument) for argument in arguments}
            if name == "serving_default":
                self.__call__ = tf.function(function, [*specs.values()], autograph=False)
                signatures[name] = self.__call__
            else:
                function = tf.function(function, autograph=False)
                signatures[name] = function.get_concrete_function(**specs)
        return signatures

    def serving_default(self, texts):
        return in_batches(self.answer, self.pack(texts), self.by_length)

    def pairs(self, first, second):
        texts = _of_one_length(first=first, second=second)
        return self.serving_default(tuple(texts.values()))

    def token_ids(self, **inputs):
        with tf.control_dependencies(list(_checks_of_ids(inputs))):
            return self.answer({name: tf.identity(x) for name, x in inputs.items()})

    def pack(self, texts):
        """Returns the model inputs of strings, or of a tuple of two."""
        # not a call: the preprocessor of another task would add labels
        return self._python.preprocessor.pack(texts)

    def answer(self, inputs):
        return {"logits": self.outputs(inputs)}

    def outputs(self, inputs):
        """Runs the model in inference; floats become float32."""
        outputs = self._python.task(inputs, training=False)
        return tf.nest.map_structure(lambda x: tf.cast(x, tf.float32), outputs)


class ServedBackbone(ServedModel):
    """Serves hidden states and an embedding of each text."""

    by_length = False

    def answer(self, inputs):
        answer = self.outputs(inputs)
        if not isinstance(answer, dict):
            answer = {"sequence_output": answer}
        mask = inputs["padding_mask"]
        embedding = pool(answer, mask, self._python.embedding, MeanPooling(dtype="float32"))
        if self._python.normalize:
            embedding = tf.math.l2_normalize(embedding, axis=-1)
        return {**answer, "padding_mask": mask, "embedding": embedding}


class ServedClassifier(ServedModel):
    """Serves probabilities, logits, classes and labels, or the scores of a regression."""

    def __init__(self, task, preprocessor, vocabulary_file, labels_file=None):
        super().__init__(task, preprocessor, vocabulary_file)
        self._kind = output_kind(task.num_classes, task.activation)
        self._label_of_class = None
        if labels_file is not None:
            # looks labels up in the asset, so editing that file changes the answers
            self._label_of_class = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    labels_file,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                ),
                "",
            )

    def pack(self, texts):
        return self._python.preprocessor(texts)

    def answer(self, inputs):
        if self._kind == "scores":
            return {"scores": self.outputs(inputs)}
        task = self._python.task
        logits = tf.cast(task.compute_logits(task.complete_inputs(inputs)), tf.float32)
        if self._kind == "binary":
            probabilities = tf.sigmoid(logits)
            class_id = tf.cast(probabilities[:, 0] > 0.5, tf.int32)
        else:
            activate = tf.nn.softmax if self._kind == "softmax" else tf.sigmoid
            probabilities = activate(logits)
            class_id = tf.argmax(logits, axis=-1, output_type=tf.int32)
        answer = {"probabilities": probabilities, "logits": logits, "class_id": class_id}
        if self._label_of_class is not None:
            answer["label"] = self._label_of_class.lookup(tf.cast(class_id, tf.int64))
        return answer


class ServedTokenClassifier(ServedModel):
    """Serves entities, as characters of the texts."""

    inputs = {"serving_default": ("texts",)}

    def serving_default(self, texts):
        task = self._python.task
        inputs, details = self._python.preprocessor.pack_chunks(texts)
        outputs = in_batches(self.outputs, inputs, by_length=False)
        found = task.decode(outputs, details, tf.size(texts))
        with tf.device("CPU"):
            labels = found["type"].with_values(
                tf.gather(tf.constant(task.labels), found["type"].values)
            )
            return {
                "start": found["start"].to_tensor(-1),
                "end": found["end"].to_tensor(-1),
                "label": labels.to_tensor(""),
                "score": found["score"].to_tensor(0.0),
            }


class ServedQuestionAnswering(ServedModel):
    """Serves the best answers to questions, as characters of their contexts."""

    inputs = {"serving_default": ("question", "context")}

    def serving_default(self, question, context):
        question, context = _of_one_length(question=question, context=context).values()
        inputs, details = self._python.preprocessor.pack_chunks(question, context)
        details = {**details, "context": context}
        outputs = in_batches(self.outputs, inputs, by_length=False)
        return self._python.task.decode(
            outputs, details, tf.size(question), n_best=self._python.top_k
        )


class ServedMultipleChoice(ServedModel):
    """Serves the choices of questions and of gaps, the most probable first."""

    inputs = {
        "serving_default": ("context", "question", "choices"),
        "questions": ("question", "choices"),
        "gaps": ("left", "choices", "right"),
    }

    def serving_default(self, context, question, choices):
        return self.questions(context=context, question=question, choices=choices)

    def questions(self, **x):
        x = _of_one_length(**x)
        outputs = in_batches(self.outputs, self._python.preprocessor.pack(x))
        return self._python.task.decode(outputs, {"choices": x["choices"]}, None)

    gaps = questions


class ServedMaskedLM(ServedModel):
    """Serves the most probable tokens for every `[MASK]` in a text."""

    inputs = {"serving_default": ("texts",), "token_ids": (*TOKEN_IDS, "mask_positions")}

    def __init__(self, task, preprocessor, vocabulary_file, **options):
        super().__init__(task, preprocessor, vocabulary_file, **options)
        ids = range(task.backbone.vocabulary_size)
        with tf.device("CPU"):
            tokens = [token_of(preprocessor.tokenizer, i).encode() for i in ids]
            self._tokens = tf.constant(tokens)

    def serving_default(self, texts):
        inputs, found = self._python.preprocessor.pack_masks(texts)
        ids, probabilities = in_batches(self.best_tokens, {**inputs, "found": found})
        with tf.device("CPU"):
            tokens = tf.gather(self._tokens, ids)
            each = found[:, :, tf.newaxis]
            return {
                "tokens": tf.where(each, tokens, ""),
                "ids": tf.where(each, ids, -1),
                "probabilities": tf.where(each, probabilities, 0.0),
                "mask_positions": tf.where(found, inputs["mask_positions"], -1),
            }

    def best_tokens(self, inputs):
        # Truncation may have taken thousands of masks from a text: only the rest need logits.
        found = tf.cast(inputs["found"], tf.int32)
        most = tf.maximum(tf.reduce_max(tf.reduce_sum(found, axis=1)), 1)
        order = tf.argsort(found, direction="DESCENDING", stable=True)
        positions = tf.gather(inputs["mask_positions"], order[:, :most], batch_dims=1)
        inputs = {name: inputs[name] for name in TOKEN_IDS}
        outputs = self.outputs({**inputs, "mask_positions": positions})
        columns = tf.minimum(tf.argsort(order), most - 1)
        best = top_tokens(outputs, self._python.top_k)
        return tf.nest.map_structure(lambda x: tf.gather(x, columns, batch_dims=1), best)


class ServedCausalLM(ServedModel):
    """Serves scores of texts, and generation with the sampler of the task."""

    inputs = {**ServedModel.inputs, "generate": ("texts", "max_length")}

    def serving_default(self, texts):
        inputs, targets, weights = self._python.preprocessor(texts)
        return in_batches(self.scores, {**inputs, "targets": targets, "weights": weights})

    def scores(self, inputs):
        logits = self.outputs({name: inputs[name] for name in TOKEN_IDS})
        targets, weights = inputs["targets"], inputs["weights"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        # a long text adds thousands of terms: in float64, as `RoFormerCausalLM.score` does
        total = -tf.reduce_sum(tf.cast(loss * weights, tf.float64), axis=-1)
        total = tf.cast(total, tf.float32)
        num_tokens = tf.reduce_sum(weights, axis=-1)
        return {
            "log_likelihood": total,
            "num_tokens": tf.cast(num_tokens, tf.int32),
            "perplexity": tf.exp(-total / tf.maximum(num_tokens, 1.0)),
        }

    def generate(self, texts, max_length):
        message = "`max_length` must be at least 2, for [CLS] and a new token."
        with tf.control_dependencies([tf.debugging.assert_greater(max_length, 1, message)]):
            texts = tf.identity(texts)
        task, preprocessor = self._python.task, self._python.preprocessor
        unilm = task.backbone.masking == "unilm"
        prompts = (texts, tf.zeros_like(texts)) if unilm else texts
        prompts = preprocessor.generate_preprocess(prompts, sequence_length=max_length)

        def step(prompts):
            outputs = task.generate_step(prompts, [preprocessor.tokenizer.end_token_id])
            if unilm:
                new = tf.cast(outputs["padding_mask"], tf.int32) * (1 - prompts["padding_mask"])
                outputs = {**outputs, "padding_mask": new}
            return outputs

        outputs = in_batches(step, prompts, cut=(), cost=COST_OF_GENERATION)
        return {"texts": preprocessor.generate_postprocess(outputs)}


class ServedSim(ServedCausalLM):
    """Serves embeddings of texts, and generates similar texts."""

    inputs = {
        "serving_default": ("texts",),
        "similar": ("texts", "n", "k", "max_length"),
        "token_ids": TOKEN_IDS,
    }

    def signatures(self):
        signatures = super().signatures()
        return {**signatures, "embed": signatures["serving_default"]}

    def serving_default(self, texts):
        return {"embedding": self.text_vectors(texts)}

    def similar(self, texts, n, k, max_length):
        task, tokenizer = self._python.task, self._python.preprocessor.tokenizer
        with tf.control_dependencies(
            [
                tf.debugging.assert_positive(n, "`n` must be positive."),
                tf.debugging.assert_positive(k, "`k` must be positive."),
            ]
        ):
            drawn = self.generate(tf.repeat(texts, n), max_length)["texts"]
        same = tokenizer.detokenize(tokenizer.graph(texts))

        vectors = self.text_vectors(drawn)
        vectors = tf.reshape(vectors, [tf.size(texts), n, task.backbone.hidden_dim])
        similarities = tf.linalg.matvec(vectors, self.text_vectors(texts))
        drawn = tf.reshape(drawn, [-1, n])
        with tf.device("CPU"):
            before = tf.linalg.band_part(tf.ones([n, n]), -1, 0) - tf.eye(n) > 0
            repeated = tf.reduce_any((drawn[:, :, None] == drawn[:, None, :]) & before, axis=-1)
            own = (drawn == texts[:, None]) | (drawn == same[:, None]) | (drawn == "")
            left_out = tf.where(repeated | own, -2.0, similarities)
            best, indices = tf.math.top_k(left_out, tf.minimum(k, n))
            found = best > -2.0
            return {
                "texts": tf.where(found, tf.gather(drawn, indices, batch_dims=1), ""),
                "similarities": tf.where(found, best, 0.0),
            }

    def answer(self, inputs):
        return self.outputs(inputs)

    def text_vectors(self, texts):
        return in_batches(self.vectors, self.pack(texts))

    def vectors(self, inputs):
        """Returns the embeddings of model inputs, float32 `(batch, hidden_dim)`."""
        positions = pooled_positions(inputs["token_ids"], "pooler")
        inputs = {**inputs, "output_positions": positions}
        outputs = self._python.task.backbone(inputs, training=False)
        return unit_vectors(tf.cast(outputs["pooled_output"], tf.float32))


class ServedSeq2SeqLM(ServedModel):
    """Serves translations of texts. The serving process must import TensorFlow Text."""

    inputs = {"serving_default": ("texts",), "token_ids": tuple(RoFormerSeq2SeqLM.input_dtypes)}

    def serving_default(self, texts):
        task, preprocessor = self._python.task, self._python.preprocessor
        inputs = preprocessor.generate_preprocess(texts)
        outputs = in_batches(
            lambda batch: task.generate_step(batch, [preprocessor.tokenizer.end_token_id]),
            inputs,
            mask="encoder_padding_mask",
            cut=("encoder_token_ids", "encoder_padding_mask"),
            cost=COST_OF_GENERATION,
        )
        return {"translations": preprocessor.generate_postprocess(outputs)}


SERVED = {
    RoFormerTextClassifier: ServedClassifier,
    RoFormerTokenClassifier: ServedTokenClassifier,
    RoFormerQuestionAnswering: ServedQuestionAnswering,
    RoFormerMultipleChoice: ServedMultipleChoice,
    RoFormerMaskedLM: ServedMaskedLM,
    RoFormerSim: ServedSim,  # before its parent
    RoFormerCausalLM: ServedCausalLM,
    RoFormerSeq2SeqLM: ServedSeq2SeqLM,
    RoFormerBackbone: ServedBackbone,
}


def served_model(task, *args, **options):
    """Returns the `ServedModel` of a task."""
    kind = next(kind for kind in SERVED if isinstance(task, kind))
    return SERVED[kind](task, *args, **options)


def in_batches(
    function, inputs, by_length=True, mask="padding_mask", cut=None, cost=COST_OF_A_BATCH
):
    """Runs a function on at most 32 rows at a time, so that any number of them fits into memory.

    Args:
        function: Takes a dictionary like `inputs`, and returns a structure of tensors of as many
            rows, whose other axes are the same for all batches.
        inputs: Dictionary of tensors of rows, padded on the right.
        by_length: Whether a batch has rows of similar length. It ends where padding would cost more
            tokens than another batch does.
        mask: Name of the padding mask among the inputs.
        cut: Names of the inputs that lose the padding that no row of their batch needs. By default
            all with a position for each token.
        cost: int. What a batch costs beside its tokens, in tokens.

    Returns:
        The outputs for all rows, in the order given.
    """
    if cut is None:
        cut = set(inputs) - {"mask_positions", "found"}
    mask = inputs[mask]
    if mask.shape.rank == 3:  # the longest of several choices counts
        mask = tf.reduce_max(mask, axis=1)
    count, width = tf.unstack(tf.shape(mask))
    lengths = tf.reduce_sum(mask, axis=1) if by_length else tf.fill([count], width)
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    lengths = tf.gather(lengths, order)
    specs = {n: tf.TensorSpec([None] * x.shape.rank, x.dtype) for n, x in inputs.items()}
    graph = tf.function(function, autograph=False).get_concrete_function(specs)

    def run(step, start, arrays):
        window = lengths[start : start + DEFAULT_BATCH_SIZE]
        longest = tf.where(count > 0, tf.reduce_max(window), width)
        padding = tf.cumsum(longest - window)
        rows = order[start:][: tf.math.count_nonzero(padding <= cost, dtype=tf.int32)]
        batch = {name: tf.gather(x, rows) for name, x in inputs.items()}
        for name in cut:
            batch[name] = batch[name][..., :longest]
        found = tf.nest.flatten(graph(batch))
        arrays = [array.write(step, x) for array, x in zip(arrays, found)]
        return step + 1, start + tf.size(rows), arrays

    arrays = [
        tf.TensorArray(
            x.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=[None, *x.shape[1:]]
        )
        for x in tf.nest.flatten(graph.structured_outputs)
    ]
    *_, arrays = tf.while_loop(  # once for an empty batch too
        lambda step, start, _: (step == 0) | (start < count),
        run,
        (0, 0, arrays),
        parallel_iterations=1,
    )
    back = tf.argsort(order)
    outputs = [tf.gather(array.concat(), back) for array in arrays]
    return tf.nest.pack_sequence_as(graph.structured_outputs, outputs)


def _spec(argument):
    if argument in NUMBERS:
        return tf.TensorSpec([], tf.int32, argument)
    if argument == "choices":
        return tf.TensorSpec([None, None], tf.string, argument)
    if argument in STRINGS:
        return tf.TensorSpec([None], tf.string, argument)
    return tf.TensorSpec([None, None], tf.int32, argument)


def _of_one_length(**texts):
    """Returns the texts, which are checked to be as many of each kind."""
    first, *others = texts
    message = f"`{'`, `'.join(texts)}` must have the same number of texts."
    checks = [
        tf.debugging.assert_equal(tf.shape(texts[first])[0], tf.shape(texts[other])[0], message)
        for other in others
    ]
    with tf.control_dependencies(checks):
        return {name: tf.identity(column) for name, column in texts.items()}


def _checks_of_ids(inputs):
    """Yields operations that raise an error if model inputs do not fit each other."""
    for name, x in inputs.items():
        yield tf.debugging.assert_non_negative(x, f"`{name}` must not be negative.")
        if name.endswith("padding_mask"):
            yield tf.debugging.assert_less(x, 2, f"`{name}` must be 1, or 0 for padding.")
        tokens = name.replace("segment_ids", "token_ids").replace("padding_mask", "token_ids")
        if tokens != name:
            message = f"`{name}` must have the shape of `{tokens}`."
            yield tf.debugging.assert_equal(tf.shape(x), tf.shape(inputs[tokens]), message)
