"""Calls that take turns, so that a drift of the machine hits all alike."""

import time


def timed(call):
    """Returns a function that makes a call and returns its seconds."""

    def timed_call():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return timed_call


def take_turns(calls, repeats, uncounted=1):
    """Makes all calls in turn, `repeats` times. Returns what each returned, without the first turns."""
    turns = [{name: call() for name, call in calls.items()} for _ in range(repeats + uncounted)]
    return {name: [turn[name] for turn in turns[uncounted:]] for name in calls}
