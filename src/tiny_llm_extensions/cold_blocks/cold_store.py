"""Blocks outside the pool: makes the copies that were planned, and measures what they cost."""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_llm_engine.machine.ram import free_ram
from tiny_llm_engine.models.hub import model_path
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Event, ServingPackage

from ..engine_options import EngineOptions
from ..given import given_of
from ..job import Job
from .block_folder import BlockFolder
from .moves import FOLDER, GONE, MEMORY, POOL, QUANTIZED, BlockCosts, CopyFailed, Move, Place
from .returns import ColdParts

LOG = logging.getLogger(__name__)
GIB = 2**30
NAMED = (
    "block_size",
    "kv_cache_dtype",
    "num_quantized_blocks",
    "cpu_products",
    "activations",
)  # what blocks depend on
FEW = 16  # tokens of a step, from which on it tells what they cost


class NoFolder:
    """A `BlockReader` without a folder, which is never asked."""

    def wait(self) -> None:
        """Nothing is on its way."""


class QuantizedBlocks:
    """Blocks in int8 in the device's memory, and one more of them for blocks on their way.

    Args:
        pools: the engine's pool of each layer.
        quantized: one for each of them.
    """

    def __init__(self, port: Port, pools: list[Any], quantized: list[Any]):
        self.port, self.pools, self.quantized = port, pools, quantized
        self.spare = quantized[0].num_blocks

    def put(self, block: int, slot: int) -> None:
        """Rounds a block of the pools."""
        self._copy(self.pools, block, self.quantized, slot)

    def give_back(self, slot: int, block: int) -> None:
        """Copies the rounded numbers into a block of the pools."""
        self._copy(self.quantized, slot, self.pools, block)

    def _copy(self, sources: list[Any], source: int, targets: list[Any], target: int) -> None:
        size, page = targets[0].page_size, self.port.array([source])
        slots = self.port.array(list(range(target * size, (target + 1) * size)))
        for old, new in zip(sources, targets, strict=True):
            new.write(slots, old.key_pages[page][0], old.value_pages[page][0])
            new.launch()


@dataclass
class ColdStore:
    """What an engine keeps outside its pool.

    Args:
        pages: rows in the host's memory, of the pools or of `quantized`.
        folder: None without one.
        quantized: None if blocks are kept as they are.
        costs: seconds per block.
        block_size: tokens.
        folder_blocks: how many the folder may have.
    """

    pages: Any
    folder: BlockFolder | None
    quantized: QuantizedBlocks | None
    costs: BlockCosts
    block_size: int
    folder_blocks: int = 0
    copied: Counter[tuple[str, str]] = field(default_factory=Counter)  # blocks, from level to level

    def parts(self, names: ServingPackage) -> ColdParts:
        """What a new scheduler has of it. What is in the folder can be found; memory counts as empty."""
        levels = [names.Level(QUANTIZED, self.quantized.spare)] if self.quantized else []
        levels.append(names.Level(MEMORY, self.pages.num_rows))
        if self.folder is not None:
            levels.append(names.Level(FOLDER, self.folder_blocks, self.folder.newest(self.folder_blocks)))
        reader: Any = self.folder or NoFolder()
        return ColdParts(names.ColdBlocks(levels), reader, self.costs, names.blocks_to_bring_back)

    def make(self, moves: list[Move]) -> None:
        """Makes copies in their order, and takes each one out of the list when it is made.

        Raises:
            CopyFailed: a copy has raised something. A step that goes on without it would read another text.
        """
        while moves:
            start, move = time.perf_counter(), moves[0]
            try:
                self._copy(*move)
            except Exception as error:
                LOG.warning(f"a copy of a KV block has failed, and its text is computed again: {error!r}")
                raise CopyFailed from error
            del moves[0]
            self.copied[move.source.level, move.target.level] += 1
            if move.target.level == POOL:
                seconds = time.perf_counter() - start
                if self.folder is not None and move.source.level == FOLDER:
                    seconds += self.folder.read_seconds
                self.costs.observe(move.source.level, seconds)

    def _copy(self, digest: bytes, source: Place, target: Place) -> None:
        if target.level == POOL:
            self._bring_back(digest, source, target.slot)
        elif target.level == QUANTIZED:
            assert self.quantized is not None
            self.quantized.put(source.slot, target.slot)
        elif target != GONE:
            self._put_away(digest, source, target)
        elif source.level == FOLDER and self.folder is not None:
            self.folder.delete(digest)

    def _put_away(self, digest: bytes, source: Place, target: Place) -> None:
        row = next((place.slot for place in (source, target) if place.level == MEMORY), self.pages.num_rows)
        if source.level != MEMORY:
            self.pages.save(source.slot, row)
        if target.level == FOLDER and self.folder is not None:
            self.folder.write(digest, self.pages.bytes_of(row))

    def _bring_back(self, digest: bytes, source: Place, block: int) -> None:
        row = source.slot
        if source.level == FOLDER and self.folder is not None:
            row = self.pages.num_rows
            self.pages.bytes_of(row)[:] = self.folder.take(digest)
        if self.quantized is None:
            self.pages.restore(row, block)
        elif source.level == QUANTIZED:
            self.quantized.give_back(row, block)
        else:
            self.pages.restore(row, self.quantized.spare)
            self.quantized.give_back(self.quantized.spare, block)

    def forget(self) -> None:
        """Deletes what is in the folder. A new scheduler's memory is empty anyway."""
        if self.folder is not None:
            self.folder.clear()

    def on_event(self, event: Event) -> None:
        """Takes the time of steps with chunks of prompts."""
        tokens = sum(part.tokens for part in event.parts if part.kind == "chunk")
        if event.kind == "step" and tokens >= FEW:
            self.costs.observe_step(tokens, event.seconds, self.block_size)

    def close(self) -> None:
        """Returns when the folder has what it was given."""
        if self.folder is not None:
            self.folder.close()


def open_cold_store(
    port: Port, runner: PackedRunner, options: EngineOptions, model: str | None
) -> ColdStore | None:
    """What the options ask for; None if nothing is kept.

    Args:
        model: names the model, see `model_name`.

    Raises:
        ValueError: the memory is not free, or the folder cannot be used.
    """
    if not options.keeps_cold_blocks:
        return None
    costs, quantized = BlockCosts(None, {}), None
    if options.num_quantized_blocks:
        made = runner.create_kv_pools(options.num_quantized_blocks, "int8")
        quantized = QuantizedBlocks(port, runner.pools, made)
    pools = runner.pools if quantized is None else quantized.quantized
    block_bytes = given_of(port).host_pages(pools, 0).row_bytes
    wanted = int(options.kv_offloading_size * GIB)
    if wanted > free_ram():
        sizes = f"{options.kv_offloading_size:g} GiB, and {free_ram() / GIB:.1f} GiB are free"
        raise ValueError(f"kv_offloading_size is {sizes}: give less")
    pages = given_of(port).host_pages(pools, wanted // block_bytes)
    folder = open_folder(options, model, block_bytes)
    blocks = int(options.kv_offloading_folder_size * GIB) // block_bytes
    return ColdStore(pages, folder, quantized, costs, options.block_size, blocks)


def open_folder(options: EngineOptions, model: str | None, block_bytes: int) -> BlockFolder | None:
    """The folder of the options, if there is one.

    Raises:
        ValueError: it cannot be used, or nobody knows what model its blocks belong to.
    """
    folder = options.kv_offloading_folder
    if folder is None:
        return None
    if model is None:
        raise ValueError("kv_offloading_folder is for models that are loaded by their name")
    try:
        return BlockFolder(Path(folder), model, block_bytes)
    except OSError as error:
        fix = f"{error.strerror}; give a folder that can be written"
        raise ValueError(f"kv_offloading_folder {folder}: {fix}") from error


def model_name(job: Job) -> str:
    """Names all that keys and values depend on: the bytes of the weights, and the options.

    Raises:
        CheckpointError: there is no such model.
    """
    of_engine = [getattr(job.options, name) for name in NAMED]
    return _digest_of(job, {**job.message(), "model": "", "engine_options": of_engine})


def weights_name(job: Job) -> str:
    """Names the weights as they are loaded, on whatever port and in whatever float type.

    Raises:
        CheckpointError: there is no such model.
    """
    loaded = ("quantization", "load_options", "random_weights")
    return _digest_of(job, {name: job.message()[name] for name in loaded})


def _digest_of(job: Job, depends: Mapping[str, Any]) -> str:
    """A digest of the model's files, and of what else matters."""
    path, name = model_path(job.model), hashlib.sha256(json.dumps(depends, default=str).encode())
    for file in sorted(path.glob("*")) if path.is_dir() else [path]:
        if file.is_file():
            name.update(file.name.encode())
            with file.open("rb") as opened:
                while part := opened.read(2**24):
                    name.update(part)
    return name.hexdigest()[:32]
