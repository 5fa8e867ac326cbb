"""Attacks a server on this machine: what is too large, too slow or meant for another is refused, and memory stays small.

    attack_test.py HTTP_TOOL
"""
import contextlib
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import unittest

TOOL = sys.argv.pop(1)
MIB = 1 << 20
BODY = 8 * MIB
LONG = 600_000  # milliseconds that no test waits for
SANITIZED = bool(os.environ.get("ATELIER_SANITIZED"))


class Served:
    """The tool with its limits; `peak()` is the most memory that it had since `begin()`."""

    def __init__(self, file="/nowhere", body=BODY, connections=64, read=LONG, write=LONG, key=()):
        self.process = subprocess.Popen([TOOL, file, str(body), str(connections), str(read), str(write), *key],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        if self.process.wait() != 0:
            raise AssertionError(f"the server ended with {self.process.returncode}")

    def memory(self, name="VmHWM"):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    def holds(self, path):
        """Whether the server has a file open."""
        folder = f"/proc/{self.process.pid}/fd"
        for number in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(f"{folder}/{number}") == path:
                    return True
        return False

    def connect(self):
        return contextlib.closing(socket.create_connection(("127.0.0.1", self.port)))

    def ask(self, *parts):
        """Sends what the server takes; the reply, and how many bytes were sent."""
        with self.connect() as client:
            sent = send(client, parts)
            return read_reply(client), sent

    def get(self, path, *headers):
        return self.ask(request("GET", path, *headers))[0]


def request(method, path, *headers, body=b"", host="localhost"):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def send(client, parts):
    sent = 0
    for part in parts:
        try:
            # A server that refuses answers before all is sent.
            if select.select([client], [], [], 0)[0]:
                return sent
            client.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            return sent
        sent += len(part)
    return sent


def read_reply(client):
    """The status and the body of a reply; 0 where the server ended the connection instead."""
    reply = b""
    with contextlib.suppress(ConnectionResetError):
        while b"\r\n\r\n" not in reply and (received := client.recv(65536)):
            reply += received
        head, _, body = reply.partition(b"\r\n\r\n")
        length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
        while length and len(body) < length[0] and (received := client.recv(65536)):
            body += received
        return int(head.split()[1]) if head else 0, body.decode()
    return 0, ""


class Attacks(unittest.TestCase):
    def check_small(self, served, before):
        """A limit of memory: twice that of a body, and what threads and buffers take."""
        if not SANITIZED:
            self.assertLess(served.memory() - before, 2 * BODY + 4 * MIB)

    def test_a_body_in_chunks_ends_at_the_limit(self):
        with Served() as served:
            self.assertEqual(served.get("/health")[0], 200)
            before = served.memory()
            chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
            head = request("POST", "/size", "Transfer-Encoding: chunked")
            (status, _), sent = served.ask(head, *[chunk] * 100, b"0\r\n\r\n")
            self.assertIn(status, (413, 0))
            self.check_small(served, before)
            self.assertEqual(served.ask(head, *[chunk] * 8, b"0\r\n\r\n")[0], (200, str(BODY)))
            self.check_small(served, before)
            small = b"1\r\na\r\n" * 100_000
            self.assertEqual(served.ask(head, *[small] * 3, b"0\r\n\r\n")[0], (200, "300000"))
            self.check_small(served, before)

    def test_a_line_without_an_end_is_refused(self):
        with Served() as served:
            self.assertEqual(served.get("/health")[0], 200)
            before = served.memory()
            endless = [b"a" * MIB] * 200
            for start in (b"", b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n",
                          b"GET / HTTP/1.1\r\nHost: a\r\n",
                          request("POST", "/size", "Transfer-Encoding: chunked") + b"1;",
                          request("POST", "/size", "Transfer-Encoding: chunked") + b"0\r\nX: ",
                          request("POST", "/size", "Transfer-Encoding: chunked")):
                with self.subTest(start):
                    (status, _), _ = served.ask(start, *endless)
                    self.assertIn(status, (400, 431, 0))
            fields = [b"X-Name: value\r\n" * 70_000] * 200
            self.assertIn(served.ask(b"GET / HTTP/1.1\r\n", *fields)[0][0], (431, 0))
            trailers = request("POST", "/size", "Transfer-Encoding: chunked") + b"0\r\n"
            self.assertIn(served.ask(trailers, *fields)[0][0], (400, 0))
            self.check_small(served, before)
            self.assertEqual(served.get("/health")[0], 200)

    def test_what_is_said_to_be_large_takes_no_memory(self):
        with Served() as served:
            with contextlib.ExitStack() as stack:
                before = served.memory("VmRSS")
                clients = [stack.enter_context(served.connect()) for _ in range(50)]
                for client in clients:
                    client.sendall(request("POST", "/size", f"Content-Length: {BODY}"))
                self.assertEqual(served.get("/health")[0], 200)
                self.check_small(served, before)
            self.assertEqual(served.ask(request("POST", "/size", f"Content-Length: {BODY + 1}"))[0][0], 413)

    def test_a_form_has_its_limits(self):
        kind = "Content-Type: multipart/form-data; boundary=XY"

        def ask(served, body):
            return served.ask(request("POST", "/form", kind, f"Content-Length: {len(body)}"), body)[0]

        part = b'--XY\r\nContent-Disposition: form-data; name="a"\r\n\r\n%b\r\n'
        with Served() as served:
            self.assertEqual(served.get("/health")[0], 200)
            before = served.memory()
            most = part % bytes(BODY - 100) + b"--XY--\r\n"
            self.assertEqual(ask(served, most), (200, f"1 {BODY - 100}"))
            self.assertIn(ask(served, part % bytes(BODY) + b"--XY--\r\n")[0], (413, 0))
            self.assertEqual(ask(served, part % b"" * 100_000 + b"--XY--\r\n")[0], 400)
            self.assertEqual(ask(served, b"--XY\r\n" + b"a" * (BODY - 100))[0], 400)
            self.assertEqual(ask(served, b"--XY\r\n" + b"A: b\r\n" * (BODY // 8))[0], 400)
            self.assertEqual(ask(served, part % b"\r\n--X" * 20 + part % (b"\r" * (BODY - 2000)) + b"--XY--")[0], 200)
            self.check_small(served, before)

    def test_slow_writers_are_ended(self):
        with Served(read=200) as served, contextlib.ExitStack() as stack:
            starts = [b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\n",
                      request("POST", "/size", "Content-Length: 10") + b"1",
                      request("POST", "/size", "Transfer-Encoding: chunked") + b"5\r\n1"]
            clients = [stack.enter_context(served.connect()) for _ in starts]
            for client, start in zip(clients, starts):
                client.sendall(start)
            # A busy machine may take a start that comes late for silence, which is ended without a reply.
            for client in clients:
                self.assertIn(read_reply(client)[0], (408, 0))

    def test_slow_readers_are_ended(self):
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(256 * MIB)
            with Served(file.name, write=200) as served, contextlib.ExitStack() as stack:
                before = served.memory()
                clients = [stack.enter_context(served.connect()) for _ in range(3)]
                for client, path in zip(clients, ("/stream", "/file", "/stream")):
                    client.sendall(request("GET", path))
                    start = b""
                    while b"\r\n\r\n" not in start:
                        start += client.recv(1)
                    client.recv(10)  # its body has begun
                while served.get("/waiting") != (200, "0") or served.holds(file.name):
                    pass
                for client in clients:
                    rest = 0
                    with contextlib.suppress(ConnectionResetError):
                        while received := len(client.recv(MIB)):
                            rest += received
                    self.assertLess(rest, 256 * MIB)
                self.check_small(served, before)

    def test_clients_that_hang_up_end_their_handlers(self):
        with Served() as served:
            for path in ("/wait", "/stream"):
                clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(20)]
                for client in clients:
                    client.sendall(request("GET", path) + request("GET", "/health") * 100)
                while served.get("/waiting") != (200, "20"):
                    pass
                for client in clients:
                    client.close()
                while served.get("/waiting") != (200, "0"):
                    pass

    def test_a_thousand_connections_leave_the_server_whole(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 1100:
            self.skipTest(f"a process may have {hard} files here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
        with Served(connections=64) as served:
            clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(1000)]
            statuses = []
            for client in clients:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    client.sendall(request("GET", "/health"))
                statuses.append(read_reply(client)[0])
            self.assertEqual(statuses.count(200), 64)
            # One that was turned away long ago is ended without its reply.
            self.assertEqual(statuses.count(503) + statuses.count(0), 936)
            self.assertGreater(statuses.count(503), 0)
            for client in clients:
                client.close()
            while served.get("/health")[0] != 200:
                pass

    def test_paths_lead_nowhere(self):
        with Served() as served:
            for path in ("/../etc/passwd", "/files/../../etc/passwd", "/files/..", "/files/%2e%2e", "/files/a%2fb",
                         "/files/%2e%2e%2fetc%2fpasswd", "/files/..%5c..", "/files/%00", "/files/a%00.png",
                         "/files/%c0%ae%c0%ae", "/files/%c0%af", "/files/%e0%80%af", "/files/%252e%252e/../a",
                         "http://localhost/health", "file:///etc/passwd", "*", "/files/\\..\\a"):
                with self.subTest(path):
                    self.assertEqual(served.get(path)[0], 400)
            self.assertEqual(served.get("//etc/passwd")[0], 404)
            self.assertEqual(served.get("/files/%252e%252e"), (200, "%2e%2e"))
            self.assertEqual(served.get("/file")[0], 404)

    def test_pages_and_names_of_others_are_refused(self):
        with Served() as served:
            port = served.port
            for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "0.0.0.0", "10.0.0.1"):
                self.assertEqual(served.ask(request("GET", "/health", host=host))[0][0], 421)
            for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]"):
                self.assertEqual(served.ask(request("GET", "/health", host=host))[0][0], 200)
            for origin in ("null", "http://evil.example", "http://localhost:1", f"http://127.0.0.1:{port}", ""):
                for method in ("GET", "POST", "OPTIONS"):
                    got = served.ask(request(method, "/health", f"Origin: {origin}", "Content-Length: 0"))[0][0]
                    self.assertEqual(got, 403, f"{method} from {origin}")
            self.assertEqual(served.get("/health", "Origin: http://localhost")[0], 200)
            self.assertEqual(served.ask(request("OPTIONS", "/health"))[0][0], 405)

    def test_a_key_is_asked_for(self):
        with Served(key=["secret"]) as served:
            self.assertEqual(served.get("/health")[0], 401)
            for wrong in ("Bearer", "Bearer secre", "Bearer secret1", "Basic c2VjcmV0", "Basic !", "secret"):
                self.assertEqual(served.get("/health", f"Authorization: {wrong}")[0], 401, wrong)
            for right in ("Bearer secret", "Basic YTpzZWNyZXQ="):
                self.assertEqual(served.get("/health", f"Authorization: {right}")[0], 200, right)
            body = [bytes(MIB)] * 4
            head = request("POST", "/size", f"Content-Length: {4 * MIB}")
            self.assertIn(served.ask(head, *body)[0][0], (401, 0))

    def test_a_request_hidden_in_another_is_never_answered(self):
        hidden = request("GET", "/files/hidden")
        hides = (["Content-Length: 0", "Transfer-Encoding: chunked"], ["Content-Length: 4", "Content-Length: 400"],
                 ["Transfer-Encoding: chunked, identity"], ["Transfer-Encoding : chunked"],
                 ["Transfer-Encoding: xchunked"], ["Transfer-Encoding:\x0bchunked"], ["X: y\r\n Transfer-Encoding: chunked"],
                 ["X: a\nContent-Length: 100"], ["Content-Length: 1e3"], ["Content-Length: 4,5"])
        with Served() as served:
            for headers in hides:
                with self.subTest(headers), served.connect() as client:
                    client.sendall(request("POST", "/size", *headers, body=b"0\r\n\r\n") + hidden)
                    answered = b""
                    with contextlib.suppress(ConnectionResetError):
                        while received := client.recv(65536):
                            answered += received
                    self.assertTrue(answered.startswith(b"HTTP/1.1 400"), answered)
                    self.assertEqual(answered.count(b"HTTP/1.1 "), 1)


if __name__ == "__main__":
    unittest.main()
