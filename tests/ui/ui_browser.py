"""A headless Chromium over its DevTools protocol: pages, keys, sizes, themes, screenshots. Started by tests, ended with them.

Only this machine's own addresses are reachable: every other name fails to resolve. Every message of the console and every broken policy is kept.
"""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from servers import PLAIN, lacking

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en-GB",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*", "--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1",
)  # fmt: skip
START_SECONDS = 90.0
ANSWER_SECONDS = 60.0
NARROW, WIDE = (390, 844), (1280, 900)


class Browser:
    """One browser process with one page."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            lacking("chromium", "run `make setup`")
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        port = _wait(lambda: _port(profile / "DevToolsActivePort"), "Chromium to listen", START_SECONDS)
        self._socket = self._first_page(port)
        self._number = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _first_page(port: int) -> ClientConnection:
        import httpx

        def address() -> str | None:
            try:
                pages = httpx.get(f"http://127.0.0.1:{port}/json/list", **PLAIN).json()
            except httpx.HTTPError:
                return None
            return next((each["webSocketDebuggerUrl"] for each in pages if each["type"] == "page"), None)

        return connect(_wait(address, "a page of Chromium", START_SECONDS), max_size=1 << 26, proxy=None)

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; events that come before its answer are kept."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.1, deadline - time.monotonic())))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def run(self, script: str) -> Any:
        """Value of an expression in the page; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 30.0) -> Any:
        """The first value of an expression that is true; fails with what the page shows."""
        try:
            return _wait(lambda: self.run(script), script, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\npage: {self.run('document.body.innerText')[:2000]}") from None

    def open(self, address: str) -> None:
        """Load a page and forget what the one before said."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.until(
            f"document.readyState === 'complete' && location.href.startsWith({json.dumps(address.split('#')[0])})"
        )

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme: str) -> None:
        """`light` or `dark`, as the system would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, *, text: str = "", shift: bool = False) -> None:
        """A key, down and up: `Tab`, `Enter`, or a letter with its text."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, 0), "modifiers": 8 if shift else 0}
        typed = {"Enter": "\r", " ": " "}.get(key, text)
        self.call("Input.dispatchKeyEvent", type="keyDown", text=typed, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def picture(self, *, whole: bool = False) -> bytes:
        """PNG of what is seen; `whole`: of the page down to its end."""
        if not whole:
            return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def complaints(self) -> list[str]:
        """What the browser said against the page: errors, broken policies, requests that failed."""
        self.run("1")  # events on the way are read with the answer
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"].get("exception", {}).get("description", told)))
            elif event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
                found.append(str(told["args"]))
        return found

    def hosts(self) -> set[str]:
        """Hosts that the page asked for anything."""
        urls = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return {url.split("/")[2] for url in urls if url.startswith(("http:", "https:", "ws:", "wss:"))}


def _port(file: Path) -> int | None:
    try:
        return int(file.read_text().splitlines()[0])
    except (OSError, IndexError, ValueError):
        return None


def _wait(poll: Callable[[], Any], what: str, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = poll()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")
