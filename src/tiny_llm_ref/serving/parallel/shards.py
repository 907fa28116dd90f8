"""Tensor parallelism: the rows or columns of each weight that a rank holds (Megatron-LM, Shoeybi et al., 2019).

A layer has two pairs of products. The first of a pair is divided by its outputs (column-parallel: rows of an (O, I)
matrix), the second by its inputs (row-parallel: columns), so that nothing is exchanged between the two."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# The last word but one of a weight's name says which way it is divided. All others, the norms, are whole on every rank.
# w1, w3 and w2 are gate, up and down of Mixtral's experts.
COLUMN_PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3")
ROW_PARALLEL = ("o_proj", "down_proj", "w2")
VOCABULARY_PARALLEL = ("embed_tokens", "lm_head")


class HeadCounts(Protocol):
    """The fields of `config.json` that decide how a model can be divided."""

    @property
    def num_attention_heads(self) -> int: ...

    @property
    def num_key_value_heads(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...


@dataclass(frozen=True)
class Shard:
    """A rank's part of a weight; None stands for all of an axis.

    Args:
        rows: along axis 0, the outputs.
        columns: along axis 1, the inputs.
    """

    rows: range | None = None
    columns: range | None = None


def even_part(total: int, rank: int, size: int) -> range:
    """A rank's part of `total` numbers that `size` divides, in the order of the ranks. Given."""
    share = total // size
    return range(rank * share, (rank + 1) * share)


def kv_heads_of(num_kv_heads: int, rank: int, size: int) -> range:
    """The heads of keys and values that a rank holds: those that its query heads read.

    Args:
        num_kv_heads: of the model; `size` divides it, or is a multiple of it.
        rank: from 0 to size - 1.
        size: number of ranks.

    Returns:
        An equal part of them; with more ranks than heads one head, which neighbouring ranks hold as well.
    """
    # TASK 3.7.1: an equal part; with more ranks than heads, one head for each run of neighbouring ranks.
    # Query heads are divided in order, and query head h reads head h · Hkv // H of the keys (Day 1.3).
    if num_kv_heads >= size:
        return even_part(num_kv_heads, rank, size)
    head = rank * num_kv_heads // size
    return range(head, head + 1)


def vocabulary_of(vocab_size: int, rank: int, size: int) -> range:
    """The token ids whose rows of the embedding and of the head a rank holds.

    Args:
        vocab_size: V; `size` need not divide it.
        rank: from 0 to size - 1.
        size: number of ranks.

    Returns:
        V / size ids, rounded up; fewer on the last ranks, and none if there are not enough, which no real vocabulary is
        small enough for. The parts of all ranks cover every id once, in order.
    """
    share = -(-vocab_size // size)
    return range(min(rank * share, vocab_size), min((rank + 1) * share, vocab_size))


def shard_of(name: str, shape: Sequence[int], rank: int, size: int, num_kv_heads: int) -> Shard:
    """The part of a weight or bias that a rank holds.

    Args:
        name: Hugging Face's, such as "model.layers.0.self_attn.q_proj.weight"; the last word is "weight" or "bias".
        shape: of the whole: (O, I), or (O,) for a bias.
        rank: from 0 to size - 1.
        size: number of ranks.
        num_kv_heads: of the model. Heads are never divided: rows of keys and values go by heads.

    Returns:
        Rows or columns. The bias of a row-parallel layer is whole: it is added once, after the sum over the ranks.
    """
    layer, kind = name.split(".")[-2:]
    # TASK 3.7.2: outputs of a column-parallel layer, inputs of a row-parallel one, token ids; all else is whole.
    # A head of keys is several rows: `shape[0]` rows make `num_kv_heads` heads. Biases have axis 0 alone.
    if layer in ("k_proj", "v_proj"):
        heads, rows = kv_heads_of(num_kv_heads, rank, size), shape[0] // num_kv_heads
        return Shard(rows=range(heads.start * rows, heads.stop * rows))
    if layer in COLUMN_PARALLEL:
        return Shard(rows=even_part(shape[0], rank, size))
    if layer in ROW_PARALLEL and kind == "weight":
        return Shard(columns=even_part(shape[1], rank, size))
    if layer in VOCABULARY_PARALLEL:
        return Shard(rows=vocabulary_of(shape[0], rank, size))
    return Shard()


def check_tensor_parallel(config: HeadCounts, size: int) -> None:
    """Checks that a model can be divided among this many ranks. Given.

    Raises:
        ValueError: heads, or the hidden numbers of the MLP, do not come out even.
    """
    possible = [count for count in range(1, config.num_attention_heads + 1) if divides(config, count)]
    if size not in possible:
        *most, last = map(str, possible)
        choices = f"{', '.join(most)} or {last}" if most else last
        raise ValueError(
            f"tensor_parallel_size is {size}: of {config.num_attention_heads} query heads, "
            f"{config.num_key_value_heads} key and value heads and {config.intermediate_size} numbers in the MLP, "
            f"every rank must get the same share: choose {choices}"
        )


def divides(config: HeadCounts, size: int) -> bool:
    """Whether this many ranks get equal shares of a model. Given."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    shares_kv = kv_heads % size == 0 or size % kv_heads == 0
    return heads % size == 0 and shares_kv and config.intermediate_size % size == 0


def stage_layers(num_layers: int, num_stages: int, stage: int) -> range:
    """The layers of one stage: consecutive ones, so that activations go from a stage to the next and never back.

    Args:
        num_layers: of the model, at least `num_stages`.
        num_stages: how many stages share them.
        stage: from 0; the first one also has the embedding, and the last one the head.

    Returns:
        The indices of its layers. Stages differ by at most one layer. Where they differ, the later ones have fewer: the
        head costs as much as several layers of a small model.

    Raises:
        ValueError: there are more stages than layers.
    """
    if num_stages > num_layers:
        raise ValueError(
            f"pipeline_parallel_size is {num_stages}, and the model has {num_layers} layers: give at most {num_layers}"
        )
    # TASK 3.7.6: consecutive layers, in order; the first stages take the layers that are left over.
    share, more = divmod(num_layers, num_stages)
    start = stage * share + min(stage, more)
    return range(start, start + share + (stage < more))
