from keras import ops

from roformer_tf.layers.cache import has_fixed_shapes
from roformer_tf.models.batches import is_dataset, prompt_columns, string_tensors
from roformer_tf.models.compiled_generation import (
    CompiledGeneration,
    checked_stops,
    stopping_rules,
)
from roformer_tf.models.roformer_backbone import sequence_output
from roformer_tf.models.roformer_task import check_not_empty
from roformer_tf.samplers import remove_stop_tokens, valid_token_mask, with_min_length


class GeneratesTexts(CompiledGeneration):
    """Mixin of the causal language models: `generate`, token by token with a cache, the whole loop in one graph.

    How the next token is chosen is the `sampler` of `compile`.
    """

    generation_inputs = ("token_ids", "segment_ids", "padding_mask")
    _min_new_tokens = 0

    def generate(
        self,
        inputs,
        max_length=None,
        stop_token_ids="auto",
        strip_prompt="auto",
        min_new_tokens=0,
    ):
        """Texts that go on from prompts; of a UniLM model, answers to sources.

        The prompt is `[CLS] text`, for UniLM `[CLS] source [SEP]`, as the models were trained. A batch costs as many
        steps as there are from the end of its shortest prompt.

        Args:
            inputs: string, list of strings, or a `tf.data.Dataset` of batches of them; a tuple `(sources, beginnings)`
                of two strings or two lists for answers that begin in a given way. Without a preprocessor a dictionary
                of `token_ids`, `padding_mask` (1 for the prompt) and optionally `segment_ids`, padded at the right:
                each `(batch, length)`, and as long as the result shall be.
            max_length: positive integer, the most tokens that a row may have, with its prompt and its special tokens;
                by default the `sequence_length` of the preprocessor.
            stop_token_ids: list of ids that end a text, or `None` to go on to `max_length`; `"auto"` is `[SEP]`.
            strip_prompt: whether to leave the prompt out of the result; `"auto"`: with UniLM the source, so that an
                answer comes with its beginning.
            min_new_tokens: integer, how many tokens there must be before one of `stop_token_ids`.

        Returns:
            A string or a list of strings, as the tokens say it: in lower case, with blanks where tokens have some; of
            a prompt, too. Without a preprocessor a dictionary of NumPy arrays `(batch, length)`:
            `token_ids`, and `padding_mask`, 1 for the prompt and what was generated, with the stop token.

        Raises:
            ValueError: if there is no prompt, no room for a new token, or an option makes no sense.
            TypeError: if a prompt is no string.
        """
        self._check_options(max_length, min_new_tokens)
        if isinstance(stop_token_ids, str) and stop_token_ids == "auto":
            if self.preprocessor is None:
                raise ValueError(
                    "Without a preprocessor `stop_token_ids` must be a list of ids, or None to go on to the end of "
                    'the rows. Received: stop_token_ids="auto"'
                )
            stop_token_ids = [self.preprocessor.tokenizer.end_token_id]
        stop_token_ids = checked_stops(stop_token_ids)
        answers = self.backbone.masking == "unilm" and self.preprocessor is not None
        if min_new_tokens != self._min_new_tokens:
            self._min_new_tokens = min_new_tokens
            self.generate_function = None
        function = self.make_generate_function()

        outputs = []
        batches, is_single = self._prompts(inputs)
        for batch in batches:
            prompt = batch
            if self.preprocessor is not None:
                prompt = self.preprocessor.generate_preprocess(batch, sequence_length=max_length)
            self._check_prompt(prompt)
            prompt = {"segment_ids": ops.zeros_like(prompt["token_ids"]), **prompt}
            output = function(prompt, stop_token_ids=stop_token_ids)
            hidden = strip_prompt
            if strip_prompt == "auto":
                hidden = answers and ops.convert_to_numpy(prompt["segment_ids"]) == 0
            given = ops.convert_to_numpy(prompt["padding_mask"]).astype("bool")
            kept = ops.convert_to_numpy(output["padding_mask"]).astype("bool")
            output = {**output, "padding_mask": kept & ~(given & hidden)}
            if self.preprocessor is not None:
                output = self.preprocessor.generate_postprocess(output)
            outputs.append(output)
        return self._normalize_generate_outputs(outputs, is_single)

    def generate_step(self, inputs, stop_token_ids=None, min_new_tokens=None):
        """Generation of one batch, in one graph.

        Args:
            inputs: dictionary as of `generate` without a preprocessor.
            stop_token_ids: list of ids, or `None`.
            min_new_tokens: as of `generate`; by default as it was called last.

        Returns:
            Dictionary of `token_ids` and `padding_mask`, see `generate`.
        """
        given = ops.cast(inputs["padding_mask"], "bool")
        ids = ops.cast(inputs["token_ids"], "int32")
        ids = remove_stop_tokens(ids, given, stop_token_ids, self.backbone.vocabulary_size)
        segments = ops.zeros_like(ids)
        if self.backbone.masking == "unilm":
            segments = ops.cast(inputs.get("segment_ids", segments), "int32")
            segments = ops.where(given, segments, 1)
        lengths = ops.sum(ops.cast(given, "int32"), axis=-1)
        index = ops.minimum(
            ops.min(lengths), ops.shape(ids)[1]
        )  # the minimum of no rows has no end
        known = {"segment_ids": segments, "given": given}
        if self.backbone.supports_cache:
            cache, hidden_states = self._read_prompts(ids, known, lengths)
            cache, next = {**known, "backbone": cache}, self._next_of_steps
        else:
            cache, next, hidden_states = known, self._next_of_whole_rows, None
        if min_new_tokens is None:
            min_new_tokens = self._min_new_tokens
        ids = self.sampler(
            next=with_min_length(next, min_new_tokens, stop_token_ids, given),
            prompt=ids,
            cache=cache,
            index=index,
            mask=given,
            stop_token_ids=stop_token_ids,
            hidden_states=hidden_states,
            model=self,
        )
        kept = valid_token_mask(ids, given, stop_token_ids, **stopping_rules(self.sampler))
        return {"token_ids": ids, "padding_mask": kept}

    def _read_prompts(self, ids, known, lengths):
        """The cache before the first new token, and the prompts' hidden states `(batch, length, hidden_dim)`."""
        backbone = self.backbone
        batch_size, max_length = ops.shape(ids)
        index = ops.min(lengths)
        # what sees the whole prompt needs all of it; the rest of a longer row is otherwise read token by token
        whole = backbone.masking == "unilm" or backbone.position_scheme.depends_on_length
        count = ops.max(lengths) if whole else index
        count = max_length if has_fixed_shapes() else ops.clip(count, 1, max_length)
        real = known["given"]
        if backbone.attention != "softmax":
            # the first step reads the last token again, which sums would count twice
            real = ops.logical_and(real, ops.arange(max_length) < index - 1)
        prompt = {"token_ids": ids, "segment_ids": known["segment_ids"], "padding_mask": real}
        cache = backbone.build_cache(batch_size, max_length)
        hidden, cache = backbone.call_with_cache(
            {k: v[:, :count] for k, v in prompt.items()}, cache, 0
        )
        return cache, ops.pad(hidden, ((0, 0), (0, max_length - count), (0, 0)))

    def _next_of_steps(self, prompt, cache, index):
        """Logits of the tokens at `index`, from the tokens before them and the cache."""
        place, rows = (0, index - 1), ops.shape(prompt)[0]
        here = {
            "token_ids": ops.slice(prompt, place, (rows, 1)),
            "segment_ids": ops.slice(cache["segment_ids"], place, (rows, 1)),
        }
        hidden, steps = self.backbone.call_with_cache(here, cache["backbone"], index - 1)
        return self.head(hidden)[:, 0], hidden[:, 0], {**cache, "backbone": steps}

    def _next_of_whole_rows(self, prompt, cache, index):
        """The same, of models that have no steps: all tokens so far are read again."""
        rows, count = ops.shape(prompt)
        real = ops.logical_or(cache["given"], ops.arange(count) < index)
        if not has_fixed_shapes():
            count = ops.clip(ops.max(ops.sum(ops.cast(real, "int32"), axis=-1)), 1, count)
        inputs = {
            "token_ids": prompt,
            "segment_ids": cache["segment_ids"],
            "padding_mask": ops.cast(real, "int32"),
        }
        hidden = sequence_output(self.backbone({k: v[:, :count] for k, v in inputs.items()}))
        hidden = ops.slice(hidden, (0, index - 1, 0), (rows, 1, hidden.shape[-1]))
        return self.head(hidden)[:, 0], hidden[:, 0], cache

    def _prompts(self, inputs):
        """Batches for the preprocessor, or of ids; and whether there is a single text, without a batch axis."""
        if self.preprocessor is None:
            return super()._normalize_generate_inputs(inputs)
        pair = isinstance(inputs, tuple) and len(inputs) == 2
        parts, is_single = prompt_columns(inputs if pair else (inputs,))
        inputs = parts if pair else parts[0]
        if any(is_dataset(part) for part in parts):
            check_texts_in_batches(inputs)
        check_not_empty(inputs)
        batches, _ = super()._normalize_generate_inputs(string_tensors(inputs))
        if self.backbone.masking == "unilm" and not pair:
            batches = ((batch, [""] * len(batch)) for batch in batches)
        return batches, is_single

    def _check_options(self, max_length, min_new_tokens):
        if max_length is not None and (not isinstance(max_length, int) or max_length < 2):
            raise ValueError(
                "`max_length` must be an integer of at least 2, for [CLS] and a new token. "
                f"Received: max_length={max_length!r}"
            )
        if not isinstance(min_new_tokens, int) or min_new_tokens < 0:
            raise ValueError(
                "`min_new_tokens` must be an integer of at least 0. "
                f"Received: min_new_tokens={min_new_tokens!r}"
            )

    def _check_prompt(self, prompt):
        mask = ops.convert_to_numpy(prompt["padding_mask"]).astype("bool")
        lengths = mask.sum(-1)
        if len(mask) and (not lengths.min() or (mask[:, 1:] > mask[:, :-1]).any()):
            raise ValueError(
                "Each row of `padding_mask` must begin with the tokens of a prompt, at least one, and end with the "
                f"places to be filled: 1, …, 1, 0, …, 0. Received: padding_mask={mask.astype(int).tolist()}"
            )
        if len(mask) and lengths.max() >= mask.shape[1]:
            raise ValueError(
                f"There is no room for a new token: row {lengths.argmax()} has {lengths.max()} tokens already, "
                f"and at most {mask.shape[1]} are allowed. Shorten it, or take a larger `max_length`."
            )
        scheme = self.backbone.position_scheme
        most = getattr(scheme, "max_sequence_length", None)
        if most is not None and mask.shape[1] > most:
            raise ValueError(
                f"There are learned positions for {most} tokens only (`max_sequence_length`): take a smaller "
                f"`max_length`. Received: rows of {mask.shape[1]} tokens"
            )


def check_texts_in_batches(inputs):
    """Refuses datasets that are no batches of strings."""
    spec = getattr(inputs, "element_spec", None)
    if getattr(spec, "dtype", None) != "string" or spec.shape.rank != 1:
        raise ValueError(
            "Expected a `tf.data.Dataset` of batches of strings: `dataset.batch(16)`. "
            f"Received: {spec if spec is not None else type(inputs).__name__}"
        )
