"""A process that generates with one library on command: `python -m benchmarks.generation_worker`.

Each function builds a causal model and returns `run(ids, new_tokens)`: greedy search over prompts of one length, which
always makes as many tokens. Weights are random: speed does not depend on them.
"""

import time

import numpy as np

from benchmarks import memory, models
from benchmarks.sizes import Sizes
from benchmarks.worker import Worker, libraries, main


def ours(sizes, seed):
    """`RoFormerCausalLM.generate`, from token ids."""
    import keras

    import roformer_tf

    keras.utils.set_random_seed(seed)
    backbone = roformer_tf.RoFormerBackbone(
        **sizes.backbone_arguments(),
        masking="causal",
    )
    return run_ours(roformer_tf.RoFormerCausalLM(backbone))


def run_ours(model):
    """Returns `run` of a `RoFormerCausalLM`."""
    model.compile(sampler="greedy")

    def run(ids, new_tokens):
        rows = np.pad(ids, ((0, 0), (0, new_tokens)))
        mask = np.pad(np.ones_like(ids), ((0, 0), (0, new_tokens)))
        inputs = {"token_ids": rows, "padding_mask": mask}
        return model.generate(inputs, stop_token_ids=None)["token_ids"][:, ids.shape[1] :]

    return run


def hugging_face(sizes, seed):
    """`RoFormerForCausalLM.generate` of Transformers, with its cache."""
    import torch
    from transformers import RoFormerConfig, RoFormerForCausalLM

    torch.set_num_threads(models.THREADS)
    torch.manual_seed(seed)
    config = {**sizes.hugging_face_config(), "is_decoder": True}
    return run_hugging_face(RoFormerForCausalLM(RoFormerConfig(**config)).eval())


def run_hugging_face(model):
    """Returns `run` of a `RoFormerForCausalLM`, on its device."""
    import torch

    options = {"do_sample": False, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}

    def run(ids, new_tokens):
        tokens = torch.from_numpy(ids).long().to(model.device)
        with torch.inference_mode():
            rows = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                **options,
            )
        return rows[:, ids.shape[1] :].cpu().numpy()

    return run


def bert4keras(sizes, seed):
    """The original's `AutoRegressiveDecoder`, which takes one text at a time and reads it again for each token."""
    tf = models.import_bert4keras()
    from bert4keras.models import build_transformer_model
    from bert4keras.snippets import AutoRegressiveDecoder

    tf.random.set_seed(seed)
    model = build_transformer_model(
        models.write_config(sizes), model="roformer", application="lm", with_mlm=True
    )

    class Decoder(AutoRegressiveDecoder):  # as in the original's examples
        @AutoRegressiveDecoder.wraps(default_rtype="probas")
        def predict(self, inputs, output_ids, states):
            ids = np.concatenate([inputs[0], output_ids], 1)
            return self.last_token(model).predict([ids, np.zeros_like(ids)], verbose=0)

    decoder = Decoder(start_id=None, end_id=-1, maxlen=1)

    def run(ids, new_tokens):
        decoder.maxlen = new_tokens
        return np.stack([decoder.beam_search([row], topk=1) for row in ids])

    return run


IMPLEMENTATIONS = {"ours": ours, "hugging_face": hugging_face, "bert4keras": bert4keras}


class GenerationWorker(Worker):
    def build(self, implementation, sizes, seed):
        self.sizes, self.seed = Sizes(**sizes), seed
        libraries(implementation)
        self.baseline = memory.resident()
        self.run_model = IMPLEMENTATIONS[implementation](self.sizes, seed)

    def run(self, batch, prompt, new_tokens):
        """Times one run."""
        rng = np.random.default_rng([self.seed, batch, prompt])
        ids = rng.integers(5, self.sizes.vocabulary, (batch, prompt)).astype("int32")
        memory.reset_peak()
        start = time.perf_counter()
        made = self.run_model(ids, new_tokens)
        seconds = time.perf_counter() - start
        if made.shape != (batch, new_tokens):
            raise RuntimeError(f"Expected {(batch, new_tokens)} new tokens. Received: {made.shape}")
        return {"seconds": seconds, "peak_mb": memory.peak() - self.baseline}


if __name__ == "__main__":
    main(GenerationWorker())
