"""Starts a program as forks of one process that has loaded its libraries: the other side of fork_server.cpp."""
import array
import atexit
import io
import os
import signal
import socket
import struct
import subprocess


class ForkServer:
    """A program that waits before main(), in the environment of all its starts."""

    def __init__(self, program, library, environment):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket = ours
        with theirs:
            self.process = subprocess.Popen([program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                            env={**environment, "LD_PRELOAD": str(library),
                                                 "ATELIER_FORK_SERVER": str(theirs.fileno())})
        atexit.register(self.end)

    def end(self):
        self.socket.close()
        self.process.wait()

    def run(self, line, cwd, given, timeout):
        """As subprocess.run(line, cwd=cwd, input=given, timeout=timeout, capture_output=True, encoding="utf-8")."""
        files = [os.memfd_create(name) for name in ("in", "out", "err")]
        try:
            os.pwrite(files[0], given.encode(), 0)
            status = self._start(line, cwd or os.getcwd(), files, timeout)
            out, err = (_text(file) for file in files[1:])
        finally:
            for file in files:
                os.close(file)
        return subprocess.CompletedProcess(line, os.waitstatus_to_exitcode(status), out, err)

    def _start(self, line, cwd, files, timeout):
        packet = b"".join(os.fsencode(word) + b"\0" for word in (cwd, *line))
        self.socket.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        self.socket.settimeout(timeout)
        process = self._answer()
        try:
            return self._answer()
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self.socket.settimeout(None)
            self._answer()
            raise subprocess.TimeoutExpired(line, timeout) from None

    def _answer(self):
        return struct.unpack("i", self.socket.recv(4))[0]


def _text(file):
    return io.TextIOWrapper(io.BytesIO(os.pread(file, os.fstat(file).st_size, 0)), encoding="utf-8").read()
