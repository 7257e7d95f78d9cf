"""The most memory that a command and its children hold at a time, pages that several map counted once.

    host_memory.py COMMAND [ARGUMENT...]

Samples the proportional set sizes (/proc/PID/smaps_rollup) while the command runs and prints one line of JSON:
peak_mib of all its processes together, and the command's exit code. What the command prints is left out.
"""
import answer_help  # before all others
import json
import os
import subprocess
import sys
import time


def children_of(root):
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                parents.setdefault(int(stat.read().rsplit(")", 1)[1].split()[1]), []).append(int(pid))
        except OSError:
            pass
    found, open_ones = [], [root]
    while open_ones:
        found.append(open_ones.pop())
        open_ones += parents.get(found[-1], [])
    return found


def pss_kib(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


if __name__ == "__main__":
    command = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.set_blocking(command.stderr.fileno(), False)
    peak, said = 0, b""
    while command.poll() is None:
        peak = max(peak, sum(map(pss_kib, children_of(command.pid))))
        said += command.stderr.read() or b""
        time.sleep(0.02)
    said += command.stderr.read() or b""
    if command.returncode:
        sys.stderr.write(said.decode(errors="replace")[-2000:])
    print(json.dumps({"peak_mib": peak / 1024, "exit_code": command.returncode}))
