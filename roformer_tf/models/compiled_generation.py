import functools

import keras


class CompiledGeneration:
    """Mixin of the models that generate: the whole loop of a batch in one graph.

    KerasHub's own graph is traced anew for each size of a batch, which takes seconds; on TensorFlow without XLA one
    graph serves all sizes.
    """

    generation_inputs = ()  # names of the tensors (batch, length) that `generate_step` reads
    generates_with_xla = False

    def compile(self, *args, jit_compile="auto", **kwargs):
        """See `keras.Model.compile`; `generate` uses XLA only if `jit_compile` is `True`."""
        self.generates_with_xla = jit_compile is True
        super().compile(*args, jit_compile=jit_compile, **kwargs)

    def make_generate_function(self):
        """The compiled `generate_step`; on TensorFlow without XLA one graph for batches of all sizes."""
        if self.generate_function is None and keras.config.backend() == "tensorflow":
            if not self.run_eagerly and not self.generates_with_xla:
                self.generate_function = self._graph_of_all_sizes()
        return super().make_generate_function()

    def _graph_of_all_sizes(self):
        import tensorflow as tf

        names = self.generation_inputs
        signature = [{name: tf.TensorSpec([None, None], tf.int32) for name in names}]

        @functools.cache
        def graph(stop_token_ids):
            step = functools.partial(self.generate_step, stop_token_ids=stop_token_ids)
            return tf.function(step, input_signature=signature, autograph=False)

        def generate(inputs, stop_token_ids=None):
            inputs = {name: tf.cast(inputs[name], tf.int32) for name in names}
            return graph(None if stop_token_ids is None else tuple(stop_token_ids))(inputs)

        return generate


def checked_stops(stop_token_ids):
    """The ids as a list of integers, or `None`."""
    if stop_token_ids is None:
        return None
    if not hasattr(stop_token_ids, "__iter__") or isinstance(stop_token_ids, str):
        raise ValueError(
            "`stop_token_ids` must be a list of ids, None or 'auto'. "
            f"Received: stop_token_ids={stop_token_ids!r}"
        )
    return [int(i) for i in stop_token_ids]


def stopping_rules(sampler):
    """The rules of samplers for which not every stop token ends a text, as arguments of `valid_token_mask`."""
    return {k: getattr(sampler, k) for k in ("min_ends", "min_length") if hasattr(sampler, k)}
