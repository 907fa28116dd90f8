"""Published times of a layer's products, from the profiles of Vidur, a simulator by authors of Sarathi-Serve.

They are in data/profiling/compute of github.com/microsoft/vidur. Each time is the sum of the medians of a layer's
operators without attention: norms, projections, RoPE, activation, additions. The profiles of attention are in
large-file storage and were not at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerTimes:
    """The times of one layer on one card of a group.

    Args:
        hidden_size: values of a token.
        weights: of a layer, on all cards of the group.
        one_token: seconds of a step of one token: what reading the weights takes.
        seconds: by the tokens of a step.
    """

    hidden_size: int
    weights: float
    one_token: float
    seconds: Mapping[int, float]


A100_LLAMA3_8B = LayerTimes(
    4096, 218.1e6, 0.305e-3, {512: 1.089e-3, 1024: 2.361e-3, 2048: 4.576e-3, 4096: 8.605e-3}
)  # a100/meta-llama/Meta-Llama-3-8B/mlp.csv, one card
A40_LLAMA2_70B = LayerTimes(
    8192, 855.6e6, 0.800e-3, {512: 2.301e-3, 1024: 4.452e-3, 2048: 8.812e-3, 4096: 16.831e-3}
)  # a40/meta-llama/Llama-2-70b-hf/mlp.csv, a group of four
