"""`TinyConnector`: keys and values go from one engine to another through shared memory, or over TCP."""

import logging
import mmap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from tiny_llm_engine.events import Event
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.solutions.port import Port

from ..given import given_of
from .config import KVTransferConfig, is_number
from .consumer import Fetch
from .layout import Layout, write_row
from .producer import Producer
from .protocol import Load
from .shared_memory import Segment
from .wire import Here

LOG = logging.getLogger(__name__)
PARAMS = "kv_transfer_params"
LONGEST_ID = 200  # characters
COUNTS = ("received_bytes", "received_tokens", "waiting_seconds", "given_up")


def params_of(sequence: SequenceState) -> Mapping[str, Any]:
    """`kv_transfer_params` of a request; empty if it has none."""
    return (sequence.sampling.extra_args or {}).get(PARAMS, {})


class TinyConnector:
    """A `KVConnector` between engines: a producer, a consumer or both.

    Args:
        runner: has the pools.
        here: this engine.

    Raises:
        OSError: the port is taken.
        ValueError: the buffer has no room for a block.
    """

    def __init__(self, port: Port, runner: PackedRunner, here: Here):
        self.port, self.runner, self.here = port, runner, here
        self.producer = open_producer(port, runner, here) if here.config.is_kv_producer else None
        self._fetches: dict[SequenceState, Fetch] = {}
        self._asked: WeakSet[SequenceState] = WeakSet()  # once each
        self._news = threading.Event()
        self._counts = dict.fromkeys(COUNTS, 0.0)

    @property
    def address(self) -> str | None:
        """Host and port at which other engines read; None of a consumer."""
        return None if self.producer is None else "{}:{}".format(*self.producer.address)

    @property
    def counts(self) -> dict[str, float]:
        """What was sent and received so far, for metrics."""
        sent = 0 if self.producer is None else self.producer.sent_bytes
        return {"sent_bytes": sent, **self._counts}

    def check(self, sequence: SequenceState) -> None:
        """Ends a request with wrong parameters."""
        params, config = params_of(sequence), self.here.config
        reads, sends = params.get("do_remote_prefill"), params.get("do_remote_decode")
        name, host, port = (params.get(each) for each in ("transfer_id", "remote_host", "remote_port"))
        is_name = isinstance(name, str) and 0 < len(name) <= LONGEST_ID
        is_wrong = {
            f"transfer_id is {name!r}": params and not is_name,
            "do_remote_decode is for a kv_producer": sends and not config.is_kv_producer,
            "do_remote_prefill is for a kv_consumer": reads and not config.is_kv_consumer,
            f"remote_port is {port!r}": reads and not is_number(port, int, 2**16 - 1),
            f"remote_host is {host!r}, and engines have no secret": reads and not config.may_reach(host),
        }
        if error := next(filter(is_wrong.get, is_wrong), None):
            sequence.fail(f"{PARAMS}: {error}")

    def on_event(self, event: Event) -> None:
        """Hears of requests that have ended."""
        if event.kind == "finish":
            self.request_finished(event.request)

    # See `KVConnector`.

    def on_new_request(self, sequence: SequenceState) -> None:
        """See `KVConnector`."""
        if self.producer is not None and params_of(sequence).get("do_remote_decode"):
            self.producer.begin(sequence, params_of(sequence)["transfer_id"])

    def get_num_new_matched_tokens(self, sequence: SequenceState) -> int:
        """See `KVConnector`. Log-probabilities of a prompt are computed from all of it, here."""
        is_asked = sequence in self._asked or sequence.sampling.prompt_logprobs is not None
        if is_asked or not params_of(sequence).get("do_remote_prefill"):
            return 0
        return max(0, sequence.num_prompt_tokens - 1 - sequence.num_computed)

    def update_state_after_alloc(self, sequence: SequenceState, num_external_tokens: int) -> None:
        """See `KVConnector`."""
        self._asked.add(sequence)
        patience, known = self.here.config.patience, (sequence.prompt_tokens, sequence.num_computed)
        incoming = self.port.serving.Incoming(*known, patience, self.here.clock() + patience)
        self._fetches[sequence] = Fetch(self.here, incoming, sequence, params_of(sequence), self._news)

    def build_connector_meta(self) -> Iterator[Load]:
        """See `KVConnector`. One block of each request after the other."""
        while waiting := [fetch for fetch in self._fetches.values() if fetch.has_news]:
            yield from (fetch.arrived.popleft() for fetch in waiting)

    def request_finished(self, sequence: SequenceState) -> None:
        """See `KVConnector`."""
        self._close(sequence)
        if self.producer is not None:
            self.producer.end(sequence)

    def start_load_kv(self, load: Load) -> None:
        """See `KVConnector`."""
        slots = load.sequence.block_table.slots(load.tokens.start, load.tokens.stop)
        part = slice(load.tokens.start - load.first, load.tokens.stop - load.first)
        with self.port.backend_module.inference():
            write_row(self.port, self.runner.pools, load.layout, load.row, part, slots)
        self._counts["received_bytes"] += len(load.row)
        self._counts["received_tokens"] += len(load.tokens)

    def save_kv(self, sequence: SequenceState, computed: int) -> None:
        """See `KVConnector`."""
        if self.producer is not None:
            with self.port.backend_module.inference():
                self.producer.save(sequence, computed)

    def get_finished(self) -> Sequence[SequenceState]:
        """See `KVConnector`. One line says what does not come."""
        ended = [fetch for fetch in self._fetches.values() if fetch.has_ended]
        for fetch in ended:
            sequence, source = fetch.sequence, "{remote_host}:{remote_port}".format(**fetch.params)
            self._counts["waiting_seconds"] += self.here.clock() - fetch.begun
            if sequence.num_computed < fetch.incoming.wanted:
                self._counts["given_up"] += 1
                LOG.warning(
                    f"request {sequence.request_id} is computed here from token {sequence.num_computed} on, because "
                    f"{source} failed: {fetch.error}"
                )
            self._close(sequence)
        return [fetch.sequence for fetch in ended]

    def wait(self, seconds: float) -> None:
        """See `KVConnector`."""
        self._news.wait(seconds)
        self._news.clear()

    def _close(self, sequence: SequenceState) -> None:
        if (fetch := self._fetches.pop(sequence, None)) is not None:
            fetch.close()

    def shutdown(self) -> None:
        """See `KVConnector`."""
        for sequence in list(self._fetches):
            self._close(sequence)
        if self.producer is not None:
            self.producer.close()


def open_producer(port: Port, runner: PackedRunner, here: Here) -> Producer:
    """A producer with its buffer, in shared memory if there is any.

    Raises:
        As `TinyConnector`.
    """
    config, row_bytes, segment = here.config, here.layout.row_bytes, None
    rows = int(config.kv_buffer_size) // row_bytes - 1
    if rows < 1:
        least = f"a block has {row_bytes:,} bytes: give at least two of them"
        raise ValueError(f"kv_transfer_config: kv_buffer_size is {config.kv_buffer_size}, and {least}")
    size = (rows + 1) * row_bytes
    if config.transport == "shared_memory":
        try:
            segment = Segment(size)
        except (OSError, ImportError) as error:
            LOG.warning(f"keys and values go over TCP, because shared memory failed: {error}")
    memory = mmap.mmap(-1, size) if segment is None else segment.memory
    pages = given_of(port).host_pages(runner.pools, rows, memory)
    outbox = port.serving.Outbox(pages.num_rows, here.layout.block_size, config.abort_request_timeout)
    return Producer(here, pages, segment, outbox)


def open_connector(
    port: Port, runner: PackedRunner, kv_cache_dtype: str, given: Mapping[str, Any], model: str | None
) -> TinyConnector:
    """The connector of an engine.

    Args:
        kv_cache_dtype: see `EngineOptions`.
        given: `kv_transfer_config`.
        model: names the weights, see `weights_name`.

    Raises:
        ValueError: nobody knows what the model is. See `TinyConnector`, too.
    """
    if model is None:
        raise ValueError("kv_transfer_config is for models that are loaded by their name")
    kind = port.float_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    here = Here(Layout.of(kind, runner.pools), KVTransferConfig.of(given), model, time.monotonic)
    return TinyConnector(port, runner, here)
