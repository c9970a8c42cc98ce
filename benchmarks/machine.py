"""Describes the machine, for kept results."""

import os
import platform
from pathlib import Path

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def describe():
    lines = _read("/proc/cpuinfo").splitlines()
    facts = dict(
        (part.strip() for part in line.split(":", 1)) for line in reversed(lines) if ":" in line
    )
    flags = facts.get("flags", facts.get("Features", "")).split()
    memory = next((x for x in _read("/proc/meminfo").splitlines() if x.startswith("MemTotal")), "")
    return {
        "cpu": facts.get("model name", platform.processor()),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_mb": int(memory.split()[1]) // 1024 if memory else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def load_average():
    """Returns the load average of the last minute, which shows other work on the machine."""
    return os.getloadavg()[0]


def _read(path):
    return Path(path).read_text() if Path(path).exists() else ""
