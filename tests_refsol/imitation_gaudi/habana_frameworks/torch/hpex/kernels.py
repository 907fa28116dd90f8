"""`FusedSDPA.apply` and `apply_rotary_pos_emb`, with the order of arguments and the demands of the real ones."""

from enum import Enum

import torch

from ... import imitates, record

# Bytes of one plane of a mask, (L, S), from which the device returns NaN. A test may set a smaller limit.
PLANE_BYTES = 2**31


class RotaryPosEmbeddingMode(Enum):
    BLOCKWISE = 0
    PAIRWISE = 1


def apply_rotary_pos_emb(p, *args):
    """Arguments after p: cos, sin, position_ids, offset, mode. One float32 among p, cos and sin makes all so."""
    record.note("apply_rotary_pos_emb", p, *args)
    cos, sin, position_ids, offset, mode = args
    assert mode is RotaryPosEmbeddingMode.BLOCKWISE and position_ids is None and offset == 0
    assert cos.shape[-1] == sin.shape[-1] == p.shape[-1], "cos and sin have the full head size"
    assert cos.shape[-3] == p.shape[-3] and cos.shape[-2] == 1, "one row of cos and sin for every token"
    if imitates("wrong-rope"):
        sin = -sin
    wide = torch.float32 if torch.float32 in (p.dtype, cos.dtype, sin.dtype) else p.dtype
    p, cos, sin = p.to(wide), cos.to(wide), sin.to(wide)
    half = p.shape[-1] // 2
    low = p[..., :half] * cos[..., :half] - p[..., half:] * sin[..., :half]
    high = p[..., half:] * cos[..., half:] + p[..., :half] * sin[..., half:]
    return torch.cat([low, high], dim=-1)


class FusedSDPA(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q,
        k,
        v,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        softmax_mode="None",
        recompute_mode=None,
        valid_seq_len=None,
        seq_padding_type="left",
        return_dropout_mask=False,
        return_attn_probs=False,
        window_size=(-1, -1),
        sinks=None,
    ):
        # The last two came with software 1.24.
        options = (dropout_p, is_causal, scale, softmax_mode, recompute_mode, valid_seq_len, seq_padding_type)
        record.note("FusedSDPA", q, k, v, attn_mask, *options)
        assert q.dim() == k.dim() == v.dim() == 4, "the layout is (B, H, S, D)"
        rest = (return_dropout_mask, return_attn_probs, window_size, sinks)
        assert dropout_p == 0 and rest == (False, False, (-1, -1), None), "not what inference asks for"
        B, H, L, D = q.shape
        S = k.shape[2]
        assert L > 1 or recompute_mode is False, "no caller of L = 1 with recompute is known upstream"
        assert valid_seq_len is None or (is_causal and attn_mask is None), (
            "lengths need causality and no mask"
        )
        assert q.dtype == k.dtype == v.dtype and k.shape == v.shape == (B, k.shape[1], S, D)
        assert H % k.shape[1] == 0, "query heads come in groups of one key head"
        # The bridge of 1.19 knows "fast" alone, and takes its default for anything else, without a word. A later source
        # knows "fp32" too, for bf16 alone. Here a mode is refused that neither knows: it would do nothing.
        assert softmax_mode in ("None", "fast") or (softmax_mode == "fp32" and q.dtype == torch.bfloat16)
        assert seq_padding_type in ("left", "right")
        assert not (is_causal and attn_mask is not None), "causality goes into the mask"
        assert not is_causal or L == S, "which corner the kernel's triangle starts from is not documented"
        if attn_mask is not None:
            assert attn_mask.dtype == q.dtype and tuple(attn_mask.shape) in ((B, 1, L, S), (B, H, L, S))
            if (
                L * S * attn_mask.element_size() >= PLANE_BYTES
            ):  # a signed 32-bit offset wraps, and nothing is raised
                return torch.full_like(q, torch.nan)
        out = _attention(q, k, v, attn_mask, is_causal, scale)
        if valid_seq_len is None:
            return out
        assert valid_seq_len.dtype == torch.int32 and tuple(valid_seq_len.shape) == (B,)
        # No source says what the rows of padding hold.
        return out.masked_fill_(_padding(valid_seq_len, L)[:, None, :, None], torch.nan)


def _padding(lengths, L):
    """(B, L) booleans: the rows after the end of each text, with the padding on the right."""
    return torch.arange(L, device="hpu") >= lengths[:, None]


def _attention(q, k, v, attn_mask, is_causal, scale):
    """In float64, key heads repeated: nothing of the twin's is used."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("bhld,bhsd->bhls", q.double(), k.double()) * scale
    if attn_mask is not None:
        scores = scores + attn_mask.double()
    if is_causal:
        scores = scores + torch.full_like(scores, -torch.inf).triu(1)
    return torch.einsum("bhls,bhsd->bhld", torch.softmax(scores, dim=-1), v.double()).to(q.dtype)
