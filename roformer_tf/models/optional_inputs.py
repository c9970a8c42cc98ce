class OptionalInputs:
    """Mixin for functional models: inputs declared `optional=True` may be left out of the dictionary.

    Keras accepts `None` for such an input, but not a missing key.
    """

    optional_inputs = ()

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, dict):
            inputs = {**dict.fromkeys(self.optional_inputs), **inputs}
        return super().__call__(inputs, *args, **kwargs)


def refuse_unknown(cls, arguments, known):
    """Keras' functional models ignore arguments that they do not know; a misspelt one should not pass."""
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise TypeError(f"`{cls.__name__}` has no such arguments. Received: {', '.join(unknown)}")
