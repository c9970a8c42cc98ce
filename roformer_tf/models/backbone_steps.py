from keras import ops

from roformer_tf.layers.cache import is_prefill


class BackboneSteps:
    """Mixin of the backbone: a text computed in steps, with a cache of what is known of its earlier tokens."""

    @property
    def supports_cache(self):
        """Whether a text can be computed in steps, `step`; otherwise it must be computed whole."""
        scheme = self.position_scheme
        linear = self.attention != "softmax"
        if self.masking == "bidirectional" or scheme.needs_scores:
            return False
        # sums over rotated keys cannot be rotated anew
        return not (linear and scheme.depends_on_length)

    def build_cache(self, batch_size, max_length):
        """What `step` knows before the first token.

        Args:
            batch_size: positive integer or scalar tensor.
            max_length: positive integer or scalar tensor, the most tokens a text may have.

        Returns:
            Structure of tensors `(batch_size, ...)`.
        """
        cache = {"blocks": [b.build_cache(batch_size, max_length) for b in self.encoder_blocks]}
        if self.attention == "softmax":
            cache["mask"] = self.attention_mask.build_cache(batch_size, max_length)
        if self.position_scheme.depends_on_length:
            cache["position_ids"] = ops.zeros((batch_size, max_length), "float32")
        return cache

    def call_with_cache(self, inputs, cache, cache_update_index):
        """The hidden states of the next tokens, given what is known of all earlier ones.

        Step by step it is the whole text's outputs, up to float32 rounding. A place that was computed before may be
        computed again, except with linear attention, which counts a token as often as it comes.

        Only dynamic NTK scaling has results of its own: what is kept of a token is what it was when the text ended
        there, or with the end of its step; keys turn with the scale of the current length.

        Args:
            inputs: dictionary as of the call, of the tokens at the places cache_update_index … cache_update_index + length - 1, the next one or
                several: `token_ids`, and optionally `segment_ids` (0), `padding_mask` (1) and `position_ids` (their
                places).
            cache: of `build_cache`, or of the step before.
            cache_update_index: integer or scalar integer tensor. Of the number 0 it is known that nothing comes before, which saves
                time and memory: for a prompt.

        Returns:
            Tuple of the hidden states `(batch, length, hidden_dim)` and the new cache.

        Raises:
            ValueError: if the model has no steps, see `supports_cache`, or for other inputs.

        Example:

        >>> import numpy as np
        >>> import roformer_tf
        >>> backbone = roformer_tf.RoFormerBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=32,
        ...     masking="causal",
        ... )
        >>> ids = np.array([[2, 15, 31, 3]])
        >>> cache = backbone.build_cache(batch_size=1, max_length=8)
        >>> prompt, cache = backbone.call_with_cache({"token_ids": ids[:, :3]}, cache, 0)
        >>> last, cache = backbone.call_with_cache({"token_ids": ids[:, 3:]}, cache, 3)
        >>> whole = backbone({"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1})
        >>> bool(np.allclose(last, whole[:, 3:], atol=1e-5))
        True
        """
        self._check_steps(inputs)
        cache = dict(cache)
        ids = ops.convert_to_tensor(inputs["token_ids"])
        batch, length = ops.shape(ids)
        segments = inputs.get("segment_ids", ops.zeros_like(ids))
        padding = inputs.get("padding_mask", ops.ones_like(ids))
        positions = inputs.get("position_ids", cache_update_index + ops.arange(length)[None])

        if self.attention == "softmax":
            bias, cache["mask"] = self.attention_mask.call_with_cache(
                padding, cache["mask"], cache_update_index, segments
            )
        else:
            bias = self.attention_mask(padding)
        scheme = self.position_scheme
        if scheme.depends_on_length:
            positions = ops.broadcast_to(ops.cast(positions, "float32"), (batch, length))
            known = ops.slice_update(cache["position_ids"], (0, cache_update_index), positions)
            cache["position_ids"] = known
            if not is_prefill(cache_update_index):
                positions, padding = known, ops.equal(cache["mask"]["bias"], 0)
        position = scheme(ids, positions, padding)
        x = self.embeddings(ids, segments, position if scheme.added_to_input else None)
        position = None if scheme.added_to_input else position
        blocks = []
        for block, known in zip(self.encoder_blocks, cache["blocks"], strict=True):
            x, known = block.call_with_cache(x, known, cache_update_index, bias, position)
            blocks.append(known)
        return x, {**cache, "blocks": blocks}

    def _check_steps(self, inputs):
        if not self.supports_cache:
            raise ValueError(
                "Only a model that sees no future has steps, without scores in its position scheme, and without "
                "linear attention under dynamic scaling (`supports_cache`); compute the whole text. Received: "
                f"masking={self.masking!r}, position_scheme={self.position_scheme_name!r}, "
                f"attention={self.attention!r}, rope_scaling={self.rope_scaling!r}"
            )
        unknown = set(inputs) - {"token_ids", "segment_ids", "padding_mask", "position_ids"}
        if unknown:
            raise ValueError(
                f"A step takes no {', '.join(sorted(unknown))}. Received: {', '.join(inputs)}"
            )
