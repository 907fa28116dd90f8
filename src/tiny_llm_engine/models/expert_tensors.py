"""The tensors of experts, which files hold one by one, and the stacks that a model holds. Knows no arrays.

The stacks of a layer are `mlp.experts.gate_up_proj`, (X, 2F, E), an expert's gate above its up, and
`mlp.experts.down_proj`, (X, E, F), as transformers calls them in memory.
"""

from collections.abc import Iterable, Mapping

from .expert_names import MATRICES, place_of
from .files import CheckpointError, shown
from .safetensors_folder import TensorInfo


def stacks_of(names: Iterable[str], headers: Mapping[str, TensorInfo]) -> dict[str, list[list[str]]]:
    """The stacks that some weights make: for each expert, in order, the names of its matrices from top to bottom.

    Raises:
        CheckpointError: a matrix of an expert is missing, or differs from the other experts' in shape or type.
    """
    found: dict[str, dict[tuple[int, int], str]] = {}
    for name in names:
        if (place := place_of(name)) is not None:
            found.setdefault(place.stack, {})[place.expert, place.part] = name
    return {stack: _in_order(stack, parts, headers) for stack, parts in found.items()}


def _in_order(
    stack: str, parts: Mapping[tuple[int, int], str], headers: Mapping[str, TensorInfo]
) -> list[list[str]]:
    experts, places = sorted({expert for expert, _ in parts}), range(MATRICES[stack.rpartition(".")[2]])
    first = headers[parts[min(parts)]]
    for expert in range(experts[0], experts[-1] + 1):
        for place in places:
            name = parts.get((expert, place))
            if name is None:
                raise CheckpointError(
                    f"{first.file.parent}: expert {expert} lacks a matrix of {shown(stack)}; download the model again"
                )
            if (headers[name].shape, headers[name].dtype) != (first.shape, first.dtype):
                raise CheckpointError(
                    f"{headers[name].file}: tensor {shown(name)} is {headers[name].dtype} {list(headers[name].shape)}, "
                    f"and another matrix of the experts is {first.dtype} {list(first.shape)}: they must be alike: "
                    "choose another file of this model"
                )
    return [[parts[expert, place] for place in places] for expert in experts]
