import keras
import keras_hub
from keras import ops

from roformer_tf.layers.cache import has_fixed_shapes
from roformer_tf.models.batches import is_dataset, prompt_columns
from roformer_tf.models.compiled_generation import (
    CompiledGeneration,
    checked_stops,
    stopping_rules,
)
from roformer_tf.models.roformer_seq_2_seq_backbone import RoFormerSeq2SeqBackbone
from roformer_tf.models.roformer_seq_2_seq_lm_preprocessor import (
    RoFormerSeq2SeqLMPreprocessor,
    as_pair,
)
from roformer_tf.models.roformer_task import RoFormerTask, check_not_empty
from roformer_tf.models.smoothed_crossentropy import SmoothedCrossentropy
from roformer_tf.samplers import BeamSearchSampler, remove_stop_tokens, valid_token_mask
from roformer_tf.text.strings import to_string_tensor


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerSeq2SeqLM(CompiledGeneration, RoFormerTask, keras_hub.models.Seq2SeqLM):
    """Translation model: logits of the next token of the target, given the source and the target so far.

    The output shares the table of the embeddings. `fit` takes pairs of raw strings, `generate` translates raw strings;
    what it searches or draws with is the `sampler` of `compile`. The encoder runs once for a source; in the decoder
    keys and values of all earlier tokens are kept, as are those that the encoder's output makes.

    Args:
        backbone: a `RoFormerSeq2SeqBackbone`.
        preprocessor: a `RoFormerSeq2SeqLMPreprocessor`, or `None` for token ids in place of strings.
        **kwargs: of `keras.Model`.

    Call arguments:
        inputs: dictionary as of `RoFormerSeq2SeqBackbone`.

    Returns:
        Logits `(batch, length, vocabulary_size)`; those at position i are of token i + 1 of the target.

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
    optional_inputs = ()
    generation_inputs = (
        "encoder_token_ids",
        "encoder_padding_mask",
        "decoder_token_ids",
        "decoder_padding_mask",
    )

    def __init__(self, backbone, preprocessor=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor

        # === Functional model ===
        inputs = backbone.input
        hidden = backbone(inputs)["decoder_sequence_output"]
        outputs = backbone.token_embedding(hidden, reverse=True)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def compile(
        self, optimizer="auto", loss="auto", *, sampler="auto", jit_compile="auto", **kwargs
    ):
        """Configures training and generation; see `keras_hub.models.CausalLM.compile`.

        Args:
            optimizer: as of Keras.
            loss: by default `SmoothedCrossentropy(0.1)`.
            sampler: by default `BeamSearchSampler(num_beams=4, length_penalty=0.6)`, as in the paper.
            jit_compile: as of Keras; `generate` uses XLA only if it is `True`, as XLA makes a program for each size of
                its batches.
            **kwargs: of KerasHub.
        """
        if loss == "auto":
            loss = SmoothedCrossentropy(0.1)
        if sampler == "auto":
            sampler = BeamSearchSampler(num_beams=4, length_penalty=0.6)
        super().compile(
            optimizer=optimizer, loss=loss, sampler=sampler, jit_compile=jit_compile, **kwargs
        )

    def generate(self, inputs, max_length=None, stop_token_ids="auto"):
        """Translations.

        Args:
            inputs: string, list of strings, or a `tf.data.Dataset` of batches of them: the sources, all of a list in
                one batch (`roformer_tf.models.translate` makes batches). A tuple `(sources, beginnings)`, or a
                dictionary of `encoder_text` and `decoder_text`, for targets that begin in a given way. Without a
                preprocessor a dictionary as of a call, whose targets have the length that is filled.
            max_length: integer, the most tokens of a target, with its special tokens; by default 50 more than the
                longest source of the batch, and no more than the preprocessor allows.
            stop_token_ids: list of ids that end a target, or `None`; `"auto"` is `</s>`.

        Returns:
            A string or a list of strings; without a preprocessor a dictionary of NumPy arrays, `decoder_token_ids` and
            `decoder_padding_mask`, 1 for what was given and generated, with the stop token.

        Raises:
            ValueError: if there is no text, `max_length` has no room for a new token, or there are not as many
                beginnings as sources.
        """
        check_not_empty(inputs)
        if max_length is not None and (not isinstance(max_length, int) or max_length < 2):
            raise ValueError(
                "`max_length` must be an integer of at least 2, for <s> and a new token. "
                f"Received: max_length={max_length!r}"
            )
        if not isinstance(stop_token_ids, str):
            stop_token_ids = checked_stops(stop_token_ids)
        is_single = False
        if self.preprocessor is not None:
            inputs, is_single = self._strings(inputs, max_length)
        texts = super().generate(inputs, max_length=max_length, stop_token_ids=stop_token_ids)
        return texts[0] if is_single else texts

    def _strings(self, inputs, max_length):
        """The texts as tensors, or as a pair of them, and whether they are a single pair.

        KerasHub would leave it to TensorFlow, which refuses strings with half a character.
        """
        sources, beginnings = (
            as_pair(inputs) if isinstance(inputs, tuple | dict) else (inputs, None)
        )
        if beginnings is None:
            return (sources if is_dataset(sources) else to_string_tensor(sources)), False
        pair, is_single = prompt_columns((sources, beginnings))
        self._check_room(pair, max_length)
        return tuple(map(to_string_tensor, pair)), is_single

    def _check_room(self, pairs, max_length):
        prompt = self.preprocessor.generate_preprocess(pairs, sequence_length=max_length)
        mask = ops.convert_to_numpy(prompt["decoder_padding_mask"])
        if mask[:, -1].any():
            raise ValueError(
                f"There is no room for a new token: row {mask[:, -1].argmax()} has a beginning that fills the "
                f"{mask.shape[1]} places of a target. Shorten it, or take a larger `max_length`."
            )

    def generate_step(self, inputs, stop_token_ids=None):
        """Generation of one batch, in one graph.

        Args:
            inputs: dictionary as of a call; the rows of the target have the length that is filled, and
                `decoder_padding_mask` says which tokens are given. Each row has its start token at least.
            stop_token_ids: list of ids, or `None`.

        Returns:
            Dictionary of `decoder_token_ids`, and `decoder_padding_mask`: what is given and generated, with the stop
            token.
        """
        given = ops.cast(inputs["decoder_padding_mask"], "bool")
        ids = ops.cast(inputs["decoder_token_ids"], "int32")
        ids = remove_stop_tokens(ids, given, stop_token_ids, self.backbone.vocabulary_size)
        source_mask = inputs["encoder_padding_mask"]
        encoder_sequence = self.backbone.encode(inputs["encoder_token_ids"], source_mask)
        index = ops.min(ops.sum(ops.cast(given, "int32"), axis=-1))
        cache, next = self._make_next(ids, index, encoder_sequence, source_mask)
        ids = self.sampler(
            next=next,
            prompt=ids,
            cache=cache,
            index=index,
            mask=given,
            stop_token_ids=stop_token_ids,
            model=self,
        )
        kept = valid_token_mask(ids, given, stop_token_ids, **stopping_rules(self.sampler))
        return {"decoder_token_ids": ids, "decoder_padding_mask": kept}

    def _make_next(self, ids, index, encoder_sequence, source_mask):
        """The cache before the token at `index`, and the samplers' `next`."""
        backbone = self.backbone

        def logits_of(hidden):
            return backbone.token_embedding(hidden, reverse=True)[:, 0]

        if not backbone.supports_cache:

            def next_of_whole_rows(prompt, cache, index):
                count = ops.shape(prompt)[1]
                if not has_fixed_shapes():  # the room that is still free need not be read
                    prompt, count = prompt[:, :index], index
                real = ops.arange(count, dtype="int32") < index
                real = ops.broadcast_to(ops.cast(real, "int32"), ops.shape(prompt))
                hidden = backbone.decode(prompt, real, encoder_sequence, source_mask)
                hidden = ops.take(hidden, ops.reshape(index - 1, (1,)), axis=1)
                return logits_of(hidden), hidden[:, 0], cache

            return None, next_of_whole_rows

        # one for the beams of a source, and so no part of the cache, which samplers repeat and reorder
        cross_attention_cache = backbone.build_cross_attention_cache(encoder_sequence, source_mask)

        def step(ids, cache, index):
            token = ops.take(ids, ops.reshape(index, (1,)), axis=1)
            return backbone.call_with_cache(token, cache, index, cross_attention_cache)

        def next(prompt, cache, index):
            hidden, cache = step(prompt, cache, index - 1)
            return logits_of(hidden), hidden[:, 0], cache

        batch_size, length = ops.shape(ids)
        cache = backbone.build_cache(batch_size, length)
        # mostly there is no beginning of a target, and so nothing to do
        _, cache = ops.while_loop(
            lambda place, cache: place < index - 1,
            lambda place, cache: (place + 1, step(ids, cache, place)[1]),
            (ops.zeros_like(index), cache),
        )
        return cache, next

    def _checked(self, x, y=None):
        if self.preprocessor is not None and isinstance(x, dict):
            x = as_pair(x)
        return super()._checked(x, y)
