import keras
import keras_hub
from keras import ops

from roformer_tf.checks import check_positive_integer
from roformer_tf.layers.cache import has_fixed_shapes
from roformer_tf.models.batches import (
    check_is_batched,
    check_not_empty,
    is_dataset,
    is_text,
    prompt_columns,
    string_tensors,
    text_batch,
)
from roformer_tf.models.compiled_generation import (
    CompiledGeneration,
    check_max_length,
    rows_are_finite,
)
from roformer_tf.models.roformer_seq_2_seq_backbone import RoFormerSeq2SeqBackbone
from roformer_tf.models.roformer_seq_2_seq_lm_preprocessor import (
    RoFormerSeq2SeqLMPreprocessor,
    as_pair,
)
from roformer_tf.models.roformer_task import RoFormerTask
from roformer_tf.models.smoothed_crossentropy import SmoothedCrossentropy
from roformer_tf.samplers import BeamSearchSampler
from roformer_tf.text.strings import to_string_tensor


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSeq2SeqLM(CompiledGeneration, RoFormerTask, keras_hub.models.Seq2SeqLM):
    """Translation model: logits of the next token of the target, given the source.

    The output shares the embedding table. `fit` trains on pairs of raw strings, `generate`
    translates raw strings, using the `sampler` passed to `compile`. The encoder runs once for each
    source; the decoder caches the keys and values of earlier tokens and of the encoder's output.

    Args:
        backbone: a `RoFormerSeq2SeqBackbone`.
        preprocessor: a `RoFormerSeq2SeqLMPreprocessor`, or `None` to take token ids instead of
            strings.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerSeq2SeqBackbone`.

    Returns:
        Logits `(batch, length, vocabulary_size)`. Those at position i predict token i + 1 of the
        target.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.text import train_sentencepiece
    >>> proto = train_sentencepiece(["a cat and a dog", "ein Hund"], vocabulary_size=24)
    >>> tokenizer = roformer_tf.RoFormerSentencePieceTokenizer(proto)
    >>> backbone = roformer_tf.RoFormerSeq2SeqBackbone(
    ...     vocabulary_size=24, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerSeq2SeqLMPreprocessor(tokenizer)
    >>> translator = roformer_tf.RoFormerSeq2SeqLM(backbone, preprocessor)
    >>> history = translator.fit((["a dog", "a cat"], ["ein Hund", "eine Katze"]), verbose=0)
    >>> translation = translator.generate("a dog", max_length=8)
    >>> type(translation).__name__
    'str'

    Reference: section 4.1 of arXiv 2104.09864; Vaswani et al., arXiv 1706.03762.
    """

    backbone_cls = RoFormerSeq2SeqBackbone
    preprocessor_cls = RoFormerSeq2SeqLMPreprocessor
    input_dtypes = RoFormerSeq2SeqBackbone.input_dtypes

    def __init__(self, backbone, preprocessor=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor

        # === Functional model ===
        super().__init__(backbone.input, **kwargs)

    def compute_outputs(self, inputs, training=None):
        hidden_states = self.backbone(inputs, training=training)["decoder_sequence_output"]
        return self.backbone.token_embedding(hidden_states, reverse=True)

    def compile(self, optimizer="auto", loss="auto", *, sampler="auto", **kwargs):
        """Configures training and generation; see `keras_hub.models.CausalLM.compile`.

        Args:
            optimizer: See `keras.Model.compile`.
            loss: By default `SmoothedCrossentropy(0.1)`.
            sampler: By default `BeamSearchSampler(num_beams=4, length_penalty=0.6)`, the paper's.
            **kwargs: Arguments of `keras_hub.models.CausalLM.compile`. `generate` uses XLA only if
                `jit_compile` is `True`, as XLA compiles a program for each size of a batch.
        """
        if loss == "auto":
            loss = SmoothedCrossentropy(0.1)
        if sampler == "auto":
            sampler = BeamSearchSampler(num_beams=4, length_penalty=0.6)
        super().compile(optimizer=optimizer, loss=loss, sampler=sampler, **kwargs)

    def generate(self, inputs, max_length=None, stop_token_ids="auto"):
        """Translates sources.

        Args:
            inputs: string, list of strings, or `tf.data.Dataset` of batches of them: the sources. A
                list is one batch (`roformer_tf.models.translate` makes batches). Or a tuple
                `(sources, starts)`, or a dictionary of `encoder_text` and `decoder_text`, where a
                target begins with its start. Without a preprocessor the model's inputs, whose
                targets have the length of the result.
            max_length: int. Maximum number of tokens of a target, with its special tokens. By
                default 50 more than the longest source of the batch, and no more than the
                preprocessor allows.
            stop_token_ids: list of ids that end a target, or `None`. `"auto"` is `</s>`.

        Returns:
            String or list of strings. Without a preprocessor a dictionary of NumPy arrays,
            `decoder_token_ids` and `decoder_padding_mask`, 1 for the start and the new tokens with
            their stop token.

        Raises:
            ValueError: If there is no text, `max_length` leaves no room for a new token, there are
                more sources than starts or fewer, or the model's outputs are NaN.
            TypeError: If a text is not a string.
        """
        check_not_empty(inputs)
        check_max_length(max_length, "<s>")
        stop_token_ids = self.checked_stop_token_ids(stop_token_ids)
        is_single = False
        if self.preprocessor is not None:
            inputs, is_single = self._string_tensors(inputs, max_length)
        texts = super().generate(inputs, max_length=max_length, stop_token_ids=stop_token_ids)
        return texts[0] if is_single else texts

    def _string_tensors(self, inputs, max_length):
        """Returns the texts as tensors, alone or in a pair, and whether they are a single pair.

        KerasHub would leave this to TensorFlow, which takes no strings with half a character.
        """
        sources, starts = as_pair(inputs) if isinstance(inputs, tuple | dict) else (inputs, None)
        if starts is None:
            if is_dataset(sources):
                check_is_batched(sources)
            texts = to_string_tensor(sources) if is_text(sources) else string_tensors(sources)
            return texts, False
        pair, is_single = prompt_columns((sources, starts))
        prompt = self.preprocessor.generate_preprocess(pair, sequence_length=max_length)
        mask = ops.convert_to_numpy(prompt["decoder_padding_mask"])
        if mask[:, -1].any():
            raise ValueError(
                f"There is no room for a new token: start {mask[:, -1].argmax()} fills all "
                f"{mask.shape[1]} positions of a target. Shorten it, or use a larger `max_length`."
            )
        return pair, is_single

    def generate_step(self, inputs, stop_token_ids=None):
        """Generates one batch, in one graph.

        Args:
            inputs: dictionary of the model's inputs. Targets have the length of the result, and
                `decoder_padding_mask` is 1 for the tokens they start with, at least the start
                token.
            stop_token_ids: list of ids, or `None`.

        Returns:
            Dictionary of `decoder_token_ids` and `decoder_padding_mask`, see `generate`.
        """
        prompt_mask = ops.cast(inputs["decoder_padding_mask"], "bool")
        token_ids = ops.cast(inputs["decoder_token_ids"], "int32")
        source_mask = inputs["encoder_padding_mask"]
        encoder_sequence = self.backbone.encode(inputs["encoder_token_ids"], source_mask)
        lengths = ops.sum(ops.cast(prompt_mask, "int32"), axis=-1)
        # In an empty batch the minimum is the largest integer.
        index = ops.minimum(ops.min(lengths), ops.shape(token_ids)[1])
        if self.backbone.supports_cache:
            cache, next = self._next_with_cache(token_ids, index, encoder_sequence, source_mask)
        else:
            cache, next = None, self._next_without_cache(encoder_sequence, source_mask)
        token_ids, mask = self.sample(
            next, token_ids, prompt_mask, stop_token_ids, cache=cache, index=index
        )
        token_ids = ops.where(rows_are_finite(encoder_sequence), token_ids, -1)
        return {"decoder_token_ids": token_ids, "decoder_padding_mask": mask}

    def _next_with_cache(self, token_ids, index, encoder_sequence, source_mask):
        """Returns the cache before the token at `index`, and `next` for the sampler."""
        backbone = self.backbone
        # The beams of a source share it, so it is not part of the cache, which samplers repeat and
        # reorder.
        cross_attention_cache = backbone.build_cross_attention_cache(encoder_sequence, source_mask)

        def step(token_ids, cache, index):
            token = ops.take(token_ids, ops.reshape(index, (1,)), axis=1)
            return backbone.call_with_cache(token, cache, index, cross_attention_cache)

        def next(prompt, cache, index):
            hidden_states, cache = step(prompt, cache, index - 1)
            return self._logits(hidden_states), hidden_states[:, 0], cache

        batch_size, length = ops.shape(token_ids)
        cache = backbone.build_cache(batch_size, length)
        # Targets rarely have a start, so mostly there is nothing to read.
        _, cache = ops.while_loop(
            lambda i, cache: i < index - 1,
            lambda i, cache: (i + 1, step(token_ids, cache, i)[1]),
            (ops.zeros_like(index), cache),
        )
        return cache, next

    def _next_without_cache(self, encoder_sequence, source_mask):
        """Returns `next` for the sampler of a model without a cache: it reads all tokens again."""

        def next(prompt, cache, index):
            count = ops.shape(prompt)[1]
            if not has_fixed_shapes():  # leave out the positions after the last token
                prompt, count = prompt[:, :index], index
            mask = ops.arange(count, dtype="int32") < index
            mask = ops.broadcast_to(ops.cast(mask, "int32"), ops.shape(prompt))
            hidden_states = self.backbone.decode(prompt, mask, encoder_sequence, source_mask)
            hidden_states = ops.take(hidden_states, ops.reshape(index - 1, (1,)), axis=1)
            return self._logits(hidden_states), hidden_states[:, 0], cache

        return next

    def _logits(self, hidden_states):
        return self.backbone.token_embedding(hidden_states, reverse=True)[:, 0]

    def run_on(self, texts):
        self.generate(texts, max_length=8)

    def text_tensors(self, x):
        return super().text_tensors(as_pair(x) if isinstance(x, dict) else x)


def translate(task, texts, batch_size=32, max_length=None):
    """Translates any number of texts, in batches of similar length.

    Args:
        task: a `RoFormerSeq2SeqLM` with a preprocessor, whose `sampler` chooses the tokens.
        texts: string or list of strings.
        batch_size: int. Number of texts that run at once.
        max_length: int. Maximum number of tokens of a translation, by default 50 more than its
            source has.

    Returns:
        List of strings in the order of `texts`, or a string for a string. The translation of an
        empty text is empty.

    Raises:
        ValueError: If the task has no preprocessor, there is no text, `batch_size` is not positive,
            or the model's outputs are NaN.
        TypeError: If `texts` is a tuple or a dataset, or a text is not a string.

    Example:

    >>> import roformer_tf
    >>> from roformer_tf.models import translate
    >>> from roformer_tf.text import train_sentencepiece
    >>> proto = train_sentencepiece(["a cat", "ein Hund"], vocabulary_size=20)
    >>> tokenizer = roformer_tf.RoFormerSentencePieceTokenizer(proto)
    >>> backbone = roformer_tf.RoFormerSeq2SeqBackbone(
    ...     vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32
    ... )
    >>> preprocessor = roformer_tf.RoFormerSeq2SeqLMPreprocessor(tokenizer)
    >>> translator = roformer_tf.RoFormerSeq2SeqLM(backbone, preprocessor)
    >>> translator.compile(sampler="greedy")
    >>> len(translate(translator, ["a cat", "", "a"], max_length=5))
    3
    """
    task.check_preprocessor()
    check_positive_integer("batch_size", batch_size)
    if isinstance(texts, tuple):
        raise TypeError(
            "`translate` takes a list or array of strings; starts of targets are for `generate`. "
            "Received: tuple"
        )
    texts, is_single = text_batch(texts)
    texts = [text.decode("utf-8", "replace") for text in texts.numpy()]
    translations = [""] * len(texts)
    order = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        found = task.generate([texts[i] for i in batch], max_length=max_length)
        for i, text in zip(batch, found, strict=True):
            translations[i] = text
    return translations[0] if is_single else translations
