"""An engine that computes nothing: it answers over HTTP as a server around an engine does, and can die.

As a process, `python -m tests_refsol.server.fake_engine`, it takes the words with which a proxy starts an engine.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

HOST = "127.0.0.1"
METRICS = '# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{model_name="m"} 7.0\n'


class FakeEngine(ThreadingHTTPServer):
    """Answers with the letters of `text`, one for each event of a stream.

    Attributes:
        asked: path, headers and body of each request for an answer.
        deaths: after how many parts of their answers the next requests lose their connection.
        goes_on: set unless answers wait after their first part.
        patience: seconds that it waits for the engine that computes its prompt.
        left: how many clients were gone before the end.
    """

    daemon_threads = True
    computed: ClassVar[set[str]] = set()  # transfers of all engines of this process

    def __init__(self, text="abc", port=0):
        super().__init__((HOST, port), Handler)
        self.text, self.kv_port, self.status = text, 7000 + self.server_port % 1000, "ready"
        self.asked, self.deaths, self.left, self.patience = [], [], 0, 60.0
        self.goes_on = threading.Event()
        self.goes_on.set()
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    @property
    def address(self):
        return f"{HOST}:{self.server_port}"

    def handle_error(self, *where):
        """A client has left."""

    def close(self):
        self.goes_on.set()
        self.shutdown()
        self.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *line):
        """Say nothing."""

    def do_GET(self):
        said = {"status": self.server.status, "kv_transfer": f"0.0.0.0:{self.server.kv_port}"}
        models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        answer = {"/health": said, "/v1/models": models}.get(self.path)
        self.whole("application/json", [json.dumps(answer)] if answer else [METRICS])

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers, json.loads(body)))
        asked = json.loads(body)
        self.transfer(**asked.get("kv_transfer_params", {}))
        if "wrong" in asked:
            error = {"message": "unknown parameter wrong: leave it out", "type": "invalid_request_error"}
            self.whole("application/json", [json.dumps({"error": error})], 400)
        elif asked.get("stream"):
            events = [f"data: {json.dumps(self.answer(letter))}\n\n" for letter in self.server.text]
            self.stream([*events, "data: [DONE]\n\n"])
        else:
            self.whole("application/json", [json.dumps(self.answer(self.server.text))])

    def transfer(self, transfer_id=None, do_remote_prefill=False, **where):
        """Compute a prompt for another engine, or wait for one that does."""
        end = time.monotonic() + self.server.patience
        while do_remote_prefill and transfer_id not in self.server.computed and time.monotonic() < end:
            time.sleep(0.002)
        self.server.computed.add(transfer_id)

    def answer(self, text):
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
        return {"id": "x", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage}

    def whole(self, kind, parts, status=200):
        self.head(kind, status, "Content-Length", sum(map(len, parts)))
        self.send(parts, lambda part: part)

    def stream(self, events):
        self.head("text/event-stream; charset=utf-8", 200, "Transfer-Encoding", "chunked")
        self.send([*events, ""], lambda part: f"{len(part):x}\r\n{part}\r\n")

    def head(self, kind, status, name, value):
        self.send_response(status)
        for each in (("Content-Type", kind), (name, str(value)), ("Connection", "close")):
            self.send_header(*each)
        self.end_headers()

    def send(self, parts, framed):
        server, left = self.server, None
        if self.command == "POST" and server.deaths:
            left = server.deaths.pop(0)
        for number, part in enumerate(parts):
            if number == left:
                self.connection.shutdown(2)
                return
            try:
                self.wfile.write(framed(part).encode())
                server.goes_on.wait() if self.command == "POST" else None
            except OSError:
                server.left += 1
                raise


def main():
    words = argparse.ArgumentParser()
    for name in ("--host", "--port", "--kv-transfer-config"):
        words.add_argument(name)
    words.add_argument("--ends-with-stdin", action="store_true")
    words.add_argument("--fails", action="store_true")
    options = words.parse_args()
    if options.fails:
        sys.exit(3)
    json.loads(options.kv_transfer_config)
    FakeEngine("abc", int(options.port)).patience = 0.1  # it sees no other process
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
