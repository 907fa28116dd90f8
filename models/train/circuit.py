"""Sets the first two layers by hand to a look-up circuit, from which ordinary training goes on.

A model this small does not learn to look names up from random weights in minutes. The circuit has three parts:

1. layer 0, head 0: every token copies the name two tokens back into its "key" dims (a line is `name, space, value`);
2. layer 0, head 2: every token copies the name 5 to 8 tokens back into its "query" dims (from the newline after
   `assistant` that is the name in the question, whatever stands between it and the end of the message);
3. layer 1, head 0: a token looks for the number whose key equals its query and copies that number's identity.
   `<|im_start|>` wins when no key fits: that is how a name that is absent shows.

Nothing is frozen: training may keep, bend or replace any of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

WIDTH = 32  # dims of a name's identity that are compared
KEY, QUERY = slice(0, 32), slice(32, 64)
CONSTANT, NUMBER, NAME, IDENTITY = 64, 65, 66, 67
COPIED = 64  # dims of a number's identity that the match copies

# Weights of the rotary pairs. A head whose key is sum(a_i) and whose query is the same turned by the distance o scores
# sum(w_i cos(f_i (d - o))) at distance d. EXACT maximises the gap between d = o and every other d up to 4096 (0.27);
# WINDOW the gap between d in 5..8 and every d2 >= max(11, d + 4), centred on 6.5 (0.42). Both are linear programmes.
EXACT = (
    0.55,
    0.069,
    0.04,
    0.05,
    0.056,
    0.029,
    0.019,
    0.033,
    0.018,
    0.029,
    0.024,
    0.032,
    0.021,
    0,
    0.02,
    0,
    0.011,
)
WINDOW = (
    0,
    0.096,
    0.16,
    0.104,
    0.068,
    0.067,
    0.082,
    0.057,
    0.042,
    0.04,
    0.055,
    0.075,
    0.04,
    0.021,
    0,
    0.063,
    0.03,
)
NAME_SHARE = 0.13  # how much of the window's score says "this is a name"
OFFSET_SHARPNESS, MATCH_SHARPNESS = (
    3.0,
    5.0,
)  # the norm weights of queries and keys: scores grow with their square
CONTENT_PAIRS = slice(
    20, 31
)  # the slow pairs hardly turn within 4096 tokens, so content survives any distance
GATE_PAIR = 31
QUERY_CONTENT, KEY_CONTENT = (
    0.36,
    0.64,
)  # shares of the match score that compare names; the rest prefers numbers
SINK = 2.0  # the number flag of <|im_start|>: between a name that fits and the best that does not


@torch.no_grad()
def set_circuit(model: nn.Module, numbers: Sequence[int], names: Sequence[int], sink: int, seed: int) -> None:
    """Write the circuit into a Qwen3 model of transformers that has random weights."""
    random = torch.Generator().manual_seed(seed)
    _set_embedding(model.model.embed_tokens.weight, numbers, names, sink, random)
    _set_offset_heads(model.model.layers[0].self_attn, model.config)
    _set_match_head(model.model.layers[1].self_attn, model.config, random)


def _set_embedding(table: Tensor, numbers: Sequence[int], names: Sequence[int], sink: int, random) -> None:
    vocabulary, hidden = table.shape
    table.zero_()
    table[:, IDENTITY:] = torch.randn(vocabulary, hidden - IDENTITY, generator=random) / math.sqrt(
        hidden - IDENTITY
    )
    table[:, CONSTANT] = 0.5
    table[list(numbers), NUMBER] = 0.5
    table[sink, NUMBER] = SINK
    table[:, NAME] = -0.5
    table[list(names), NAME] = 0.5


def _set_offset_heads(attention: nn.Module, config) -> None:
    q, k, v, o = _projections(attention, config)
    hidden, half = config.hidden_size, config.head_dim // 2
    gain = 1.2 / math.sqrt(hidden) * math.sqrt((hidden - IDENTITY) / WIDTH)
    for head, group, weights, offset, name_share, target in (
        (0, 0, EXACT, 2.0, 0.0, KEY),
        (2, 1, WINDOW, 6.5, NAME_SHARE, QUERY),
    ):
        q[head], k[group], v[group], o[:, head] = 0, 0, 0, 0
        for pair, weight in enumerate(weights):
            amplitude = 8 * math.sqrt(weight * (1 - name_share))
            angle = config.rope_parameters["rope_theta"] ** (-pair / half) * offset
            k[group, pair, CONSTANT] = amplitude
            q[head, pair, CONSTANT] = amplitude * math.cos(angle)
            q[head, pair + half, CONSTANT] = -amplitude * math.sin(angle)
        q[head, GATE_PAIR, CONSTANT] = 8 * math.sqrt(name_share)
        k[group, GATE_PAIR, NAME] = 8 * math.sqrt(name_share)
        v[group, :WIDTH, IDENTITY : IDENTITY + WIDTH] = torch.eye(WIDTH)
        o[target, head, :WIDTH] = gain * torch.eye(WIDTH)
    _set_sharpness(attention, OFFSET_SHARPNESS)


def _set_match_head(attention: nn.Module, config, random: torch.Generator) -> None:
    q, k, v, o = _projections(attention, config)
    half = config.head_dim // 2
    rows = [*range(half)[CONTENT_PAIRS], *range(half, 2 * half)[CONTENT_PAIRS]]
    mix = torch.randn(len(rows), WIDTH, generator=random) / math.sqrt(WIDTH)
    content = math.sqrt(len(rows) / WIDTH)  # about how long a mixed name is, in units of its own length
    q[0], k[0], v[0], o[:, 0] = 0, 0, 0, 0
    q[0, rows, QUERY] = mix
    k[0, rows, KEY] = mix
    q[0, GATE_PAIR, CONSTANT] = 2 * content * math.sqrt(1 / QUERY_CONTENT - 1)
    k[0, GATE_PAIR, NUMBER] = 2 * content * math.sqrt(1 / KEY_CONTENT - 1)
    v[0, :, IDENTITY : IDENTITY + COPIED] = torch.eye(COPIED)
    o[IDENTITY : IDENTITY + COPIED, 0] = 9 / math.sqrt(config.hidden_size) * torch.eye(COPIED)
    _set_sharpness(attention, MATCH_SHARPNESS)


def _projections(attention: nn.Module, config) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of the four matrices by head: q, k, v are (heads, head_dim, hidden), o is (hidden, heads, head_dim)."""
    size, hidden = config.head_dim, config.hidden_size
    q, k, v = (
        getattr(attention, name).weight.view(-1, size, hidden) for name in ("q_proj", "k_proj", "v_proj")
    )
    return q, k, v, attention.o_proj.weight.view(hidden, -1, size)


def _set_sharpness(attention: nn.Module, value: float) -> None:
    attention.q_norm.weight.fill_(value)
    attention.k_norm.weight.fill_(value)
