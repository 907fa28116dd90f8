"""Engines in processes of their own, one of which is killed: nothing is wrong, and nothing stays behind.

KV_KILLS is the number of processes that are killed on each side.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_ref import SamplingParams

from .pairs import engine, until
from .test_engines import PROMPTS, READS, ROOM, SENDS

KILLS = int(os.environ.get("KV_KILLS", "1"))
BACKEND, PROMPT, ANSWER = installed_backends()[-1], PROMPTS[4], 6
SHARED = Path("/dev/shm")


class Process:
    """An engine in a process of its own."""

    def __init__(self, folder, config, pause=0.0):
        line = [sys.executable, "-m", "tests_refsol.kv_transfer.kv_process"]
        line.append(json.dumps([BACKEND, str(folder), config, pause]))
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
        }
        self.process = subprocess.Popen(line, **pipes)
        self.address = self.read()

    def read(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, max_tokens, extra):
        self.process.stdin.write(json.dumps([PROMPT, max_tokens, {"kv_transfer_params": extra}]) + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def expected(two_layers):
    plain = engine(BACKEND, two_layers, **ROOM)
    yield answer(plain, None)[1]
    plain.close()


def answer(made, extra, on_step=lambda sequence: None):
    params = SamplingParams(
        max_tokens=ANSWER, ignore_eos=True, extra_args=extra and {"kv_transfer_params": extra}
    )
    request = made.request(None, PROMPT, params)
    made.run([request], lambda: on_step(request.sequences[0]))
    return request.output().num_cached_tokens, request.output().outputs[0].token_ids


def has_readers(outbox, name, count):
    return until(lambda: outbox.transfers[name].readers == count)


def segments():
    return {each.name for each in SHARED.glob("tinyllm*")} if SHARED.is_dir() else set()


def reading(name, address):
    host, port = address.split(":")
    return {"transfer_id": name, "do_remote_prefill": True, "remote_host": host, "remote_port": int(port)}


def test_a_producer_that_is_killed_leaves_no_memory_and_its_prompt_is_computed_here(
    two_layers, expected, caplog
):
    before, made = segments(), engine(BACKEND, two_layers, kv_transfer_config=READS)
    for number in range(KILLS):
        killed, blocks = Process(two_layers, SENDS, pause=0.05), random.Random(number).randrange(1, 9)

        def kill(sequence, killed=killed, most=8 * blocks):
            if sequence.num_computed >= most and killed.process.poll() is None:
                killed.kill()

        killed.ask(1, {"transfer_id": "x", "do_remote_decode": True})
        made.reset_prefix_cache()
        cached, tokens = answer(made, reading("x", killed.address), kill)
        assert tokens == expected and 8 * blocks <= cached < 89
        assert until(lambda: segments() <= before), "its shared memory is still there"
    assert made.allocator.num_free == made.allocator.num_blocks
    assert len(caplog.messages) == KILLS
    made.close()


def test_a_consumer_that_is_killed_leaves_the_prompt_for_the_next_one(two_layers, expected):
    sends = {**SENDS, "kv_connector_extra_config": {"abort_request_timeout": 60.0}}
    first, second = (engine(BACKEND, two_layers, kv_transfer_config=each) for each in (sends, READS))
    outbox, connector = first.extensions["kv_transfer"].producer.outbox, first.extensions["kv_transfer"]
    for number in range(KILLS):
        killed, name = Process(two_layers, READS), f"t{number}"
        killed.ask(ANSWER, reading(name, connector.address))
        extra = {"kv_transfer_params": {"transfer_id": name, "do_remote_decode": True}}
        request, steps = first.request(None, PROMPT, SamplingParams(max_tokens=1, extra_args=extra)), 0
        first.reset_prefix_cache()
        first.add(request)
        while first.has_work_remaining():
            first.step()
            steps += 1
            if steps == 1 + number % 5:
                assert has_readers(outbox, name, 1)
                killed.kill()
                assert has_readers(outbox, name, 0)
        second.reset_prefix_cache()
        assert answer(second, reading(name, connector.address)) == (89, expected)
        assert until(lambda: not outbox.transfers)
    first.close()
    second.close()
