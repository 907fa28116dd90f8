"""A kernel that a solution has the source of."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar

from .library import NativeError, library


class Kernel:
    """A file of C++ with blanks of Day 4.1, compiled at its first call.

    Args:
        package: that has the file.
    """

    file: ClassVar[str]
    tasks: ClassVar[dict[int, str]]  # of Day 4.1: the function of each

    def __init__(self, package: str):
        self.package = package

    def function(self, name: str, types: Sequence[type]) -> Callable[..., int]:
        """A function of the compiled file.

        Raises:
            NativeError: there is no such kernel on this machine.
        """
        function = getattr(library(self.file, self.package), name)
        function.argtypes = types
        return function

    def check(self, answer: int) -> None:
        """Raises NotImplementedError with the address of a blank: a kernel answers with the task that is one, or 0."""
        if answer:
            raise NotImplementedError(f"week 4 day 1 task {answer}: {self.tasks[answer]}")

    def try_out(self) -> None:
        """A call on a few numbers."""
        raise NotImplementedError

    @cached_property
    def problem(self) -> str | None:
        """Why the kernel does not run here, in one line, or None: no compiler, an error in it, a blank task."""
        try:
            self.try_out()
            return None
        except (NativeError, NotImplementedError) as error:
            return str(error).splitlines()[0].rstrip(":")

    @property
    def works(self) -> bool:
        """Whether the kernel runs on this machine."""
        return self.problem is None


POINTER, SIZE, NUMBER, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
