"""Runs a learner's kernel in a child process, so that a crash or an endless loop is one failed test."""

import faulthandler
import multiprocessing
import signal
import warnings
from collections.abc import Callable
from typing import Any

SECONDS = 10.0  # of the processor, after which a kernel counts as endless; a test's own takes milliseconds


class Endless(AssertionError):
    """A kernel that was stopped after `SECONDS`."""


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, which is not None, in a fork of this process, which has one thread.

    Raises:
        AssertionError: the child was ended by a signal, such as SIGSEGV.
        Endless: it did not end.
        Exception: what `work` raises.
    """
    __tracebackhide__ = True
    forks = multiprocessing.get_context("fork")
    ours, theirs = forks.Pipe(duplex=False)
    child = forks.Process(target=_send, args=(work, theirs))
    with warnings.catch_warnings():
        # Of a fork beside other threads: it uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    theirs.close()
    answer = _received(ours)
    child.join()
    if answer is None:
        raise _ending(child.exitcode)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _send(work: Callable[[], Any], to: Any) -> None:
    faulthandler.disable()  # the parent says what happened
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # then SIGPROF ends this process
    try:
        to.send(work())
    except BaseException as error:
        to.send(error)


def _received(answers: Any) -> Any:
    """What the child sends; None if it has ended before."""
    try:
        return answers.recv()
    except EOFError:
        return None


def _ending(code: int | None) -> AssertionError:
    if code == -signal.SIGPROF:
        return Endless(f"the kernel has not ended after {SECONDS:g} s: one of its loops has no end")
    name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return AssertionError(
        f"the kernel has crashed ({name}): it reads or writes at an address outside of its arrays"
    )
