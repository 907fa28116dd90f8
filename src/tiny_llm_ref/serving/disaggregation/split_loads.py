"""Which engine computes a prompt and which one decodes, from numbers alone: no connection, no clock."""

from collections.abc import Hashable, Iterable, Sequence

from tiny_llm_extensions.kv_transfer.transfers import Route

from ..routing import ReplicaLoads


class SplitLoads:
    """Sends each request to an engine that decodes, and most prompts to one that computes prompts.

    Both are chosen by the tokens that they have left to compute, with a prefix that an engine knows as a discount.

    Args:
        prefill, decode: the counts of each kind; see `ReplicaLoads`.
        least: tokens that are worth a transfer; fewer are computed where they are decoded.
    """

    def __init__(self, prefill: ReplicaLoads, decode: ReplicaLoads, least: int):
        self.prefill, self.decode, self.least = prefill, decode, least

    def set_engines(self, prefill: Iterable[str], decode: Iterable[str]) -> None:
        """Sets which engines are ready; see `ReplicaLoads.set_replicas`. Given."""
        self.prefill.set_replicas(prefill)
        self.decode.set_replicas(decode)

    def send(self, request: Hashable, prompt: Sequence[int], max_tokens: int | None) -> Route:
        """Chooses the engines of a request, and counts its tokens there until `prefilled` and `finish`.

        A conversation goes back to the engine that has its past, whose next turn may be too short for a transfer. What
        is computed elsewhere is no work for the engine that decodes. While no engine for prompts is ready, the one that
        decodes computes all.

        Args:
            request: identifies it.
            prompt: token ids, or other numbers that prompts share as far as they share a text.
            max_tokens: the limit of its answer; None for no limit.

        Raises:
            ValueError: no engine that decodes is ready.
        """
        # TASK 4.6.6: choose who decodes with the whole prompt; how much of it is not cached there, and is that enough?
        # If it is, the engine that decodes counts the answer alone, and the other one the prompt alone.
        # `ReplicaLoads.send` marks a prompt as cached. A request that is sent again counts once, here too.
        self.prefilled(request)
        cached = self.decode.cached(prompt)
        decode = self.decode.send(request, prompt, max_tokens)
        if len(prompt) - cached[decode] < self.least or not self.prefill.replicas:
            return Route(decode)
        self.decode.send(request, (), max_tokens, among=[decode])
        return Route(decode, self.prefill.send(request, prompt, 0))

    def prefilled(self, request: Hashable) -> None:
        """Forgets a prompt that was computed, or will not be. Given."""
        self.prefill.finish(request)

    def finish(self, request: Hashable) -> None:
        """Forgets a request that has ended. Ending twice is ending once. Given."""
        self.prefilled(request)
        self.decode.finish(request)
