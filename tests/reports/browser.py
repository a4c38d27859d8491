"""A headless Chromium that is told what to do over a pair of pipes: nothing but the browser is needed."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--remote-debugging-pipe", "about:blank"),
)
_ITS_INPUT, _ITS_OUTPUT = 3, 4  # the descriptors that the browser reads from and writes to


class Browser:
    """One tab, whose width and colour scheme can be chosen; `complaints` are errors and requests it made."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        its_input, self._to = os.pipe()
        self._from, its_output = os.pipe()

        def connect() -> None:
            ends = os.dup(its_input), os.dup(its_output)  # out of the way: they may be 3 and 4 themselves
            os.dup2(ends[0], _ITS_INPUT)
            os.dup2(ends[1], _ITS_OUTPUT)

        self._process = subprocess.Popen(
            [CHROMIUM, *_OPTIONS, f"--user-data-dir={folder}"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.loaded = False
        target = self.ask("Target.getTargets")["targetInfos"][0]["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and wait for its answer."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, page: Path, *, width: int, dark: bool = False) -> None:
        """Load a page in a window of that width, once more if it is open already."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.complaints.clear()
        self.loaded = False
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while not self.loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, of a promise what it promises."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, where the focus is."""
        for key in keys:
            text = {"Enter": "\r", " ": " "}.get(key)
            codes = {"Enter": 13, " ": 32, "Tab": 9, "ArrowDown": 40}
            facts: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": codes[key]}
            facts |= {"code": {" ": "Space"}.get(key, key)} | ({} if text is None else {"text": text})
            self.ask("Input.dispatchKeyEvent", type="keyDown", **facts)
            self.ask(
                "Input.dispatchKeyEvent", type="keyUp", **{k: v for k, v in facts.items() if k != "text"}
            )

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Move the mouse with its button down, from one place of the window to another."""
        button = {"button": "left", "clickCount": 1}
        middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
        for kind, (x, y) in (
            ("mousePressed", start),
            ("mouseMoved", middle),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=1, **button)
        self.evaluate("new Promise(done => setTimeout(done, 50))")  # until then d3 takes a click for its end

    def hover(self, x: float, y: float) -> None:
        """Move the mouse to a place of the window."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def violations(self) -> list[str]:
        """The barriers that axe-core finds in the page, each with the first element that it is about."""
        self.ask("Runtime.evaluate", expression=AXE.read_text())
        words = "`${v.id}: ${v.help}: ${v.nodes[0].html.slice(0, 120)} ${v.nodes[0].failureSummary}`"
        return self.evaluate(f"axe.run().then(found => found.violations.map(v => {words}))")

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        taken = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            received = os.read(self._from, 1 << 20)
            assert received, "the browser ended"
            self._unread += received
        text, self._unread = self._unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, facts: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(facts))
        elif event == "Network.requestWillBeSent" and not facts["request"]["url"].startswith("file:"):
            self.complaints.append(f"asked for {facts['request']['url']}")
