"""A pretraining run: one model and one optimizer through a list of stages, never losing work."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import signal
import threading
from pathlib import Path

import keras
import tensorflow as tf

from roformer_tf.files import lock_folder, replace_file
from roformer_tf.pretraining.batches import held_out_batches, training_batches
from roformer_tf.pretraining.callbacks import RunLog, TensorBoardLog, log_number
from roformer_tf.pretraining.corpus import prepare_corpus
from roformer_tf.pretraining.models import StagesSchedule, make_optimizer, make_task, make_tokenizer
from roformer_tf.pretraining.plan import plan_run
from roformer_tf.pretraining.pretrainer import Pretrainer
from roformer_tf.pretraining.progress_bar import ProgressBar
from roformer_tf.pretraining.strategies import (
    all_agree,
    choose_strategy,
    distribute_batches,
    is_chief,
    lost_worker,
    num_workers,
    reason_of,
)
from roformer_tf.pretraining.training_checkpoints import (
    CHECKPOINT_FORMAT,
    StageModels,
    TrainingCheckpoints,
    check_same_run,
)
from roformer_tf.pretraining.windows import shards_in_window

_logger = logging.getLogger(__name__)


def pretrain(settings, folder, strategy=None, callbacks=(), verbose=True, allow_changes=False):
    r"""Trains a model through all stages. Called again after any stop, resumes the last checkpoint.

    The folder gets `checkpoints/` (to resume from), `stage-1-512/` and so on (the model at the end
    of each stage, in the original format, or as a preset if that format has no place for the
    position scheme), `log.csv`, `held_out.csv`, `tensorboard/` and `settings.json`.

    Sets the seeds of Python, NumPy and Keras.

    Args:
        settings: `PretrainingSettings`.
        folder: str or path. The folder of the run. With several workers all must see the same
            folder; the chief writes.
        strategy: `tf.distribute.Strategy`. Defaults to `choose_strategy()`.
        callbacks: list of `keras.callbacks.Callback`, passed to each `fit`. There is one `fit` for
            what is left of each stage.
        verbose: bool. Whether to show progress.
        allow_changes: bool. Whether a run may resume with other settings than those its last
            checkpoint was made with.

    Returns:
        `PretrainingResult`: whether all stages are done, and the trained task.

    Raises:
        FileNotFoundError, ValueError, OSError: If settings, texts (see `prepare_corpus`) or folder
            cannot be used, or the folder holds a run with other settings or texts.
        ConnectionError: If another worker is lost. Start all of them again.
        FloatingPointError: If `max_skipped_in_a_row` consecutive steps, or most of all steps up to
            the end of a stage, had NaN or infinite gradients.

    Example (see `examples/pretrain.py` for a larger one):

    >>> import pathlib, tempfile
    >>> from roformer_tf.pretraining import PretrainingSettings, pretrain
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "texts.txt").write_text("春眠不觉晓，处处闻啼鸟。\n\n" * 40, encoding="utf-8")
    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"春眠不觉晓处闻啼鸟，。"]
    >>> _ = (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    >>> model = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    >>> stage = {"max_length": 16, "global_batch_size": 4, "steps": 2, "learning_rate": 1e-3}
    >>> settings = PretrainingSettings.from_dict({
    ...     "data": {"files": [str(folder / "texts.txt")]},
    ...     "model": {"vocabulary": str(folder / "vocab.txt"), "word_level": False, **model},
    ...     "stages": [stage],
    ... })
    >>> pretrain(settings, folder / "run", verbose=False).completed
    True
    >>> sorted(path.name for path in (folder / "run").iterdir())
    ['checkpoints', 'corpus', 'log.csv', 'settings.json', 'stage-1-16', 'tensorboard']
    """
    with DelaySignals() as signals, contextlib.ExitStack() as held:
        strategy, run = strategy or choose_strategy(), None
        if is_chief(strategy):
            held.enter_context(lock_folder(Path(folder)))
        try:
            run = _Run(settings, Path(folder), strategy, list(callbacks), verbose, allow_changes)
            return run.train(signals)
        except tf.errors.OpError as error:
            if not lost_worker(error):
                raise
            if signals.received:  # all were asked to stop, and another one did first
                raise SystemExit(128 + signals.received) from None
            raise ConnectionError(
                "Another worker of this run has ended or cannot be reached, so this one stops too. "
                "Read the messages of that worker. Then start all workers again with the same "
                "command, and they resume from the last checkpoint"
                f"{'' if run is None else ', ' + (run.newest_checkpoint() or 'none yet')}. "
                f"TensorFlow said: {reason_of(error)}"
            ) from error
        finally:
            if run is not None:
                run.close()


@dataclasses.dataclass(frozen=True)
class PretrainingResult:
    """Result of `pretrain`.

    Attributes:
        completed: bool. Whether all stages are done; `False` after SIGTERM or SIGINT.
        signal: int or `None`. Number of the signal that ended the run early.
        task: the trained `RoFormerMaskedLM` or `RoFormerCausalLM`.

    Example:

    >>> from roformer_tf.pretraining import PretrainingResult
    >>> PretrainingResult(completed=False, signal=15, task=None).signal
    15
    """

    completed: bool
    signal: int | None
    task: keras.Model


class _Run:
    def __init__(self, settings, folder, strategy, callbacks, verbose, allow_changes):
        self.settings, self.folder, self.strategy = settings, folder, strategy
        self.chief = is_chief(strategy)
        self.together = num_workers() > 1
        self.tokenizer = make_tokenizer(settings.model)
        # whatever cannot work raises an error now, and not after some stages
        plans = plan_run(
            settings,
            replicas=strategy.num_replicas_in_sync,
            vocabulary_size=self.tokenizer.vocabulary_size(),
        )
        self.slices = [plan.slices for plan in plans]
        self.corpus = prepare_corpus(
            settings.data.files,
            settings.data.cache or str(folder / "corpus"),
            held_out=settings.data.held_out,
            txt_documents=settings.data.txt_documents,
            max_bad_lines=settings.data.max_bad_lines,
        )
        if self.corpus.skipped["bad_lines"]:
            _logger.warning(
                "%d lines of the texts cannot be read and were skipped, the first of them: %s",
                self.corpus.skipped["bad_lines"],
                self.corpus.first_bad_lines[0],
            )
        for stage in settings.stages:
            shards_in_window(self.corpus, stage, settings.data)
        self.models = StageModels(folder, settings.stages)
        self.checkpoints = TrainingCheckpoints(
            folder / "checkpoints", settings.run.keep_checkpoints
        )
        # a run that stops before its first checkpoint starts again with the same weights
        keras.utils.set_random_seed(settings.run.seed)
        # the same bits, also where threads add up in any order
        if settings.run.deterministic:
            tf.config.experimental.enable_op_determinism()
        with strategy.scope():
            self.pretrainer = self._make_pretrainer()
        if self.together:
            self.pretrainer.let_workers_agree()
        self._resume(allow_changes)
        stages, run = settings.stages, settings.run
        self.shown = []
        if self.chief:
            self.shown = [RunLog(stages, folder, every=run.log_every)]
            self.shown.append(TensorBoardLog(stages, folder / "tensorboard", run.log_every))
            if verbose:
                self.shown.append(ProgressBar(stages))
        self.callbacks = callbacks

    def _make_pretrainer(self):
        settings = self.settings
        task = make_task(
            settings.model,
            settings.data.objective,
            self.tokenizer.vocabulary_size(),
            max(stage.max_length for stage in settings.stages),
        )
        pretrainer = Pretrainer(
            task,
            seed=settings.run.seed,
            recompute=settings.run.recompute,
            xla=settings.run.jit_compile,
            name="pretrainer",  # part of names in checkpoints; Keras would number its own
        )
        pretrainer.measures_input = not settings.run.deterministic
        schedule = StagesSchedule(settings.stages)
        # a function of the step: the optimizer's own count leaves out skipped steps
        pretrainer.compile_for(
            make_optimizer(settings.optimizer, lambda: schedule(pretrainer.step))
        )
        return pretrainer

    def _variables(self):
        pretrainer = self.pretrainer
        return {
            f"{kind}/{variable.path}": variable.value
            # without Keras' seed generators: a step draws from its own seed
            for kind, owner, names in (
                ("model", pretrainer, "weights"),
                ("optimizer", pretrainer.optimizer, "variables"),
            )
            for variable in getattr(owner, names)
        }

    def _identity(self):
        """Returns what a checkpoint stores to recognize its run."""
        words = "\n".join(self.tokenizer.get_vocabulary())
        return {
            "format": CHECKPOINT_FORMAT,
            "settings": dataclasses.asdict(self.settings),
            "corpus": self.corpus.fingerprint,
            "vocabulary": hashlib.sha256(words.encode()).hexdigest(),
        }

    def _resume(self, allow_changes):
        # before reading the weights: settings tell what is different, shapes do not
        newest = self.checkpoints.newest_state()
        self._check_same_run(newest, allow_changes)
        state = self.checkpoints.restore(self._variables())
        if state != newest:  # the newest one is damaged
            self._check_same_run(state, allow_changes)
        if state is None:
            self.models.check_none_exist()
        else:
            _logger.info("Resuming after step %d", state["step"])
        if self.chief:
            text = json.dumps(dataclasses.asdict(self.settings), indent=1, ensure_ascii=False)
            with replace_file(self.folder / "settings.json") as file:
                file.write(f"{text}\n".encode())
        if self.together:
            self._check_workers()
        if self.chief:
            self.models.move_unfinished(self.pretrainer.steps_done)

    def _check_same_run(self, state, allow_changes):
        if state is not None:
            stage, stage_step = self._stage_at(state["step"])
            check_same_run(state, self._identity(), stage, stage_step, allow_changes)

    def _check_workers(self):
        settings, identity = self.settings, self._identity()
        step = self.pretrainer.steps_done
        fixed = (step, identity["corpus"], identity["vocabulary"], settings.stages)
        if not all_agree(self.strategy, f"{fixed} {settings.optimizer} {settings.run.seed}"):
            raise ValueError(
                "The workers do not start from the same state. All must have the same settings, "
                "the same texts, and one folder of the run that all of them see. This one is at "
                f"step {step} of {self.folder}, with the texts {identity['corpus'][:12]} and the "
                f"vocabulary {identity['vocabulary'][:12]}."
            )

    def _stage_at(self, step):
        """Returns the index of the stage, and the step within it, after `step` steps."""
        for index, stage in enumerate(self.settings.stages):
            first = self.settings.first_step(index)
            if step < first + stage.steps:
                return index, step - first
        return len(self.settings.stages), 0

    def close(self):
        """Removes the progress bar from the terminal, also after an error."""
        for callback in self.shown:
            if isinstance(callback, ProgressBar):
                callback.close()

    def train(self, signals):
        step = self.pretrainer.steps_done
        for index, stage in enumerate(self.settings.stages):
            first = self.settings.first_step(index)
            if step > first + stage.steps:
                continue
            if step < first + stage.steps:
                self._train_stage(index, stage, step - first, signals)
                if self.pretrainer.stop_training or (signals.received and not self.together):
                    return PretrainingResult(False, signals.received, self.pretrainer.task)
                signals.defer = False
            step = self.pretrainer.steps_done
            self._check_few_skipped(step)
            self._finish_stage(index, stage)
        return PretrainingResult(True, None, self.pretrainer.task)

    def _train_stage(self, index, stage, stage_step, signals):
        run, start = self.settings.run, (0, 0)
        if stage_step:
            window, index_in_window = self.pretrainer.last_place
            start = (window, index_in_window + 1)
        batches = training_batches(
            self.corpus, self.tokenizer, stage, self.settings.data, run.seed, index, start
        )
        self.pretrainer.set_slices(self.slices[index])
        for callback in self.shown:
            callback.begin_stage(index, stage_step)
        self.pretrainer.fit(
            distribute_batches(batches, self.strategy),
            steps_per_epoch=stage.steps - stage_step,
            shuffle=False,
            verbose=0,
            callbacks=[
                StopWhenSkipping(run.max_skipped_in_a_row, self.newest_checkpoint),
                *self.shown,
                *self.callbacks,
                SaveCheckpoints(self._save, run.checkpoint_every, signals, self.together),
            ],
        )

    def _save(self):
        for callback in self.shown:
            callback.flush()
        if self.chief:
            step = self.pretrainer.steps_done
            self.checkpoints.save(step, self._variables(), self._identity())

    def newest_checkpoint(self):
        """Describes the last checkpoint for messages; `None` without one."""
        steps = self.checkpoints.steps()
        return f"step {steps[-1]} in {self.checkpoints.folder}" if steps else None

    def _check_few_skipped(self, step):
        """Raises `FloatingPointError` if most steps were skipped: nothing has been learned."""
        skipped = int(tf.convert_to_tensor(self.pretrainer.optimizer.skipped))
        if 2 * skipped > step:
            raise FloatingPointError(
                f"{skipped} of {step} steps had NaN or infinite gradients and were skipped, so no "
                "model of the stage is saved. Try a lower `learning_rate` or `weight_decay`, "
                "`clip_norm` = 1.0, or `dtype` = 'float32', and start in another folder."
            )

    def _finish_stage(self, index, stage):
        """Evaluates and exports; once per stage, unless the process ended in between."""
        if not self.chief:
            return
        if self.models.path(index).exists():
            self.models.remove_earlier(index)
            return
        if self.corpus.held_out_shards:
            batches = held_out_batches(
                self.corpus,
                self.tokenizer,
                stage,
                self.settings.data,
                self.settings.run.seed,
                max_batches=self.settings.run.held_out_batches,
            )
            figures = self.pretrainer.evaluate_batches(batches)
            for callback in self.shown:
                callback.begin_stage(index, stage.steps)
                callback.log_held_out(figures["loss"], figures["accuracy"])
        self.models.save(index, self.pretrainer.task, self.tokenizer)


class SaveCheckpoints(keras.callbacks.Callback):
    """Calls `save` after every `every` steps of the run, after a signal, and at the end of `fit`.

    Args:
        save: function without arguments.
        every: int. Number of steps.
        signals: `DelaySignals`.
        together: bool. Whether there are other workers, which must all stop after the same step.
            Then a signal asks the pretrainer, and all workers see in its logs that one wants to
            stop.
    """

    def __init__(self, save, every, signals, together=False):
        super().__init__()
        self._save, self._every, self._signals, self._together = save, every, signals, together
        self._step = self._saved = 0

    def on_train_begin(self, logs=None):
        self._step = self._saved = self.model.steps_done
        self._signals.defer = self._together

    def on_train_batch_begin(self, batch, logs=None):
        # from here on there is a step to lose
        self._signals.defer = True
        if self._together and self._signals.received:
            self.model.ask_to_stop()

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        if self._together and log_number(logs["stop"]):
            self._signals.received = self._signals.received or signal.SIGTERM
            self.model.stop_training = True
        elif self._signals.received and not self._together:
            self.model.stop_training = True
        if self._step % self._every == 0 or self.model.stop_training:
            self._save_once()
            self._signals.defer = self._together or self.model.stop_training

    def on_train_end(self, logs=None):
        self._signals.defer = True
        self._save_once()

    def _save_once(self):
        if self._step > self._saved:
            self._save()
            self._saved = self._step


class StopWhenSkipping(keras.callbacks.Callback):
    """Ends the run after too many consecutive steps with NaN or infinite gradients.

    Args:
        limit: int. Number of skipped steps in a row.
        newest_checkpoint: function that describes the last checkpoint, for the message.
    """

    def __init__(self, limit, newest_checkpoint):
        super().__init__()
        self._limit, self._newest_checkpoint = limit, newest_checkpoint

    def on_train_batch_end(self, batch, logs=None):
        skipped = round(log_number(logs["skipped_in_a_row"]))
        if skipped >= self._limit:
            raise FloatingPointError(
                f"{skipped} steps in a row had NaN or infinite gradients and were skipped, so the "
                "run stops with the weights from before them. Last checkpoint: "
                f"{self._newest_checkpoint() or 'none yet'}. Try a lower `learning_rate`, a longer "
                "warm-up (`learning_rate_factors`), `clip_norm` = 1.0, or `dtype` = 'float32' "
                "instead of 'mixed_float16'. Then start again with --allow-changes to resume."
            )


class DelaySignals:
    """Context in which SIGTERM and the first SIGINT (Ctrl-C) end the run without losing steps.

    If there are steps that no checkpoint has, the signal is noted: the running step ends, a
    checkpoint is written, and `fit` returns. Otherwise, such as while texts are read, the process
    exits at once.

    Attributes:
        received: int or `None`. Number of the signal received.
        defer: bool. Whether signals are only noted.
    """

    signals = (signal.SIGTERM, signal.SIGINT)

    def __init__(self):
        self.received = None
        self.defer = False
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        again = self.received is not None and number == signal.SIGINT
        self.received = number
        if again or not self.defer:
            raise SystemExit(128 + number)
