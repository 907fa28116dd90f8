"""Which engine computes a prompt and which one decodes, from numbers alone: no connection, no clock."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from tiny_llm_extensions.parallel.replica_loads import ReplicaLoads


@dataclass(frozen=True)
class Route:
    """The engines of a request, by name.

    Args:
        decode: answers it.
        prefill: computes its prompt; None if `decode` does.
    """

    decode: str
    prefill: str | None = None


class SplitLoads:
    """Sends a prompt to the engine that will have computed it first, and its answer to the one with the fewest tokens.

    A prefix that an engine has computed is a discount there, as it is among replicas. Engines that decode differ in
    load alone: whatever they have not, they get.

    Args:
        prefill, decode: the counts of each kind; see `ReplicaLoads`.
        least: tokens of a prompt that is worth a transfer; a shorter one is computed where it is decoded.
    """

    def __init__(self, prefill: ReplicaLoads, decode: ReplicaLoads, least: int):
        self.prefill, self.decode, self.least = prefill, decode, least

    def set_engines(self, prefill: Iterable[str], decode: Iterable[str]) -> None:
        """Sets which engines are ready; see `ReplicaLoads.set_replicas`."""
        self.prefill.set_replicas(prefill)
        self.decode.set_replicas(decode)

    def send(self, request: Hashable, prompt: Sequence[int], max_tokens: int | None) -> Route:
        """Chooses the engines of a request, and counts its tokens there until `prefilled` and `finish`.

        Args:
            request: identifies it.
            prompt: token ids, or other numbers that prompts share as far as they share a text.
            max_tokens: the limit of its answer; None for no limit.

        Raises:
            ValueError: no engine that decodes is ready.
        """
        if len(prompt) < self.least or not self.prefill.replicas:
            return Route(self.decode.send(request, prompt, max_tokens))
        decode = self.decode.send(request, (), max_tokens)
        return Route(decode, self.prefill.send(request, prompt, 0))

    def prefilled(self, request: Hashable) -> None:
        """Forgets a prompt that was computed, or will not be."""
        self.prefill.finish(request)

    def finish(self, request: Hashable) -> None:
        """Forgets a request that has ended. Ending twice is ending once."""
        self.prefilled(request)
        self.decode.finish(request)
