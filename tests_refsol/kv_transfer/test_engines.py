"""Two engines, one of which computes prompts for the other: answers are those of one, whatever goes wrong between them.

KV_LOADS is the number of random loads for each pair of ports.
"""

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_ref import SamplingParams
from tiny_llm_ref.serving import StructuredOutputsParams

from .pairs import FAULTS, LEAVING, PATIENCE, Asked, Pair, alone, compare, engine

LOADS = int(os.environ.get("KV_LOADS", "4"))
PORTS = [(one, other) for one in installed_backends() for other in installed_backends()]
EXTRA = {"patience": 60.0}  # a busy machine is no fault
SENDS = {"kv_role": "kv_producer", "kv_port": 0, "kv_buffer_size": 4e6, "kv_connector_extra_config": EXTRA}
READS = {"kv_role": "kv_consumer", "kv_connector_extra_config": EXTRA}
IMPATIENT = {"kv_role": "kv_consumer", "kv_connector_extra_config": {"patience": PATIENCE}}
READS_TCP = {"kv_role": "kv_consumer", "kv_connector_extra_config": {**EXTRA, "transport": "tcp"}}
RANDOM = random.Random(6)
PROMPTS = [[RANDOM.randrange(5, 400) for _ in range(count)] for count in (9, 40, 61, 75, 90, 17)]
ROOM = {"num_blocks": 200, "max_num_batched_tokens": 64}


@pytest.fixture(scope="module")
def opened(two_layers):
    """Opens engines, and closes them at the end."""
    made = []

    def open_one(backend, **options):
        made.append(engine(backend, two_layers, **options))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


@pytest.fixture(scope="module", params=PORTS, ids="-".join)
def pair(request, opened):
    """A pair with different blocks, and an engine alone that answers as its consumer should."""
    first, second = request.param
    sends = opened(first, kv_transfer_config=SENDS)
    reads = opened(second, kv_transfer_config=IMPATIENT, block_size=12, num_blocks=40)
    return Pair(sends, reads), opened(second, **ROOM)


def asked(number, prompt, max_tokens, comes, fault, place):
    """Prompts begin alike, and none is asked twice: faults are known by their prompt."""
    ids = [*PROMPTS[prompt], 400 + number]
    return Asked(ids, max_tokens, comes, fault, place)


ONE = (
    st.integers(0, 5),
    st.integers(1, 9),
    st.integers(0, 9),
    st.sampled_from([*FAULTS, *LEAVING]),
    st.integers(0, 6),
)
LOAD = st.lists(st.tuples(*ONE), min_size=2, max_size=5)


def test_answers_of_random_loads_with_faults_are_those_of_one_engine(pair):
    both, plain = pair

    @settings(max_examples=LOADS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(LOAD)
    def check(drawn):
        load = [asked(number, *one) for number, one in enumerate(drawn)]
        compare(both.serve(load), alone(plain, load))
        both.check_nothing_is_left()

    check()
    counts = both.connectors[1].counts
    assert LOADS < 4 or (counts["received_tokens"] and both.connectors[0].counts["sent_bytes"])


@pytest.mark.parametrize("transport", [READS, READS_TCP], ids=["shared memory", "tcp"])
@pytest.mark.parametrize("backend", installed_backends())
def test_a_prompt_is_computed_once_and_read_while_it_is_computed(opened, backend, transport):
    both = Pair(opened(backend, kv_transfer_config=SENDS), opened(backend, kv_transfer_config=transport))
    load = [Asked(PROMPTS[4], 5, 0, "fine", 0)]
    [one], _ = both.serve(load), both.check_nothing_is_left()
    compare([one], alone(opened(backend, **ROOM), load))
    assert one.num_cached_tokens == 89 and both.consumer.runner.computed_tokens == 5
    assert both.producer.runner.computed_tokens == 90
    assert both.connectors[1].counts["given_up"] == 0


@pytest.mark.parametrize("fault", [*FAULTS, "unknown", "producer leaves"])
def test_each_fault_is_one_line_and_what_came_before_it_is_kept(opened, fault, caplog):
    backend, is_late = installed_backends()[0], fault in ("late", "unknown")
    reads = opened(backend, kv_transfer_config=IMPATIENT if is_late else READS)
    both = Pair(opened(backend, kv_transfer_config=SENDS), reads)
    load = [Asked(PROMPTS[4], 4, 0, fault, 2)]
    [one] = both.serve(load)
    compare([one], alone(opened(backend, **ROOM), load))
    both.check_nothing_is_left()
    kept = {"unknown": 0, "producer leaves": 32, "twice": 89}.get(fault, 16)
    assert one.num_cached_tokens == kept or (is_late and one.num_cached_tokens < kept), caplog.text
    assert ["is computed here from token" in line and "\n" not in line for line in caplog.messages] == [
        True
    ] * (fault != "twice")


def test_requests_that_lose_their_blocks_are_computed_here(opened):
    backend = installed_backends()[0]
    both = Pair(opened(backend, kv_transfer_config=SENDS), opened(backend, kv_transfer_config=READS))
    load, steps = [Asked(PROMPTS[4], 4, 0, "fine", 0)], [False, False, False, True]
    both.consumer.loop.hooks.admission[0].advance = restarting(both.consumer.loop.waiting, steps)
    [one], _ = both.serve(load), both.check_nothing_is_left()
    compare([one], alone(opened(backend, **ROOM), load))
    assert not steps


def restarting(waiting, steps):
    """An `advance` that lets all who are held wait again, once."""
    whole = waiting.holds[0].advance

    def advance(is_idle):
        if steps and len(waiting.holds[0]) and steps.pop(0):
            waiting.restart_held()
            return True
        return whole(is_idle)

    return advance


def test_another_model_and_another_secret_are_one_line(opened, caplog):
    backend = installed_backends()[0]
    sends = opened(backend, kv_transfer_config=SENDS)
    secret = {**READS, "kv_connector_extra_config": {**EXTRA, "secret": "s"}}
    others = {
        "another secret": opened(backend, kv_transfer_config=secret),
        "another model": opened(backend, kv_transfer_config=READS, weights="v"),
    }
    load = [Asked(PROMPTS[2], 4, 0, "fine", 0)]
    for why, reads in others.items():
        caplog.clear()
        compare(Pair(sends, reads).serve(load), alone(opened(backend, **ROOM), load))
        assert why in caplog.text and "from token 0 on" in caplog.text


# Options of the consumer, of the producer, and whether tokens come.
OPTIONS = {
    "no prefix cache": ({"enable_prefix_caching": False}, {"enable_prefix_caching": False}, True),
    "int8 here": ({"kv_cache_dtype": "int8"}, {}, True),
    "int8 on both sides": ({"kv_cache_dtype": "int8", "block_size": 16}, {"kv_cache_dtype": "int8"}, True),
    "fp8 on both sides": ({"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8"}, True),
    "int8 there": ({}, {"kv_cache_dtype": "int8"}, False),
    "bf16 there": ({}, {"dtype": "bfloat16"}, True),
    "drafts": (
        {"speculative_config": {"method": "ngram"}},
        {"speculative_config": {"method": "ngram"}},
        True,
    ),
    "whole prompts": (
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 110},
        {"policy": "separate"},
        True,
    ),
    "buckets": ({"bucketing_strategy": "linear"}, {"bucketing_strategy": "linear"}, True),
    "ahead there": ({}, {"async_scheduling": True}, True),
    "cold blocks there": ({}, {"kv_offloading_size": 0.01, "num_blocks": 14}, True),
    "growing pools": ({"num_blocks": None}, {"num_blocks": None}, True),
    "priorities": ({"scheduling_policy": "priority"}, {"scheduling_policy": "priority"}, True),
    "small pools": ({"num_blocks": 15}, {"num_blocks": 15}, True),
}
ROUNDED = ("int8 here", "int8 on both sides", "fp8 on both sides", "bf16 there")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", installed_backends())
def test_other_options_go_with_it(opened, backend, name, caplog):
    here, there, comes = OPTIONS[name]
    both = Pair(
        opened(backend, kv_transfer_config=SENDS, **there), opened(backend, kv_transfer_config=READS, **here)
    )
    load = [Asked(prompt, 6, number, "fine", 0) for number, prompt in enumerate(PROMPTS)]
    outputs = both.serve(load)
    both.check_nothing_is_left()
    assert bool(both.connectors[1].counts["received_tokens"]) == comes
    assert ("kept in int8, and here in float32" in caplog.text) == (not comes)
    if name not in ROUNDED:
        compare(outputs, alone(opened(backend, **ROOM), load))
    elif name != "bf16 there":
        compare(outputs, alone(opened(backend, **{**ROOM, **here}), load)) if name == "int8 here" else None
        assert all(len(each.outputs[0].token_ids) == 6 for each in outputs)


ASKS = {
    "n": {"n": 3, "temperature": 0.9, "seed": 5},
    "scores": {"prompt_logprobs": 1},
    "form": {"structured_outputs": StructuredOutputsParams(regex="[a-f]{4}"), "ignore_eos": False},
}


@pytest.mark.parametrize("name", ASKS)
def test_requests_may_ask_for_anything(opened, name):
    backend = installed_backends()[0]
    both = Pair(opened(backend, kv_transfer_config=SENDS), opened(backend, kv_transfer_config=READS))
    load = [Asked(PROMPTS[2], 6, 0, "fine", 0, ASKS[name])]
    [one] = both.serve(load)
    [right] = alone(opened(backend, **ROOM), load)
    assert [each.token_ids for each in one.outputs] == [each.token_ids for each in right.outputs]
    assert one.num_cached_tokens == (0 if name == "scores" else 60)
    if name != "scores":
        both.check_nothing_is_left()


@pytest.mark.parametrize(
    ("option", "role"),
    [
        ({"tensor_parallel_size": 2}, SENDS),
        ({"async_scheduling": True}, READS),
        ({"kv_offloading_size": 0.1}, READS),
    ],
)
def test_what_does_not_go_with_it_is_refused_when_the_engine_is_opened(option, role):
    with pytest.raises(
        ValueError, match=f"kv_transfer_config.* and {next(iter(option))}.*leave one of them out"
    ):
        EngineOptions(**option, kv_transfer_config=role)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"do_remote_decode": True}, "transfer_id is None"),
        ({"transfer_id": "x", "do_remote_decode": True}, "for a kv_producer"),
        ({"transfer_id": "x", "do_remote_prefill": True, "remote_host": "127.0.0.1"}, "remote_port is None"),
        (
            {"transfer_id": "x", "do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 9},
            "no secret",
        ),
    ],
)
def test_wrong_parameters_end_a_request_in_one_line(opened, params, why):
    backend = installed_backends()[0]
    for config, line in ((READS, why), (None, "without kv_transfer_config")):
        reads = opened(backend, kv_transfer_config=config)
        request = reads.request(None, [5, 6], SamplingParams(extra_args={"kv_transfer_params": params}))
        assert line in request.refusal
    with pytest.raises(ValueError, match="extra_args is"):
        SamplingParams(extra_args={"other": 1})
