"""The consumer's side: a thread reads a prompt's keys and values from a producer."""

import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from socket import create_connection
from typing import Any

from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.solutions.solution_types import Incoming

from ..parallel.channel import Channel
from .layout import Layout
from .protocol import Load
from .shared_memory import mapped
from .transfers import Refused
from .wire import Here, ask, receive_block


class Fetch(threading.Thread):
    """One prompt on its way here.

    Args:
        here: this engine.
        incoming: decides what to take.
        sequence: the request.
        params: `kv_transfer_params` of it, which say where the prompt is.
        news: set when something has come.

    Attributes:
        arrived: what was not copied yet.
        is_over: whether nothing more arrives.
        error: why, if something is missing.
        begun: when it was asked for, in seconds.
    """

    def __init__(
        self,
        here: Here,
        incoming: Incoming,
        sequence: SequenceState,
        params: Mapping[str, Any],
        news: threading.Event,
    ):
        super().__init__(name="kv-consumer", daemon=True)
        self.here, self.incoming, self.news = here, incoming, news
        self.sequence, self.params = sequence, params
        self.begun = here.clock()
        self.arrived: deque[Load] = deque()
        self.is_over, self.error = False, self.incoming.lateness
        self._channel: Channel | None = None
        self._is_closed = False
        self.start()

    @property
    def has_news(self) -> bool:
        """Whether something can be copied."""
        return bool(self.arrived) and not self.sequence.is_done

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come, or too late."""
        # Looked at first: else the last block might come between the two looks.
        is_over = self.is_over or self.incoming.is_late(self.here.clock())
        return is_over and not self.arrived

    def close(self) -> None:
        """Reads no more. The engine's thread alone calls it: rows in shared memory stay until then."""
        self._is_closed = True
        if self._channel is not None:
            with suppress(OSError):
                self._channel.send({"done": True})
            self._channel.close()

    def run(self) -> None:
        """Reads until all is here, or something goes wrong."""
        try:
            self._read()
        except Exception as error:  # the other engine may send anything
            if not isinstance(error, TimeoutError):
                self.error = str(error) if isinstance(error, Refused) else repr(error)
        self.is_over = True
        self.news.set()

    def _read(self) -> None:
        incoming, patience = self.incoming, self.here.config.patience
        address = self.params["remote_host"], self.params["remote_port"]
        channel = self._channel = Channel(create_connection(address, patience), patience)
        if self._is_closed:  # given up meanwhile
            channel.close()
        wanted = {"start": incoming.received, "stop": incoming.wanted}
        answer = ask(channel, self.here, {"transfer_id": self.params["transfer_id"], **wanted})
        layout = Layout.of_message(answer["layout"])
        if why := self.here.layout.why_not(layout):
            raise Refused(why)
        shared = self._shared(answer, layout.row_bytes)
        channel.send({"shared": shared is not None})
        while incoming.received < incoming.wanted:
            block, digest, row = receive_block(channel, layout.row_bytes, shared)
            if new := incoming.accept(block, digest, self.here.clock()):
                self.arrived.append(Load(self.sequence, new, row, block.start, layout))
                self.news.set()

    def _shared(self, answer: Mapping[str, Any], row_bytes: int) -> memoryview | None:
        """The producer's memory; None if it is on another host, or tcp is wanted."""
        if self.here.config.transport == "shared_memory" and answer["segment"] is not None:
            with suppress(OSError, ValueError, ImportError):
                return memoryview(mapped(str(answer["segment"]), int(answer["rows"]) * row_bytes))
        return None
