"""Chromium without a screen or a network, driven over a pipe by its own protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
MISSING = "Chromium is not installed"
_OPTIONS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
    ),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:1"),
)


class Browser:
    """One tab. `messages` are the texts of its console and of its log since the last `show`."""

    def __init__(self, writing: int, reading: int) -> None:
        self._out, self._in = os.fdopen(writing, "wb", buffering=0), os.fdopen(reading, "rb")
        self._number, self._rest, self._session = 0, b"", ""
        self._frames: list[int] = []
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._is_loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._number:
            self._note(reply)
        assert "error" not in reply, reply
        result: dict[str, Any] = reply["result"]
        return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._in.fileno(), 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        about, method = message.get("params", {}), message.get("method", "")
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(about))
        elif method == "Page.javascriptDialogOpening":
            self.messages.append(f"dialog: {about.get('message')}")
            self._out.write(
                json.dumps(
                    {"id": -1, "method": "Page.handleJavaScriptDialog", "params": {"accept": False},
                     "sessionId": self._session}
                ).encode() + b"\0"
            )  # fmt: skip
        elif method == "Runtime.executionContextsCleared":
            self._frames.clear()
        elif method == "Runtime.executionContextCreated":
            self._frames.append(about["context"]["id"])
        elif method == "Page.loadEventFired":
            self._is_loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def show(self, page: Path, width: int = 1280, *, dark: bool = False) -> None:
        """Load a page, and wait until its script has run."""
        self.messages.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.emulate(dark=dark)
        self._is_loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self._is_loaded:
            self._note(self._read())
        assert self.value("location.href") == page.as_uri()

    def emulate(self, *, dark: bool = False, medium: str = "") -> None:
        """Show the page as on such a screen, or on another medium."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=medium, features=[scheme])

    def show_together(self, pages: Sequence[Path], host: Path) -> None:
        """Load pages as the frames of another page, each of which costs half as much."""
        frames = (
            f"<iframe src='{page.as_uri()}' width=1280 height=900></iframe>" for page in pages
        )
        host.write_text("".join(frames))
        self.show(host)

    def value(self, expression: str, **more: Any) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, **more)
        return found["result"].get("value")

    def values(self, expression: str) -> list[Any]:
        """Its value in the page and in each of its frames."""
        return [self.value(expression, contextId=frame) for frame in [*self._frames]]

    def close(self) -> None:
        """Close the pipe."""
        self._out.close()
        self._in.close()

    def screenshot(self, file: Path) -> None:
        """The whole page as a picture."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def pdf(self, file: Path) -> None:
        """The page as it is printed on A4."""
        data = self.call(
            "Page.printToPDF", printBackground=True, preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69,
        )["data"]  # fmt: skip
        file.write_bytes(base64.b64decode(data))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    to_browser, writing = os.pipe()
    reading, from_browser = os.pipe()
    profile = tempfile.mkdtemp(prefix="raydoctor-browser-")

    # The protocol is spoken over the descriptors 3 and 4.
    command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", command, PROGRAM, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        pass_fds=(to_browser, from_browser),
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    try:
        tab = Browser(writing, reading)
        yield tab
        tab.close()
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)
