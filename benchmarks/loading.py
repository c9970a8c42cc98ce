"""Loading a checkpoint of a masked-language model from disk; each time in a fresh process."""

import time
from pathlib import Path

from benchmarks import memory, models

LIBRARIES = ("ours", "bert4keras", "hugging_face")


def make_checkpoint(library, folder, sizes):
    """Writes random weights in the original format (`ours`) or Hugging Face's (`hugging_face`); returns their MB."""
    if library == "ours":
        import keras

        import roformer_tf
        from roformer_tf.checkpoint import save_checkpoint

        keras.utils.set_random_seed(0)
        backbone = roformer_tf.RoFormerBackbone(
            **sizes.backbone_arguments(),
        )
        save_checkpoint(roformer_tf.RoFormerMaskedLM(backbone), folder)
    else:
        from transformers import RoFormerConfig, RoFormerForMaskedLM

        config = RoFormerConfig(**sizes.hugging_face_config())
        RoFormerForMaskedLM(config).save_pretrained(folder)
    return sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20


def load(library, folder):
    """Builds the model and loads it; the libraries are imported already.

    Returns seconds of both together; peak memory above what the libraries take; and, where building and loading are
    two steps, the seconds of the second and its peak above the built model.
    """
    for file in Path(folder).iterdir():
        file.read_bytes()  # into the page cache, for everyone: it is not the disk that is measured
    memory.reset_peak()
    before = memory.resident()
    start = time.perf_counter()
    if library == "hugging_face":
        from transformers import RoFormerForMaskedLM

        model = RoFormerForMaskedLM.from_pretrained(folder)
        for parameter in model.parameters():  # it maps the file: a weight is read when it is used
            parameter.sum()
        size = sum(p.numel() for p in model.parameters()) * 4 / 2**20
        return {
            "seconds": time.perf_counter() - start,
            "peak_mb": memory.peak() - before,
            "model_mb": size,
        }
    load_weights, size = (_ours if library == "ours" else _bert4keras)(folder)
    built = time.perf_counter()
    peak, resident = memory.peak(), memory.resident()
    memory.reset_peak()
    load_weights()
    end = time.perf_counter()
    return {
        "seconds": end - start,
        "peak_mb": max(peak, memory.peak()) - before,
        "model_mb": size,
        "loading_seconds": end - built,
        "loading_peak_mb": memory.peak() - resident,
    }


def _ours(folder):
    import roformer_tf
    from roformer_tf.checkpoint import load_checkpoint

    model = roformer_tf.RoFormerMaskedLM.from_preset(folder, load_weights=False, preprocessor=None)
    return lambda: load_checkpoint(model, folder), model.count_params() * 4 / 2**20


def _bert4keras(folder):
    models.import_bert4keras()
    from bert4keras.models import build_transformer_model

    transformer = build_transformer_model(
        str(Path(folder, "bert_config.json")),
        model="roformer",
        with_mlm="linear",
        return_keras_model=False,
    )
    checkpoint = str(Path(folder, "bert_model.ckpt"))
    size = transformer.model.count_params() * 4 / 2**20
    return lambda: transformer.load_weights_from_checkpoint(checkpoint), size
