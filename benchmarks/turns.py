"""Calls that take turns, so that a drift of the machine hits all alike."""

import time


def timed(call):
    """The same call, which returns its seconds."""

    def timed_call():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return timed_call


def take_turns(calls, repeats, uncounted=1):
    """What each call returns in each turn, of which the first are not counted."""
    turns = [{name: call() for name, call in calls.items()} for _ in range(repeats + uncounted)]
    return {name: [turn[name] for turn in turns[uncounted:]] for name in calls}
