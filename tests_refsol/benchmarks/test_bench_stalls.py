"""`bench-stalls`: which gaps count, transfers in the metrics, which servers get which load, and the tables."""

from contextlib import contextmanager

import pytest

from benchmarks import stalls, stalls_report
from benchmarks.serving.client import ServedRequest
from benchmarks.serving.processes import Place
from tiny_llm_course.commands import serve
from tiny_llm_extensions.kv_transfer.connector import COUNTS
from tiny_llm_server.openai_api.metrics import HISTOGRAMS

METRICS = "".join(
    f'{name}{{role="{role}"}} {value}\n'
    for name, role, value in (
        (stalls.TOTAL.format("received_bytes"), "decode", 7e6),
        (stalls.TOTAL.format("waiting_seconds"), "decode", 8.0),
        ("vllm:time_to_first_token_seconds_sum", "prefill", 6.0),
        ("vllm:time_to_first_token_seconds_sum", "decode", 99.0),
    )
)


def test_a_gap_counts_if_it_lies_in_the_window_in_part():
    """Gaps between two requests of a stream are none."""
    one, two = ServedRequest(0.0, due=0.0), ServedRequest(0.0, due=0.0)
    one.add_tokens([0.0, 9.0, 10.5, 11.0, 11.5, 14.5, 30.0])
    two.add_tokens([50.0, 90.0])
    found = stalls.of_streams([one, two], start=10.0, stop=12.0)
    assert found == {"gap_ms": 3000, "tbt_p99_ms": 3000, "stream_throughput": 1.5}


def test_the_time_in_transfer_is_what_the_engine_for_prompts_did_not_need(monkeypatch):
    for answer in (None, METRICS):
        monkeypatch.setattr(stalls, "fetched", {"http://h:1/metrics": answer}.get)
        found = stalls.counters("http://h:1")
        assert answer or not found
    assert found == {"moved_bytes": 7e6, "awaited_seconds": 8.0, "computed_seconds": 6.0}
    shown = stalls_report.with_transfers({"counters": found, "completed": 4})
    assert (shown["awaited_seconds"], shown["transfer_share"], shown["moved_bytes"]) == (2.0, 0.25, 7e6)
    nothing = stalls_report.with_transfers({"counters": {}, "completed": 4})
    assert nothing["transfer_share"] is nothing["awaited_seconds"] is nothing["moved_bytes"] is None
    assert {"received_bytes", "waiting_seconds", "given_up"} <= set(COUNTS)
    assert "time_to_first_token_seconds" in HISTOGRAMS


@pytest.mark.parametrize("preset", ["smoke", "default"])
def test_servers_get_the_same_prompts_in_turns(preset, stand_in, bench, monkeypatch):
    started = []

    @contextmanager
    def running(server):
        started.append(server)
        yield stand_in.url

    monkeypatch.setattr(stalls, "running", running)
    monkeypatch.setattr(stalls, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(stalls, "is_installed", lambda name: False)
    line = "--model tiny-qwen3 --alone 50 --rounds 2 --streams 2"
    said, result = bench(stalls.main, f"--preset {preset}", line)
    sent = [body["prompt"] for body in stand_in.bodies if body["max_tokens"] == stalls.ANSWER]
    alone = [prompt for prompt in sent if prompt.count(" ") == 50]
    servers, runs = len(result["runs"]["50 alone"]), result["runs"]["50 alone"].values()
    assert len(alone) == 2 * servers and [alone.count(prompt) for prompt in set(alone)] == [servers] * 2
    assert len({body["prompt"] for body in stand_in.bodies if body["max_tokens"] == 1000}) >= 2
    assert all(run["completed"] == 1 and run["stream_throughput"] > 0 for each in runs for run in each)
    taken = [serve.parser().parse_args([*server.command[3:], "--port", "1"]) for server in started]
    if preset == "smoke":
        turns = [each.disaggregated is None for each in taken]
        assert turns == [True, *[True, False] * 2, *[False, True] * 2], "its speed first"
        assert {(each.disaggregated, each.num_blocks) for each in taken} == {(None, 64), ((1, 1), 32)}
        assert "300 at 0.5" in said and "transfer, %" in said
    else:
        assert {each.max_num_batched_tokens for each in taken} == {None, 512}
        assert "llama.cpp: not installed" in said and "GB" in said


def test_llama_cpp_gets_as_many_slots_and_room_for_the_longest_request(monkeypatch):
    monkeypatch.setattr(stalls, "is_installed", lambda name: True)
    monkeypatch.setattr(stalls, "file_of", lambda model: "m.gguf")
    found = stalls.servers_of("default", stalls.StallsPlan(), [Place("ref", "torch", "cpu")])
    assert list(found) == ["torch, default", "torch, 512", "llama.cpp, 512", "llama.cpp, 128"]
    line = " ".join(found["llama.cpp, 128"].command)
    assert "m.gguf --rows 16 --room 3008 " in line and line.endswith("--batch 128")
