"""Wrong solutions of Week 1 Day 2."""

from authors.mutants import Mutant

MUTANTS = [
    Mutant(
        "1.2.1",
        "frequencies base^(-i/dims): the exponent has lost its 2",
        "rope.py",
        both=("** (-", "** (-0.5 * "),
    ),
    Mutant(
        "1.2.1",
        "uses the default base whatever base is",
        "rope.py",
        both=("frequencies = self.base **", "frequencies = 10000 **"),
    ),
    Mutant(
        "1.2.1",
        "positions count from 1",
        "rope.py",
        mlx=(
            "angles = mx.arange(self.seq_len, dtype=mx.float32)",
            "angles = mx.arange(1.0, self.seq_len + 1)",
        ),
        torch=(
            "angles = torch.arange(self.seq_len, dtype=torch.float32)",
            "angles = torch.arange(1.0, self.seq_len + 1)",
        ),
    ),
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
    Mutant(
        "1.2.2",
        "ignores a slice and starts at 0",
        "rope.py",
        both=(
            "self._span(slice(0, L) if offset is None else offset, L)",
            "self._span(slice(0, L) if offset else slice(0, L), L)",
        ),
    ),
    Mutant(
        "1.2.2",
        "all rows take the first slice of the list",
        "rope.py",
        both=("self._span(row, L)) for row in offset", "self._span(offset[0], L)) for row in offset"),
    ),
    Mutant(
        "1.2.2",
        "sorts the slices, so that rows get each other's positions",
        "rope.py",
        both=("for row in offset]", "for row in sorted(offset, key=lambda row: row.start)]"),
    ),
    Mutant(
        "1.2.2",
        "does not count the slices, so that one slice serves all rows",
        "rope.py",
        both=("if len(offset) != B:", "if not offset:"),
    ),
    Mutant(
        "1.2.2",
        "builds the positions without a check",
        "rope.py",
        both=(
            "span = self._span(slice(0, L) if offset is None else offset, L)",
            "span = offset or slice(0, L)",
        ),
    ),
    Mutant(
        "1.2.2",
        "takes the first position of an array and counts on from there",
        "rope.py",
        mlx=("            return offset\n", "            return offset[..., :1] + mx.arange(L)\n"),
        torch=("            return offset\n", "            return offset[..., :1] + torch.arange(L)\n"),
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
        "traditional pairs come back as halves",
        "rope.py",
        mlx=("b * cos + a * sin], axis=axis)", "b * cos + a * sin], axis=-2)"),
        torch=("b * cos + a * sin], dim=axis)", "b * cos + a * sin], dim=-2)"),
    ),
    Mutant(
        "1.2.3",
        "uses the half that is already turned",
        "rope.py",
        both=(
            "a * cos - b * sin, b * cos + a * sin",
            "a * cos - b * sin, b * cos + (a * cos - b * sin) * sin",
        ),
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
    Mutant(
        "1.2.3",
        "turns the caller's array in place",
        "rope.py",
        mlx=(
            "return turned.reshape(x.shape).astype(x.dtype)",
            "x[:] = turned.reshape(x.shape)\n        return x",
        ),
        torch=("return turned.reshape(x.shape).to(x.dtype)", "return x.copy_(turned.reshape(x.shape))"),
    ),
    Mutant(
        "1.2.3",
        "all rows turn by the first row's angles",
        "rope.py",
        mlx=(
            "cos, sin = mx.expand_dims(cos, -2), mx.expand_dims(sin, -2)",
            "cos, sin = (t[0] if t.ndim == 3 else t for t in (cos, sin))\n"
            "        cos, sin = mx.expand_dims(cos, -2), mx.expand_dims(sin, -2)",
        ),
        torch=(
            "cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)",
            "cos, sin = (t[0] if t.ndim == 3 else t for t in (cos, sin))\n"
            "        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)",
        ),
    ),
]
