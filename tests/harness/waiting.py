"""Waiting for a condition, with a deadline. Tests never sleep to give
something time: they say what they wait for."""

import time


class TimedOut(AssertionError):
    pass


def wait_for(condition, timeout, what, pause=0.02):
    """The first true value of `condition()`; fails, saying `what`, after
    `timeout` seconds. An exception of the condition is not caught."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimedOut(f"after {timeout} s still waiting for {what} (last value: {value!r})")
        time.sleep(pause)
