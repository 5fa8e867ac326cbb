"""Starts `atelier serve` for a test, and asks it things."""
import json
import os
import subprocess
import threading
import urllib.error
import urllib.request

import program

WAIT_S = 120


class Served:
    """A server on a port of its own, ready for requests. A context manager."""

    def __init__(self, model, *words, key="", **flags):
        line = program.command("serve", *words, model_paths=json.dumps([str(model)]), port=0, **flags)
        self.key = key
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ATELIER_API_KEY": key}
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.said = []
        self.listener = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.listener.start()
        self.url = self.process.stdout.readline().strip()
        try:
            self.wait_for(lambda: self.status("GET", "/health") == 200)
        except BaseException:
            self.__exit__()
            raise AssertionError("no server: " + "".join(self.said)) from None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.listener.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def open(self, method, path, value=None):
        data = None if value is None else json.dumps(value).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers, method=method), timeout=WAIT_S)

    def status(self, method, path, value=None):
        try:
            with self.open(method, path, value) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def bytes(self, path):
        with self.open("GET", path) as reply:
            return reply.read()

    def ask(self, method, path, value=None):
        """The JSON of a reply. Throws urllib.error.HTTPError where the server refuses."""
        with self.open(method, path, value) as reply:
            return json.loads(reply.read() or b"null")

    def wait_for(self, is_so, seconds=WAIT_S):
        pause = threading.Event()
        for _ in range(seconds * 20):
            if found := is_so():
                return found
            if self.process.poll() is not None:
                break
            pause.wait(0.05)
        raise AssertionError("it did not come to that: " + "".join(self.said)[-2000:])

    def finished(self, job):
        """The view of a job once it is over."""
        return self.wait_for(lambda: (view := self.ask("GET", f"/v1/jobs/{job}"))["state"] not in ("queued", "running") and view)
