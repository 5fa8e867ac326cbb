"""Drives a headless Chromium by the DevTools protocol, over the pipes of --remote-debugging-pipe."""
import base64
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading

# Also the shell of a whole Chromium, where that is what is installed.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
CONTROL = 2  # of `modifiers`
SHIFT = 8


def find():
    """The browser's program; None: there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A browser without a window, a profile or a network of its own. A context manager."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(prefix="atelier_browser_", ignore_cleanup_errors=True)
        theirs_in, self.to = os.pipe()
        self.source, theirs_out = os.pipe()
        flags = ["--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--no-first-run", "--disable-background-networking", "--disable-component-update", "--mute-audio",
                 f"--user-data-dir={self.profile.name}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}', program, *flags],
            pass_fds=[theirs_in, theirs_out], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.count, self.answers, self.pages = 0, {}, {}
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        self.profile.cleanup()

    def _read(self):
        with open(self.source, "rb") as source:
            rest = b""
            while data := source.read1(1 << 20):
                *messages, rest = (rest + data).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self.answers[message["id"]].put(message)
                    elif message.get("sessionId") in self.pages:
                        self.pages[message["sessionId"]].take(message["method"], message["params"])

    def call(self, method, session=None, **parameters):
        """One command of the protocol, and its result."""
        self.count += 1
        number, answer = self.count, queue.Queue()
        self.answers[number] = answer
        message = {"id": number, "method": method, "params": parameters}
        os.write(self.to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        found = answer.get(timeout=60)
        if "error" in found:
            raise AssertionError(f"{method}: {found['error']['message']}")
        return found["result"]

    def open(self, url, **size):
        """A page at an address, see Page.resize()."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        page.resize(**size)
        page.go(url)
        return page


class Page:
    """A page that is open. `problems`: what its console says is wrong; `requests`: addresses that it asked for."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.problems, self.requests = [], []
        browser.pages[session] = self
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def close(self):
        """Ends it; what it still has to say is not listened to."""
        self.browser.pages.pop(self.session)
        self.call("Page.close")

    def take(self, event, data):
        """Keeps what the browser says by itself."""
        if event == "Network.requestWillBeSent":
            self.requests.append(data["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.problems.append(data["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        elif event == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{data['entry']['text']} {data['entry'].get('url', '')}")
        elif event == "Runtime.consoleAPICalled" and data["type"] in ("error", "assert", "warning"):
            self.problems.append(str(data["args"]))

    def resize(self, width=1280, height=900, dark=False, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href == {json.dumps(url)} && document.readyState == 'complete'")

    def evaluate(self, expression):
        """The value of JavaScript; a promise's is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait(self, expression, seconds=60):
        """Waits until JavaScript is true."""
        # A page that goes elsewhere meanwhile takes the promise with it, so each question is one of its own.
        pause = threading.Event()
        for _ in range(seconds * 20):
            if self.evaluate(f"(() => {{ try {{ return !!({expression}); }} catch {{ return false; }} }})()"):
                return
            pause.wait(0.05)
        raise AssertionError(f"not within {seconds} s: {expression}\n{self.evaluate('document.body.innerText')}\n{self.problems}")

    def place(self, selector):
        """The middle of an element, which is scrolled to first."""
        return self.evaluate(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: "center"}});
            const box = element.getBoundingClientRect();
            return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
        }})()""")

    def click(self, selector):
        place = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key, modifiers=0):
        text = {"Enter": "\r", " ": " "}.get(key)
        code = KEYS[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, modifiers=modifiers,
                  **({"text": text} if text and not modifiers else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def write(self, text):
        """Types a text where the focus is, over what is selected."""
        self.call("Input.insertText", text=text)

    def fill(self, selector, text):
        """Gives a control another value, as typing does."""
        self.evaluate(f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus();"
                      f" field.value = {json.dumps(str(text))};"
                      " field.dispatchEvent(new InputEvent('input', {bubbles: true})); })()")

    def drop(self, selector, *paths):
        """Drags files of this machine over an element and drops them there."""
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        place = self.place(selector)
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, data=data, **place)

    def choose(self, selector, *paths):
        """Gives files of this machine to a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
