"""The tests' side of the original implementation: starts its process once and sends requests."""

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

INPUT_ORDER = ("token_ids", "segment_ids", "position_ids")


class Original:
    """bert4keras 0.11.5 itself, in one process for the whole test run.

    The process starts with the first request (about five seconds) and ends with `close`.
    Each `folder` is an original one: `bert_config.json`, `bert_model.ckpt.*`, `vocab.txt`.
    `model`, `application` and keyword arguments are those of
    `bert4keras.models.build_transformer_model`: `model` is "roformer", "roformer_v2", "bert" or
    "nezha"; `application` "encoder", "lm" or "unilm".
    """

    def __init__(self):
        self._process = None
        self._log = None

    def make_checkpoint(
        self, folder, config, seed, model="roformer", embedding_scale=0.5, vocabulary=None, **kwargs
    ):
        """Writes an original folder of random weights and returns its variables by name.

        Args:
            folder: Folder to write, created if missing.
            config: dict. Written as `bert_config.json`; see `small_config`.
            seed: int or list of int, for `numpy.random.default_rng`.
            model: bert4keras' name of the model.
            embedding_scale: Standard deviation of the embeddings. Below 0.1 it also scales the
                kernel of the MLM transform, so that the epsilon of its norm is visible (0.003).
            vocabulary: list of tokens for `vocab.txt`. By default the five special ones and
                placeholders.
            **kwargs: Heads to create: `with_mlm`, `with_pool`, `with_nsp`. By default all three for
                RoFormer and none for RoFormerV2, whose heads have no variables.
        """
        if not kwargs and model != "roformer_v2":
            kwargs = {"with_mlm": "linear", "with_pool": True, "with_nsp": True}
        scale = embedding_scale
        self._ask("make_checkpoint", folder, config, model, seed, kwargs, scale, vocabulary)
        return self.variables(folder)

    def variables(self, folder) -> dict[str, np.ndarray]:
        """Returns the variables of the checkpoint in `folder` by name."""
        return self._ask("variables", folder)

    def forward(
        self,
        folder,
        inputs,
        model="roformer",
        application="encoder",
        head=None,
        dtype="float32",
        **kwargs,
    ) -> list[np.ndarray]:
        """Returns the list of bert4keras' outputs for the checkpoint in `folder`.

        Args:
            folder: An original folder.
            inputs: dict of arrays `(batch, length)`: `token_ids`, `segment_ids` (unless
                `segment_vocab_size=0`) and, with `custom_position_ids=True`, `position_ids`.
            model, application, **kwargs: Arguments of `build_transformer_model`.
            head: None, "masked_mean" (mean of the encoder's output over the real tokens) or
                "all_layers" (embedding output and output of each layer).
            dtype: "float32", or "float64" for the same model in double precision.
        """
        inputs = ordered(inputs)
        return self._ask("forward", folder, model, application, kwargs, inputs, head, dtype)

    def forward_with_noise(self, folder, inputs, **kwargs) -> tuple[list[np.ndarray], list[float]]:
        """Returns float32 outputs, and their maximum differences from the same model in float64."""
        single = self.forward(folder, inputs, **kwargs)
        double = self.forward(folder, inputs, dtype="float64", **kwargs)
        return single, [float(np.abs(s - d).max()) for s, d in zip(single, double, strict=True)]

    def gradients(
        self,
        folder,
        inputs,
        labels,
        model="roformer",
        application="encoder",
        dtype="float32",
        **kwargs,
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Returns the loss and the gradients by name of the original `train.py`, without dropout.

        The loss is the mean cross entropy of the MLM logits over positions whose label is not 0;
        `labels` are token ids of shape (batch, length).
        """
        inputs, labels = ordered(inputs), np.asarray(labels)
        return self._ask("gradients", folder, model, application, kwargs, inputs, labels, dtype)

    def train(
        self, folder, optimizer, batches, snapshots=(), dtype="float32", **kwargs
    ) -> tuple[list[float], dict[int, dict[str, np.ndarray]], list[str]]:
        """Trains as the original `train.py` from the checkpoint in `folder`, without dropout.

        Args:
            folder: An original RoFormer folder with the variables of the masked language model.
            optimizer: dict. Arguments of bert4keras' optimizer: `learning_rate`, and for each
                extension of Adam to use, `weight_decay_rate` with `exclude_from_weight_decay`,
                `lr_schedule` or `grad_accum_steps`.
            batches: list of (token ids, segment ids, labels). Unpredicted tokens have label 0.
            snapshots: Numbers of steps after which to return the variables.
            dtype: "float32" or "float64".
            **kwargs: Arguments of `build_transformer_model`.

        Returns:
            The loss before each step; dict from snapshot to variables by name; the names with
            weight decay.
        """
        batches = [[np.asarray(array) for array in batch] for batch in batches]
        return self._ask("train", folder, kwargs, optimizer, batches, list(snapshots), dtype)

    def piecewise_linear(self, steps, schedule) -> list[float]:
        """Returns the learning rate factor of `schedule`, a dict {step: factor}, at `steps`."""
        return self._ask("piecewise_linear", [int(step) for step in steps], dict(schedule))

    def encode(
        self, vocab_path, texts, second_texts=None, word_level=True, do_lower_case=True, **arguments
    ) -> list:
        """Encodes each text, or pair of texts, with bert4keras' `Tokenizer.encode`.

        Args:
            vocab_path: Path of a `vocab.txt`.
            texts: list of strings.
            second_texts: list of strings of the same length, or None.
            word_level: Whether to segment with `jieba.cut(text, HMM=False)` first, as for the word
                models.
            do_lower_case: Argument of `Tokenizer`.
            **arguments: `maxlen`, `pattern`, `truncate_from` of `encode`.

        Returns:
            For each text `[token ids, segment ids]`, or the name of the exception of the original.
        """
        seconds = None if second_texts is None else list(second_texts)
        texts = list(texts)
        return self._ask(
            "encode", str(vocab_path), texts, seconds, word_level, do_lower_case, arguments
        )

    def decode(
        self,
        method,
        end_id,
        maxlen,
        minlen=1,
        prompt=(),
        table=None,
        folder=None,
        application="lm",
        seed=0,
        **arguments,
    ):
        """Generates tokens with bert4keras' `AutoRegressiveDecoder`, stop token included.

        Args:
            method: "beam_search" gives one text, "random_sample" a list of `n`.
            end_id: Id of the stop token.
            maxlen: Maximum number of new tokens.
            minlen: Minimum number of new tokens before a stop token counts.
            prompt: Token ids in segment 0. New tokens are in segment 1 if `application="unilm"`.
            table: Instead of a model: the logits after any new tokens, as in
                `tests/samplers/table_model.py`.
            folder: An original RoFormer folder with the variables of the masked language model.
            application: "lm" or "unilm".
            seed: Seed of NumPy's random numbers.
            **arguments: `topk`, `topp`, `n`, `temperature`, `min_ends` of the method.
        """
        options = {"end_id": end_id, "maxlen": maxlen, "minlen": minlen}
        prompt = [int(token) for token in prompt]
        return self._ask(
            "decode", method, options, arguments, prompt, table, folder, application, seed
        )

    def span_scores(self, name, arguments, x, mask, weights):
        """Returns the outputs of bert4keras' layer of this name with the given weights."""
        return self._ask("span_scores", name, arguments, x, mask, weights)

    def multilabel_loss(self, name, y_true, y_pred, **options):
        """Returns what bert4keras' loss function of this name returns."""
        return self._ask("multilabel_loss", name, y_true, y_pred, options)

    def conditional_random_field(self, x, mask, weights, lr_multiplier, tags):
        """Returns losses, gradients of `x` and `weights`, and the best tags that begin and end
        with 0."""
        return self._ask("conditional_random_field", x, mask, weights, lr_multiplier, tags)

    def optimize(self, name, extensions, options, weights, gradients):
        """Returns the weights after each step of bert4keras' optimizer with its extensions."""
        return self._ask("optimize", name, extensions, options, weights, gradients)

    def run_program(self, text, arguments):
        """Returns what the function `run` returns that the text of a program defines."""
        return self._ask("run_program", text, arguments)

    def close(self):
        """Ends the process if it has started."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process.stdout.close()
            self._log.close()
            self._process = None

    def _ask(self, name, *arguments):
        if self._process is None:
            self._log = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("original.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
            )
        try:
            pickle.dump((name, arguments), self._process.stdin)
            self._process.stdin.flush()
            kind, value = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            self._log.seek(0)
            raise RuntimeError(
                f"The process that runs bert4keras ended during the request `{name}`. It needs "
                "bert4keras==0.11.5 (pip install --no-deps) and tf-keras, which `make test` "
                f"installs. It wrote:\n{self._log.read().decode(errors='replace')[-4000:]}"
            ) from error
        if kind == "error":
            raise RuntimeError(f"bert4keras failed on `{name}`:\n{value}")
        return value


def ordered(inputs) -> list[np.ndarray]:
    """Returns the arrays of `inputs` in the order of the original's model inputs."""
    unknown = set(inputs) - set(INPUT_ORDER)
    if unknown:
        raise ValueError(
            f"`inputs` may have the keys {INPUT_ORDER}. Received also: {sorted(unknown)}"
        )
    return [np.asarray(inputs[name]) for name in INPUT_ORDER if name in inputs]


def small_config(**changes) -> dict:
    """Returns a `bert_config.json` of the golden size: 2 layers, 4 heads, width 32, 200 tokens."""
    return {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "type_vocab_size": 2,
        "vocab_size": 200,
        **changes,
    }
