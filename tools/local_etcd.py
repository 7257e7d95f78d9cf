"""An etcd of one member on free ports of this host, for scripts that need one."""
import contextlib
import socket
import subprocess
import tempfile


@contextlib.contextmanager
def serve():
    """The address of one that serves as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        ports = []
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                free = stack.enter_context(socket.socket())
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        server = subprocess.Popen(["etcd", "--data-dir", folder, "--listen-client-urls", client, "--advertise-client-urls", client,
                                   "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
                                  stderr=subprocess.DEVNULL)
        try:
            yield f"etcd://127.0.0.1:{ports[0]}"
        finally:
            server.kill()
            server.wait()
