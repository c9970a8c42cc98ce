"""A process that answers texts with one library on command: `python -m benchmarks.everyday_worker`.

Each class holds the models of a library and has a method for each task, which takes a list of texts and returns numbers
for each. Weights are random, the same sizes everywhere: speed does not depend on them.
"""

import tempfile
import time

import numpy as np

from benchmarks import corpus, models
from benchmarks.sizes import Sizes
from benchmarks.worker import Worker, libraries, main

NUM_CLASSES = 2
BATCH_SIZE = 32
LONGEST = 512  # tokens


class Ours:
    """`RoFormerTextClassifier.predict`, `fill_mask`, `embed` and `generate`, on strings."""

    def __init__(self, sizes, vocabulary):
        import roformer_tf

        tokenizer = roformer_tf.RoFormerTokenizer(vocabulary)
        options = sizes.backbone_arguments()
        backbone = roformer_tf.RoFormerBackbone(**options)
        self.classifier = roformer_tf.RoFormerTextClassifier(
            backbone, NUM_CLASSES, roformer_tf.RoFormerTextClassifierPreprocessor(tokenizer)
        )
        self.masked_lm = roformer_tf.RoFormerMaskedLM(
            backbone, roformer_tf.RoFormerMaskedLMPreprocessor(tokenizer)
        )
        sim = roformer_tf.RoFormerBackbone(**options, masking="unilm", pooler="linear")
        self.sim = roformer_tf.RoFormerSim(sim, roformer_tf.RoFormerSimPreprocessor(tokenizer))
        causal = roformer_tf.RoFormerBackbone(**options, masking="causal")
        self.causal_lm = roformer_tf.RoFormerCausalLM(
            causal, roformer_tf.RoFormerCausalLMPreprocessor(tokenizer)
        )
        self.causal_lm.compile(sampler="greedy")

    def classify(self, texts):
        return self.classifier.predict(texts, batch_size=BATCH_SIZE, verbose=0)

    def fill_mask(self, texts):
        from roformer_tf.models import fill_mask

        return [len(masks) for masks in fill_mask(self.masked_lm, texts, batch_size=BATCH_SIZE)]

    def embed(self, texts):
        return self.sim.embed(texts, batch_size=BATCH_SIZE)

    def generate(self, texts):
        width = self.causal_lm.preprocessor.count_tokens(texts)
        longest = int(np.max(width)) - 1 + NEW_TOKENS
        return self.causal_lm.generate(texts, max_length=longest, stop_token_ids=None)


class OursSavedModel:
    """The classifier, exported by `export_saved_model` and loaded again."""

    def __init__(self, sizes, vocabulary):
        import tensorflow as tf

        from roformer_tf.export import export_saved_model

        with tempfile.TemporaryDirectory() as folder:
            export_saved_model(Ours(sizes, vocabulary).classifier, f"{folder}/served")
            self.served = tf.saved_model.load(f"{folder}/served")

    def classify(self, texts):
        return self.served(texts)["logits"].numpy()


class HuggingFace:
    """Transformers' `pipeline` on PyTorch."""

    def __init__(self, sizes, vocabulary):
        import torch
        import transformers

        torch.set_num_threads(models.THREADS)
        tokenizer = transformers.RoFormerTokenizer(
            vocab={token: i for i, token in enumerate(vocabulary)}, model_max_length=LONGEST
        )
        config = transformers.RoFormerConfig(**sizes.hugging_face_config(), num_labels=NUM_CLASSES)

        def pipe(task, cls):
            return transformers.pipeline(task, cls(config).eval(), tokenizer=tokenizer)

        self.classifier = pipe(
            "text-classification", transformers.RoFormerForSequenceClassification
        )
        self.masked_lm = pipe("fill-mask", transformers.RoFormerForMaskedLM)
        self.embedder = pipe("feature-extraction", transformers.RoFormerModel)
        config = transformers.RoFormerConfig(**sizes.hugging_face_config(), is_decoder=True)
        self.causal_lm = pipe("text-generation", transformers.RoFormerForCausalLM)

    def classify(self, texts):
        return self.classifier(texts, batch_size=BATCH_SIZE, truncation=True)

    def fill_mask(self, texts):
        outputs = self.masked_lm(texts, batch_size=BATCH_SIZE)
        return [outputs] if len(texts) == 1 else outputs

    def embed(self, texts):
        vectors = self.embedder(texts, batch_size=BATCH_SIZE, return_tensors=True, truncation=True)
        return [vector[0, 0] for vector in vectors]

    def generate(self, texts):
        options = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS, "do_sample": False}
        return self.causal_lm(texts, pad_token_id=0, eos_token_id=None, **options)


class Bert4Keras:
    """The original's `Tokenizer` and `model.predict`, as in its examples: batches padded to their longest text."""

    def __init__(self, sizes, vocabulary):
        models.import_bert4keras()
        from bert4keras.backend import keras
        from bert4keras.models import build_transformer_model

        ids = {token: i for i, token in enumerate(vocabulary)}
        self.tokenizer = models.bert4keras_tokenizer(ids)
        encoder = build_transformer_model(models.write_config(sizes), model="roformer")
        first = keras.layers.Lambda(lambda x: x[:, 0])(encoder.output)
        output = keras.layers.Dense(NUM_CLASSES, activation="softmax")(first)
        self.encoder = encoder
        self.classifier = keras.models.Model(encoder.inputs, output)

    def classify(self, texts):
        return self._predict(self.classifier, texts)

    def embed(self, texts):
        return [vector[0] for vector in self._predict(self.encoder, texts)]

    def _predict(self, model, texts):
        from bert4keras.snippets import sequence_padding

        outputs = []
        for start in range(0, len(texts), BATCH_SIZE):
            rows = [self.tokenizer.encode(x, maxlen=LONGEST) for x in texts[start:][:BATCH_SIZE]]
            inputs = [sequence_padding(column) for column in zip(*rows)]
            outputs.extend(model.predict(inputs, verbose=0))
        return outputs


class KerasHub:
    """KerasHub's `RoformerV2TextClassifier`, whose preprocessor pads every text to `sequence_length`."""

    def __init__(self, sizes, vocabulary):
        models.import_tensorflow()
        from keras_hub import models as hub

        tokenizer = hub.RoformerV2Tokenizer(vocabulary=vocabulary)
        preprocessor = hub.RoformerV2TextClassifierPreprocessor(tokenizer, sequence_length=LONGEST)
        backbone = hub.RoformerV2Backbone(
            vocabulary_size=sizes.vocabulary,
            num_layers=sizes.layers,
            num_heads=sizes.heads,
            hidden_dim=sizes.width,
            intermediate_dim=sizes.intermediate,
            head_size=sizes.width // sizes.heads,
        )
        self.classifier = hub.RoformerV2TextClassifier(
            backbone, NUM_CLASSES, preprocessor=preprocessor
        )

    def classify(self, texts):
        return self.classifier.predict(texts, batch_size=BATCH_SIZE, verbose=0)


NEW_TOKENS = 32
SIDES = {
    "ours": Ours,
    "ours_saved_model": OursSavedModel,
    "hugging_face": HuggingFace,
    "bert4keras": Bert4Keras,
    "keras_hub": KerasHub,
}


class EverydayWorker(Worker):
    def build(self, side, sizes, seed):
        libraries(side)
        self.seed = seed
        vocabulary = corpus.vocabulary()
        self.side = SIDES[side](Sizes(**sizes), vocabulary)

    def run(self, task, texts):
        """Times one call with a list of texts."""
        start = time.perf_counter()
        outputs = getattr(self.side, task)(texts)
        seconds = time.perf_counter() - start
        if len(outputs) != len(texts):
            raise RuntimeError(f"Expected {len(texts)} outputs. Received: {len(outputs)}")
        return {"seconds": seconds}


if __name__ == "__main__":
    main(EverydayWorker())
