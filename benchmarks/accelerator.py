"""`KERAS_BACKEND=torch python -m benchmarks.accelerator` (or jax): layers and models beside Hugging Face on one device.

Rotation, an encoder block, inference, a masked-LM training step and the generation of 32 tokens, in float32 and
bfloat16, taking turns with the same part of Hugging Face's PyTorch model. Without TensorFlow, which need not be
installed, generation is left out.
"""

import argparse
import importlib.util
import os
import sys
import time
import types
from dataclasses import asdict
from pathlib import Path
from statistics import median

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import numpy as np

from benchmarks import generation_worker, machine, records
from benchmarks.models import INPUTS, LEARNING_RATE, torch_inputs
from benchmarks.sizes import BASE, QUICK, labels_everywhere, make_batch

SHAPES = ((32, 128), (8, 512), (4, 1536))
QUICK_SHAPES = ((2, 32),)
NEW_TOKENS = 32
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def import_backbone_and_head():
    """What a masked-language model is made of.

    Without TensorFlow, which only the texts need, it comes past the packages' `__init__`.
    """
    if not HAS_TENSORFLOW:
        root = Path(__file__).resolve().parent.parent / "roformer_tf"
        for name in ("roformer_tf", "roformer_tf.models"):
            package = types.ModuleType(name)
            package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = package
    from roformer_tf.layers import MaskedLMHead
    from roformer_tf.models.roformer_backbone import RoFormerBackbone

    return RoFormerBackbone, MaskedLMHead


class Ours:
    """`predict_on_batch` and `train_on_batch` of the model, and functions of its layers."""

    def __init__(self, sizes, dtype):
        import keras

        RoFormerBackbone, MaskedLMHead = import_backbone_and_head()
        from roformer_tf import rotary

        self.keras, self.sizes, self.dtype = keras, sizes, dtype
        self.backbone = RoFormerBackbone(
            **sizes.backbone_arguments(),
            dtype=DTYPES[dtype],
        )
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        head = MaskedLMHead(self.backbone.token_embedding, dtype=DTYPES[dtype])
        inputs = {**self.backbone.input, "mask_positions": positions}

        self.model = keras.Model(inputs, head(self.backbone(self.backbone.input), positions))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.AdamW(LEARNING_RATE), loss)
        self.block = self._compiled(
            lambda x, *table: self.backbone.encoder_blocks[0](x, position=table)
        )
        self.rotate = self._compiled(rotary.rotate)
        if HAS_TENSORFLOW:
            self.generate = generation_worker.ours(sizes, 0, DTYPES[dtype])

    def _compiled(self, function):
        import keras

        if keras.config.backend() == "jax":
            import jax

            compiled = jax.jit(function)
            return lambda *x: np.asarray(compiled(*x)[..., :1, :1])
        import torch

        def run(*x):
            with torch.no_grad():
                return function(*x)[..., :1, :1].float().cpu().numpy()

        return run

    def cases(self, batch):
        names = {name: batch[name] for name in INPUTS}
        x = self.keras.ops.convert_to_tensor(hidden(batch, self.sizes), self.dtype)
        q = self.keras.ops.convert_to_tensor(heads(batch, self.sizes), self.dtype)
        table = self.backbone.position_scheme(self.keras.ops.zeros((1, x.shape[-2]), "int32"))
        step = {**names, "mask_positions": batch["mask_positions"]}
        generation = {"generation": lambda: self.generate(batch["token_ids"], NEW_TOKENS)}
        return {
            **(generation if HAS_TENSORFLOW else {}),
            "rotation": lambda: self.rotate(q, *table),
            "encoder block": lambda: self.block(x, *table),
            "inference": lambda: self.backbone.predict_on_batch(names),
            "training step": lambda: self.model.train_on_batch(step, batch["labels"]),
        }


class HuggingFace:
    """The same parts of `RoFormerForMaskedLM`; training in bfloat16 by autocast."""

    def __init__(self, sizes, dtype, device):
        import torch
        from transformers import RoFormerConfig, RoFormerForMaskedLM

        self.torch, self.sizes, self.device = torch, sizes, device
        self.dtype = getattr(torch, dtype)
        config = RoFormerConfig(**sizes.hugging_face_config())
        self.model = RoFormerForMaskedLM(config).to(device)
        self.inference_model = RoFormerForMaskedLM(config).roformer.to(device, self.dtype).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)
        self.generate = generation_worker.hugging_face(sizes, 0, dtype, device)

    def cases(self, batch):
        torch, encoder = self.torch, self.inference_model.encoder
        inputs = {name: value.to(self.device) for name, value in torch_inputs(batch).items()}
        labels = torch.from_numpy(labels_everywhere(batch, elsewhere=-100)).to(self.device)
        x, q = (
            torch.from_numpy(f(batch, self.sizes)).to(self.device, self.dtype)
            for f in (hidden, heads)
        )
        position = encoder.embed_positions(x.shape[:-1])[None, None].to(self.dtype)
        rotate = encoder.layer[0].attention.self.apply_rotary_position_embeddings

        def value(function):
            with torch.inference_mode():
                return function().float().cpu().numpy()

        def step():
            self.model.train()
            self.optimizer.zero_grad()
            with torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32):
                loss = self.model(**inputs, labels=labels).loss
            loss.backward()
            self.optimizer.step()
            return float(loss.detach()), float(self.model.cls.predictions.bias[0])

        def block():
            output = encoder.layer[0](x, None, position)
            return (output[0] if isinstance(output, tuple) else output)[..., :1, :1]

        return {
            # it rotates queries and keys in one call: half of that is one of them
            "rotation": lambda: value(lambda: rotate(position, q, q)[0][..., :1, :1]),
            "encoder block": lambda: value(block),
            "inference": lambda: value(lambda: self.inference_model(**inputs).last_hidden_state),
            "training step": step,
            "generation": lambda: self.generate(batch["token_ids"], NEW_TOKENS),
        }


def hidden(batch, sizes):
    shape = (*batch["token_ids"].shape, sizes.width)
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def heads(batch, sizes):
    """Queries: (batch, heads, length, size of a head)."""
    rows, length = batch["token_ids"].shape
    shape = (rows, sizes.heads, length, sizes.width // sizes.heads)
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="file for the results, JSON lines")
    arguments = parser.parse_args()
    import torch

    sizes = QUICK if arguments.quick else BASE
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backend = os.environ["KERAS_BACKEND"]
    if backend == "tensorflow":
        parser.error("KERAS_BACKEND must be torch or jax. Received: tensorflow")
    record = {
        "backend": backend,
        "device": torch.cuda.get_device_name() if device == "cuda" else machine.describe()["cpu"],
        "sizes": asdict(sizes),
        "seed": arguments.seed,
        "results": [],
    }
    print(f"{record['device']}, backend {backend}")
    for dtype in DTYPES:
        ours, theirs = Ours(sizes, dtype), HuggingFace(sizes, dtype, device)
        for rows, length in QUICK_SHAPES if arguments.quick else SHAPES:
            batch = make_batch(arguments.seed, sizes, rows, length)
            pairs = ours.cases(batch), theirs.cases(batch)
            for case in pairs[0]:
                seconds = ([], [])
                for number in range(-3, arguments.repeats):
                    for times, functions in zip(seconds, pairs):
                        start = time.perf_counter()
                        functions[case]()
                        if number >= 0:
                            times.append(time.perf_counter() - start)
                a, b = map(median, seconds)
                if case == "rotation":
                    b /= 2
                title = f"{dtype:9} {rows:3} x {length:4} {case:14}"
                print(
                    f"{title} ours {a * 1e3:9.2f} ms, Hugging Face {b * 1e3:9.2f} ms, ratio {b / a:.2f}"
                )
                record["results"].append(
                    {"dtype": dtype, "shape": [rows, length], "case": case, "seconds": seconds}
                )
    if arguments.output:
        records.write(arguments.output, record)


if __name__ == "__main__":
    main()
