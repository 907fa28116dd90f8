"""The producer's side: copies what steps have computed into a buffer, from which threads send it to other engines."""

import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.solutions.solution_types import Outbox

from ..parallel.channel import Channel
from .shared_memory import Segment
from .transfers import Refused, SavedBlock
from .wire import Here, greet, proof, received, send_block

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.05  # between two looks at a reader that waits for the next step
MOST_READERS = 256


class Producer:
    """Keeps the prompts of some requests for other engines, and sends them while later tokens are computed.

    Args:
        here: this engine.
        pages: rows for blocks, see `HostPages`.
        segment: the memory of the rows, if others can map it.
        outbox: decides what is kept.

    Attributes:
        address: where it listens.
        sent_bytes: rows that were sent.
    """

    def __init__(self, here: Here, pages: Any, segment: Segment | None, outbox: Outbox):
        self.here, self.pages, self.segment, self.sent_bytes = here, pages, segment, 0
        self.outbox, config = outbox, here.config
        self._ids: dict[SequenceState, str] = {}
        self._changed = threading.Condition()  # guards the outbox
        self._readers: set[Channel] = set()
        self._listener = socket.create_server((config.kv_ip, config.kv_port))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="kv-producer", daemon=True).start()

    # The engine's thread.

    def begin(self, sequence: SequenceState, transfer_id: str) -> None:
        """A request will compute its prompt for another engine. A second one with this id sends nothing."""
        with self._changed:
            self.outbox.expire(self.here.clock())
            if self.outbox.begin(transfer_id, sequence.prompt_tokens):
                self._ids[sequence] = transfer_id
            self._changed.notify_all()

    def save(self, sequence: SequenceState, computed: int) -> None:
        """Copies what is new among its computed tokens into the buffer. See `KVConnector.save_kv`."""
        if (transfer_id := self._ids.get(sequence)) is None:
            return
        with self._changed:
            blocks = self.outbox.to_save(transfer_id, computed)
        for block in blocks:
            self.pages.save(sequence.block_table.blocks[block.start // self.outbox.block_size], block.row)
        with self._changed:
            self.outbox.saved(transfer_id, blocks)
            self._changed.notify_all()

    def end(self, sequence: SequenceState) -> None:
        """The request has ended."""
        if (transfer_id := self._ids.pop(sequence, None)) is not None:
            with self._changed:
                self.outbox.end(transfer_id, self.here.clock())
                self._changed.notify_all()

    def close(self) -> None:
        """Ends all transfers, and stops listening."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        for reader in list(self._readers):
            reader.close()
        if self.segment is not None:
            self.segment.close()

    # A thread that listens, and one for each reader.

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                channel = Channel(self._listener.accept()[0], self.here.config.patience)
                if len(self._readers) >= MOST_READERS:
                    channel.close()
                    continue
                self._readers.add(channel)
                threading.Thread(target=self._serve, args=[channel], name="kv-reader", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        """Sends one prompt to one reader."""
        try:
            self._send(channel)
        except Refused as refused:
            with suppress(OSError):
                channel.send({"error": str(refused)})
        except Exception as error:  # readers may send anything, and may be gone
            LOG.debug("a reader of keys and values has left: %r", error)
        finally:
            self._readers.discard(channel)
            channel.close()

    def _send(self, channel: Channel) -> None:
        asked = greet(channel, self.here)
        transfer_id, wanted = str(asked["transfer_id"]), range(int(asked["start"]), int(asked["stop"]))
        name = None if self.segment is None else self.segment.name
        answer = {"layout": vars(self.here.layout), "segment": name, "rows": self.pages.num_rows}
        channel.send({**answer, "proof": proof(self.here.config.secret, "producer", asked["nonce"])})
        is_shared, is_done = received(channel)["shared"] is True, False
        if not self._wait(channel, lambda: self.outbox.open(transfer_id)):
            return
        try:
            is_done = self._send_blocks(channel, transfer_id, wanted, is_shared)
        finally:
            with self._changed:
                self.outbox.close(transfer_id, is_done, self.here.clock())

    def _send_blocks(self, channel: Channel, transfer_id: str, wanted: range, is_shared: bool) -> bool:
        """Sends what is saved and what will be; returns whether the reader wants no more."""
        tokens, blocks = self.outbox.transfers[transfer_id].tokens, list[SavedBlock]()

        def has_any() -> bool:
            blocks[:] = self.outbox.unread(transfer_id, wanted)
            return bool(blocks) or self.outbox.has_all(transfer_id, wanted)

        while self._wait(channel, has_any) and blocks:
            for block in blocks:
                row = self.pages.bytes_of(block.row)
                send_block(channel, block, tokens, row, is_shared)
                self.sent_bytes, wanted = self.sent_bytes + len(row), range(block.stop, wanted.stop)
        if wanted and not channel.has_news():
            channel.send({"error": f"it has only {wanted.start} tokens"})
        if is_shared:  # it may read its rows until it says so, or is gone
            self._wait(channel, lambda: False)
        return received(channel)["done"] is True

    def _wait(self, channel: Channel, condition: Callable[[], bool]) -> bool:
        """Waits for something in the outbox; returns False if the reader speaks or is gone before that."""
        with self._changed:
            while not self._changed.wait_for(condition, POLL_SECONDS):
                if channel.has_news():
                    return False
        return True
