"""RoPE: rotates pairs of numbers in a head by the token's position, so that scores depend on distance."""

import torch
import torch.nn.functional as F


class RoPE:
    """Rotary position embedding (Su et al., 2021): rotates pair i of a head by position · base^(-2i/dims).

    Args:
        dims: D, the size of a head, even.
        seq_len: number of positions in the tables; positions are 0 … seq_len - 1.
        base: the last pair rotates about `base` times slower than the first.
        traditional: pairs are neighbours (2i, 2i+1); otherwise (i, i + D/2), as in Qwen3.

    Raises:
        ValueError: `dims` is odd.
    """

    def __init__(self, dims: int, seq_len: int, base: float = 10000, traditional: bool = False):
        if dims % 2:
            raise ValueError(f"dims {dims} is odd: RoPE turns pairs, choose an even head size")
        self.dims, self.seq_len, self.base, self.traditional = dims, seq_len, base, traditional
        self.cos, self.sin = self.tables()

    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The cosines and sines of position · base^(-2i/dims), each (seq_len, D/2) in float32."""
        # TASK 1.2.1: one frequency per pair, one angle for every position and pair.
        # float32 throughout: in bf16 the positions 256 and 257 are the same number.
        frequencies = self.base ** (-torch.arange(0, self.dims, 2, dtype=torch.float32) / self.dims)
        angles = torch.arange(self.seq_len, dtype=torch.float32)[:, None] * frequencies
        return torch.cos(angles), torch.sin(angles)

    def positions(self, offset: slice | list[slice] | torch.Tensor | None, B: int, L: int) -> torch.Tensor:
        """The position of every token: (L,) if all rows share them, (B, L) if each row has its own.

        Slices are host values: call this outside a compiled or captured region, and pass the array in.

        Args:
            offset: None for 0 … L - 1, a slice for all rows, a list of one slice per row, or an array of the integer
                positions, (L,) or (B, L), which is returned unchecked.
            B, L: number of rows, and of tokens per row.

        Raises:
            ValueError: a slice does not hold L positions or exceeds the tables, or there are not B slices.
        """
        # TASK 1.2.2: convert each of the four forms to positions; `_span` checks a slice.
        if isinstance(offset, torch.Tensor):
            return offset
        if isinstance(offset, list):
            if len(offset) != B:
                raise ValueError(f"{len(offset)} slices for {B} rows: give one slice per row")
            return torch.tensor([list(self._span(row, L)) for row in offset])
        span = self._span(slice(0, L) if offset is None else offset, L)
        return torch.arange(span.start, span.stop)

    # GIVEN: the checks are not part of the lesson.
    def _span(self, offset: slice, L: int) -> range:
        """The L positions of slice(start, stop)."""
        span = range(offset.start or 0, offset.stop)
        if len(span) != L:
            raise ValueError(
                f"{offset} holds {len(span)} positions for {L} tokens: give start and start + {L}"
            )
        if span.start < 0 or span.stop > self.seq_len:
            raise ValueError(f"{offset} leaves the positions 0 to {self.seq_len - 1}: raise seq_len")
        return span

    # GIVEN: Day 1.5's embedding teaches the gather.
    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of both tables at these positions: (L,) or (B, L) to (…, D/2) each."""
        # The tables move to the device of the first positions, and stay there.
        self.cos, self.sin = self.cos.to(positions.device), self.sin.to(positions.device)
        # F.embedding is a gather of whole rows, one kernel on every device.
        return F.embedding(positions, self.cos), F.embedding(positions, self.sin)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotates every pair of x by its angle.

        Args:
            x: (B, L, H, D).
            cos, sin: (L, D/2) or (B, L, D/2), float32.

        Returns:
            (B, L, H, D) in the type of x, computed in float32.
        """
        # TASK 1.2.3: (a, b) becomes (a·cos - b·sin, b·cos + a·sin), for the pairing of this RoPE.
        # Reshaped to (D/2, 2), a head has its neighbours in one row; reshaped to (2, D/2), its halves are the rows.
        shape, axis = ((-1, 2), -1) if self.traditional else ((2, -1), -2)
        a, b = x.float().unflatten(-1, shape).unbind(axis)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # all heads of a token share their angles
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=axis)
        return turned.reshape(x.shape).to(x.dtype)

    def __call__(
        self, x: torch.Tensor, offset: slice | list[slice] | torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rotates queries or keys to their positions.

        Args:
            x: (B, L, H, D).
            offset: the positions of the L tokens, see `positions`.

        Returns:
            (B, L, H, D) in the type of x.

        Raises:
            ValueError: D is not `dims`, or the offset does not fit (see `positions`).
        """
        B, L, _, D = x.shape
        if self.dims != D:
            raise ValueError(f"x has heads of {D}, this RoPE was made for dims={self.dims}")
        return self.rotate(x, *self.rows(self.positions(offset, B, L).to(x.device)))
