"""Resolves a wheel's requirements for every platform that users have, from wheels alone.

`make platforms` runs it. It needs uv and a package index. jieba is the one requirement without a
wheel: it is pure Python.
"""

import subprocess
import sys
from pathlib import Path

PLATFORMS = {
    "Linux x86": "x86_64-unknown-linux-gnu",
    "Linux ARM": "aarch64-unknown-linux-gnu",
    "macOS ARM": "aarch64-apple-darwin",
    "Windows x86": "x86_64-pc-windows-msvc",
}
VERSIONS = ("3.11", "3.12", "3.13")
EXTRAS = ("", "[app]", "[plots]", "[export]")


def resolve(wheel, extra, platform, version):
    """Returns the pinned requirements of a platform, or ends the program with uv's explanation."""
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--no-header"]
    command += ["--no-annotate", "--only-binary", ":all:", "--no-binary", "jieba"]
    command += ["--python-platform", platform, "--python-version", version, "-"]
    requirement = f"roformer-tf{extra} @ {Path(wheel).resolve().as_uri()}\n"
    done = subprocess.run(command, input=requirement, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{platform}, Python {version}, {extra or 'no extra'}:\n{done.stderr}")
    return done.stdout.split()


def main(wheel):
    for name, platform in PLATFORMS.items():
        for version in VERSIONS:
            for extra in EXTRAS:
                pins = resolve(wheel, extra, platform, version)
                text = next((pin for pin in pins if pin.startswith("tensorflow-text==")), None)
                assert (text is None) == (name == "Windows x86"), (name, text)
                print(f"{name:12} {version} {extra:9} {len(pins):3} packages, {text}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
