class FromOriginalPreset:
    """Mixin: `from_preset` takes original folders too."""

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Builds the model from a folder.

        Args:
            preset: an original folder (`bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`), or one that
                `save_to_preset` wrote.
            load_weights: `False` leaves the weights random.
            **kwargs: override the configuration (`dtype`, `dropout`, `sequence_length`, …). For original folders see
                `roformer_tf.checkpoint.load_original`.

        Returns:
            An instance of the class.

        Raises:
            ValueError, FileNotFoundError: if the folder does not hold what is needed; the message names it.
        """
        # The one import of a floor above: Keras puts this constructor on the class.
        from roformer_tf.checkpoint import is_original_folder, load_original

        if is_original_folder(preset):
            return load_original(cls, preset, load_weights=load_weights, **kwargs)
        return super().from_preset(preset, load_weights=load_weights, **kwargs)
