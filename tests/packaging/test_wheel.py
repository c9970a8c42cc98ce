"""The wheel: what is in it, that the sdist builds the same, and that it runs where it is installed."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.processes import run_program

pytestmark = pytest.mark.slow

# in a folder of the sources: the setuptools of this environment builds both
BUILD = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
# sees the packages that are tested, but for the editable install
SEE_TESTED = "import sys; sys.path.append({!r})\n"
# follows the programs of README.md: what is served answers as the model
CHECK = """
import numpy as np
import roformer_tf

texts = ["房间干净", "难吃"]
answer = served.signatures["serving_default"](texts=tf.constant(texts))
expected = classifier.predict(texts, verbose=0)
np.testing.assert_allclose(answer["logits"], expected, atol=1e-5)
assert set(answer["label"].numpy()) <= {b"negative", b"positive"}
print(roformer_tf.__file__)
"""


def build(kind, sources, output):
    """Builds a wheel or sdist and returns its path."""
    done = run_program(sys.executable, "-c", BUILD.format(kind, str(output)), cwd=sources)
    # an old copy of the metadata, or a file that no package owns, would be named here
    assert "deprecated" not in done.stderr.lower() and "absent from" not in done.stderr
    return output / done.stdout.split()[-1]


def contents(wheel):
    """Returns the SHA-256 of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("RECORD")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


@pytest.fixture(scope="module")
def sdist_and_wheel(repository, tmp_path_factory):
    """Built from a copy of the tracked files, as a checkout may hold leftovers."""
    folder = tmp_path_factory.mktemp("build")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listing.stdout.split("\0")):
        if not name.startswith(("checkpoints/", "experiments/")) and (repository / name).exists():
            (folder / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, folder / "sources" / name)
    sdist = build("sdist", folder / "sources", folder)
    return sdist, build("wheel", folder / "sources", folder)


def test_contents_and_metadata(sdist_and_wheel, repository):
    _, wheel = sdist_and_wheel
    found = contents(wheel)
    package = repository / "roformer_tf"
    expected = {f"roformer_tf/{path.relative_to(package)}" for path in package.rglob("*.py")}
    info = "roformer_tf-0.2.0.dist-info"
    expected |= {"roformer_tf/py.typed", f"{info}/licenses/LICENSE"}
    expected |= {f"{info}/{name}" for name in ("METADATA", "WHEEL", "entry_points.txt")}
    assert set(found) == expected | {f"{info}/top_level.txt"}
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{info}/METADATA").decode()
        points = archive.read(f"{info}/entry_points.txt").decode()
    assert "roformer-tf = roformer_tf.__main__:main" in points
    assert "License-Expression: Apache-2.0" in metadata
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    needed = {re.split(r"[^\w-]", line)[0] for line in required if "extra ==" not in line}
    assert not needed & {"bert4keras", "pytest", "setuptools", "torch", "matplotlib"}
    assert 'tensorflow-text==2.21.*; platform_system != "Windows"' in required


def test_the_sdist_builds_the_same_wheel(sdist_and_wheel, tmp_path):
    sdist, wheel = sdist_and_wheel
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(tmp_path)
    [sources] = tmp_path.iterdir()
    (tmp_path / "again").mkdir()
    assert contents(build("wheel", sources, tmp_path / "again")) == contents(wheel)


def test_the_first_page_runs_where_the_wheel_is_installed(sdist_and_wheel, repository, tmp_path):
    """In a new environment that sees the packages of this one, but not the repository."""
    _, wheel = sdist_and_wheel
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / Path(sys.executable).name
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel]
    run_program(*command, env=variables)
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = run_program(python, "-c", script).stdout.strip()
    (Path(site) / "tested.pth").write_text(SEE_TESTED.format(sysconfig.get_path("purelib")))

    page = (repository / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    work = tmp_path / "work"
    work.mkdir()
    for name in ("checkpoints", "README.md"):
        (work / name).symlink_to(repository / name)
    (work / "page.py").write_text("\n".join([*blocks, CHECK]), encoding="utf-8")

    def run(*command):
        return run_program(*command, cwd=work, env=variables).stdout

    assert "pretrain" in run(scripts / "roformer-tf", "--help")
    *_, where = run(python, "page.py").splitlines()
    assert Path(where).is_relative_to(site)
    assert (work / "build" / "served" / "saved_model.pb").exists()
