"""Look at a report as a person does, and keep what the page complains of and asks for."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tests.browser.chromium import Page, browser_page

Theme = Literal["light", "dark"]
#: Width and height of the screens that a report is looked at on.
SCREENS = {"laptop": (1280, 800), "phone": (390, 844)}


class WatchedPage(Page):
    """A tab whose console messages, errors and requests are kept."""

    def __init__(self, page: Page) -> None:
        """Watch a tab."""
        super().__init__(page._connection)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def look_at(self, path: Path, *, screen: str, theme: Theme) -> None:
        """Open a file as it is seen on a screen by a person who prefers a theme."""
        width, height = SCREENS[screen]
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=screen == "phone",
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self._call("Emulation.setEmulatedMedia", features=features)
        self._call("Page.navigate", url=path.as_uri())
        self.wait_for("Where these figures come from")

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if kind == "keyDown" and text else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **extra)

    def whole_screenshot(self, path: Path) -> None:
        """Save all of the page as PNG, what lies below the screen too."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self._call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def settle(self) -> None:
        """Take in what the page has said so far."""
        self.evaluate("1")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._num_calls += 1
        message = {"id": self._num_calls, "method": method, "params": params}
        self._connection.send(json.dumps(message))
        while True:
            answer = json.loads(self._connection.recv(timeout=60))
            if answer.get("id") == self._num_calls:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.complaints.append(json.dumps(event["params"]))
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])


@contextmanager
def watched_page(executable: str) -> Iterator[WatchedPage]:
    """A watched tab of a new browser."""
    with browser_page(executable) as page:
        yield WatchedPage(page)
