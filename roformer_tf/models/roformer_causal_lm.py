import numbers

import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.checks import check_one_of, check_positive_integer
from roformer_tf.layers.cache import has_fixed_shapes
from roformer_tf.models.batches import (
    check_not_empty,
    is_dataset,
    is_text,
    prompt_columns,
    string_tensors,
    take_rows,
    text_batch,
)
from roformer_tf.models.compiled_generation import (
    CompiledGeneration,
    check_max_length,
    rows_are_finite,
)
from roformer_tf.models.length_batches import COST_OF_GENERATION, count_tokens, length_batches
from roformer_tf.models.prediction import predict_logits
from roformer_tf.models.roformer_backbone import RoFormerBackbone, sequence_output
from roformer_tf.models.roformer_causal_lm_preprocessor import RoFormerCausalLMPreprocessor
from roformer_tf.models.roformer_masked_lm import language_model_head, token_loss
from roformer_tf.models.roformer_task import RoFormerTask
from roformer_tf.samplers import with_min_length


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerCausalLM(CompiledGeneration, RoFormerTask, keras_hub.models.CausalLM):
    """Causal (RoFormer-GPT) or prefix (UniLM, RoFormer-Sim) language model: next-token logits.

    `generate` continues a prompt, using the `sampler` passed to `compile`. `score` returns how
    likely a text is.

    Args:
        backbone: a `RoFormerBackbone` with `masking="causal"` or `"unilm"`.
        preprocessor: a `RoFormerCausalLMPreprocessor`, or `None` to take token ids instead of
            strings.
        head_epsilon: float. Epsilon of the layer norm in the head.
        **kwargs: Arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of the inputs of `RoFormerBackbone`.

    Returns:
        Logits `(batch, length, vocabulary_size)`. Those at position i predict token i + 1.

    Raises:
        ValueError: If the backbone sees future tokens (`masking="bidirectional"`).

    Example:

    >>> import numpy as np
    >>> import roformer_tf
    >>> backbone = roformer_tf.RoFormerBackbone(
    ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32,
    ...     masking="causal",
    ... )
    >>> causal_lm = roformer_tf.RoFormerCausalLM(backbone)
    >>> ids = np.array([[2, 15, 31, 3]])
    >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    >>> tuple(causal_lm(inputs).shape)
    (1, 4, 100)
    >>> scores = causal_lm.score(inputs)
    >>> scores["num_tokens"].tolist()
    [3]

    Reference: `application="lm"` and `"unilm"` of bert4keras' `models.py`.
    """

    backbone_cls = RoFormerBackbone
    preprocessor_cls = RoFormerCausalLMPreprocessor
    saved_masking = "causal"

    def __init__(self, backbone, preprocessor=None, head_epsilon=1e-12, **kwargs):
        if backbone.masking == "bidirectional":
            raise ValueError(
                "A causal language model needs a backbone with `masking='causal'` or "
                "`masking='unilm'`. Received: a backbone with masking='bidirectional'"
            )
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.head = language_model_head(backbone, head_epsilon)

        # === Functional model ===
        super().__init__(backbone.input, **kwargs)

        # === Config ===
        self.head_epsilon = head_epsilon

    def compute_outputs(self, inputs, training=None):
        return self.head(
            sequence_output(self.backbone(inputs, training=training)), training=training
        )

    def compile(self, optimizer="auto", loss="auto", **kwargs):
        """See `keras_hub.models.CausalLM.compile`.

        The default loss is the mean over the tokens that count. `generate` uses XLA only if
        `jit_compile` is `True`, as XLA compiles a program for each size of a batch.
        """
        super().compile(optimizer=optimizer, loss=token_loss(loss), **kwargs)

    def generate(
        self,
        inputs,
        max_length=None,
        stop_token_ids="auto",
        strip_prompt="auto",
        min_new_tokens=0,
        batch_size=None,
    ):
        """Generates a continuation of each prompt, or with UniLM a target for each source.

        The prompt is `[CLS] text`, or `[CLS] source [SEP]` for UniLM, as in training. A batch takes
        one step for each position after the end of its shortest prompt.

        Args:
            inputs: string, list of strings, or `tf.data.Dataset` of batches of them; or a tuple
                `(sources, starts)` of two strings or two lists, where a target begins with its
                start. Without a preprocessor a dictionary of `token_ids`, `padding_mask` (1 for the
                prompt) and optionally `segment_ids`, padded on the right: each `(batch, length)`,
                where `length` is that of the result.
            max_length: int. Maximum number of tokens of a sequence, with its prompt and special
                tokens. By default the preprocessor's `sequence_length`.
            stop_token_ids: list of ids that end a text, or `None` to continue up to `max_length`.
                `"auto"` is `[SEP]`.
            strip_prompt: bool. Whether to leave out the prompt. `"auto"` leaves out the source with
                UniLM, and keeps the start of the target.
            min_new_tokens: int. Minimum number of new tokens before one of `stop_token_ids`.
            batch_size: int. Number of prompts of a list that run at once, those of similar length
                together; the results keep the order of the list. By default all run at once.

        Returns:
            String or list of strings, prompts included, as the tokens spell them: in lower case,
            and with the blanks that tokens have. Without a preprocessor a dictionary of NumPy
            arrays `(batch, length)`: `token_ids`, and `padding_mask`, 1 for the prompt and the new
            tokens with their stop token.

        Raises:
            ValueError: If there is no prompt or no room for a new token, an option is invalid, or
                the model's outputs are NaN.
            TypeError: If a prompt is not a string.
        """
        if batch_size is not None:
            check_positive_integer("batch_size", batch_size)
            self.check_preprocessor()
        check_max_length(max_length, "[CLS]")
        check_one_of("strip_prompt", strip_prompt, ("auto", True, False))
        if not isinstance(min_new_tokens, numbers.Integral) or min_new_tokens < 0:
            raise ValueError(
                "`min_new_tokens` must be an integer of at least 0. "
                f"Received: min_new_tokens={min_new_tokens!r}"
            )
        stop_token_ids = self.checked_stop_token_ids(stop_token_ids)
        strips_source = self.backbone.masking == "unilm" and self.preprocessor is not None
        function = self.make_generate_function()

        outputs = []
        batches, is_single, order = self._prompts(inputs, batch_size)
        for batch in batches:
            prompt = batch
            if self.preprocessor is not None:
                prompt = self.preprocessor.generate_preprocess(batch, sequence_length=max_length)
            self._check_prompt(prompt)
            prompt = {"segment_ids": ops.zeros_like(prompt["token_ids"]), **prompt}
            if min_new_tokens:  # a tensor, so that another number traces no graph
                least = min(min_new_tokens, prompt["token_ids"].shape[1])
                prompt["min_new_tokens"] = ops.convert_to_tensor(least, "int32")
            output = function(prompt, stop_token_ids=stop_token_ids)
            stripped = strip_prompt
            if strip_prompt == "auto":
                stripped = strips_source and ops.convert_to_numpy(prompt["segment_ids"]) == 0
            prompt_mask = ops.convert_to_numpy(prompt["padding_mask"]).astype("bool")
            mask = ops.convert_to_numpy(output["padding_mask"]).astype("bool")
            output = {**output, "padding_mask": mask & ~(prompt_mask & stripped)}
            if self.preprocessor is not None:
                output = self.preprocessor.generate_postprocess(output)
            outputs.append(output)
        results = self._normalize_generate_outputs(outputs, is_single)
        return results if order is None else [results[i] for i in np.argsort(order)]

    def generate_step(self, inputs, stop_token_ids=None):
        """Generates one batch, in one graph.

        Args:
            inputs: The dictionary that `generate` takes without a preprocessor, and optionally
                `min_new_tokens`, an int or scalar integer tensor.
            stop_token_ids: list of ids, or `None`.

        Returns:
            Dictionary of `token_ids` and `padding_mask`, see `generate`.
        """
        prompt_mask = ops.cast(inputs["padding_mask"], "bool")
        token_ids = ops.cast(inputs["token_ids"], "int32")
        segment_ids = ops.zeros_like(token_ids)
        if self.backbone.masking == "unilm":
            segment_ids = ops.cast(inputs.get("segment_ids", segment_ids), "int32")
            segment_ids = ops.where(prompt_mask, segment_ids, 1)
        lengths = ops.sum(ops.cast(prompt_mask, "int32"), axis=-1)
        # In an empty batch the minimum is the largest integer.
        index = ops.minimum(ops.min(lengths), ops.shape(token_ids)[1])
        cache = {"segment_ids": segment_ids, "prompt_mask": prompt_mask}
        if self.backbone.supports_cache:
            hidden_states, cache["backbone"] = self._build_cache(token_ids, cache, lengths)
            next = self._next_with_cache
            is_finite = rows_are_finite(hidden_states)
        else:
            hidden_states, next = None, self._next_without_cache
            is_finite = rows_are_finite(next(token_ids, cache, index)[0])
        if "min_new_tokens" in inputs:
            next = with_min_length(next, inputs["min_new_tokens"], stop_token_ids, prompt_mask)
        token_ids, mask = self.sample(
            next,
            token_ids,
            prompt_mask,
            stop_token_ids,
            cache=cache,
            index=index,
            hidden_states=hidden_states,
        )
        return {"token_ids": ops.where(is_finite, token_ids, -1), "padding_mask": mask}

    def call_with_cache(self, token_ids, cache, cache_update_index, segment_ids=None):
        """Runs the model a few tokens at a time, with a key/value cache.

        Args:
            token_ids: int tensor `(batch, length)`, the tokens at positions `cache_update_index`,
                `cache_update_index + 1`, …
            cache: Cache returned by `backbone.build_cache`, or by the previous call.
            cache_update_index: int or scalar integer tensor.
            segment_ids: int tensor `(batch, length)`, 0 by default.

        Returns:
            Tuple `(logits, hidden_states, cache)`: logits `(batch, length, vocabulary_size)`,
            hidden states `(batch, length, hidden_dim)`, and the new cache.
        """
        inputs = {"token_ids": token_ids}
        if segment_ids is not None:
            inputs["segment_ids"] = segment_ids
        hidden_states, cache = self.backbone.call_with_cache(inputs, cache, cache_update_index)
        return self.head(hidden_states), hidden_states, cache

    def _build_cache(self, token_ids, prompts, lengths):
        """Returns the hidden states of the prompts `(batch, length, hidden_dim)`, and the cache."""
        backbone = self.backbone
        batch_size, max_length = ops.shape(token_ids)
        index = ops.min(lengths)
        # Some models need whole prompts at once. Others read the rest of a longer prompt token by
        # token, while shorter ones grow.
        whole = backbone.masking == "unilm" or backbone.position_scheme.depends_on_length
        count = ops.max(lengths) if whole else index
        count = max_length if has_fixed_shapes() else ops.clip(count, 1, max_length)
        padding_mask = prompts["prompt_mask"]
        if backbone.attention != "softmax":
            # The first step reads the last token again, which linear attention would add twice.
            padding_mask = ops.logical_and(padding_mask, ops.arange(max_length) < index - 1)
        inputs = {
            "token_ids": token_ids,
            "segment_ids": prompts["segment_ids"],
            "padding_mask": padding_mask,
        }
        hidden_states, cache = backbone.call_with_cache(
            {name: x[:, :count] for name, x in inputs.items()},
            backbone.build_cache(batch_size, max_length),
            0,
        )
        return ops.pad(hidden_states, ((0, 0), (0, max_length - count), (0, 0))), cache

    def _next_with_cache(self, prompt, cache, index):
        """Returns the logits of the tokens at `index`, hidden states and cache, for the sampler."""
        start, shape = (0, index - 1), (ops.shape(prompt)[0], 1)
        logits, hidden_states, backbone_cache = self.call_with_cache(
            ops.slice(prompt, start, shape),
            cache["backbone"],
            index - 1,
            segment_ids=ops.slice(cache["segment_ids"], start, shape),
        )
        return logits[:, 0], hidden_states[:, 0], {**cache, "backbone": backbone_cache}

    def _next_without_cache(self, prompt, cache, index):
        """Does the same for models that support no cache, by reading all tokens again."""
        batch_size, count = ops.shape(prompt)
        mask = ops.logical_or(cache["prompt_mask"], ops.arange(count) < index)
        if not has_fixed_shapes():
            count = ops.clip(ops.max(ops.sum(ops.cast(mask, "int32"), axis=-1)), 1, count)
        inputs = {
            "token_ids": prompt,
            "segment_ids": cache["segment_ids"],
            "padding_mask": ops.cast(mask, "int32"),
        }
        inputs = {name: x[:, :count] for name, x in inputs.items()}
        inputs["output_positions"] = ops.broadcast_to(ops.cast(index - 1, "int32"), (batch_size, 1))
        hidden_states = sequence_output(self.backbone(inputs))
        return self.head(hidden_states)[:, 0], hidden_states[:, 0], cache

    def _prompts(self, inputs, batch_size):
        """Returns batches of prompts, whether there is a single text, and the order of all texts.

        The order is `None` if it is the one given.
        """
        if self.preprocessor is None:
            return *self._normalize_generate_inputs(inputs), None
        is_pair = isinstance(inputs, tuple) and len(inputs) == 2
        parts, is_single = prompt_columns(inputs if is_pair else (inputs,))
        inputs = parts if is_pair else parts[0]
        from_dataset = any(is_dataset(part) for part in parts)
        if from_dataset:
            spec = getattr(inputs, "element_spec", None)
            if getattr(spec, "dtype", None) != "string" or spec.shape.rank != 1:
                raise ValueError(
                    "Expected a `tf.data.Dataset` of batches of strings: `dataset.batch(16)`. "
                    f"Received: {spec if spec is not None else type(inputs).__name__}"
                )
        check_not_empty(inputs)
        order = None
        if batch_size is None or is_single or from_dataset:
            batches, _ = self._normalize_generate_inputs(inputs)
        else:
            lengths = count_tokens(self.preprocessor, inputs)
            groups = length_batches(lengths, batch_size, cost=COST_OF_GENERATION)
            batches, order = [take_rows(inputs, rows) for rows in groups], np.concatenate(groups)
        if self.backbone.masking == "unilm" and not is_pair:
            batches = ((batch, [""] * len(batch)) for batch in batches)
        return batches, is_single, order

    def _check_prompt(self, prompt):
        mask = ops.convert_to_numpy(prompt["padding_mask"]).astype("bool")
        lengths = mask.sum(-1)
        if len(mask) and (not lengths.min() or (mask[:, 1:] > mask[:, :-1]).any()):
            raise ValueError(
                "Each row of `padding_mask` must be 1 for the tokens of a prompt, at least one, "
                "and then 0 for the positions to fill: 1, …, 1, 0, …, 0. Received: "
                f"padding_mask={mask.astype(int).tolist()}"
            )
        if len(mask) and lengths.max() >= mask.shape[1]:
            raise ValueError(
                f"There is no room for a new token: prompt {lengths.argmax()} has {lengths.max()} "
                f"tokens already, and at most {mask.shape[1]} are allowed. Shorten it, or use a "
                "larger `max_length`."
            )
        most = getattr(self.backbone.position_scheme, "max_sequence_length", None)
        if most is not None and mask.shape[1] > most:
            raise ValueError(
                f"There are learned positions for {most} tokens only (`max_sequence_length`): use "
                f"a smaller `max_length`. Received: sequences of {mask.shape[1]} tokens"
            )

    def score(self, inputs, batch_size=32):
        """Returns how likely the model finds each text.

        A text longer than `preprocessor.sequence_length` is truncated: `num_tokens` are those
        scored.

        Args:
            inputs: string, list of strings, or a tuple `(sources, targets)` of two lists, whose
                targets are scored. Without a preprocessor model inputs, of which every token but
                the first is scored.
            batch_size: int. Number of texts that run at once.

        Returns:
            Dictionary of NumPy arrays with an entry for each text: `"log_likelihood"` (sum of
            natural logarithms over the scored tokens), `"num_tokens"`, and `"perplexity"`,
            exp(-log_likelihood / num_tokens).

        Raises:
            ValueError: If there is no text, `batch_size` is not positive, or the model's outputs
                are NaN.
            TypeError: If an example is not a string.
        """
        check_not_empty(inputs)
        check_positive_integer("batch_size", batch_size)
        if self.preprocessor is not None:
            texts = text_batch(inputs)[0] if is_text(inputs) else string_tensors(inputs)
            # `call` returns what a model is trained on: for RoFormerSim each pair twice.
            inputs, targets, weights = self.preprocessor.next_tokens(texts)
        else:
            ids, mask = (np.asarray(inputs[k]) for k in ("token_ids", "padding_mask"))
            targets, weights = ids[:, 1:], mask[:, 1:]
            inputs = {k: np.asarray(v)[:, :-1] for k, v in inputs.items()}
        inputs, targets, weights = keras.tree.map_structure(
            ops.convert_to_numpy, (inputs, targets, weights)
        )

        log_likelihood = []
        for start in range(0, len(targets), batch_size):
            part = slice(start, start + batch_size)
            logits = predict_logits(self, {k: v[part] for k, v in inputs.items()})
            peak = logits.max(-1, keepdims=True)
            log_sum = np.log(np.exp(logits - peak).sum(-1, dtype="float64")) + peak[..., 0]
            chosen = np.take_along_axis(logits, targets[part][..., None], -1)[..., 0]
            log_likelihood.append(((chosen - log_sum) * weights[part]).sum(-1))
        log_likelihood = np.concatenate(log_likelihood)
        num_tokens = weights.sum(-1).astype("int64")
        return {
            "log_likelihood": log_likelihood,
            "num_tokens": num_tokens,
            "perplexity": np.exp(-log_likelihood / np.maximum(num_tokens, 1)),
        }

    def run_on(self, texts):
        # a new token for the longest prompt is enough
        longest = int(ops.max(self.preprocessor.count_tokens(texts)))
        self.generate(texts, max_length=min(longest + 1, self.preprocessor.sequence_length))
