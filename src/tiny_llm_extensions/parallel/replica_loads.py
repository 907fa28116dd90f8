"""What a router knows about its replicas: the requests that were sent to each, and the prefixes that each has seen.

Knows numbers and names. It asks no replica anything, so it is never behind: a request counts when it is sent.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SentRequest:
    """An open request.

    Args:
        replica: where it was sent.
        tokens: how many this replica has to compute for it.
    """

    replica: str
    tokens: int


class SeenPrefixes(dict[bytes, None]):
    """The latest blocks that a replica has computed, as a bounded set; a dict keeps the order, the oldest first.

    Args:
        most: blocks to remember; the least recently used one is forgotten first.
    """

    def __init__(self, most: int):
        super().__init__()
        self.most = most

    def add(self, hashes: Sequence[bytes]) -> None:
        """Remembers the blocks of a prompt. Its first block is the newest: without it no other one can be found."""
        for digest in reversed(hashes):
            self.pop(digest, None)
            self[digest] = None
        while len(self) > self.most:
            del self[next(iter(self))]


class ReplicaLoads:
    """Sends each request to the replica with the fewest outstanding tokens, cached prefixes deducted.

    The whole cost of a request counts from the moment it is sent until it has ended. Counted later, for example when
    its answer starts, a burst would find all replicas idle and go to one of them.

    Args:
        choose: the name of a replica, from outstanding tokens and cached tokens by name; see Task 3.7.9.
        hashes_of: the names of a prompt's full blocks, from the prompt and the block size; see `prefix_hashes`.
        cached_tokens: tokens that need not be computed, see the function of this name.
        block_size: of the replicas' prefix caches, in tokens.
        answer_estimate: tokens of an answer without a limit.
        max_blocks: blocks whose prefixes are remembered for each replica, about as many as its cache has.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        choose: Callable[[Mapping[str, int], Mapping[str, int]], str],
        hashes_of: Callable[[Sequence[int], int], list[bytes]],
        cached_tokens: Callable[..., int],
        block_size: int = 128,
        *,
        answer_estimate: int = 256,
        max_blocks: int = 4096,
    ):
        for name, value in (("block_size", block_size), ("answer_estimate", answer_estimate)):
            if value < 1:
                raise ValueError(f"{name} is {value}: give at least 1 token")
        if max_blocks < 0:
            raise ValueError(f"max_blocks is {max_blocks}: give 0 or more; 0 switches affinity off")
        self._choose, self._hashes_of, self._cached_tokens = choose, hashes_of, cached_tokens
        self.block_size, self.answer_estimate, self.max_blocks = block_size, answer_estimate, max_blocks
        self._seen: dict[str, SeenPrefixes] = {}  # of each replica; the one that was chosen last comes last
        self._sent: dict[Hashable, SentRequest] = {}

    @property
    def replicas(self) -> list[str]:
        """The names of the replicas; the one that was chosen last comes last."""
        return list(self._seen)

    @property
    def outstanding(self) -> dict[str, int]:
        """Tokens that each replica still has to compute: the sum over the requests that were sent to it."""
        tokens = dict.fromkeys(self._seen, 0)
        for sent in self._sent.values():
            tokens[sent.replica] += sent.tokens
        return tokens

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets which replicas run. One that is gone takes its requests and its prefixes with it.

        A replica that is started again has an empty cache, so it must have a new name.
        """
        running = list(names)
        for name in set(self._seen).difference(running):
            del self._seen[name]
        for name in running:
            self._seen.setdefault(name, SeenPrefixes(self.max_blocks))
        self._sent = {one: sent for one, sent in self._sent.items() if sent.replica in self._seen}

    def send(
        self,
        request: Hashable,
        prompt: Sequence[int],
        max_tokens: int | None,
        among: Iterable[str] | None = None,
    ) -> str:
        """Chooses the replica of a request, and counts its tokens there.

        A request that is sent again, because its replica was full or has died, counts once.

        Args:
            request: identifies it for `finish`.
            prompt: token ids.
            max_tokens: the limit of its answer; None for no limit.
            among: the replicas that may be chosen; all when None.

        Raises:
            ValueError: there is no replica.
        """
        self.finish(request)
        hashes, outstanding = self._hashes_of(prompt, self.block_size), self.outstanding
        allowed = set(self._seen if among is None else among)
        names, cached = [name for name in self._seen if name in allowed], self._cached(hashes)
        chosen = self._choose(
            {name: outstanding[name] for name in names}, {name: cached[name] for name in names}
        )
        answer = self.answer_estimate if max_tokens is None else max_tokens
        self._sent[request] = SentRequest(chosen, len(prompt) - cached[chosen] + answer)
        self._seen[chosen] = self._seen.pop(chosen)
        self._seen[chosen].add(hashes)
        return chosen

    def cached(self, prompt: Sequence[int]) -> dict[str, int]:
        """Tokens at the front of a prompt that each replica has computed before."""
        return self._cached(self._hashes_of(prompt, self.block_size))

    def _cached(self, hashes: list[bytes]) -> dict[str, int]:
        return {name: self._cached_tokens(hashes, seen, self.block_size) for name, seen in self._seen.items()}

    def replica_of(self, request: Hashable) -> str | None:
        """Where an open request was sent; None if it is not open."""
        sent = self._sent.get(request)
        return None if sent is None else sent.replica

    def finish(self, request: Hashable) -> None:
        """Forgets a request that has ended, was cancelled or has failed. Ending twice is ending once."""
        self._sent.pop(request, None)
