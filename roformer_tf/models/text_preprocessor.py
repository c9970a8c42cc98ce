import keras_hub


class TextPreprocessor(keras_hub.models.Preprocessor):
    """`keras_hub.models.Preprocessor` with a tokenizer and a maximum length of sequences."""

    def __init__(self, tokenizer, sequence_length=512, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    def get_config(self):
        return {**super().get_config(), "sequence_length": self.sequence_length}
