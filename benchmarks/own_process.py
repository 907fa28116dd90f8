"""A baseline in a process of its own: it has the libraries that its users have, and not those that we loaded."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tiny_llm_kit.trace.workload import Workload


class OwnProcess:
    """Answers workloads in another process, which ends with this one.

    Args:
        make: a function of a module; returns what generates. It is called there.
        arguments: of `make`.
        environment: variables of that process, beside those of this one.
        notes: what is different there, for people.

    Raises:
        ValueError: `make` failed; or later the process.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        notes: str = "",
    ):
        self.notes = notes
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs, make, arguments), daemon=True)
        with _variables(environment or {}):
            self._process.start()
        theirs.close()  # so that its end is the end of the pipe
        self._wait()

    def generate(self, workload: Workload) -> None:
        """Answers all requests."""
        self._connection.send(workload)
        self._wait()

    def _wait(self) -> None:
        try:
            error = self._connection.recv()
        except EOFError:
            error = self._end()
        if error is not None:
            raise ValueError(f"a baseline's own process: {error}")

    def _end(self) -> str:
        """How the process ended; SIGILL is an instruction that this processor does not run."""
        self._process.join()
        code = self._process.exitcode or 0
        return f"it ended by {signal.Signals(-code).name}" if code < 0 else "it ended"


def _answer(connection: Connection, make: Callable[..., Any], arguments: tuple) -> None:
    """The other process: says when it is ready, and after each workload that it is answered, or what went wrong."""
    try:
        baseline = make(*arguments)
        connection.send(None)
        while True:
            baseline.generate(connection.recv())
            connection.send(None)
    except EOFError:  # nobody asks any more
        return
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


@contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for a while: a process that starts meanwhile inherits them."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
