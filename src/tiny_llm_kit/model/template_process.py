"""Chat templates in a process of their own, where the system limits the time and the memory of each rendering.

A template is a program that came with the weights. It may loop for ever, or ask for a huge value in one operation, such
as `10 ** (10 ** 9)`, a repeated text or the width of a format, and meanwhile no other thread of its process runs. Jinja's
sandbox limits `range` alone, and exact limits inside Jinja would have to know each filter and each method of a text. So
the server renders in another process. It starts with the first conversation and is kept, so that a rendering costs a
message there and one back. The time is that of the processor: a busy machine refuses nothing.
"""

import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from .chat_template import ChatTemplate, ChatTemplateError
from .files import Json

SECONDS = 5.0  # of processor time for a rendering, which usually takes less than a millisecond
MEMORY = 2**30  # bytes of address space; macOS does not enforce it, and there the time limits the memory too
ENDED = f"the chat template needs more than {SECONDS:g} s or too much memory for these messages: send less"


class TemplateProcess:
    """Renders chat templates, one at a time. A process that was ended is started again."""

    def __init__(self):
        self._process: subprocess.Popen | None = None

    def render(
        self, template: ChatTemplate, most: int, messages: Sequence[Json], *, add: bool, names: Json
    ) -> str:
        """See `ChatTemplate.render`.

        Args:
            most: characters of the prompt.
            add: whether the prompt ends where the assistant's turn begins.

        Raises:
            ChatTemplateError: as there, or the template needs more time, memory or characters than it may.
        """
        if self._process is None:
            line = [sys.executable, "-m", __name__]
            # In a session of its own Ctrl-C does not reach it; it ends when its input does.
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        process, asked = self._process, (SECONDS, template, most, messages, add, names)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(pickle.dumps(asked))
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, OSError, ValueError):
            self.close()
            raise ChatTemplateError(template.file, ENDED) from None
        if isinstance(answer, ChatTemplateError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process; one that renders on another thread raises there."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError), process:  # closes its pipes and waits
                pass


def serve() -> None:
    """Render what comes on standard input until it ends. SIGPROF, which nothing handles, ends the process."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with suppress(EOFError):
        while True:
            seconds, template, most, messages, add, names = pickle.load(sys.stdin.buffer)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                answer = template.render(messages, add, most_characters=most, **names)
            except ChatTemplateError as error:
                answer = error
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.buffer.write(pickle.dumps(answer))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
