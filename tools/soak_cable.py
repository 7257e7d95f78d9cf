"""Two hosts on one machine, for tools/soak.py: network namespaces that a cable joins, which can be cut.

Each namespace belongs to a process that sleeps in it and dies with whoever made it, so that nothing of them stays,
however that one ends. Needs root, iproute2 and util-linux; unavailable_because() says what is missing.
"""

import os
import pathlib
import subprocess
import time

NETWORK = "10.78.0."
NOBODY = "02:00:00:00:00:99"  # a station that does not exist


class Cable:
    # How it is cut: an unplugged end tells its own host; frames that a switch drops tell nobody, in one direction or in both.
    CUTS = {"unplugged": [0], "unplugged at the other end": [1], "dropping": [0, 1], "dropping one way": [0],
            "dropping the other way": [1]}

    def __init__(self):
        self.holders = []
        try:
            for _ in range(2):
                self.holders.append(subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"],
                                                     stderr=subprocess.PIPE))
            for host in (0, 1):
                self._wait_for_namespace(self.holders[host])
            self._on(0, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(self.holders[1].pid))
            for host in (0, 1):
                self._on(host, "ip", "link", "set", "lo", "up")
                self._on(host, "ip", "addr", "add", f"{self.address(host)}/24", "dev", "cable")
                self._on(host, "ip", "link", "set", "cable", "up")
        except BaseException:
            self.remove()
            raise

    @staticmethod
    def address(host):
        return f"{NETWORK}{host + 1}"

    def inside(self, host):
        """What makes a command one of that host; it keeps its process."""
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net", "--"]

    def cut(self, how):
        for host in self.CUTS[how]:
            if how.startswith("unplugged"):
                self._on(host, "ip", "link", "set", "cable", "down")
            else:
                self._on(host, "ip", "neigh", "replace", self.address(1 - host), "lladdr", NOBODY, "dev", "cable", "nud", "permanent")

    def put_back(self, how):
        for host in self.CUTS[how]:
            if how.startswith("unplugged"):
                self._on(host, "ip", "link", "set", "cable", "up")
            else:
                self._on(host, "ip", "neigh", "del", self.address(1 - host), "dev", "cable")

    def remove(self):
        for each in self.holders:
            each.kill()
            each.communicate()

    def _on(self, host, *command):
        done = subprocess.run([*self.inside(host), *command], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"'{' '.join(command)}': {done.stderr.strip()}")

    @staticmethod
    def _wait_for_namespace(holder):
        own = os.readlink("/proc/self/ns/net")
        while holder.poll() is None:
            try:
                # Only when it sleeps: until then it is still another program, whose namespace is about to change.
                if os.readlink(f"/proc/{holder.pid}/ns/net") != own and pathlib.Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n":
                    return
            except OSError:
                pass
            time.sleep(0.01)
        raise OSError(holder.stderr.read().decode().strip())


def unavailable_because():
    """Why hosts cannot be had here; None when they can."""
    try:
        Cable().remove()
        return None
    except OSError as error:
        return f"no network namespaces here: {error}"
