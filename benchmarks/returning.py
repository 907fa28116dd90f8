"""`pdm run bench-kv --returning`: a conversation goes on whose keys and values are somewhere else by now.

Its first token when they are computed again, when they come back from each level outside the pool, and when they are
in the pool still; alone, and beside a request that is being answered. Copies are compared by the tokens of the answer,
too: all ways but those in int8 must give the same.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_course.trace.workload import LONG, RUNNING, RequestSpec
from tiny_llm_engine.backends.samples import in_turns
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.cold_blocks.cold_store import GIB, ColdStore
from tiny_llm_extensions.cold_blocks.moves import FOLDER, MEMORY, QUANTIZED, Move
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.open_engine import open_engine

from .command import RunProgress
from .model_calls import BLOCK, ModelPlan
from .options import check_context, count, option, plain

TURN, ANSWER = 16, 4  # tokens that the user adds, and that are answered
VICTIM, BEFORE = 512, 8  # tokens of the other answer at most, and before the conversation returns
SPARE = 8  # blocks of the pool beside those of the conversation
DROPPED = "disk, dropped"  # the file's pages are not in memory


@dataclass(frozen=True)
class ReturningPlan(ModelPlan):
    """Options of the command."""

    input_len: int = count(4000, "tokens of the conversation so far")
    rounds: int = count(3, "samples of each way, taken in turns")
    folder: str | None = option(None, "for the files; default: the system's for temporary ones")


@dataclass
class Way:
    """A place where keys and values are when a conversation returns.

    Args:
        level: where they come back from; None if they are computed, or have never left.
        leaves: whether they leave the pool.
        is_dropped: whether files are read from the disk itself.
    """

    engine: LLMEngine
    level: str | None = None
    leaves: bool = True
    is_dropped: bool = False

    def put_away(self) -> None:
        """Takes every idle block out of the pool, one by one: a folder drops what it is not fast enough for."""
        allocator, cold = self.engine.allocator, self.engine.extensions.get("cold")
        while self.leaves and allocator.prefix_cache.idle:
            allocator.free(allocator.allocate(len(allocator.blank) + 1))
            if cold is not None:
                batch = self.engine.names.PackedBatch()
                for hook in self.engine.loop.hooks.batch:
                    hook(batch, [])
                moves: list[Move] = batch.moves
                written = [move.digest for move in moves if move.target.level == FOLDER]
                cold.make(moves)
                wait_for(cold, written)
        if cold is not None:
            cold.costs.back.clear()
            if cold.folder is not None:
                touch(cold.folder.path, self.is_dropped)

    def sample(self, prompt: Sequence[int]) -> dict[str, Any]:
        """Lets the conversation return alone, then beside another request: seconds, and its answer."""
        self.put_away()
        alone = returned(self.engine, prompt)
        cold = self.engine.extensions.get("cold")
        block = cold.costs.back.get(self.level) if cold is not None and self.level else None
        self.put_away()
        beside = returned(self.engine, prompt, VICTIM)
        return {"alone": alone, "beside": beside, "block": block}


def wait_for(cold: ColdStore, digests: Iterable[bytes]) -> None:
    """Reads blocks, which their folder does after all that it was told to write."""
    for digest in digests:
        assert cold.folder is not None
        cold.folder.fetch(digest)
        while (is_there := cold.folder.fetched(digest)) is None:
            cold.folder.wait()
        if not is_there:
            raise ValueError(f"{cold.folder.path} cannot be written: choose another --folder")
        cold.folder.take(digest)


def touch(folder: Path, is_dropped: bool) -> None:
    """Reads all files of a folder, or takes their pages out of the system's memory."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            if not is_dropped:
                opened.read()
            else:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def returned(engine: LLMEngine, prompt: Sequence[int], others: int = 0) -> dict[str, Any]:
    """Answer the conversation: seconds to its first token, tokens that were not computed, and the answer.

    Args:
        others: tokens of a request that runs before and beside it; its longest gap meanwhile, and the median of those
            before, are in the result too.
    """
    params, times = engine.names.SamplingParams, list[float]()
    asked = engine.request(None, prompt, params(max_tokens=ANSWER, ignore_eos=True))
    other = RequestSpec(RUNNING, TURN, others).ids(engine.runner.vocab_size, 1)
    victim = engine.request(None, other, params(max_tokens=max(others, 1), ignore_eos=True))

    def on_event(event: Any) -> None:
        if event.kind == "token" and event.request is victim.sequences[0]:
            times.append(event.time)

    def on_step() -> None:
        if len(times) >= BEFORE and not asked.metrics.arrival_time:
            engine.add(asked)
        if asked.is_done:
            victim.abort()

    with engine.heard_by(on_event):
        engine.run([victim] if others else [asked], on_step)
    output = asked.output()
    [answer], ttft = output.outputs, output.metrics.ttft
    if ttft is None:
        raise ValueError(f"the conversation was not answered: {answer.error}")
    found = {"ttft": ttft, "cached": output.num_cached_tokens, "answer": answer.token_ids}
    return found | (gaps(times, output.metrics.arrival_time, ttft) if others else {})


def gaps(times: Sequence[float], arrival: float, ttft: float) -> dict[str, float]:
    """Of the times of another request's tokens: the longest gap while one returned, and the median of those before."""
    pairs = list(pairwise(times))
    return {
        "gap": max(later - sooner for sooner, later in pairs if later > arrival and sooner < arrival + ttft),
        "usual": median(later - sooner for sooner, later in pairs if later <= arrival),
    }


def give_blocks(source: LLMEngine, target: LLMEngine, text: Sequence[int]) -> None:
    """Copies what one engine has computed of a text into the pool of another one."""
    old, new = (given_of(engine.port).host_pages(engine.runner.pools, 0) for engine in (source, target))
    has, table = (engine.names.BlockTable(engine.allocator) for engine in (source, target))
    known = has.share(text)
    table.reserve(known)
    for block, copy in zip(has.blocks, table.blocks, strict=True):
        old.save(block, 0)
        new.bytes_of(0)[:] = old.bytes_of(0)
        new.restore(0, copy)
    table.register(text, known)
    table.release()
    has.release()


@contextmanager
def ways_of(plan: ReturningPlan, port: Port, network: Any) -> Iterator[dict[str, Way]]:
    """The ways by their names. Engines are open, and folders are there, as long as the context lasts."""
    blocks, longest = plan.input_len // BLOCK, max(plan.input_len + TURN + ANSWER, TURN + VICTIM)
    check_context(longest, network.config.max_position_embeddings)
    with ExitStack() as stack:

        def engine(**options: Any) -> LLMEngine:
            given = EngineOptions(
                block_size=BLOCK, num_blocks=blocks + SPARE, max_num_seqs=2, max_model_len=longest, **options
            )
            made = open_engine(port, network, EndlessTokenizer(), given, model="returning")
            stack.callback(made.close)
            return made

        def folder() -> str:
            return stack.enter_context(TemporaryDirectory(dir=plan.folder))

        plain_pool = engine()
        row_bytes = given_of(port).host_pages(plain_pool.runner.pools, 0).row_bytes
        memory = {"kv_offloading_size": (blocks + SPARE) * row_bytes / GIB}
        on_disk = engine(kv_offloading_folder=folder())
        rounded = engine(num_quantized_blocks=1, kv_offloading_folder=folder())
        ways = {
            "computed": Way(plain_pool),
            "pool": Way(plain_pool, leaves=False),
            "memory": Way(engine(**memory), MEMORY),
            "disk, cached": Way(on_disk, FOLDER),
            DROPPED: Way(on_disk, FOLDER, is_dropped=True),
            "int8 in the pool": Way(engine(num_quantized_blocks=blocks + SPARE), QUANTIZED),
            "int8, memory": Way(engine(num_quantized_blocks=1, **memory), MEMORY),
            "int8, disk, cached": Way(rounded, FOLDER),
            f"int8, {DROPPED}": Way(rounded, FOLDER, is_dropped=True),
        }
        yield {name: way for name, way in ways.items() if not way.is_dropped or hasattr(os, "posix_fadvise")}


def measure(plan: ReturningPlan, port: Port, report: RunProgress) -> dict[str, Any]:
    """Let the conversation return in every way, in turns.

    Raises:
        ValueError: it is shorter than a block, or longer than what the model reads.
    """
    if plan.input_len <= BLOCK:
        raise ValueError(f"--input-len {plan.input_len}: give more than a block of {BLOCK} tokens")
    before, network = provenance(port.device), plan.network(port)
    port.backend_module.set_threads(plan.threads)
    with ways_of(plan, port, network) as ways:
        first = ways["computed"].engine
        text = RequestSpec(LONG, plan.input_len + TURN, ANSWER).ids(first.runner.vocab_size, 0)
        report("the conversation", 1 + plan.rounds * len(ways))
        returned(first, text)
        for engine in {id(way.engine): way.engine for way in ways.values()}.values():
            if engine is not first:
                give_blocks(first, engine, text)

        def sample(name: str, number: int) -> dict[str, Any]:
            report(f"{name}, round {number + 1}")
            return ways[name].sample(text)

        taken = in_turns({name: partial(sample, name) for name in ways}, range(plan.rounds))
        return {
            "kind": "kv-returning",
            "backend": port.name,
            "plan": plain(plan) | {"dtype": port.float_dtype},
            "provenance": before,
            "block_size": BLOCK,
            "block_bytes": {
                name: cold.pages.row_bytes if (cold := way.engine.extensions.get("cold")) else 0
                for name, way in ways.items()
            },
            "samples": taken,
        }
