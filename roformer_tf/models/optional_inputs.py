class OptionalInputs:
    """Mixin for functional models: inputs declared `optional=True` may be left out of the dictionary.

    Keras accepts `None` for such an input, but not a missing key.
    """

    optional_inputs = ()

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(self._with_optional(inputs), *args, **kwargs)

    def call(self, inputs, training=None, mask=None, **kwargs):
        # The JAX trainer comes here directly.
        return super().call(self._with_optional(inputs), training=training, mask=mask, **kwargs)

    def _with_optional(self, inputs):
        if isinstance(inputs, dict):
            return {**dict.fromkeys(self.optional_inputs), **inputs}
        return inputs


def refuse_unknown(cls, arguments, known):
    """Keras' functional models ignore arguments that they do not know; a misspelt one should not pass."""
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise TypeError(f"`{cls.__name__}` has no such arguments. Received: {', '.join(unknown)}")
