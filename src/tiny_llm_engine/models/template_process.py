"""Chat templates in a process of their own, where the system limits the time and the memory of each rendering.

A template is a program that came with the weights. It may loop for ever, or make a huge value in one operation, such as
`10 ** (10 ** 9)`, a repeated text or a wide format, during which no other thread of its process runs. Jinja's sandbox
limits `range` alone, and exact limits inside Jinja would have to know each filter and each method of a text. So the
server renders in another process. It starts with the first conversation and is kept, so that a rendering costs a
message there and one back. The time is that of the processor: a busy machine refuses nothing.
"""

import json
import pickle
import resource
import signal
import sys
from contextlib import suppress
from subprocess import PIPE, Popen
from typing import Any

from .chat_template import ChatTemplate, ChatTemplateError

SECONDS = 5.0  # of processor time for a rendering, which usually takes less than a millisecond
MEMORY = 2**30  # bytes of address space; macOS does not enforce it, and there the time limits the memory too
ENDED = f"the chat template needs more than {SECONDS:g} s or too much memory for these messages: send less"
TOO_LONG = "the chat template writes more characters than the context can hold: send less"


class TemplateProcess:
    """Renders chat templates, one at a time. A process that was ended is started again."""

    def __init__(self):
        self._process: Any = None
        self._is_closed = False

    def render(self, template: ChatTemplate, most: int, *asked: object) -> str:
        """See `ChatTemplate.render`.

        Args:
            most: characters of the prompt.
            asked: the messages, whether the prompt ends where the assistant's turn begins, and further variables.

        Raises:
            ChatTemplateError: as there, or the template needs more time, memory or characters than it may.
        """
        if self._is_closed:
            raise ChatTemplateError(template.file, ENDED)
        if self._process is not None and self._process.poll() is not None:  # killed while nobody asked
            self.end()
        if self._process is None:
            # In a session of its own Ctrl-C does not reach it; it ends when its input does.
            line = [sys.executable, "-m", __name__]
            self._process = Popen(line, stdin=PIPE, stdout=PIPE, start_new_session=True)
        process = self._process
        try:
            process.stdin.write(pickle.dumps((SECONDS, template, most, *asked)))
            process.stdin.flush()
            text, reason = json.loads(process.stdout.readline())
        except (OSError, ValueError, RecursionError):
            self.end()
            raise ChatTemplateError(template.file, ENDED) from None
        if reason is not None:
            raise ChatTemplateError(template.file, reason)
        return text

    def close(self) -> None:
        """End the process, and start none for those that still wait."""
        self._is_closed = True
        self.end()

    def end(self) -> None:
        """End the process; one that renders on another thread raises there."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError), process:  # closes its pipes and waits
                process.kill()


def serve() -> None:
    """Render what comes on standard input until it ends. SIGPROF, which nothing handles, ends the process."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with suppress(EOFError):
        while True:
            seconds, template, most, *asked, names = pickle.load(sys.stdin.buffer)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                text = template.render(*asked, **names)
                answer = (None, TOO_LONG) if len(text) > most else (text, None)
            except ChatTemplateError as error:
                answer = None, error.reason
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
