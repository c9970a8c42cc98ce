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
from roformer_tf.pretraining.callbacks import RunLog, StopWhenSkipping, TensorBoardLog, log_number
from roformer_tf.pretraining.corpus import prepare_corpus
from roformer_tf.pretraining.models import (
    StagesSchedule,
    make_optimizer,
    make_preprocessor,
    make_task,
    make_tokenizer,
)
from roformer_tf.pretraining.plan import plan_run
from roformer_tf.pretraining.pretrainer import Pretrainer
from roformer_tf.pretraining.progress_bar import ProgressBar
from roformer_tf.pretraining.strategies import (
    all_agree,
    check_backend,
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
from roformer_tf.pretraining.windows import shards_in_window, too_few_sequences

_logger = logging.getLogger(__name__)


def pretrain(settings, folder, strategy=None, callbacks=(), verbose=True, allow_changes=False):
    r"""Trains a model through all stages. Call it again to resume from the last checkpoint.

    The folder gets `checkpoints/` (to resume from), `stage-1-512/` and so on (the model at the end
    of each stage, in the original format, or as a preset if that format has no place for the
    position scheme or for settings of the tokenizer), `log.csv`, `held_out.csv`, `tensorboard/`,
    `settings.json`, and `corpus/` unless `data.cache` names another folder.

    Sets the seeds of Python, NumPy and Keras.

    Args:
        settings: `PretrainingSettings`.
        folder: str or path. The folder of the run. With several workers all must see the same
            folder; the chief writes.
        strategy: `tf.distribute.Strategy`. Defaults to `choose_strategy()`.
        callbacks: `keras.callbacks.Callback` or list of them, passed to each `fit`. There is one
            `fit` for what is left of each stage.
        verbose: bool. Whether to show progress.
        allow_changes: bool. Whether a run may resume with other settings than those its last
            checkpoint was made with.

    Returns:
        `PretrainingResult`: whether all stages are done, and the trained task.

    Raises:
        FileNotFoundError, ValueError, OSError: If settings, texts (see `prepare_corpus`) or folder
            cannot be used, the folder holds a run with other settings or texts, or the Keras
            backend is not TensorFlow.
        ConnectionError: If another worker is lost: start all of them again. Or if the tf.data
            service cannot be reached.
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
    return start(Run, settings, folder, strategy, callbacks, verbose, allow_changes)


def start(run_class, settings, folder, strategy, callbacks, verbose, allow_changes):
    """Trains a `Run` of this class to its end, or until a signal; see `pretrain`."""
    check_backend()
    is_one = isinstance(callbacks, keras.callbacks.Callback)
    callbacks = [callbacks] if is_one else list(callbacks or ())
    with DelaySignals() as signals, contextlib.ExitStack() as held:
        strategy, run = strategy or choose_strategy(), None
        if is_chief(strategy):
            held.enter_context(lock_folder(Path(folder)))
        try:
            run = run_class(settings, Path(folder), strategy, callbacks, verbose, allow_changes)
            return run.train(signals)
        except tf.errors.OpError as error:
            if too_few := too_few_sequences(error):
                raise ValueError(too_few) from None
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
    """Result of `pretrain` and `train_tasks`.

    Attributes:
        completed: bool. Whether all stages are done; `False` after SIGTERM or SIGINT.
        signal: int or `None`. Number of the signal that ended the run early.
        task: the trained `RoFormerMaskedLM` or `RoFormerCausalLM`, with a preprocessor.
        classifiers: dict from the names of the tasks of `train_tasks` to their trained
            `RoFormerTextClassifier` or `RoFormerQuestionAnswering`, which share the backbone of
            `task`.

    Example:

    >>> from roformer_tf.pretraining import PretrainingResult
    >>> PretrainingResult(completed=False, signal=15, task=None).signal
    15
    """

    completed: bool
    signal: int | None
    task: keras.Model
    classifiers: dict = dataclasses.field(default_factory=dict)


class Run:
    """A pretraining run: its data, its model, and the loop over its stages; see `pretrain`."""

    classifiers = None  # of a multi-task run, by name; they share the backbone

    def __init__(self, settings, folder, strategy, callbacks, verbose, allow_changes):
        self.settings, self.folder, self.strategy = settings, folder, strategy
        self.chief = is_chief(strategy)
        self.together = num_workers() > 1
        self.tokenizer = make_tokenizer(settings.model)
        # whatever cannot work raises an error now, and not after some stages
        self.plans = plan_run(
            settings,
            replicas=strategy.num_replicas_in_sync,
            vocabulary_size=self.tokenizer.vocabulary_size(),
        )
        self.cache = settings.data.cache or str(folder / "corpus")
        self.prepare_data()
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
            self.pretrainer = self.make_pretrainer()
        if self.together:
            self.pretrainer.let_workers_agree()
        self._resume(allow_changes)
        self.shown = []
        if self.chief:
            self.shown = self.make_logs()
            if verbose:
                self.shown.append(ProgressBar(settings.stages))
        self.callbacks = callbacks

    def prepare_data(self):
        """Reads what the model learns from."""
        settings = self.settings
        self.corpus = prepare_corpus(
            settings.data.files,
            self.cache,
            held_out=settings.data.held_out,
            txt_documents=settings.data.txt_documents,
            max_bad_lines=settings.data.max_bad_lines,
        )
        warn_of_bad_lines(self.corpus, "the texts")
        for stage in settings.stages:
            shards_in_window(self.corpus, stage, settings.data)

    def make_logs(self):
        """Returns the callbacks that write the logs of the run."""
        stages, every = self.settings.stages, self.settings.run.log_every
        tensorboard = TensorBoardLog(stages, self.folder / "tensorboard", every)
        return [RunLog(stages, self.folder, every), tensorboard]

    def make_pretrainer(self):
        """Makes the compiled `Pretrainer`."""
        settings, run = self.settings, self.settings.run
        task = make_task(
            settings.model,
            settings.data.objective,
            self.tokenizer.vocabulary_size(),
            settings.max_length,
        )
        pretrainer = self.make_model(
            task,
            seed=run.seed,
            recompute=run.recompute,
            xla=run.jit_compile,
            max_length=settings.max_length,
            name="pretrainer",  # part of names in checkpoints; Keras would number its own
        )
        schedule = StagesSchedule(settings.stages)
        # a function of the step: the optimizer's own count leaves out skipped steps
        pretrainer.compile_for(
            make_optimizer(settings.optimizer, lambda: schedule(pretrainer.step))
        )
        return pretrainer

    def make_model(self, task, **options):
        """Makes the `Pretrainer` of a masked or causal LM."""
        return Pretrainer(task, **options)

    def _variables(self):
        weights, optimizer = self.pretrainer.weights, self.pretrainer.optimizer
        # without Keras' seed generators: a step draws from its own seed
        variables = {f"model/{variable.path}": variable.value for variable in weights}
        more = {f"optimizer/{variable.path}": variable.value for variable in optimizer.variables}
        return {**variables, **more}

    def identity(self):
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
        if newest is not None:
            check_same_run(newest, self.identity(), allow_changes)
        state = self.checkpoints.restore(self._variables())
        if state is None:
            self.models.check_none_exist()
        else:
            if state != newest:  # the newest one is damaged
                check_same_run(state, self.identity(), allow_changes)
            _logger.info("Resuming after step %d", state["step"])
        if self.chief:
            text = json.dumps(dataclasses.asdict(self.settings), indent=1, ensure_ascii=False)
            with replace_file(self.folder / "settings.json") as file:
                file.write(f"{text}\n".encode())
        if self.together:
            self._check_workers()
        if self.chief:
            self.models.move_unfinished(self.pretrainer.steps_done)

    def agreement(self):
        """Returns what must be the same for all workers."""
        settings, identity = self.settings, self.identity()
        same = self.pretrainer.steps_done, identity["corpus"], identity["vocabulary"]
        return (*same, settings.stages, settings.optimizer, settings.run.seed)

    def _check_workers(self):
        step, corpus, vocabulary, *_ = agreement = self.agreement()
        if not all_agree(self.strategy, str(agreement)):
            raise ValueError(
                "The workers do not start from the same state. All must have the same settings, "
                "the same texts, and one folder of the run that all of them see. This one is at "
                f"step {step} of {self.folder}, with the texts {corpus[:12]} and the "
                f"vocabulary {vocabulary[:12]}."
            )

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
                    return self._result(False, signals.received)
                signals.defer = False
            step = self.pretrainer.steps_done
            self._check_few_skipped(step)
            self._finish_stage(index, stage)
        return self._result(True)

    def _result(self, completed, number=None):
        task, classifiers = self.pretrainer.task, dict(self.classifiers or {})
        task.preprocessor = make_preprocessor(task, self.tokenizer)
        return PretrainingResult(completed, number, task, classifiers)

    def _train_stage(self, index, stage, stage_step, signals):
        run, batches = self.settings.run, self.batches(index, stage_step)
        self.pretrainer.set_slices(self.plans[index].slices)
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

    def batches(self, index, stage_step):
        """Returns the batches of a stage, from a step of it on."""
        settings, start = self.settings, (0, 0)
        if stage_step:
            window, index_in_window = self.pretrainer.last_place
            start = (window, index_in_window + 1)
        stage, seed = settings.stages[index], settings.run.seed
        return training_batches(
            self.corpus, self.tokenizer, stage, settings.data, seed, index, start
        )

    def _save(self):
        for callback in self.shown:
            callback.flush()
        if self.chief:
            step = self.pretrainer.steps_done
            self.checkpoints.save(step, self._variables(), self.identity())

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
        for callback in self.shown:
            callback.begin_stage(index, stage.steps)
        self.evaluate(index)
        self.models.save(index, self.pretrainer.task, self.tokenizer, self.classifiers)

    def evaluate(self, index):
        """Logs loss and accuracy on the held-out texts at the end of a stage."""
        if self.corpus.held_out_shards:
            batches = held_out_batches(
                self.corpus,
                self.tokenizer,
                self.settings.stages[index],
                self.settings.data,
                self.settings.run.seed,
                max_batches=self.settings.run.held_out_batches,
            )
            self.log_held_out(self.evaluate_batches(index, batches))

    def evaluate_batches(self, index, batches):
        """Returns the figures of held-out batches of a stage, in the memory that it trains in."""
        size = self.plans[index].micro_batch_size
        return self.pretrainer.evaluate_batches(batches, size)

    def log_held_out(self, figures):
        for callback in self.shown:
            callback.log_held_out(figures["loss"], figures["accuracy"])


class SaveCheckpoints(keras.callbacks.Callback):
    """Calls `save` after every `every` steps of the run, after a signal, and at the end of `fit`.

    With `together` there are other workers, and all must stop after the same step. A worker that
    receives a signal asks the pretrainer to stop, and all workers see that in the logs of a step.
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


class DelaySignals:
    """Context in which SIGTERM and the first SIGINT (Ctrl-C) end the run without losing steps.

    If there are steps that no checkpoint has, the signal is noted: the running step ends, a
    checkpoint is written, and `fit` returns. Otherwise, such as while texts are read, the process
    exits at once.
    """

    def __init__(self):
        self.received = None  # number of the signal
        self.defer = False  # whether signals are only noted
        self._previous = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
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


def warn_of_bad_lines(corpus, what):
    """Logs a warning if lines of a corpus were skipped."""
    if corpus.skipped["bad_lines"]:
        _logger.warning(
            "%d lines of %s cannot be read and were skipped, the first of them: %s",
            corpus.skipped["bad_lines"],
            what,
            corpus.first_bad_lines[0],
        )
