"""A baseline in a process of its own: it has the libraries that its users have, and not those that we loaded."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tiny_llm_course.trace.workload import Workload


class OwnProcess:
    """An engine in another process, which ends with this one.

    Args:
        make: a function of a module; returns what generates. Its module is imported there.
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
        self._process = context.Process(target=_answer, args=(theirs, environment or {}), daemon=True)
        self._process.start()
        theirs.close()  # so that its end is the end of the pipe
        self._ask((make, arguments))

    def generate(self, workload: Workload) -> Any:
        """Answer all requests; returns the figures of the other process, if it has any."""
        return self._ask(workload)

    def _ask(self, what: Any) -> Any:
        """Send what is asked, and wait for its end; SIGILL is an instruction that this processor does not run."""
        self._connection.send(what)
        found = None
        try:
            error, found = self._connection.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode or 0
            error = f"it ended by {signal.Signals(-code).name}" if code < 0 else "it ended"
        if error is not None:
            raise ValueError(f"a baseline's own process: {error}")
        return found


def _answer(connection: Connection, environment: Mapping[str, str]) -> None:
    """Run the other process: report that it is ready, each workload that is answered, or what went wrong."""
    os.environ.update(environment)  # before `recv` imports what makes the baseline
    try:
        make, arguments = connection.recv()
        baseline = make(*arguments)
        connection.send((None, None))
        while True:
            connection.send((None, baseline.generate(connection.recv())))
    except EOFError:  # nobody asks any more
        return
    except Exception as error:
        connection.send((f"{type(error).__name__}: {error}", None))
