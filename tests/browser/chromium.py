"""Drive a page in headless Chromium over its debugging port.

A single-page application has rendered when its text is displayed, not when its files are loaded.
Tests therefore wait for the texts that the page must show.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.worlds.servers import wait_until

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
#: Code and typed text of keys with names.
_NAMED_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "ArrowDown": (40, ""), "ArrowUp": (38, "")}
#: Ends when fonts are there and transitions are over, and late scripts and requests have begun.
_SETTLED = """new Promise(resolve => setTimeout(resolve, 150)).then(() => Promise.all(
    [document.fonts.ready, ...document.getAnimations().map(a => a.finished.catch(() => 0))]))"""
_START_SECONDS = 60.0
_ANSWER_SECONDS = 60.0


class Page:
    """One tab.

    Attributes:
        complaints: Console messages and errors so far, as JSON.
        requests: URLs requested so far.
    """

    def __init__(self, connection: ClientConnection) -> None:
        """Connect to a tab."""
        self._connection = connection
        self._num_calls = 0
        self._loaded: set[str] = set()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.setLifecycleEventsEnabled", enabled=True)

    @contextlib.contextmanager
    def new_tab(self) -> Iterator[Page]:
        """Open another tab of the same browser."""
        with connect(_tab_address(self._connection.remote_address[1])) as connection:
            yield Page(connection)

    def open(
        self, url: str, *, width: int = 1440, height: int = 1000, theme: str = "light"
    ) -> None:
        """Open a page on a screen of this size with this preferred theme; wait until it is loaded.

        Before that, the displayed texts may be those of the page that it replaces.
        """
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        loader = self._call("Page.navigate", url=url)["loaderId"]
        while loader not in self._loaded:
            self._receive()

    def text(self) -> str:
        """Return the displayed text of the page."""
        return str(self.evaluate("document.body ? document.body.innerText : ''"))

    def wait_for(self, *texts: str, timeout_seconds: float = 60.0) -> None:
        """Wait until all of these texts are displayed, with their fonts and after transitions."""
        deadline = time.monotonic() + timeout_seconds
        while missing := [text for text in texts if text not in self.text()]:
            if time.monotonic() > deadline:
                raise AssertionError(f"the page does not show {missing}; it shows: {self.text()}")
            time.sleep(0.05)
        self._call("Runtime.evaluate", expression=_SETTLED, awaitPromise=True)

    def press(self, *keys: str) -> None:
        """Press and release keys, such as ``j`` or ``Enter``, one after the other."""
        for key in keys:
            code, text = _NAMED_KEYS.get(key, (0, key))
            down = {"key": key, "windowsVirtualKeyCode": code}
            for kind, typed in (("keyDown", {"text": text} if text else {}), ("keyUp", {})):
                self._call("Input.dispatchKeyEvent", type=kind, **down, **typed)

    def save_downloads(self, folder: Path) -> None:
        """Save files that pages offer to a folder."""
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def screenshot(self, file: Path) -> None:
        """Write a PNG image of the page."""
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def evaluate(self, javascript: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=javascript, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._num_calls += 1
        message = {"id": self._num_calls, "method": method, "params": params}
        self._connection.send(json.dumps(message))
        while (answer := self._receive()).get("id") != self._num_calls:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _receive(self) -> dict[str, Any]:
        """Receive the next message, an answer or an event, and keep what events say."""
        message: dict[str, Any] = json.loads(self._connection.recv(timeout=_ANSWER_SECONDS))
        match message.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(json.dumps(message["params"]))
            case "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            case "Page.lifecycleEvent" if message["params"]["name"] == "load":
                self._loaded.add(message["params"]["loaderId"])
        return message


@contextlib.contextmanager
def browser_page(executable: str) -> Iterator[Page]:
    """Start a browser with an empty profile, yield its tab, and stop the browser."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [executable, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = _tab_address(_port(Path(profile), process))
            with connect(address) as connection:
                yield Page(connection)
        finally:
            process.terminate()
            process.wait(timeout=_START_SECONDS)


def _port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    """Return the debugging port, which Chromium writes into its profile when it is ready."""
    file = profile / "DevToolsActivePort"

    def written_port() -> str | None:
        assert process.poll() is None, f"Chromium ended at once with code {process.returncode}"
        lines = file.read_text().splitlines() if file.exists() else []
        return lines[0] if len(lines) == 2 else None

    return int(wait_until(written_port, seconds=_START_SECONDS, event="Chromium's debugging port"))


def _tab_address(port: int) -> str:
    answer = httpx.put(
        f"http://127.0.0.1:{port}/json/new?about:blank", timeout=_ANSWER_SECONDS
    ).raise_for_status()
    return str(answer.json()["webSocketDebuggerUrl"])
