"""A weight together with its bias, so that no product can forget the bias. Given."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BiasedWeights:
    """A weight and its bias, for `project`, in families whose projections have biases.

    Args:
        weight: (O, I), of any kind that `project` takes.
        bias: (O,).
    """

    weight: Any
    bias: Any
