"""Ranks as real processes: one pair for each port, which all tests here share; the last one kills it."""

import json
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import pytest

from support.ranks import CHATS, SAMPLINGS, TIGHT
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.parallel import ranks as ranks_module
from tiny_llm_extensions.parallel.channel import Channel, step_of
from tiny_llm_extensions.parallel.meeting_point import Contact, MeetingPoint
from tiny_llm_extensions.parallel.other_ranks import RankError
from tiny_llm_extensions.parallel.ranks import Ranks
from tiny_llm_ref import SamplingParams, serving

MIXTURE = MODELS / "tiny-qwen3-moe"
PATIENCE = 300.0  # seconds: only what never comes takes as long
BUCKETS = TIGHT | {"bucketing_strategy": "exponential"}


@pytest.fixture(scope="module", params=installed_backends())
def pair(request):
    """An `LLM` of two ranks, which divide heads and one MLP, and share experts: they exchange rows by `all_to_all`."""
    shared = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    with LLM(MIXTURE, backend=request.param, device="cpu", **shared, **BUCKETS) as llm:
        yield llm


def test_two_processes_give_the_answers_of_one(pair):
    """Chunks, prefixes, preemptions, seeds, buckets: the other rank gets each step, and its bucket, as integers."""
    port = pair.engine.port
    one = LLM.of(port, *load_network(port, MIXTURE, "week3"), **BUCKETS)
    for tokens in (24, 6):  # the second time with cached prefixes
        params = [replace(each, max_tokens=tokens) for each in SAMPLINGS]
        expected, found = (llm.chat(CHATS, params, use_tqdm=False) for llm in (one, pair))
        assert [o.outputs[0].text for o in found] == [o.outputs[0].text for o in expected]


def test_the_other_rank_is_a_process_on_this_machine_alone(pair):
    [process] = pair.engine.extensions["ranks"].processes.values()
    assert process.poll() is None
    assert pair.engine.extensions["ranks"].group.size == 2
    assert os.getsid(process.pid) != os.getsid(0), "Ctrl-C would reach it"


def test_a_rank_that_is_killed_ends_the_engine_with_one_line(pair):
    [process] = pair.engine.extensions["ranks"].processes.values()
    lines: Queue[str] = Queue()
    pair.engine.extensions["ranks"].on_failure = lines.put
    process.kill()
    assert lines.get(timeout=PATIENCE) == "rank 1 has ended by signal 9"
    with pytest.raises(RankError, match=r"^rank 1 has ended by signal 9$"):
        pair.generate(["What is"], use_tqdm=False)
    assert process.poll() == -signal.SIGKILL
    assert pair.engine.allocator.num_free == pair.engine.allocator.num_blocks
    pair.close()


@pytest.mark.parametrize("backend", installed_backends())
def test_two_stages_give_the_answers_of_one_process(forks, backend, two_layers):
    """Chunks, prefixes, preemptions of requests in flight, seeds, buckets; also after an interruption between steps
    and in the middle of one. In a process of its own: MLX makes one group per process, which this one may have had.
    """
    port = Port("tiny_llm_ref", backend, "cpu")
    params = [
        {"max_tokens": 24, "temperature": heat, "seed": seed} for heat, seed in ((0, 1), (0.8, 5), (1.2, 6))
    ]
    one = LLM.of(port, *load_network(port, two_layers, "week3"), **BUCKETS)
    params_of_one = [SamplingParams(**each) for each in params]
    answers = (one.chat(CHATS, params_of_one, False) for _ in range(2))
    expected = [[output.outputs[0].text for output in outputs] for outputs in answers]
    given = json.dumps([str(two_layers), backend, CHATS, BUCKETS, params])
    done = forks.run("tests_refsol.engine.two_stages", given)
    assert done.returncode == 0, done.stderr
    found, (first, last), left = json.loads(done.stdout.splitlines()[-1])
    assert found == [*expected, *expected]
    assert len(first) == len(last) > 40, "each stage has computed every micro-batch"
    begins = [sent[0] < received[0] for sent, received in zip(first, last, strict=True)]
    assert all(begins), "the first stage begins before the last one"
    assert len(left) == len(last) and left.count(1) > 10, "a stage has the next one before this has ended"


# Without processes: what rank 0 makes of what it hears.


ENDED = SimpleNamespace(kill=lambda: None, wait=lambda seconds=None: 3)


@pytest.fixture
def other():
    """`Ranks` with one other rank, and that rank's end of the channel."""
    ends = tcp_pair()
    ranks = Ranks({1: Channel(ends[0], PATIENCE)}, {1: ENDED})
    yield ranks, Channel(ends[1])
    ranks.close()


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = socket.create_connection(listener.getsockname())
        return first, listener.accept()[0]


def failure_of(ranks) -> str | None:
    end = time.monotonic() + PATIENCE
    while ranks.failure is None and time.monotonic() < end:
        time.sleep(0.01)
    return ranks.failure


def test_a_rank_without_heartbeat_is_given_up():
    """Its channel waits anew for each; what it has sent before is received, whenever that was."""
    ends = tcp_pair()
    channel, beats = Channel(ends[0], patience=0.01), Channel(ends[1])
    for _ in range(4):
        beats.send({"state": "alive"})
        assert channel.receive() == {"state": "alive"}
    ranks = Ranks({1: channel}, {1: ENDED})
    assert failure_of(ranks) == "rank 1 gave no heartbeat for 10 s"
    with pytest.raises(RankError, match="no heartbeat"):
        ranks.send({})
    ranks.close()


def test_what_a_rank_reports_is_the_reason(other):
    ranks, channel = other
    channel.send({"error": "no such file"})
    channel.close()
    assert failure_of(ranks) == "rank 1: no such file"


def test_a_process_that_ends_is_named_with_its_exit_code(other):
    ranks, channel = other
    channel.close()
    assert failure_of(ranks) == "rank 1 has ended with exit code 3"


BATCH = serving.PackedBatch([7], [0], [0], [0, 1], [0], [[0]], [0])


@pytest.mark.parametrize("error", [ValueError("too\n large"), KeyboardInterrupt("too large")])
def test_a_step_that_fails_on_rank_0_ends_the_others(other, monkeypatch, error):
    """Also one that is interrupted: the ranks are no longer at the same call."""
    ranks, channel = other
    monkeypatch.setattr(ranks_module, "NEWS_SECONDS", 0.01)
    expected = RankError if isinstance(error, Exception) else KeyboardInterrupt
    with pytest.raises(expected, match=r"^(rank 0: )?too large$"), ranks.computing():
        ranks.announce(BATCH, None)
        raise error
    assert ranks.failure == "rank 0: too large"
    batch, bucket = step_of(serving, channel.receive())
    assert (batch.token_ids, batch.sample_rows, bucket) == ([7], [0], None)
    with pytest.raises(EOFError):
        channel.receive()


def test_a_step_that_waits_for_ever_ends_the_process(other, monkeypatch, capfd):
    ranks, channel = other
    ended = threading.Event()
    monkeypatch.setattr(ranks_module, "STUCK_SECONDS", 0.01)
    monkeypatch.setattr(ranks_module.os, "_exit", lambda code: ended.set())
    ranks.announce(BATCH, serving.Bucket(4, 2))
    with ranks.computing():
        channel.send({"error": "gone"})
        assert ended.wait(PATIENCE)
    assert capfd.readouterr().err == "rank 1: gone\n"


def test_closing_is_no_failure(other):
    ranks, channel = other
    ranks.close()
    with pytest.raises(EOFError):
        channel.receive()
    assert ranks.failure is None


def test_an_engine_that_nobody_closes_leaves_its_group_when_the_process_ends(monkeypatch):
    """Else gloo's threads outlive the interpreter, and one exit in four was SIGABRT on a busy machine."""
    at_exit, left = [], []
    monkeypatch.setattr(ranks_module.atexit, "register", at_exit.append)
    monkeypatch.setattr(ranks_module.atexit, "unregister", at_exit.remove)
    made = Ranks({}, {})
    made.group = SimpleNamespace(leave=lambda: left.append(True))
    [leave] = at_exit
    leave()
    assert left == [True] and at_exit == []


def test_who_does_not_know_the_key_is_no_rank():
    point = MeetingPoint()
    ours = point.contact(1)
    strangers = [Contact(1, ours.host, ours.port, "wrong").connect()]
    with socket.create_connection((ours.host, ours.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        channel = ours.connect()
        channels = point.accept(2, {}, PATIENCE)
    channels[1].send({"state": "here"})
    assert channel.receive() == {"state": "here"}
    point.close()
    assert strangers


def test_a_process_that_cannot_start_is_named():
    point = MeetingPoint()
    with pytest.raises(RankError, match=r"^rank 1 cannot start: it has ended with exit code 7$"):
        point.accept(2, {1: SimpleNamespace(poll=lambda: 7)}, PATIENCE)
    point.close()


@pytest.mark.parametrize("backend", installed_backends())
def test_a_process_that_was_started_alone_has_no_place(backend):
    port = Port("tiny_llm_ref", backend, "cpu")
    assert given_of(port).launched({}) is None


def test_torchrun_and_mlx_launch_name_a_place(tmp_path):
    hosts = tmp_path / "hosts.json"
    hosts.write_text('[["10.0.0.1:5000"], ["10.0.0.2:5000"]]', encoding="utf-8")
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    places = {"torch": (torchrun, 4), "mlx": ({"MLX_RANK": "1", "MLX_HOSTFILE": str(hosts)}, 2)}
    for backend in installed_backends():
        environment, size = places[backend]
        place = given_of(Port("tiny_llm_ref", backend, "cpu")).launched(environment)
        assert (place.rank, place.size, place.host) == (1, size, "10.0.0.1")
