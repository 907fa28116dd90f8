"""The consumer's side: which tokens of what arrives are taken, and when the rest is computed here."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_extensions.kv_transfer.transfers import Refused, SavedBlock, text_digest


@dataclass
class Incoming:
    """A prompt whose tokens come from another engine, block by block.

    Args:
        tokens: its ids.
        received: tokens from the front that are here, or have come.
        patience: seconds without news after which it is late.
        deadline: when that will be.
    """

    tokens: Sequence[int]
    received: int
    patience: float
    deadline: float

    @property
    def wanted(self) -> int:
        """Tokens that may come. The last one is computed here, because its logits choose the next token. Given."""
        return len(self.tokens) - 1

    @property
    def lateness(self) -> str:
        """Why it is given up when it is late. Given."""
        return f"nothing came for {self.patience:g} s"

    def is_late(self, now: float) -> bool:
        """Whether the rest is computed here, because nothing has come for too long."""
        # TASK 4.6.4: at the deadline itself there is still time.
        return now > self.deadline

    def accept(self, block: SavedBlock, digest: str, now: float) -> range:
        """Takes the next block.

        Args:
            block: `start` and `stop` are positions in the text. Its blocks may begin elsewhere than ours do.
            digest: names the text up to its end, as its sender knows it; see `text_digest`.
            now: seconds.

        Returns:
            The positions that are new here, and never the prompt's last one; none of a block that has come before.

        Raises:
            Refused: tokens are missing before it, or it belongs to another text. It may also be no block of this
                prompt: without tokens, before its first one or beyond its last one.
        """
        # TASK 4.6.4: it begins at `received` or before, or there is a gap. News, even old news, move the deadline.
        # Check before you count: after `Refused`, the tokens from `received` on are computed here.
        if not (0 <= block.start <= self.received and block.start < block.stop <= len(self.tokens)):
            raise Refused(f"tokens {block.start} to {block.stop} came after {self.received}")
        if digest != text_digest(self.tokens[: block.stop]):
            raise Refused("it has computed another text")
        new = range(self.received, min(block.stop, self.wanted))
        self.received = max(self.received, new.stop)
        self.deadline = now + self.patience
        return new
