import functools
import numbers

import keras
import keras_hub
import numpy as np
from keras import ops

from roformer_tf.layers.self_attention import inputs_up_to, short_up_to
from roformer_tf.models.prediction import not_finite_error
from roformer_tf.models.roformer_preprocessor import LONGEST
from roformer_tf.samplers import remove_stop_tokens, valid_token_mask


class CompiledGeneration:
    """Mixin of the models that generate: one graph runs the whole loop of a batch.

    KerasHub traces a graph for each size of a batch, which takes seconds. On TensorFlow without XLA
    one graph serves all sizes.
    """

    generates_with_xla = False

    def compile(self, *args, jit_compile="auto", **kwargs):
        """See `keras.Model.compile`. `generate` uses XLA only if `jit_compile` is `True`."""
        self.generates_with_xla = jit_compile is True
        super().compile(*args, jit_compile=jit_compile, **kwargs)

    def get_compile_config(self):
        config = super().get_compile_config()
        if config is not None:  # KerasHub takes the sampler before Keras notes the arguments
            config["sampler"] = keras_hub.samplers.serialize(self.sampler)
        return config

    def make_generate_function(self):
        """Returns the compiled `generate_step`; it raises an error if the outputs are NaN."""
        if self.generate_function is not None:
            return self.generate_function
        if self.run_eagerly or self.generates_with_xla or keras.config.backend() != "tensorflow":
            function = super().make_generate_function()
        else:
            function = self._generate_for_any_shape()

        def generate(inputs, stop_token_ids=None):
            outputs = function(inputs, stop_token_ids=stop_token_ids)
            name = next(name for name in outputs if name.endswith("token_ids"))
            if (ops.convert_to_numpy(outputs[name]) < 0).any():  # see `rows_are_finite`
                raise not_finite_error(self)
            return outputs

        self.generate_function = generate
        return generate

    def _generate_for_any_shape(self):
        import tensorflow as tf

        @functools.cache
        def graph(stop_token_ids, longest, ranks):
            step = functools.partial(self.generate_step, stop_token_ids=stop_token_ids)
            step = inputs_up_to(longest)(step)
            signature = [{name: tf.TensorSpec([None] * rank, tf.int32) for name, rank in ranks}]
            return tf.function(step, input_signature=signature, autograph=False)

        def generate(inputs, stop_token_ids=None):
            names = [*self.input, "min_new_tokens"]
            inputs = {name: tf.cast(inputs[name], tf.int32) for name in names if name in inputs}
            ranks = tuple((name, x.shape.rank) for name, x in inputs.items())
            longest = short_up_to(max(x.shape[1] for x in inputs.values() if x.shape.rank))
            stop_token_ids = None if stop_token_ids is None else tuple(stop_token_ids)
            return graph(stop_token_ids, longest, ranks)(inputs)

        return generate

    def checked_stop_token_ids(self, stop_token_ids):
        """Returns the ids that end a text as a list of integers, or `None` for none.

        `"auto"` is the tokenizer's end token.

        Raises:
            ValueError: If they are anything else, or `"auto"` without a preprocessor.
        """
        if stop_token_ids is None:
            return None
        if isinstance(stop_token_ids, str) and stop_token_ids == "auto":
            if self.preprocessor is None:
                raise ValueError(
                    "Without a preprocessor `stop_token_ids` must be a list of ids, or None to "
                    'fill the sequences. Received: stop_token_ids="auto"'
                )
            return [self.preprocessor.tokenizer.end_token_id]
        is_list = hasattr(stop_token_ids, "__iter__") and not isinstance(stop_token_ids, str)
        ids = np.asarray(list(stop_token_ids)) if is_list else None
        if ids is None or ids.ndim != 1 or ids.size and ids.dtype.kind not in "iu":
            raise ValueError(
                "`stop_token_ids` must be a list of ids, None or 'auto'. "
                f"Received: stop_token_ids={stop_token_ids!r}"
            )
        return ids.tolist() or None

    def sample(self, next, token_ids, prompt_mask, stop_token_ids, **kwargs):
        """Fills the sequences after their prompts with the model's sampler.

        Args:
            next: `next(prompt, cache, index) -> (logits, hidden_states, cache)`.
            token_ids: int tensor `(batch, length)`.
            prompt_mask: bool tensor `(batch, length)`, `True` at the tokens of the prompts.
            stop_token_ids: list of ids, or `None`.
            **kwargs: Arguments of the sampler, such as `cache` and `index`.

        Returns:
            The token ids, and the mask of the tokens of prompt and text, with its stop token.

        Raises:
            ValueError: If the sampler chooses among more tokens than there are, or needs hidden
                states of the prompt.
        """
        needs_states = isinstance(self.sampler, keras_hub.samplers.ContrastiveSampler)
        if needs_states and kwargs.get("hidden_states") is None:
            raise ValueError(
                "The contrastive sampler compares hidden states from the cache of a causal model. "
                "Use another sampler. Received: a model without such a cache"
            )
        k, vocabulary_size = getattr(self.sampler, "k", None), self.backbone.vocabulary_size
        if k is not None and k > vocabulary_size:
            raise ValueError(
                f"The sampler's `k` must be at most the vocabulary's size, {vocabulary_size}. "
                f"Received: {type(self.sampler).__name__} with k={k}"
            )
        token_ids = remove_stop_tokens(token_ids, prompt_mask, stop_token_ids, vocabulary_size)
        token_ids = self.sampler(
            next=next,
            prompt=token_ids,
            mask=prompt_mask,
            stop_token_ids=stop_token_ids,
            model=self,
            **kwargs,
        )
        # Some samplers do not end a text at its first stop token.
        rules = {
            name: getattr(self.sampler, name)
            for name in ("min_ends", "min_length")
            if hasattr(self.sampler, name)
        }
        return token_ids, valid_token_mask(token_ids, prompt_mask, stop_token_ids, **rules)


def rows_are_finite(x):
    """Returns a bool tensor `(batch, 1)`: whether all numbers of an example are finite.

    A graph raises no error on every backend, so `generate_step` returns -1 for all tokens of the
    other examples.
    """
    is_finite = ops.isfinite(ops.cast(x, "float32"))
    return ops.all(ops.reshape(is_finite, (ops.shape(x)[0], -1)), axis=-1, keepdims=True)


def check_max_length(max_length, start_token):
    """Raises `ValueError` if `max_length` leaves no room for the start token and a new one."""
    is_integer = isinstance(max_length, numbers.Integral)
    if is_integer and max_length > LONGEST:
        raise ValueError(
            f"`max_length` must be at most {LONGEST:,} tokens, for which memory is taken at once. "
            f"Received: max_length={max_length!r}"
        )
    if max_length is not None and (not is_integer or max_length < 2):
        raise ValueError(
            f"`max_length` must be an integer of at least 2, for {start_token} and a new token. "
            f"Received: max_length={max_length!r}"
        )
