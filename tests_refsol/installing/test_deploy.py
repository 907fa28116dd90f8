"""What an operator starts with: names of metrics, options and files in `deploy/` are those of the server.

The image itself is not built here: that needs a Docker daemon and its registry.
"""

import json
import re
import shlex

import pytest
import yaml

from tiny_llm_course.commands import serve
from tiny_llm_course.commands.program import COMMANDS
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_server.openai_api.metrics import EngineMetrics
from tiny_llm_server.openai_api.middleware import OPEN_PATHS
from tiny_llm_server.openai_api.server_options import ServerOptions
from tiny_llm_server.vllm_flags import known_options, words_of_environment

DEPLOY = ROOT / "deploy"
GAUGES = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def names_of_metrics() -> set[str]:
    """All names that Prometheus finds, of gauges too, which an engine adds."""
    made = EngineMetrics("m")
    made.count_refusal(429)
    text = made.text().decode()
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.M)) | GAUGES
    return names | {f"{name}_bucket" for name in re.findall(r"^# TYPE (\S+) histogram", text, re.M)}


@pytest.mark.parametrize("file", ["grafana/board.json", "alerts.yml"])
def test_every_metric_of_the_board_and_the_alerts_is_one_of_the_server(file):
    asked = set(re.findall(r"(?:vllm|tiny_llm):\w+", text_of(file)))
    assert asked and asked <= names_of_metrics()


def test_the_board_has_its_own_data_source_and_all_of_its_panels_ask():
    board = json.loads(text_of("grafana/board.json"))
    [source] = yaml.safe_load(text_of("grafana/datasource.yaml"))["datasources"]
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(board["panels"]) == 12 and all(target["expr"] for target in targets)
    assert {target["datasource"]["uid"] for target in targets} == {source["uid"]}


def test_files_that_are_mounted_are_there_and_lead_where_they_are_looked_for():
    compose = yaml.safe_load(text_of("compose.yaml"))
    mounts = [mount.split(":") for service in compose["services"].values() for mount in service["volumes"]]
    files = {place: DEPLOY / source for source, place, *_ in mounts if source.startswith("./")}
    assert len(files) == 5 and all(file.is_file() for file in files.values())
    [provider] = yaml.safe_load(text_of("grafana/boards.yaml"))["providers"]
    assert any(place.startswith(provider["options"]["path"]) for place in files)
    [job] = yaml.safe_load(text_of("prometheus.yml"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:8000"]}] and "server" in compose["services"]
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports), "nothing is open to other machines"
    assert int(compose["services"]["server"]["stop_grace_period"].rstrip("s")) > ServerOptions().drain_timeout


def test_the_image_has_options_and_paths_that_there_are():
    text = text_of("Dockerfile")
    variables = dict(re.findall(r"(TINY_LLM_SERVE_\w+)=(\S+)", text))
    words = [*words_of_environment(known_options(serve.parser()), variables)]
    options = serve.parsed(words)
    assert (options.host, options.model) == ("0.0.0.0", "/model")
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)", text, re.M) for word in line.split()[:-1]]
    allowed = text_of("Dockerfile.dockerignore").split()
    assert all((ROOT / name).exists() and f"!{name}" in allowed for name in copied)
    [probe] = re.findall(r"127\.0\.0\.1:8000(/\w+)", text.partition("HEALTHCHECK")[2])
    assert probe in OPEN_PATHS, "it has no key"
    assert "USER tiny-llm" in text and text.index("USER") < text.index("ENTRYPOINT")
    program, command = json.loads(text.partition("ENTRYPOINT ")[2])
    assert f'\n{program} = "' in (ROOT / "pyproject.toml").read_text(encoding="utf-8") and command in COMMANDS


def test_the_unit_starts_the_server_with_a_file_of_options(tmp_path):
    unit = text_of("tiny-llm.service")
    [line] = re.findall("^ExecStart=(.*)", unit, re.M)
    words = shlex.split(line)
    [model] = re.findall(r"serve\.yaml +(model: .*)", unit)
    file = tmp_path / "serve.yaml"
    file.write_text(model)
    place = words.index("tiny_llm_course.commands.serve")
    given = [str(file) if word.endswith("serve.yaml") else word for word in words[place + 1 :]]
    assert serve.parsed(given).model == "/opt/tiny-llm/models/tiny-qwen3"
    [patience] = re.findall(r"^TimeoutStopSec=(\d+)", unit, re.M)
    assert int(patience) > ServerOptions().drain_timeout
