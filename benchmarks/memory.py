"""Memory of this process, in MB of 2^20 bytes. The peak can be reset on Linux only."""

import resource
import sys
from pathlib import Path


def resident():
    """Returns the resident memory; where there is no /proc, its peak so far."""
    return _status("VmRSS") or _max_rss()


def peak():
    """Returns the most resident memory since the start, or since `reset_peak`."""
    return _status("VmHWM") or _max_rss()


def reset_peak():
    """Resets the peak. Returns whether this system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(key):
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def _max_rss():
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value / 2**20 if sys.platform == "darwin" else value / 1024
