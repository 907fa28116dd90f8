"""The real hub client against an imitation hub on this machine: what is fetched, and what refusals become."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.hub import model_path

COMMIT = "0" * 40


class ImitationHub(ThreadingHTTPServer):
    """Serves one folder as the model `org/name`; refuses every other model with `refusal`."""

    def __init__(self, files: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.refusal = (404, "RepoNotFound")
        self.fetched: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(self._file(), body=False)

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/org/name/"):
            self._list_files()
        else:
            self._answer(self._file(), body=True)

    def _list_files(self) -> None:
        """The client asks what the model is, and newer ones also for the tree of its files."""
        root = self.server.files
        sizes = {
            str(file.relative_to(root)): file.stat().st_size for file in root.rglob("*") if file.is_file()
        }
        answer = {"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in sizes]}
        if "/tree/" in self.path:
            files = sizes.items()
            answer = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in files]
        self._send(json.dumps(answer).encode(), "application/json")

    def _file(self) -> Path | None:
        prefix = f"/org/name/resolve/{COMMIT}/"
        return self.server.files / self.path.removeprefix(prefix) if self.path.startswith(prefix) else None

    def _answer(self, file: Path | None, body: bool) -> None:
        if file is None:
            status, code = self.server.refusal
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if body:
            self.server.fetched.append(file.name)
        self._send(file.read_bytes(), "application/octet-stream", body, ETag=f'"{file.name}"', commit=COMMIT)

    def _send(self, content: bytes, kind: str, body: bool = True, ETag: str = '""', commit: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", ETag)
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_) -> None:
        """No log in the tests' output."""


@pytest.fixture
def imitation(folder, tmp_path_factory, monkeypatch):
    """The imitation hub, with an empty cache on our side."""
    server = ImitationHub(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    template = f"{constants.ENDPOINT}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_is_downloaded_once(imitation, folder):
    (folder / "pytorch_model.bin").write_bytes(b"never")
    (folder / "README.md").write_text("not needed", encoding="utf-8")
    (folder / "original").mkdir()
    (folder / "original" / "config.json").write_text("of another format", encoding="utf-8")
    downloaded = model_path("org/name")
    wanted = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in downloaded.iterdir()) == wanted == sorted(imitation.fetched)
    assert (downloaded / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert model_path("org/name") == downloaded
    assert sorted(imitation.fetched) == wanted


CONSENT = "its owner asks for consent: give it on https://huggingface.co/org/other, then run `hf auth login`"
REFUSALS = {
    (404, "RepoNotFound"): "no folder of that name here, and no such model on the hub: check the spelling",
    (403, "GatedRepo"): CONSENT,
    (500, "Broken"): "not on this machine, and not downloaded: connect to the network",
}


@pytest.mark.parametrize(("refusal", "line"), REFUSALS.items())
def test_a_refusal_is_one_line(imitation, refusal, line):
    imitation.refusal = refusal
    with pytest.raises(CheckpointError) as caught:
        model_path("org/other")
    assert str(caught.value).startswith(f"model 'org/other': {line}")
    assert len(str(caught.value).splitlines()) == 1
