"""A user's program. `make types` checks it with pyright in basic mode; it is not run."""

from typing import assert_type

import numpy as np

import roformer_tf
from roformer_tf.checkpoint import save_checkpoint
from roformer_tf.export import export_saved_model
from roformer_tf.layers import EncoderBlock, RotaryEmbedding, RotaryPosition
from roformer_tf.models import add_tokens, fill_mask
from roformer_tf.optimizers import LayerwiseAdamW, LinearWarmupDecay
from roformer_tf.pretraining import PretrainingSettings

folder = "checkpoints/chinese_roformer_tiny"
masked_lm = roformer_tf.RoFormerMaskedLM.from_preset(folder)
assert_type(masked_lm, roformer_tf.RoFormerMaskedLM)
tokenizer = roformer_tf.RoFormerTokenizer.from_preset(folder, word_level=False)
assert_type(tokenizer, roformer_tf.RoFormerTokenizer)
token_ids, segment_ids = tokenizer.encode(["今天天气非常好。"], max_length=8)[:2]
assert_type(tokenizer.token_to_id("[MASK]"), int)
assert_type(tokenizer.id_to_token(3), str)
assert_type(tokenizer.get_vocabulary(), list[str])
fill_mask(masked_lm, ["今天[MASK]非常好。"], top_k=3)
add_tokens(masked_lm, ["<B>"]).fit(["天地"], batch_size=1)
save_checkpoint(masked_lm, "build/again")

classifier = roformer_tf.RoFormerTextClassifier.from_preset(folder, labels=["no", "yes"])
assert_type(classifier, roformer_tf.RoFormerTextClassifier)
schedule = LinearWarmupDecay(peak=1e-4, total_steps=20, warmup_steps=0.1)
classifier.compile(LayerwiseAdamW(schedule, num_layers=4, layer_decay=0.9))
classifier.fit(["很好", "难吃"], ["yes", "no"], epochs=2, batch_size=2)
classifier.classify("房间干净")
export_saved_model(classifier, "build/served").exists()

backbone = roformer_tf.RoFormerBackbone.from_preset(folder)
assert_type(backbone, roformer_tf.RoFormerBackbone)
x = np.ones((2, 5, 16), "float32")
EncoderBlock(16, 32, num_heads=2, position_scheme=RotaryPosition(head_dim=8))(x)
RotaryEmbedding()(x[:, :, None])
roformer_tf.layers.GlobalPointer(num_heads=2)
settings = PretrainingSettings.from_file("examples/stages_tiny.toml")
assert_type(settings, PretrainingSettings)
assert_type(settings.model.num_layers, int)
