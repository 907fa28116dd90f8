"""A weight that brings its bias along, so that whoever multiplies by it cannot forget one. Given."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BiasedWeights:
    """What `project` takes in place of a weight, in families whose projections have biases.

    Args:
        weight: (O, I), of any kind that `project` takes.
        bias: (O,).
    """

    weight: Any
    bias: Any
