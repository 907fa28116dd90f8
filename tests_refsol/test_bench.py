"""The benchmarks: turns taken fairly, figures that can be recomputed, peers on the same weights, sealed results."""

import json

import pytest

from benchmarks import bench_decode, bench_prefill, contest, report
from benchmarks.contest import ContestPlan, contestants, measure_decode, measure_prefill
from book.tools import screens
from tiny_llm_kit.engine.kv_budget import kv_bytes_per_token
from tiny_llm_kit.engine.port import Port, installed_backends
from tiny_llm_kit.trace import provenance, samples

TINY = ContestPlan(config="tiny-qwen3", layers=1, dtype="float32", threads=(1,), rounds=2, steps=2)
PEERS = {"torch": "transformers"}


def port_of(backend: str) -> Port:
    return Port("tiny_llm_ref", backend, "cpu", "float32")


def test_every_candidate_runs_once_a_round_and_the_order_turns():
    ran, ticks = [], iter(range(100))
    runs = {name: (lambda name=name: ran.append(name)) for name in "abc"}
    seconds = samples.interleave(runs, 3, warmup=1, clock=lambda: next(ticks), progress=iter)
    assert "".join(ran) == "abc" + "abc" + "bca" + "cab"
    assert seconds == {name: [1, 1, 1] for name in "abc"}


def test_spread_and_ratio_are_those_of_medians_and_quartiles():
    assert samples.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert samples.spread([7.0]) == 0
    assert samples.ratio([2.0, 8.0, 4.0], [1.0, 1.0, 9.0]) == 4


def scripted(kind: str = "decode") -> dict:
    """Two contestants on one and two threads: ours is better on one, the peer on two."""
    cases = [
        {"rows": 4, "context": 10, "threads": 1, "seconds": {"tiny-llm": [0.5, 0.5], "peer": [4.0, 4.0]}},
        {"rows": 4, "context": 10, "threads": 2, "seconds": {"tiny-llm": [0.6, 0.6], "peer": [1.0, 3.0]}},
    ]
    return {
        "kind": kind,
        "weight_bytes": {"tiny-llm": 600},
        "kv_bytes_per_token": 10,
        "read_bandwidth_bytes_per_second": {"1": 2000.0, "2": 4000.0},
        "cases": cases,
    }


def test_each_contestant_is_shown_with_its_best_threads_and_ours_compared_with_it():
    ours, peer = report.lines(scripted())
    assert (ours.threads, ours.tokens_per_second, ours.ours_is) == (1, 8.0, None)
    assert (peer.threads, peer.tokens_per_second, peer.ours_is) == (2, 2.0, 4.0)
    # 600 bytes of weights and 4 rows of 10 tokens of 10 bytes, at 4000 bytes a second at best.
    assert ours.roofline == pytest.approx(1000 / 4000 / 0.5)
    assert peer.roofline == pytest.approx(1000 / 4000 / 2.0)


def test_a_prompt_counts_its_tokens_and_has_no_roofline():
    ours, _ = report.lines(scripted("prefill"))
    assert (ours.tokens_per_second, ours.roofline) == (20.0, None)


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("quantize", [None, "4bit"])
def test_a_benchmark_measures_every_case_and_leaves_the_batch_as_it_was(backend, quantize):
    port = port_of(backend)
    plan = ContestPlan(**{**TINY.__dict__, "quantize": quantize, "compare": PEERS.get(backend)})
    result = measure_decode(plan, port, [1, 3], [5, 300], iter)
    assert [(c["rows"], c["context"], c["threads"]) for c in result["cases"]] == [
        (1, 5, 1), (1, 300, 1), (3, 5, 1), (3, 300, 1),
    ]  # fmt: skip
    for case in result["cases"]:
        assert {len(seconds) for seconds in case["seconds"].values()} == {2}
        assert ("tiny-llm 4bit" in case["seconds"]) == (quantize == "4bit")
    assert result["provenance"]["versions"] and result["read_bandwidth_bytes_per_second"]["1"] > 0
    json.dumps(result)
    [case] = measure_prefill(plan, port, [7], iter)["cases"]
    assert case["context"] == 7 and all(s > 0 for samples_ in case["seconds"].values() for s in samples_)


@pytest.mark.parametrize("backend", installed_backends())
def test_a_sample_of_decode_leaves_the_batch_as_it_was(backend):
    ours = contestants(TINY, port_of(backend))["tiny-llm"]
    ours.fill(2, 9, steps=3)
    for _ in range(5):
        ours.decode()
    assert [layer.offsets for layer in ours._batch] == [[9, 9]]


@pytest.mark.port("torch")
def test_the_peer_computes_with_the_same_weights():
    port = port_of("torch")
    plan = ContestPlan(**{**TINY.__dict__, "compare": "transformers"})
    cast, prompt = contestants(plan, port), [5, 900, 33, 17, 2100]
    ours = cast["tiny-llm"]
    expected = ours.runner.prefill(prompt, 0, ours.runner.create_kv_cache(9), sample=True)
    for name in ("transformers static", "transformers dynamic"):
        peer = cast[name]
        assert peer._next([prompt], peer._new_cache(9)) == [expected]
        theirs, mine = peer.model.model.layers[0].mlp.up_proj.weight, ours.model.layers[0].w_up
        assert theirs.data_ptr() == mine.data_ptr(), "the peer has a copy of the weights"


@pytest.mark.port("mlx")
def test_a_peer_that_is_not_installed_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(contest, "find_spec", lambda name: None)
    options = ["--backend", "mlx", "--config", "tiny-qwen3", "--layers", "1", "--compare", "mlx-lm"]
    with pytest.raises(SystemExit) as end:
        bench_decode.main(options)
    assert end.value.code == 2
    install = "run `python -m pip install --no-deps mlx-lm` in this project's environment"
    line = f"--compare mlx-lm: not installed; {install}\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("tokens", ["4097", "99999999"])
@pytest.mark.parametrize("command", [bench_decode, bench_prefill])
def test_a_context_beyond_the_model_is_one_line(command, tokens, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["--config", "tiny-qwen3", "--layers", "1", "--context", "8", tokens])
    errors = capsys.readouterr().err
    assert (end.value.code, errors.count("\n")) == (2, 1)
    assert "tokens with the answer: the model reads at most 4,096; choose fewer" in errors


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_file_is_refused_before_anything_is_measured(name, monkeypatch, capsys):
    monkeypatch.setattr(contest, "contestants", lambda *_: pytest.fail("it began to measure"))
    with pytest.raises(SystemExit) as end:
        bench_decode.main(["--config", "tiny-qwen3", "--save", name])
    assert end.value.code == 2
    assert f"argument --save: {name!r} is not a name" in capsys.readouterr().err.splitlines()[-1]


def test_a_result_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(contest, "contestants", lambda *_: pytest.fail("it began to measure"))
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    (tmp_path / "x.json").mkdir()
    with pytest.raises(SystemExit) as end:
        bench_decode.main(["--config", "tiny-qwen3", "--save", "x"])
    assert end.value.code == 2 and "x.json: cannot be written (" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", [bench_decode, bench_prefill])
def test_a_blank_task_is_one_line_with_its_address(command, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(
            ["--solution", "tiny_llm", "--backend", installed_backends()[-1], "--config", "tiny-qwen3"]
        )
    assert str(end.value.code).startswith("blank: week 1 day 1 task 1: softmax.")
    assert "`pdm run course skip --through 2." in end.value.code


@pytest.mark.parametrize("backend", installed_backends())
def test_the_commands_print_their_table_and_keep_a_sealed_result(backend, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    common = ["--backend", backend, "--config", "tiny-qwen3", "--layers", "1", "--dtype", "float32"]
    common += ["--threads", "1", "--rounds", "1", "--device", "cpu"]
    bench_decode.main([*common, "--rows", "1", "2", "--context", "4", "--steps", "1", "--save", "x"])
    bench_prefill.main([*common, "--context", "6"])
    out = capsys.readouterr().out
    assert "kept: x.json" in out and out.count("tiny-llm") >= 3
    kept = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert provenance.is_sealed(kept) and "--save" not in kept["options"]
    [(name, page)] = screens.benchmark_screens()
    assert name == "benchmark-x" and "tokens/s" in page and "load before" in page
    (tmp_path / "x.json").write_text(json.dumps(kept | {"cases": []}), encoding="utf-8")
    with pytest.raises(RuntimeError, match="changed after it was sealed"):
        list(screens.benchmark_screens())


def test_a_shape_that_is_unknown_is_a_usage_error(capsys):
    with pytest.raises(SystemExit):
        bench_decode.main(["--config", "gpt-5"])
    assert "qwen3-0.6b" in capsys.readouterr().err


def test_bytes_of_a_step_are_those_of_the_shape():
    b = port_of(installed_backends()[0])
    model = contestants(TINY, b)["tiny-llm"].model
    layer = 192 * (256 + 128 + 128) + 256 * 192 + 3 * 192 * 512
    assert contest.weight_bytes(model) == 4 * (layer + 3520 * 192)
    assert kv_bytes_per_token(model.config, TINY.dtype) == 2 * 1 * 2 * 64 * 4
