"""`pdm run bench-latency --hpu-day`: all of it runs beside the imitation of a Gaudi, whose times say nothing."""

import json
import os

from benchmarks.hpu_day_report import MEANS
from tiny_llm_engine.machine.repo import ROOT

PATHS = os.pathsep.join([str(ROOT / "tests_refsol" / "imitation_gaudi"), str(ROOT / "src"), str(ROOT)])
SIZES = "--config tiny-qwen3 --layers 1 --input-len 48 --chunk-size 16 64 --batch-size 1 2 --output-len 2"


def test_all_ten_are_measured_and_shown_with_what_they_decide(forks, tmp_path):
    file = tmp_path / "day.json"
    options = f"--hpu-day --backend torch --rounds 1 --enforce-eager {SIZES} --json {file}"
    done = forks.run("benchmarks.latency", *options.split(), PYTHONPATH=PATHS, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert (result["kind"], result["provenance"]["device"]) == ("hpu-day", "hpu")
    assert list(result["samples"]) == list(MEANS) and len(MEANS) == done.stdout.count("decides: ") == 10
    assert "these times say nothing about a card" in done.stdout
    ways = {name: list(samples) for name, samples in result["samples"].items()}
    assert ways["chunks"] == ["whole", "chunks of 16"], "none is longer than the prompt"
    assert ways["tiles"] == ["1 call", "2 calls", "4 calls"] and ways["buckets"] == ["1 rows", "2 rows"]
    assert all(min(seconds) > 0 for samples in result["samples"].values() for seconds in samples.values())
