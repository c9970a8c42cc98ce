"""`python -m benchmarks.accelerator`: layers and models on a GPU or TPU, beside Hugging Face on the same device.

Keras' JAX backend (or, with `KERAS_BACKEND=torch`, PyTorch's) and Hugging Face's PyTorch models have the same random
weights and take turns: rotation, an encoder block, inference, a masked-LM training step, and the generation of 32
tokens. Each call begins with arrays in the computer's memory and ends when its result is there.
"""

import argparse
import functools
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import numpy as np

from benchmarks import generation_worker, machine, records
from benchmarks.models import INPUTS, LEARNING_RATE, torch_inputs
from benchmarks.sizes import BASE, QUICK, labels_everywhere, make_batch
from benchmarks.turns import take_turns, timed

SHAPES, QUICK_SHAPES = ((32, 128), (8, 512), (4, 1536)), ((2, 32),)
PROMPTS, QUICK_PROMPTS = ((1, 32), (1, 512), (8, 32), (8, 512)), ((2, 32),)
NEW_TOKENS = 32
# What the products of float32 matrices are rounded to: the names of PyTorch and of JAX. PyTorch's
# default is float32, JAX' on NVIDIA is TF32.
PRECISIONS = {"float32": ("highest", "highest"), "tf32": ("high", "tensorfloat32")}


class Ours:
    """`predict_on_batch`, `train_on_batch` and `generate` of the models, and functions of their layers."""

    def __init__(self, folder, sizes, dtype):
        import keras

        import roformer_tf
        from roformer_tf import rotary

        half = dtype == "bfloat16"
        self.keras, self.sizes, self.dtype = keras, sizes, dtype
        self.backbone = roformer_tf.RoFormerBackbone.from_preset(folder, dtype=dtype)
        self.model = roformer_tf.RoFormerMaskedLM.from_preset(
            folder, preprocessor=None, dtype="mixed_bfloat16" if half else dtype
        )
        self.model.compile(keras.optimizers.AdamW(LEARNING_RATE), weighted_metrics=None)
        causal_lm = roformer_tf.RoFormerCausalLM.from_preset(folder, preprocessor=None, dtype=dtype)
        self.generate = generation_worker.run_ours(causal_lm)
        self.block = self._compiled(
            lambda x, *table: self.backbone.encoder_blocks[0](x, position=table)
        )
        self.rotate = self._compiled(rotary.rotate)

    def _compiled(self, function):
        if self.keras.config.backend() == "jax":
            import jax

            compiled = jax.jit(function)
            return lambda *x: jax.block_until_ready(compiled(*x))
        return finished(function)

    def layers(self, batch):
        x, q = (self.keras.ops.convert_to_tensor(f(batch, self.sizes), self.dtype) for f in PARTS)
        table = self.backbone.position_scheme(self.keras.ops.zeros((1, x.shape[-2]), "int32"))
        inputs = {name: batch[name] for name in INPUTS}
        masked = {**inputs, "mask_positions": batch["mask_positions"]}
        return {
            "rotation": lambda: self.rotate(q, *table),
            "encoder block": lambda: self.block(x, *table),
            "inference": lambda: self.backbone.predict_on_batch(inputs),
            "training step": lambda: self.model.train_on_batch(masked, batch["labels"]),
        }


class HuggingFace:
    """The same parts of `RoFormerForMaskedLM` and `RoFormerForCausalLM`; bfloat16 is trained by autocast."""

    def __init__(self, folder, sizes, dtype, device):
        import torch
        from transformers import RoFormerForCausalLM, RoFormerForMaskedLM

        self.torch, self.sizes, self.device = torch, sizes, device
        self.dtype = getattr(torch, dtype)
        self.model = RoFormerForMaskedLM.from_pretrained(folder, dtype=torch.float32).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)
        options = {"dtype": self.dtype}
        masked_lm = RoFormerForMaskedLM.from_pretrained(folder, **options)
        self.inference_model = masked_lm.roformer.to(device).eval()
        causal_lm = RoFormerForCausalLM.from_pretrained(folder, is_decoder=True, **options)
        self.generate = generation_worker.run_hugging_face(causal_lm.to(device).eval())

    def layers(self, batch):
        torch, encoder = self.torch, self.inference_model.encoder
        x, q = (torch.from_numpy(f(batch, self.sizes)).to(self.device, self.dtype) for f in PARTS)
        position = encoder.embed_positions(x.shape[:-1])[None, None].to(self.dtype)
        rotate = encoder.layer[0].attention.self.apply_rotary_position_embeddings
        labels = torch.from_numpy(labels_everywhere(batch, elsewhere=-100))

        def inputs():
            return {name: value.to(self.device) for name, value in torch_inputs(batch).items()}

        def infer():
            with torch.inference_mode():
                return self.inference_model(**inputs()).last_hidden_state.cpu()

        def step():
            self.model.train()
            self.optimizer.zero_grad()
            with torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32):
                loss = self.model(**inputs(), labels=labels.to(self.device)).loss
            loss.backward()
            self.optimizer.step()
            # the second waits for the update
            return float(loss.detach()), float(self.model.cls.predictions.bias[0].detach())

        return {
            # it rotates queries and keys in one call: half of that is one of them
            "rotation": finished(lambda: rotate(position, q, q)),
            "encoder block": finished(lambda: encoder.layer[0](x, None, position)),
            "inference": infer,
            "training step": step,
        }


def finished(function):
    """Returns the function, without gradients, that comes back when the device is done."""
    import torch

    def run(*x):
        with torch.no_grad():
            function(*x)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def hidden(batch, sizes):
    shape = (*batch["token_ids"].shape, sizes.width)
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def heads(batch, sizes):
    """Draws queries, `(batch, heads, length, size of a head)`."""
    rows, length = batch["token_ids"].shape
    shape = (rows, sizes.heads, length, sizes.width // sizes.heads)
    return np.random.default_rng(1).normal(size=shape).astype("float32")


PARTS = hidden, heads


def save_weights(folder, sizes, seed):
    """Writes random weights in Hugging Face's layout, which both sides read."""
    import torch
    from transformers import RoFormerConfig, RoFormerForMaskedLM

    torch.manual_seed(seed)
    RoFormerForMaskedLM(RoFormerConfig(**sizes.hugging_face_config())).save_pretrained(folder)


def set_precision(dtype):
    """Makes both libraries round products alike."""
    import torch

    of_torch, of_jax = PRECISIONS.get(dtype, ("highest", None))
    torch.set_float32_matmul_precision(of_torch)
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", of_jax)


def difference(ours, theirs):
    """Returns the largest difference of the hidden states, relative to their largest number."""
    a, b = np.asarray(ours["inference"](), "float64"), theirs["inference"]().double().numpy()
    return float(np.abs(a - b).max() / np.abs(b).max())


def time_pair(functions, repeats):
    """Times both in turns, after three calls to warm up."""
    calls = dict(enumerate(map(timed, functions)))
    return list(take_turns(calls, repeats, uncounted=3).values())


def measure(dtype, folder, sizes, arguments, device):
    """Yields a dictionary for each row."""
    set_precision(dtype)
    stored = "bfloat16" if dtype == "bfloat16" else "float32"
    ours = Ours(folder, sizes, stored)
    theirs = HuggingFace(folder, sizes, stored, device)
    for shape in QUICK_SHAPES if arguments.quick else SHAPES:
        batch = make_batch(arguments.seed, sizes, *shape)
        pairs = ours.layers(batch), theirs.layers(batch)
        for case in pairs[0]:
            facts = {"difference": difference(*pairs)} if case == "inference" else {}
            seconds = time_pair([side[case] for side in pairs], arguments.repeats)
            share = 2 if case == "rotation" else 1
            seconds[1][:] = [value / share for value in seconds[1]]
            yield row(dtype, shape, case, seconds, **facts)
    for shape in QUICK_PROMPTS if arguments.quick else PROMPTS:
        ids = make_batch(arguments.seed, sizes, *shape)["token_ids"]
        pair = [functools.partial(side.generate, ids, NEW_TOKENS) for side in (ours, theirs)]
        same = float(np.mean(pair[0]() == pair[1]()))
        seconds = time_pair(pair, -(-arguments.repeats // 4))
        yield row(dtype, shape, "generation", seconds, same_tokens=same)


def row(dtype, shape, case, seconds, **facts):
    a, b = map(median, seconds)
    return {
        "dtype": dtype,
        "shape": list(shape),
        "case": case,
        "ours_s": a,
        "hugging_face_s": b,
        "ratio": b / a,
        **facts,
        "seconds": seconds,
    }


def line(r):
    """Returns a row of the table."""
    facts = ""
    if "difference" in r:
        facts = f"hidden states differ by {r['difference']:.1e}"
    elif "same_tokens" in r:
        facts = f"{r['same_tokens']:.0%} of the tokens are the same"
    shape = " × ".join(map(str, r["shape"]))
    times = f"{r['ours_s'] * 1e3:.2f} ms | {r['hugging_face_s'] * 1e3:.2f} ms"
    return f"| {r['dtype']} | {r['case']} | {shape} | {times} | {r['ratio']:.2f} × | {facts} |"


def report(path, record, repeats):
    sizes = record["sizes"]
    about = (
        f"{record['device']}, Keras on {record['backend']}, {sizes['layers']} layers of width {sizes['width']}, "
        f"vocabulary {sizes['vocabulary']:,}, the same random weights on both sides. Medians of {repeats} runs "
        f"(generation of {NEW_TOKENS} tokens: a quarter of them), in turns."
    )
    head = ["", "", "batch × length", "ours", "Hugging Face", "ours is", ""]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    records.report(path, record, "Accelerator", about, lines + list(map(line, record["results"])))


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="or tf32")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for the results, JSON lines")
    arguments = parser.parse_args()
    backend = os.environ["KERAS_BACKEND"]
    if backend not in ("jax", "torch"):
        parser.error(f"KERAS_BACKEND must be jax or torch. Received: {backend}")
    import torch

    sizes = QUICK if arguments.quick else BASE
    device = "cuda" if torch.cuda.is_available() else "cpu"
    record = {
        **records.made_by("benchmarks.accelerator"),
        "backend": backend,
        "device": torch.cuda.get_device_name() if device == "cuda" else machine.describe()["cpu"],
        "sizes": asdict(sizes),
        "seed": arguments.seed,
        "results": [],
    }
    record["versions"] |= {name: records.version(name) for name in (backend, "transformers")}
    print(f"{record['device']}, backend {backend}")
    with tempfile.TemporaryDirectory() as folder:
        save_weights(folder, sizes, arguments.seed)
        for dtype in arguments.dtypes:
            for result in measure(dtype, folder, sizes, arguments, device):
                record["results"].append(result)
                print(line(result), flush=True)
                if arguments.output:
                    records.write(arguments.output, record)
    if arguments.output:
        report(arguments.output, record, arguments.repeats)


if __name__ == "__main__":
    main()
