"""The loop of the live page at the top of README and book, and a still of it: `python -m book.tools.live_loop`.

A real run is recorded first, by the page itself, and nothing is drawn. Then the page plays the recording, frame by
frame. Needs chromium and Pillow (`pip install pillow`), which no learner needs: neither is in a lock file.
"""

import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from PIL import Image

from tiny_llm_course.trace.provenance import warn_if_busy
from tiny_llm_engine.machine.repo import BOOK, ROOT

LOOP, STILL = BOOK / "src/pictures/live-page.webp", BOOK / "src/pictures/live-page.png"
ADDRESS, PORT = "http://127.0.0.1:8123/", 8123
WIDTH, HEIGHT, SHOWN = 1160, 880, 870  # pixels of the page, and the loop's width
BUDGETS = (2048, 128)  # tokens of a step, one run each
FRAMES = 8  # in a second
LIMIT = 500_000  # bytes of the loop
SCRIPT = Path(__file__).with_suffix(".js")  # its functions run in the page


class Browser:
    """Chromium without a window, spoken to through a pipe: it reads file descriptor 3 and writes 4."""

    def __init__(self, folder: str):
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        self._count, self._rest = 0, b""
        self._session: dict[str, str] = {}
        flags = ["--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}"]
        command = f"exec chromium {' '.join(flags)} --remote-debugging-pipe 3<&{reads} 4>&{writes}"
        start = ["bash", "-c", command]
        self.process = subprocess.Popen(start, pass_fds=(reads, writes), stderr=subprocess.DEVNULL)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._from, 2**20)
            line, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(line)
            if answer.get("id") == self._count:
                return answer["result"]

    def run(self, script: str) -> Any:
        options = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=script, **options)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def open(self) -> None:
        """Loads the page, and waits for the server's first message."""
        self.call("Page.navigate", url=ADDRESS)
        while (
            self.run("document.readyState === 'complete' && typeof run === 'object' && run.hello !== null")
            is not True
        ):
            time.sleep(0.1)
        self.run(SCRIPT.read_text(encoding="utf-8"))

    def picture(self) -> Image.Image:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def record(browser: Browser) -> list[list[Any]]:
    """A run with each budget: [milliseconds, kind, value] of everything that has changed."""
    browser.open()
    browser.run("record()")
    for budget in BUDGETS:
        browser.run(f"go({budget})")
        time.sleep(1)
        while not browser.run("idle()"):
            time.sleep(0.2)
        time.sleep(1.5)
    return browser.run("recorded()")


def film(browser: Browser, tape: list[list[Any]]) -> list[Image.Image]:
    browser.open()
    browser.run(f"insert({json.dumps(tape)})")
    frames, end = [], int(tape[-1][0]) + 2000
    for at in range(int(tape[0][0]), end, 1000 // FRAMES):
        browser.run(f"play({at})")
        frames.append(browser.picture())
    return frames


def save(frames: list[Image.Image], first: int, still: Image.Image) -> None:
    """The loop, with as good a quality as its limit allows, and a frame that has both runs.

    It begins with `first`: what shows a still picture of it would show an empty page.
    """
    frames = frames[first:] + frames[:first]
    small = [frame.resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS) for frame in frames]
    options: dict[str, Any] = {"duration": 1000 // FRAMES, "loop": 0, "method": 4, "kmin": 1000, "kmax": 1001}
    for quality in (60, 50, 40, 30):
        small[0].save(LOOP, save_all=True, append_images=small[1:], quality=quality, **options)
        if LOOP.stat().st_size <= LIMIT:
            break
    still.save(STILL, optimize=True)
    print(f"{LOOP.name}: {len(frames)} frames, {LOOP.stat().st_size:,} bytes, quality {quality}")


def main() -> int:
    warn_if_busy()
    serve = [sys.executable, "-m", "tiny_llm_course.commands.serve", "--port", str(PORT)]
    server = subprocess.Popen(serve, cwd=ROOT)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(ADDRESS + "health")
                break
            except OSError:
                time.sleep(0.5)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            browser = Browser(folder)
            tape = record(browser)
            frames = film(browser, tape)
            starts = [at for at, kind, _ in tape if kind == "budget"]
            first, second = (int((at + 1000 - tape[0][0]) * FRAMES / 1000) for at in starts)
            save(frames, first, frames[second])
            browser.process.terminate()
            browser.process.wait()
    finally:
        server.terminate()
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
