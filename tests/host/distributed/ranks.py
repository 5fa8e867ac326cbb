"""Processes of one run as tests start and watch them."""
import pathlib
import socket


def launched(ranks, line):
    """The line that starts so many processes of a command line."""
    return line if ranks == 1 else [line[0], "launch", "--nproc_per_node", str(ranks), "--", *line[1:]]


RESERVED = []  # sockets whose ports nobody else is given; a store that binds with SO_REUSEADDR can listen there


def free_port():
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    RESERVED.append(sock)
    return sock.getsockname()[1]


def place(rank, size, port, address="127.0.0.1"):
    """Variables of a rank whose whole run is on this machine."""
    values = dict(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size, MASTER_ADDR=address,
                  MASTER_PORT=port)
    return {name: str(value) for name, value in values.items()}


def children(process):
    listed = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(child) for child in listed.split()]


def is_alive(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
