"""Chromium, driven by the DevTools protocol over a pipe: frames are JSON, each ended by a NUL."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

import pytest
from process import PATIENCE, pause_after

BINARY = shutil.which("chromium-headless-shell") or shutil.which("chromium")


class Browser:
    def __init__(self, folder):
        assert BINARY, "no chromium-headless-shell: tools/install test"
        (theirs_in, self.out), (self.into, theirs_out) = (self.pipe(), self.pipe())
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []

        def place():  # where --remote-debugging-pipe looks for them
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self.process = subprocess.Popen(
            [BINARY, *sandbox, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
             "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={folder}/profile"],
            env={**os.environ, "HOME": str(folder)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=place, pass_fds=(3, 4))
        for fd in (theirs_in, theirs_out):
            os.close(fd)
        self.rest, self.number, self.events = b"", 0, []

    @staticmethod
    def pipe():
        """Numbers from 20 on, out of the way of 3 and 4."""
        ends = os.pipe()
        moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
        for end in ends:
            os.close(end)
        return moved

    def read(self, deadline):
        while b"\0" not in self.rest:
            ready = select.select([self.into], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, "the browser says nothing"
            piece = os.read(self.into, 1 << 20)
            assert piece, "the browser ended"
            self.rest += piece
        frame, self.rest = self.rest.split(b"\0", 1)
        return json.loads(frame)

    def call(self, method, session=None, **params):
        self.number += 1
        frame = {"id": self.number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        rest = json.dumps(frame).encode() + b"\0"
        while rest:
            rest = rest[os.write(self.out, rest):]
        deadline = time.monotonic() + PATIENCE
        while True:
            got = self.read(deadline)
            if got.get("id") == self.number:
                assert "error" not in got, f"{method}: {got}"
                return got["result"]
            self.events.append(got)

    def page(self, **how):
        return Page(self, **how)

    def close(self):
        os.killpg(self.process.pid, 9)
        self.process.wait(PATIENCE)
        os.close(self.out)
        os.close(self.into)


class Page:
    """A page with cookies and logins of its own."""

    def __init__(self, browser, width=1200, height=900, dark=False, headers=None):
        self.browser = browser
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        if headers:
            self.call("Network.setExtraHTTPHeaders", headers=headers)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def js(self, text):
        """What an expression of the page gives."""
        got = self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, f"{text}: {got['exceptionDetails']}"
        return got["result"].get("value")

    def wait(self, text):
        """Waits until an expression of the page is true, and gives what it is."""
        began = time.monotonic()
        while True:
            got = self.call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
            value = got["result"].get("value")
            if value and "exceptionDetails" not in got:
                return value
            assert time.monotonic() < began + PATIENCE, f"{text} did not come true:\n{self.text()}"
            time.sleep(pause_after(time.monotonic() - began))

    def open(self, url, there="document.querySelector('main') && typeof session === 'object' && session"):
        self.call("Page.navigate", url=url)
        self.wait(there)

    def text(self):
        return self.js("document.body.innerText")

    def shows(self, words):
        """Waits until the words stand in the page."""
        self.wait(f"document.body.innerText.includes({json.dumps(words)})")

    def set(self, selector, value):
        """Types a value where the selector is; as a form hears of it."""
        self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
                "for (const name of ['input', 'change']) e.dispatchEvent(new Event(name, {bubbles: true})) })()")

    def click(self, selector):
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key):
        more = {"windowsVirtualKeyCode": 13, "text": "\r"} if key == "Enter" else {"text": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def faults(self):
        """What the page's console has of errors, and what its scripts threw."""
        return [event for event in self.browser.events if event.get("sessionId") == self.session and (
            event["method"] == "Runtime.exceptionThrown" or
            event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")]

    def shot(self, path, whole=False):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))

    def close(self):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()
