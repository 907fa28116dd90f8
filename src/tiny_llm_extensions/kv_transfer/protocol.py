"""The protocol of a KV connector: vLLM's `KVConnectorBase_V1` in small. `ConnectedLoop` calls it.

In the order in which a request meets them:

| Method | In vLLM, and what differs here |
|---|---|
| `on_new_request` | the same |
| `get_num_new_matched_tokens` | the same; loading is always asynchronous, so it returns one number |
| `update_state_after_alloc` | the same |
| `build_connector_meta` | the same: what a step copies, without arrays; here a `Load` at a time |
| `start_load_kv` | the same; `wait_for_layer_load` is missing |
| `save_kv` | `save_kv_layer`, for all layers when a step has ended, and `wait_for_save` |
| `get_finished` | the requests that have all they will get; vLLM's also names those that were sent |
| `request_finished` | the same, but blocks are free at once: a connector has copied what it keeps |
| `shutdown` | the same |

vLLM calls the methods with "layer" in their names inside the model, so that layer 1 is sent while layer 2 computes. A
native step or a captured graph has no seams between layers, and here a step is sent while the next one computes.

`nixl`, `mooncake-transfer-engine` and `lmcache` do the transfer in vLLM. Each could be an object with these methods.
None is a dependency, because they bring libraries of CUDA or of InfiniBand, or 36 further packages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiny_llm_engine.request_life import SequenceState

from .layout import Layout


@dataclass(frozen=True)
class Load:
    """Tokens of a request to be copied into its blocks.

    Args:
        sequence: the request.
        tokens: positions in its text.
        row: bytes with these tokens, and maybe others.
        first: position of the first token in `row`.
        layout: how they stand in it.
    """

    sequence: SequenceState
    tokens: range
    row: memoryview
    first: int
    layout: Layout


class KVConnector(Protocol):
    """Loads keys and values from elsewhere, and keeps those of this engine for others."""

    # The scheduler's side: integers.

    def on_new_request(self, sequence: SequenceState) -> None:
        """A request begins to wait."""

    def get_num_new_matched_tokens(self, sequence: SequenceState) -> int:
        """How many tokens after the computed ones are elsewhere, or will be. 0 if the request need not wait."""
        ...

    def update_state_after_alloc(self, sequence: SequenceState, num_external_tokens: int) -> None:
        """The request has blocks for them: they may be sent."""

    def build_connector_meta(self) -> Iterator[Load]:
        """What can be copied into blocks now. Who takes a `Load` makes its copy."""
        ...

    def request_finished(self, sequence: SequenceState) -> None:
        """The request has ended; its blocks may belong to others. Nothing more is loaded."""

    # The worker's side: arrays.

    def start_load_kv(self, load: Load) -> None:
        """Copies tokens into the pools."""

    def save_kv(self, sequence: SequenceState, computed: int) -> None:
        """Keeps what is new among the first `computed` tokens, which are in the request's blocks."""

    def get_finished(self) -> Sequence[SequenceState]:
        """Requests that waited and get nothing more: all is there, or it will not come."""
        ...

    def wait(self, seconds: float) -> None:
        """Waits for something to come, at most this long. For an engine that has nothing to compute."""

    def shutdown(self) -> None:
        """Ends all transfers."""
