"""Ctrl-C at a chosen point of a loop, and not in the middle of a step or of a write to the terminal."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Keeps Ctrl-C until the yielded function is called, which then raises KeyboardInterrupt.

    A second Ctrl-C does not wait. Where Ctrl-C is ignored, or Python does not have it, nothing changes.
    """
    pressed = False

    def keep(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if not is_ours:
        yield check
        return
    signal.signal(signal.SIGINT, keep)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
