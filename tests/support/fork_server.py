"""Starts a program as forks of one process that has loaded its libraries: the other side of fork_server.cpp."""
import array
import atexit
import fcntl
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
            # Relative, since spaces separate names there. Each start goes to a folder of its own.
            self.process = subprocess.Popen([program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                            cwd=library.parent,
                                            env={**environment, "LD_PRELOAD": f"./{library.name}",
                                                 "ATELIER_FORK_SERVER": str(theirs.fileno())})
        atexit.register(self.end)

    def end(self):
        self.socket.close()
        self.process.wait()

    def run(self, line, cwd, given, timeout):
        """As subprocess.run(line, cwd=cwd, input=given, timeout=timeout, capture_output=True), with `seconds` of a
        processor's time beside."""
        files = [os.memfd_create(name) for name in ("in", "out", "err")]
        for file in files[1:]:  # what ranks write at the same time stands behind each other: a memfd's offset has no lock
            fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        try:
            os.pwrite(files[0], given, 0)
            status, milliseconds = self.start(line, cwd or os.getcwd(), files, timeout)
            out, err = (os.pread(file, os.fstat(file).st_size, 0) for file in files[1:])
        finally:
            for file in files:
                os.close(file)
        result = subprocess.CompletedProcess(line, os.waitstatus_to_exitcode(status), out, err)
        result.seconds = milliseconds / 1000
        return result

    def start(self, line, cwd, files, timeout):
        """Runs a command line on files for 0, 1 and 2: the status of waitpid, and milliseconds of a processor's time."""
        packet = b"".join(os.fsencode(str(word)) + b"\0" for word in (cwd, *line))
        self.socket.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        process, _ = self._answer()
        self.socket.settimeout(timeout)
        try:
            return self._answer()
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self.socket.settimeout(None)
            self._answer()
            raise subprocess.TimeoutExpired(line, timeout) from None
        finally:
            self.socket.settimeout(None)

    def _answer(self):
        return struct.unpack("ii", self.socket.recv(8))
