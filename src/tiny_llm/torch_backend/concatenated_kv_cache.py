"""The cache of most first versions: new keys and values are joined to the old ones. No engine uses it (Week 2)."""

import torch


class ConcatenatedKvCache:
    """Keys and values of one request in one layer. Its numbers are right, and every token copies all of them."""

    def __init__(self):
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def append(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends the keys and values of L new tokens, and returns those of all tokens.

        Args:
            key, value: (B, Hkv, L, D) of the new tokens.

        Returns:
            key, value: (B, Hkv, S, D) of all S tokens so far, the oldest first.
        """
        # TASK 2.1.1: keep the new keys after the old ones, and the new values likewise; return both.
        # The first call finds no old ones.
        raise NotImplementedError("week 2 day 1 task 1: ConcatenatedKvCache.append")
