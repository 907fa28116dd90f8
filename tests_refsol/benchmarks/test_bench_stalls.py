"""`bench-stalls`: which gaps count, transfers in the metrics, which servers get which load, and the tables."""

from collections import Counter

import pytest

from benchmarks import stalls, stalls_report
from benchmarks.serving.client import ServedRequest
from tiny_llm_course.commands import serve
from tiny_llm_extensions.kv_transfer.connector import COUNTS
from tiny_llm_server.openai_api.metrics import HISTOGRAMS

METRICS = """\
tiny_llm:kv_transfer_received_bytes_total{role="decode"} 7e6
tiny_llm:kv_transfer_waiting_seconds_total{role="decode"} 8
vllm:time_to_first_token_seconds_sum{role="prefill"} 6
vllm:time_to_first_token_seconds_sum{role="decode"} 99
"""


def test_a_gap_counts_if_it_lies_in_the_window_in_part():
    """Gaps between two requests of a stream are none."""
    requests = ServedRequest(0.0, due=0.0), ServedRequest(0.0, due=0.0)
    requests[0].add_tokens([0.0, 9.0, 10.5, 11.0, 11.5, 14.5, 30.0])
    requests[1].add_tokens([50.0, 90.0])
    found = stalls.of_streams(requests, start=10.0, stop=12.0)
    assert found == {"gap_ms": 3000, "tbt_p99_ms": 3000, "stream_throughput": 1.5}


def test_the_time_in_transfer_is_what_the_engine_for_prompts_did_not_need(monkeypatch):
    """A server without engines that read each other has no such figures."""
    monkeypatch.setattr(stalls, "fetched", {"http://h:1/metrics": METRICS}.get)
    found, nothing = stalls.counters("http://h:1"), stalls.counters("http://h:2")
    assert found == {"moved_bytes": 7e6, "awaited_seconds": 8.0, "computed_seconds": 6.0}
    one, other = (stalls_report.with_transfers({"counters": c, "completed": 4}) for c in (found, nothing))
    assert (one["awaited_seconds"], one["transfer_share"], one["moved_bytes"]) == (2.0, 0.25, 7e6)
    assert other["awaited_seconds"] is other["transfer_share"] is other["moved_bytes"] is None
    assert {"received_bytes", "waiting_seconds", "given_up"} <= set(COUNTS)
    assert "time_to_first_token_seconds" in HISTOGRAMS


@pytest.mark.parametrize("preset", ["smoke", "default"])
def test_servers_get_the_same_prompts_in_turns(preset, stand_in, started, bench, monkeypatch):
    monkeypatch.setattr(stalls, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(stalls, "is_installed", lambda name: False)
    line = "--model tiny-qwen3 --alone 50 --rounds 2 --streams 2"
    said, result = bench(stalls.main, f"--preset {preset}", line)
    runs = result["runs"]["50 alone"]
    alone = Counter(body["prompt"] for body in stand_in.bodies if body["prompt"].count(" ") == 50)
    assert [*alone.values()] == [len(runs)] * 2, "all servers get the prompt of a round"
    assert all(run["completed"] == 1 and run["stream_throughput"] > 0 for name in runs for run in runs[name])
    taken = [serve.parser().parse_args([*server.command[3:], "--port", "1"]) for server in started]
    if preset == "default":
        assert {each.max_num_batched_tokens for each in taken} == {None, 512}
        assert "llama.cpp: not installed" in said
        return
    assert [each.disaggregated is None for each in taken] == [True, *[True, False] * 2, *[False, True] * 2]
    assert {(each.disaggregated, each.num_blocks) for each in taken} == {(None, 64), ((1, 1), 32)}
    assert "300 at 0.5" in said and "transfer, %" in said


def test_llama_cpp_gets_as_many_slots_and_room_for_the_longest_request(monkeypatch):
    monkeypatch.setattr(stalls, "file_of", lambda model: "m.gguf")
    line = " ".join(stalls.llama_servers(stalls.StallsPlan())["llama.cpp, 128"].command)
    assert "m.gguf --rows 16 --room 3008 " in line and line.endswith("--n_batch 128 --n_ubatch 128")
