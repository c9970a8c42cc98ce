"""Downloads the files of a model from the Hugging Face hub, into `huggingface_hub`'s cache."""

import contextlib
import functools
import glob
import hashlib
import os
import re
from pathlib import Path

from roformer_tf.checkpoint.damage import first_line
from roformer_tf.checkpoint.model_files import is_model, needed_files
from roformer_tf.checkpoint.original_files import nothing_found

# one slash if it was a `Path`, which drops the other
_SOURCE = re.compile(r"hf:/{1,2}(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>\S+))?")
# git allows no such name, and it could lead out of the cache
_NO_REVISION = re.compile(r"/|.*(\.\.|//)")


def is_hub_source(source):
    """Whether a source is a model on the hub: `hf://user/name`, or `hf://user/name@revision`."""
    return str(source).startswith("hf:/")


def download(source, weights=True):
    """Fetches the files of a model that are not yet in the cache, and checks all of them.

    Environment variables are those of `huggingface_hub`: `HF_HOME` and `HF_HUB_CACHE` name the
    cache, `HF_TOKEN` a token, `HF_ENDPOINT` a mirror, and `HF_HUB_OFFLINE=1` uses only the cache.
    If the hub cannot be reached, the cache is used.

    Args:
        source: str. `"hf://user/name"`, or `"hf://user/name@revision"`: a branch, tag or commit.
        weights: bool. Whether weights are needed.

    Returns:
        Tuple of the path of the folder in the cache, and the name of the repository.

    Raises:
        ValueError: If the source has another form, or a file is not what the hub says it is.
        FileNotFoundError: If there is no such repository, revision or file, or no model in it.
        PermissionError: If the hub asks for a token, or refuses it.
        ConnectionError: If the hub cannot be reached and the cache does not have the files.
    """
    import huggingface_hub

    match = _SOURCE.fullmatch(str(source))
    if match is None or _NO_REVISION.match(match["revision"] or ""):
        raise ValueError(
            "A model on the hub must be given as hf://user/name or hf://user/name@revision. "
            f"Received: {source}"
        )
    repo = match["repo"]
    endpoint = os.environ.get("HF_ENDPOINT") or huggingface_hub.constants.ENDPOINT
    options = {"revision": match["revision"], "endpoint": endpoint}
    with _named(source, **options):
        names, problem = _list_files(repo, **options)
        if names is None:
            folder, names = _cached(source, repo, weights, problem, **options)
            needed = needed_files(names, weights)
        elif is_model(names):
            needed = needed_files(names, weights)
            folder = _fetch(repo, needed, **options)
        else:
            raise FileNotFoundError(nothing_found(source, names))
    _check(source, folder, needed)
    return folder, repo.rpartition("/")[2]


def _list_files(repo, revision, endpoint):
    """Returns the names of the files; or `None` and the error, if the hub cannot be reached."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None, "HF_HUB_OFFLINE is set"
    try:
        info = huggingface_hub.HfApi(endpoint=endpoint).model_info(repo, revision=revision)
    except HFValidationError:
        raise
    except HfHubHTTPError as error:
        if error.response.status_code < 500 and error.response.status_code != 429:
            raise
        return None, f"it answered {error.response.status_code}"
    except Exception as error:  # each version of huggingface_hub raises those of other libraries
        return None, f"{type(error).__name__}: {_reason(error).rstrip('.')}"
    return [file.rfilename for file in info.siblings], None


def _fetch(repo, names, revision, endpoint, **options):
    import huggingface_hub

    return Path(
        huggingface_hub.snapshot_download(
            repo,
            revision=revision,
            endpoint=endpoint,
            allow_patterns=[glob.escape(name) for name in names],
            **options,
        )
    )


def _cached(source, repo, weights, problem, revision, endpoint):
    """Returns a folder in the cache and the names of its files, when the hub cannot be reached."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    names = []
    with contextlib.suppress(LocalEntryNotFoundError):
        folder = _fetch(repo, ["*.none"], revision, endpoint, local_files_only=True)
        names = [
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        ]
    settings, everything = (set(needed_files(names, weights=w)) for w in (False, True))
    if not is_model(names) or (weights and settings == everything):
        raise ConnectionError(
            f"{source} cannot be fetched, and the cache does not have "
            f"{'all of it' if names else 'it'}: the hub at {endpoint} cannot be reached "
            f"({problem}). Check the network; set HF_ENDPOINT for a "
            "mirror; or copy the folder and load it by its path."
        )
    return folder, names


def _check(source, folder, names):
    """Compares files of the cache with their digests from the hub, by which the cache names them.

    A file that differs is removed from the cache, so that the next call fetches it again.
    """
    for name in names:
        file = folder / name
        if not file.is_symlink():
            continue  # without links the cache does not keep digests
        blob = file.parent / os.readlink(file)
        if re.fullmatch("[0-9a-f]{64}", blob.name):
            digest = hashlib.sha256
        elif re.fullmatch("[0-9a-f]{40}", blob.name):
            header = b"blob %d\0" % blob.stat().st_size  # git puts this before the content
            digest = functools.partial(hashlib.sha1, header)
        else:
            continue
        with open(blob, "rb") as stream:
            found = hashlib.file_digest(stream, digest).hexdigest()
        if found != blob.name:
            os.unlink(file)
            os.unlink(blob)
            raise ValueError(
                f"{name} of {source} is not the file that the hub announced: its digest differs. "
                "It was removed from the cache. Load the model again to fetch it again."
            )


@contextlib.contextmanager
def _named(source, revision, endpoint):
    """Explains the errors of `huggingface_hub`."""
    from huggingface_hub import errors

    try:
        yield
    except (ConnectionError, ValueError, FileNotFoundError) as error:
        if isinstance(error, errors.HFValidationError):
            raise ValueError(
                f"{source} is not the name of a repository on the hub: {str(error).rstrip('.')}. "
                "Expected hf://user/name or hf://user/name@revision."
            ) from error
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise ConnectionError(
                f"{source} could not be fetched from {endpoint}: {_reason(error)} What is complete "
                "stays in the cache: load the model again."
            ) from error
        raise
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{source} is gated: accept its conditions on {endpoint} in a browser, then log in with "
            "`hf auth login` or set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{source} does not exist: the repository has no branch, tag or commit {revision!r}."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{source} does not exist at {endpoint}, or is private. Check the name; for a private "
            "one, log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except errors.EntryNotFoundError as error:
        url = getattr(getattr(error, "response", None), "url", "unknown")
        raise FileNotFoundError(
            f"{source} lacks a file that its list of files names: {url}. Load it again; if that "
            "does not help, tell its owner or the operator of the mirror."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise PermissionError(
                f"{source} is refused by {endpoint} ({status}): the token is wrong or lacks "
                "permission. Log in with `hf auth login`, or set HF_TOKEN."
            ) from error
        raise ConnectionError(
            f"{source} cannot be fetched: {endpoint} answered {status}."
        ) from error
    except OSError as error:
        if error.errno is not None:  # an error of this machine, such as a full disk
            raise OSError(
                error.errno, f"{source} cannot be written to the cache: {error.strerror}"
            ) from error
        raise ConnectionError(
            f"{source} was cut off while it was fetched from {endpoint}: "
            f"{_reason(error)} Load the model again."
        ) from error
    except Exception as error:
        raise ConnectionError(
            f"{source} could not be fetched from {endpoint} ({type(error).__name__}): "
            f"{_reason(error)} What is complete stays in the cache: load the model again."
        ) from error


def _reason(error):
    """Returns the first line of an error's message, as a sentence."""
    return f"{first_line(error):.300}."
