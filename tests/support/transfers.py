"""A link in virtual time that fails, and a `KVConnector` of fake models over it, for the tests of Day 4.6."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from tiny_llm_course.trace.simulation.simulated_model import SimulatedClock
from tiny_llm_engine.events import Event
from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.solutions.solution_types import Incoming, Outbox
from tiny_llm_extensions.kv_transfer.connected_loop import ConnectedLoop
from tiny_llm_extensions.kv_transfer.connector import params_of
from tiny_llm_extensions.kv_transfer.layout import Layout
from tiny_llm_extensions.kv_transfer.protocol import Load
from tiny_llm_extensions.kv_transfer.transfers import Refused, SavedBlock, text_digest

from .served import Served

SLOW = 3.0  # seconds, in which other blocks may overtake
# What happens to a block: the seconds until each of its copies arrives.
COPIES = {"fine": (0.0,), "twice": (0.0, 0.0), "slow": (SLOW,), "another text": (0.0,), "lost": ()}
FAULTS = (*COPIES, "dies", "stalls")
HARMLESS = ("fine", "twice")  # nothing is missing after these


class Transfer:
    """One prompt on its way from an outbox to another engine.

    Args:
        outbox: of the sender.
        name: of the prompt.
        incoming: decides what is taken.
        faults: one of `FAULTS` for each block in the order in which they are sent; later ones are fine.

    Attributes:
        is_over: whether nothing more comes.
        has_died: whether the reader was gone before it had all.
    """

    def __init__(self, outbox: Outbox, name: str, incoming: Incoming, faults: Iterable[str] = ()):
        self.outbox, self.name, self.incoming = outbox, name, incoming
        self.faults = chain(faults, repeat("fine"))
        self.unsent = range(incoming.received, incoming.wanted)
        # When each block arrives, and the digest of its text; None for the end of the connection.
        self.on_link: list[tuple[float, SavedBlock | None, str]] = []
        self.is_open = self.is_over = self.has_died = False

    def look(self, now: float) -> Iterator[tuple[range, SavedBlock]]:
        """The new positions of each block that has come, and the block, whose row is still the sender's memory."""
        self.is_open = self.is_open or self.outbox.open(self.name)
        self._send(now)
        while due := [each for each in self.on_link if each[0] <= now and not self.is_over]:
            first = min(due, key=lambda each: each[0])
            self.on_link.remove(first)
            _, block, digest = first
            self.is_over = self.has_died = block is None
            if block is not None and (new := self._accept(block, digest, now)):
                yield new, block

    def _accept(self, block: SavedBlock, digest: str, now: float) -> range:
        try:
            return self.incoming.accept(block, digest, now)
        except Refused:
            self.is_over = True
            return range(0)

    def _send(self, now: float) -> None:
        if not self.is_open or self.is_over or not self.unsent:
            return
        for block in self.outbox.unread(self.name, self.unsent):
            self.unsent = range(block.stop, self.unsent.stop)
            self._put_on_link(block, next(self.faults), now)
        self.is_over |= bool(self.unsent and self.outbox.has_all(self.name, self.unsent) and not self.on_link)

    def _put_on_link(self, block: SavedBlock, fault: str, now: float) -> None:
        if fault in ("dies", "stalls"):
            self.faults = repeat("lost")
            self.on_link += [(now, None, "")] * (fault == "dies")
        tokens = self.outbox.transfers[self.name].tokens[: block.stop]
        digest = text_digest([*tokens[:-1], 7] if fault == "another text" else tokens)
        self.on_link += [(now + seconds, block, digest) for seconds in COPIES.get(fault, ())]

    def has_ended(self, now: float) -> bool:
        """Whether all is here, or the rest is computed here."""
        has_all = self.incoming.received >= self.incoming.wanted
        return self.is_over or has_all or self.incoming.is_late(now)

    def close(self, now: float) -> None:
        """Reads no longer."""
        if self.is_open:
            self.outbox.close(self.name, not self.has_died, now)
        self.is_open, self.is_over = False, True


class FakeConnector:
    """A `KVConnector` of a `FakePackedModel`: keeps prompts for others, or reads those of another one.

    A row holds a token and a fingerprint for each of its tokens, as the memory of the model does.

    Args:
        served: the loop.
        clock: of both sides.
        num_rows: of the outbox.
        sender: the `FakeConnector` whose prompts are read; None of a producer.
        patience: see `Incoming`.

    Attributes:
        faults: by the name of a prompt, see `Transfer`.
    """

    def __init__(
        self,
        served: Served,
        clock: SimulatedClock,
        num_rows: int = 9,
        sender: Any = None,
        patience: float = 1000.0,
    ):
        self.s, self.memory, self.clock = served.s, served.model.memory, clock
        self.sender, self.patience = sender, patience
        size = served.allocator.block_size
        self.outbox = self.s.Outbox(num_rows, size, 1000.0)
        self.layout, self.rows = (
            Layout("float32", size, 1, 1, 1),
            memoryview(array("q", [0, 0] * size * num_rows)),
        )
        self.faults: dict[str, Sequence[str]] = {}
        self.names: dict[SequenceState, str] = {}
        self.transfers: dict[SequenceState, Transfer] = {}
        self.asked: set[SequenceState] = set()

    def row(self, number: int) -> memoryview:
        """A row of the outbox."""
        length = 2 * self.layout.block_size
        return self.rows[number * length : (number + 1) * length]

    def on_event(self, event: Event) -> None:
        """Hears of requests that have ended."""
        if event.kind == "finish":
            self.request_finished(event.request)

    def on_new_request(self, sequence: SequenceState) -> None:
        """See `KVConnector`."""
        params = params_of(sequence)
        if params.get("do_remote_decode"):
            self.outbox.expire(self.clock())
            if self.outbox.begin(params["transfer_id"], sequence.prompt_tokens):
                self.names[sequence] = params["transfer_id"]

    def get_num_new_matched_tokens(self, sequence: SequenceState) -> int:
        """See `KVConnector`."""
        if sequence in self.asked or not params_of(sequence).get("do_remote_prefill"):
            return 0
        return max(0, sequence.num_prompt_tokens - 1 - sequence.num_computed)

    def update_state_after_alloc(self, sequence: SequenceState, num_external_tokens: int) -> None:
        """See `KVConnector`."""
        self.asked.add(sequence)
        name, deadline = params_of(sequence)["transfer_id"], self.clock() + self.patience
        incoming = self.s.Incoming(sequence.prompt_tokens, sequence.num_computed, self.patience, deadline)
        self.transfers[sequence] = Transfer(self.sender.outbox, name, incoming, self.faults.get(name, ()))

    def build_connector_meta(self) -> Iterator[Load]:
        """See `KVConnector`."""
        for sequence, transfer in list(self.transfers.items()):
            for tokens, block in transfer.look(self.clock()):
                yield Load(sequence, tokens, self.sender.row(block.row), block.start, self.sender.layout)

    def request_finished(self, sequence: SequenceState) -> None:
        """See `KVConnector`."""
        self._close(sequence)
        if name := self.names.pop(sequence, None):
            self.outbox.end(name, self.clock())

    def start_load_kv(self, load: Load) -> None:
        """See `KVConnector`."""
        slots = load.sequence.block_table.slots(load.tokens.start, load.tokens.stop)
        for slot, position in zip(slots, load.tokens, strict=True):
            at = 2 * (position - load.first)
            self.memory[slot] = load.row[at], load.row[at + 1]

    def save_kv(self, sequence: SequenceState, computed: int) -> None:
        """See `KVConnector`."""
        if name := self.names.get(sequence):
            blocks = self.outbox.to_save(name, computed)
            for block in blocks:
                row = self.row(block.row)
                for place, slot in enumerate(sequence.block_table.slots(block.start, block.stop)):
                    row[2 * place], row[2 * place + 1] = self.memory[slot]
            self.outbox.saved(name, blocks)

    def get_finished(self) -> Sequence[SequenceState]:
        """See `KVConnector`."""
        ended = [one for one, transfer in self.transfers.items() if transfer.has_ended(self.clock())]
        for sequence in ended:
            self._close(sequence)
        return ended

    def wait(self, seconds: float) -> None:
        """See `KVConnector`. A second of the clock, however long it may be."""
        self.clock.now += 1.0

    def shutdown(self) -> None:
        """See `KVConnector`."""
        for sequence in list(self.transfers):
            self._close(sequence)

    def _close(self, sequence: SequenceState) -> None:
        if transfer := self.transfers.pop(sequence, None):
            transfer.close(self.clock())


class Connected(Served):
    """A `Served` with a connector.

    Args:
        s, options: see `Served`.
        clock, connecting: see `FakeConnector`.
    """

    def __init__(
        self, s: Any, clock: SimulatedClock, connecting: dict[str, Any] | None = None, **options: Any
    ):
        super().__init__(s, model={"clock": clock}, **options)
        self.connector = FakeConnector(self, clock, **(connecting or {}))
        ConnectedLoop.put_on(self.loop, self.connector)
        self.listener = self.connector.on_event


def joined(
    s: Any, sends: dict[str, Any], reads: dict[str, Any], **connecting: Any
) -> tuple[Connected, Connected]:
    """A producer with `num_rows`, and a consumer with `patience`; the other options are those of `Served`."""
    clock = SimulatedClock()
    producer = Connected(s, clock, {"num_rows": connecting.get("num_rows", 9)}, **sends)
    reading = {"sender": producer.connector, "patience": connecting.get("patience", 1000.0)}
    return producer, Connected(s, clock, reading, **reads)
