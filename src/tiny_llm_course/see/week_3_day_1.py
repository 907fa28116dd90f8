"""The screen of Day 3.1: a map of the blocks while chats with one system prompt come and go, and what hits save."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.console import Console
from rich.text import Text

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import BlockTable

from ..trace.tables import figures_table
from .shared import MODEL, shipped

SIZE, BLOCKS = 8, 24
SYSTEM = (
    "You are the assistant of the course tiny-llm. Answer in one short sentence, and say which day of the "
    "course explains it."
)
COLOURS = {"A": "cyan", "B": "green", "C": "magenta", "D": "blue", "E": "white"}
SHARED = "bold black on yellow"
QUESTIONS = ("What is a KV cache?", "What is attention?", "What is RoPE?", "What is a logit?")
COMMON, OWN, LONG_SIZE, LONG_BLOCKS, ROUNDS = 1024, 32, 128, 12, 3
MEASURED = (r" *\d+\.\d(?= (?:ms|×))", r"\d+\.\d{6}")


@dataclass
class Chat:
    """One request: its text so far, and the location of its keys and values."""

    name: str  # a letter
    prompt_len: int  # tokens of its prompt
    hit: int  # those of them that were cached
    table: BlockTable
    caches: list  # one per layer
    tokens: list[int]  # ids of prompt and answer
    logits: np.ndarray  # (V,) of the first token of the answer


class Pool:
    """Chats that share the blocks of one pool, with the learner's allocator and tables."""

    def __init__(self, b: Port, model, num_blocks: int, block_size: int, caching: bool = True):
        self.b, self.s, self.model = b, b.serving, model
        self.allocator = self.s.BlockAllocator(num_blocks, block_size, enable_prefix_caching=caching)
        self.pools = b.create_kv_pools(model, num_blocks, block_size)
        self.last_owner: dict[int, str] = {}

    def prefill(self, name: str, tokens: list[int]) -> Chat:
        """Compute what is not cached of a prompt, and append the first token of its answer."""
        table = self.s.BlockTable(self.allocator)
        hit = table.share(tokens)
        caches = self.b.TinyKvPagedCache.of_layers(self.pools, table, hit)
        chat = Chat(name, len(tokens), hit, table, caches, [*tokens], np.empty(0))
        chat.logits = self.step(chat)
        return chat

    def step(self, chat: Chat) -> np.ndarray:
        """Compute the tokens that no block holds yet, and append the next one."""
        start = chat.caches[0].offset
        inputs = self.b.array([chat.tokens[start:]])
        logits = self.b.numpy(self.model(inputs, start, chat.caches, logits_to_keep=1))[0, -1]
        chat.table.register(chat.tokens, len(chat.tokens))
        self.last_owner |= dict.fromkeys(chat.table.blocks, chat.name)
        chat.tokens.append(int(logits.argmax()))
        return logits

    def answer(self, chat: Chat, tokenizer) -> Chat:
        """Generate token by token, until the model ends its answer."""
        while chat.tokens[-1] not in tokenizer.eos_token_ids:
            self.step(chat)
        return chat

    def end(self, chat: Chat) -> None:
        chat.table.release()

    def map(self) -> Text:
        """The pool as text, a cell per block."""
        return Text().join(self._cell(block) for block in range(self.allocator.num_blocks))

    def _cell(self, block: int) -> Text:
        references = self.allocator.reference_counts[block]
        if references > 1:
            return Text(f"{references} ", SHARED)
        if references:
            name = self.last_owner[block]
            return Text(f"{name} ", f"black on {COLOURS[name]}")
        if self.allocator.prefix_cache.holds(block):
            return Text(f"{self.last_owner[block].lower()} ")
        return Text("· ", "dim")


def show(b: Port, console: Console) -> None:
    """Serve five chats from one pool, draw the blocks after each event, and time a prompt with and without a hit."""
    tokenizer = load_tokenizer(MODEL)
    model = b.Qwen3ModelWeek2(shipped(b))
    console.print(f"{BLOCKS} blocks of {SIZE} tokens; a cell is a block, the same one in every layer.")
    console.print("A  in use by A      2  shared by 2      a  cached: A has ended      ·  blank\n")
    chats = _story(console, Pool(b, model, BLOCKS, SIZE), tokenizer)
    _bill(console, chats)
    _compare(console, chats, [_finish(Pool(b, model, BLOCKS, SIZE), chat, tokenizer) for chat in chats])
    _times(console, b, model)


def _story(console: Console, pool: Pool, tokenizer) -> list[Chat]:
    """Run two chats with one system prompt, the first one's next question, and another text, twice."""

    def draw(event: str) -> None:
        console.print(Text.assemble(f"{event:24}", pool.map(), f"{pool.allocator.num_free:3} free"))

    def ask(name: str, messages: list[dict]) -> Chat:
        chat = pool.prefill(name, tokenizer.encode(tokenizer.apply_chat_template(messages)))
        draw(f"{name} asks: {chat.hit} of {chat.prompt_len} cached")
        pool.answer(chat, tokenizer)
        draw(f"{name} has its answer")
        return chat

    def end(chat: Chat) -> None:
        pool.end(chat)
        draw(f"{chat.name} ends")

    def user(text: str) -> dict:
        return {"role": "user", "content": text}

    system = {"role": "system", "content": SYSTEM}
    first = ask("A", [system, user(QUESTIONS[0])])
    second = ask("B", [system, user(QUESTIONS[1])])
    end(first)
    end(second)
    answer = tokenizer.decode(first.tokens[first.prompt_len : -1])
    history = [system, user(QUESTIONS[0]), {"role": "assistant", "content": answer}]
    third = ask("C", [*history, user(QUESTIONS[2])])
    end(third)
    fourth, fifth = (ask(name, [user(" ".join([QUESTIONS[3]] * 18))]) for name in "DE")
    return [first, second, third, fourth, fifth]


def _finish(pool: Pool, chat: Chat, tokenizer) -> Chat:
    """Answer the same prompt in an empty pool."""
    return pool.answer(pool.prefill(chat.name, chat.tokens[: chat.prompt_len]), tokenizer)


def _bill(console: Console, chats: list[Chat]) -> None:
    table = figures_table("", "prompt", "cached", "computed")
    table.add_column("")
    chat_of_a = "A's whole chat, its answer too"
    notes = "", "the system prompt", chat_of_a, "nothing in common; evicts", "D's prompt once more"
    for chat, note in zip(chats, notes, strict=True):
        table.add_row(chat.name, *map(str, (chat.prompt_len, chat.hit, chat.prompt_len - chat.hit)), note)
    total, hits = sum(chat.prompt_len for chat in chats), sum(chat.hit for chat in chats)
    table.add_row("all", str(total), str(hits), str(total - hits), f"{hits / total:.0%} saved", style="bold")
    console.print()
    console.print(table)


def _compare(console: Console, chats: list[Chat], alone: list[Chat]) -> None:
    pairs = [*zip(chats, alone, strict=True)]
    same = sum(chat.tokens == other.tokens for chat, other in pairs)
    worst = max(abs(chat.logits - other.logits).max() for chat, other in pairs)
    console.print(f"{same} of {len(pairs)} answers are those of a run alone, token for token.")
    console.print(f"Their first logits differ from those of a run alone by at most {worst:.6f}.\n")


def _times(console: Console, b: Port, model) -> None:
    """Seconds to the first token of a long prompt: computed whole, and with its beginning in the cache."""
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, COMMON + OWN).tolist()
    pools = {caching: Pool(b, model, LONG_BLOCKS, LONG_SIZE, caching) for caching in (False, True)}
    hits = {}

    def first_token(caching: bool) -> None:
        chat = pools[caching].prefill("A", ids)
        hits[caching] = chat.hit
        pools[caching].end(chat)

    # The first round, which is not counted, fills the cache.
    seconds = medians({caching: partial(first_token, caching) for caching in pools}, ROUNDS)
    console.print(f"A prompt of {len(ids):,} tokens in blocks of {LONG_SIZE}; time to its first token:")
    for caching in pools:
        console.print(f"  {hits[caching]:5,} cached {1000 * seconds[caching]:8.1f} ms")
    console.print(f"  {seconds[False] / seconds[True]:.1f} × sooner")
