"""Where the files of an original checkpoint lie."""

import re
from dataclasses import dataclass
from pathlib import Path

CONFIG_FILE = "bert_config.json"
VOCABULARY_FILE = "vocab.txt"
CHECKPOINT_NAME = "bert_model.ckpt"

_LFS_HEADER = b"version https://git-lfs.github.com/spec/"
_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of one TF1 checkpoint.

    Attributes:
        prefix: path without the endings, as TensorFlow wants it.
        index: the `.index` file.
        shards: the `.data-…` files, all of them present.
    """

    prefix: Path
    index: Path
    shards: tuple

    @property
    def folder(self):
        return self.prefix.parent


def is_tf1_folder(path):
    """Whether `path` is a folder with a `bert_config.json` or an `.index` file, and not one of `save_to_preset`."""
    folder = Path(path)
    if not folder.is_dir() or (folder / "task.json").exists():
        return False
    return (folder / CONFIG_FILE).exists() or any(folder.glob("*.index"))


def find_checkpoint(path):
    """Finds the TF1 checkpoint meant by `path` and checks that its files are there.

    Args:
        path: a folder, a prefix such as `folder/bert_model.ckpt`, or one of the checkpoint's files. In a folder
            `bert_model.ckpt` comes first, then the one that the file `checkpoint` names, then the only `.index` file.

    Returns:
        `CheckpointFiles`.

    Raises:
        FileNotFoundError: if there is no checkpoint, or the index or a data shard is missing.
        ValueError: if a folder holds several checkpoints, or a file is only a Git LFS pointer.
    """
    path = Path(path)
    if path.name in (CONFIG_FILE, VOCABULARY_FILE, "checkpoint") and path.is_file():
        path = path.parent
    prefix = _prefix_in_folder(path) if path.is_dir() else _strip_ending(path)
    index = Path(f"{prefix}.index")
    shards = sorted(prefix.parent.glob(f"{_escape(prefix.name)}.data-*-of-*"))
    if not index.exists():
        if shards:
            raise FileNotFoundError(
                f"The index of the checkpoint is missing: expected {index} beside {shards[0].name}. "
                "Copy the `.index` file from where the checkpoint came from; it cannot be rebuilt."
            )
        raise FileNotFoundError(_nothing_found(path))
    _refuse_lfs_pointer(index)
    _check_shards(prefix, shards)
    for shard in shards:
        _refuse_lfs_pointer(shard)
    return CheckpointFiles(prefix, index, tuple(shards))


def existing_file(folder, name, purpose):
    """`folder/name`, which must exist and be more than a Git LFS pointer."""
    file = Path(folder) / name
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {purpose}")
    _refuse_lfs_pointer(file)
    return file


def _prefix_in_folder(folder):
    if (folder / f"{CHECKPOINT_NAME}.index").exists():
        return folder / CHECKPOINT_NAME
    if (folder / "checkpoint").is_file():
        text = (folder / "checkpoint").read_text(encoding="utf-8", errors="replace")
        named = re.search(r'^model_checkpoint_path:\s*"(.*)"', text, re.MULTILINE)
        # the file often holds the absolute path of the machine that trained the model: only its last part counts
        if named and (folder / f"{Path(named[1]).name}.index").exists():
            return folder / Path(named[1]).name
    found = sorted(folder.glob("*.index"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(
            f"{folder} holds {len(found)} checkpoints: {names}. "
            "Pass the prefix of the one you mean, for example "
            f"{folder / found[0].stem!s}"
        )
    return folder / (found[0].stem if found else CHECKPOINT_NAME)


def _strip_ending(path):
    if path.name.endswith((".index", ".meta")):
        return path.with_suffix("")
    return path.with_name(_SHARD.sub("", path.name))


def _check_shards(prefix, shards):
    counts = {int(_SHARD.search(shard.name)[2]) for shard in shards if _SHARD.search(shard.name)}
    count = max(counts, default=1)
    expected = [Path(f"{prefix}.data-{i:05d}-of-{count:05d}") for i in range(count)]
    missing = [file.name for file in expected if not file.exists()]
    if missing:
        raise FileNotFoundError(
            f"The data of the checkpoint {prefix} is missing: expected {', '.join(missing)} in "
            f"{prefix.parent}. The index alone holds no weights; copy the data file next to it."
        )


def _refuse_lfs_pointer(file):
    with open(file, "rb") as stream:
        head = stream.read(len(_LFS_HEADER))
    if head == _LFS_HEADER:
        raise ValueError(
            f"{file} is a Git LFS pointer, not the file itself. "
            "Fetch the content with `git lfs install && git lfs pull` in the repository it came from."
        )


def _escape(name):
    return re.sub(r"([*?\[])", r"[\1]", name)


def _nothing_found(path):
    if not path.exists() and not path.parent.is_dir():
        return f"No checkpoint at {path}: the folder {path.parent} does not exist."
    if path.is_dir():
        present = ", ".join(sorted(p.name for p in path.iterdir())[:10]) or "nothing"
        return (
            f"No checkpoint in {path}: expected {CHECKPOINT_NAME}.index and "
            f"{CHECKPOINT_NAME}.data-00000-of-00001, found {present}. "
            "Unzip the release and pass the folder that holds these files."
        )
    return (
        f"No checkpoint at {path}: expected {path.name}.index and "
        f"{path.name}.data-00000-of-00001 in {path.parent}."
    )
