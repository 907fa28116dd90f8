"""Two engines of which one computes prompts for the other, for tests: their steps take turns in one thread."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests_refsol.long.engine_soak import first_difference
from tests_refsol.long.harness import margin
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.kv_transfer import producer
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.open_engine import open_engine
from tiny_llm_ref import SamplingParams

SMALL = {
    "num_blocks": 60,
    "block_size": 8,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 110,
}
TIE = 1e-4  # tokens whose log-probabilities are closer may change places
PATIENCE = 0.6


def engine(backend: str, folder: Any, **options: Any) -> Any:
    """An engine of a small model in float32."""
    port, weights = (
        Port("tiny_llm_ref", backend, "cpu", options.pop("dtype", "float32")),
        options.pop("weights", "w"),
    )
    loaded = load_network(port, folder, "week3")
    return open_engine(port, *loaded, EngineOptions(**{**SMALL, **options}), weights=weights)


@dataclass(frozen=True)
class Asked:
    """A request, the round in which it comes, and what goes wrong.

    Args:
        fault: see `FAULTS`, or a request that leaves: "producer leaves", "consumer leaves".
        place: the block, or the round after its arrival, of the fault.
    """

    prompt: list[int]
    max_tokens: int
    comes: int
    fault: str
    place: int
    more: Mapping[str, Any] = field(default_factory=dict)


def dies(send: Callable, channel: Any, block: Any, *more: Any) -> None:
    channel.close()


def is_late(send: Callable, *arguments: Any) -> None:
    time.sleep(2 * PATIENCE)
    send(*arguments)


def is_twice(send: Callable, *arguments: Any) -> None:
    send(*arguments)
    send(*arguments)


def is_damaged(
    send: Callable, channel: Any, block: Any, tokens: Any, row: memoryview, is_shared: bool
) -> None:
    with patch.object(producer.Channel, "send", damaging(producer.Channel.send)):
        send(channel, block, tokens, row, is_shared)


def damaging(send: Callable) -> Callable:
    return lambda channel, message, payload=b"": send(
        channel, {**message, "sum": message.get("sum", 0) ^ 1}, payload
    )


def is_of_another_text(send: Callable, channel: Any, block: Any, tokens: Any, *more: Any) -> None:
    send(channel, block, [7, *tokens[1:]], *more)


def is_garbage(send: Callable, channel: Any, *more: Any) -> None:
    channel.send({"start": "x"})


# What happens to a block on its way.
FAULTS: dict[str, Callable] = {
    "lost": lambda send, *arguments: None,
    "late": is_late,
    "twice": is_twice,
    "damaged": is_damaged,
    "another text": is_of_another_text,
    "dies": dies,
    "garbage": is_garbage,
}
LEAVING = ("producer leaves", "consumer leaves", "unknown", "fine", "fine")


class Pair:
    """A producer and a consumer."""

    def __init__(self, first: Any, second: Any):
        self.producer, self.consumer = first, second
        self.connectors = [each.extensions["kv_transfer"] for each in (first, second)]
        self.num_asked = 0

    def params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """`extra_args` of a new transfer, for both sides."""
        self.num_asked += 1
        name, (host, port) = {"transfer_id": f"t{self.num_asked}"}, self.connectors[0].producer.address
        reads = {"do_remote_prefill": True, "remote_host": host, "remote_port": port}
        both = {**name, "do_remote_decode": True}, {**name, **reads}
        return tuple({"kv_transfer_params": each} for each in both)

    def serve(self, load: Sequence[Asked], most: int = 100_000) -> list[Any]:
        """The outputs of the consumer."""
        faults: dict[tuple[int, ...], Asked] = {tuple(asked.prompt): asked for asked in load}
        sent: dict[tuple[int, ...], int] = {}
        whole = producer.send_block

        def send(channel: Any, block: Any, tokens: Any, *more: Any) -> None:
            asked, number = faults[tuple(tokens)], sent.get(tuple(tokens), 0)
            sent[tuple(tokens)] = number + 1
            if asked.fault in FAULTS and number == asked.place:
                FAULTS[asked.fault](whole, channel, block, tokens, *more)
            else:
                whole(channel, block, tokens, *more)

        both: dict[int, tuple[Any, Any]] = {}
        with patch.object(producer, "send_block", send):
            for turn in range(most):
                for number, asked in enumerate(load):
                    if turn == asked.comes:
                        both[number] = self.add(asked)
                    elif turn == asked.comes + asked.place and asked.fault.endswith("leaves"):
                        both[number][asked.fault.startswith("consumer")].abort()
                steps = [each.step() for each in (self.producer, self.consumer) if each.has_work_remaining()]
                if not steps and len(both) == len(load):
                    break
        for each in (self.producer, self.consumer):
            each.collect_results()
        return [both[number][1].output() for number in range(len(load))]

    def add(self, asked: Asked) -> tuple[Any, Any]:
        """Sends a request to both engines, as a proxy does."""
        first, second = self.params()
        last = SamplingParams(max_tokens=1, extra_args=first)
        params = {"max_tokens": asked.max_tokens, "ignore_eos": True, "logprobs": 2, **asked.more}
        one = self.producer.request(None, asked.prompt, last)
        other = self.consumer.request(None, asked.prompt, SamplingParams(**params, extra_args=second))
        if asked.fault != "unknown":
            self.producer.add(one)
        self.consumer.add(other)
        return one, other

    def check_nothing_is_left(self) -> None:
        """No block, no row and no connection is held."""
        for each in (self.producer, self.consumer):
            assert not each.has_work_remaining() and not each.num_open
            assert each.allocator.num_free == each.allocator.num_blocks
        sender, reader = self.connectors[0].producer, self.connectors[1]
        assert not reader._fetches
        assert until(lambda: not sender._readers), "a reader is still there"
        sender.outbox.expire(float("inf"))
        assert not sender.outbox.transfers and len(sender.outbox.free) == sender.pages.num_rows


def until(is_so: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    return is_so()


def compare(outputs: Sequence[Any], expected: Sequence[Any]) -> int:
    """Answers are the expected ones, up to a token that is as probable as another; returns the number of those."""
    ties = 0
    for output, right in zip(outputs, expected, strict=True):
        for mine, other in zip(output.outputs, right.outputs, strict=True):
            assert mine.error is None, mine.error
            place = first_difference(mine.token_ids, other.token_ids)
            if place is None:
                assert len(mine.token_ids) == len(other.token_ids) or mine.finish_reason == "abort"
            else:
                assert margin(other, place) < TIE, (place, mine, other)
                ties += 1
    return ties


def alone(plain: Any, load: Sequence[Asked]) -> list[Any]:
    """What an engine answers that shares nothing."""
    params = [
        {"max_tokens": each.max_tokens, "ignore_eos": True, "logprobs": 2, **each.more} for each in load
    ]
    requests = [
        plain.request(None, each.prompt, SamplingParams(**one))
        for each, one in zip(load, params, strict=True)
    ]
    plain.run(requests)
    return [request.output() for request in requests]
