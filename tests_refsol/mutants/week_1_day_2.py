"""Wrong solutions of Week 1 Day 2."""

from authors.mutants import Mutant, wrong

MUTANTS = [
    Mutant(
        "1.2.1",
        "angles in bf16, where position 257 is 256",
        "rope.py",
        mlx=(
            "angles = mx.arange(self.seq_len, dtype=mx.float32)[:, None] * frequencies",
            "angles = (mx.arange(self.seq_len)[:, None].astype(mx.bfloat16) * frequencies).astype(mx.float32)",
        ),
        torch=(
            "angles = torch.arange(self.seq_len, dtype=torch.float32)[:, None] * frequencies",
            "angles = (torch.arange(self.seq_len)[:, None].bfloat16() * frequencies).float()",
        ),
    ),
    Mutant(
        "1.2.1",
        "tables rounded to bf16",
        "rope.py",
        mlx=(
            "return mx.cos(angles), mx.sin(angles)",
            "return tuple(f(angles).astype(mx.bfloat16).astype(mx.float32) for f in (mx.cos, mx.sin))",
        ),
        torch=(
            "return torch.cos(angles), torch.sin(angles)",
            "return torch.cos(angles).bfloat16().float(), torch.sin(angles).bfloat16().float()",
        ),
    ),
    *wrong(
        "1.2.2",
        "rope.py",
        (
            "ignores a slice and starts at 0",
            "self._span(slice(0, L) if offset is None else offset, L)",
            "self._span(slice(0, L) if offset else slice(0, L), L)",
        ),
        (
            "sorts the slices, so that rows get each other's positions",
            "for row in offset]",
            "for row in sorted(offset, key=lambda row: row.start)]",
        ),
        (
            "does not count the slices, so that one slice serves all rows",
            "if len(offset) != B:",
            "if not offset:",
        ),
        (
            "builds the positions without a check",
            "span = self._span(slice(0, L) if offset is None else offset, L)",
            "span = offset or slice(0, L)",
        ),
        (
            "takes the first position of an array and counts on from there",
            "            return offset\n",
            "            return offset[..., :1] + xp.arange(L)\n",
        ),
    ),
    Mutant(
        "1.2.2",
        "positions of an array in 16 bits, to save memory",
        "rope.py",
        mlx=("            return offset\n", "            return offset.astype(mx.int16)\n"),
        torch=("            return offset\n", "            return offset.to(torch.int16)\n"),
    ),
    Mutant(
        "1.2.2",
        "checks the positions in an array, and reads them for it",
        "rope.py",
        mlx=(
            "            return offset\n",
            "            if offset.max().item() >= self.seq_len:\n"
            "                raise ValueError('positions leave the tables: raise seq_len')\n"
            "            return offset\n",
        ),
        torch=(
            "            return offset\n",
            "            if offset.max() >= self.seq_len:\n"
            "                raise ValueError('positions leave the tables: raise seq_len')\n"
            "            return offset\n",
        ),
    ),
    Mutant(
        "1.2.3",
        "positions in the type of x: bf16 has no 257",
        "rope.py",
        inside="RoPE.__call__",
        mlx=("self.positions(offset, B, L)", "self.positions(offset, B, L).astype(x.dtype).astype(mx.int32)"),
        torch=(
            "self.positions(offset, B, L).to(x.device)",
            "self.positions(offset, B, L).to(x.dtype).long()",
        ),
    ),
    Mutant(
        "1.2.3",
        "the device's RoPE turns halves, whatever `traditional` says",
        "device_kernels.py",
        both=("(RoPE if traditional else _DeviceRoPE)(dims", "_DeviceRoPE(dims"),
    ),
    Mutant(
        "1.2.3",
        "pairs of neighbours (2i, 2i+1) whatever `traditional` says",
        "rope.py",
        both=("((-1, 2), -1) if self.traditional else ((2, -1), -2)", "(-1, 2), -1"),
    ),
    Mutant(
        "1.2.3",
        "rounds cos and sin to the type of x",
        "rope.py",
        mlx=(
            "mx.expand_dims(cos, -2), mx.expand_dims(sin, -2)",
            "(mx.expand_dims(t, -2).astype(x.dtype) for t in (cos, sin))",
        ),
        torch=("cos.unsqueeze(-2), sin.unsqueeze(-2)", "(t.unsqueeze(-2).to(x.dtype) for t in (cos, sin))"),
    ),
]
