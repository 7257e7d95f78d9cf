#!/usr/bin/env python3
"""Breaks elastic jobs at random, and checks how they end.

    tools/soak_elastic.py [--rounds N] [--seed S] [--only ROUND] [--build FOLDER] [--etcd]

Each round trains examples/quick.toml by one to three launchers, in one of the modes below, and does one to four faults
to it: a rank or a spare is killed, a rank is stopped for good, a launcher is killed or told to stop, a launcher joins.
Launchers share this machine, with a host id of their own each. Promised: the job ends with exit code 0; no process
stays; each step is done once; and the weights have the bits of runs without faults that had the same numbers of ranks at the
same steps, by checkpoints. A job that has used its restarts, or has fewer ranks than it needs, may end
with the exit code of the failure. --seed S --only ROUND does a round again.

With --etcd each job has two or three launchers, of which etcd elects the leader, and faults also strike the one that leads:
launchers are killed, told to stop, and stopped for a while.
"""
import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import local_etcd

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIES = ["checkpoint.in_memory_every_steps=1"]
MODES = {  # settings; all of them can be exact
    "replicas": [],
    "zero1": ["parallel.zero=1", *COPIES],
    "zero3": ["parallel.zero=3", *COPIES],
    "zero3-rare-copies": ["parallel.zero=3", "checkpoint.in_memory_every_steps=20"],
    "pipeline": ["parallel.pipeline=2", "parallel.microbatches=4", *COPIES],
    "gloo": ["comm.backend=gloo"],
    "disk": ["parallel.zero=1", "checkpoint.every_steps=40"],
}
STEPS = 700
ENDS_WITHIN_S = 120


class Broken(Exception):
    """A promise that was not kept."""


class Host:
    """A launcher, and all that it prints."""

    def __init__(self, job, number):
        self.number = number
        self.file = job.folder / f"host-{number}.log"
        rendezvous = ["--rendezvous", f"{job.etcd}/{job.folder.name}"] if job.etcd else [
            "--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port", str(job.port)]
        command = [job.trireme, "launch", "-n", str(job.ranks), "--nnodes", f"1:{job.hosts}", "--elastic", *rendezvous,
                   "--join-wait", "20", "--max-restarts", str(job.restarts), "--spares", str(job.spares), "--frozen-grace", "6",
                   "--secret-file", job.secret, "--", *job.train("run", job.settings)]
        environment = {**os.environ, "TRIREME_HOST_ID": f"soak-{number}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                                        text=True, errors="replace")
        self.was_struck = False
        self.reader = threading.Thread(target=self.read, args=(job,), daemon=True)
        self.reader.start()

    def read(self, job):
        with open(self.file, "w") as out:
            for line in self.process.stdout:
                job.said.append(line)
                out.write(line)
                out.flush()

    def processes(self):
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in found]


class Job:
    def __init__(self, build, folder, draw, etcd):
        self.trireme, self.folder, self.draw, self.etcd = build / "bin/trireme", folder, draw, etcd
        self.mode = draw.choice(sorted(MODES))
        self.settings = ["run.exact=true", *MODES[self.mode]]
        self.hosts, self.restarts, self.spares = draw.randint(2 if etcd else 1, 3), draw.randint(1, 4), draw.randint(0, 1)
        self.ranks = 2 if self.hosts > 1 else draw.choice([2, 4]) if self.mode == "pipeline" else draw.randint(2, 4)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.secret = folder / "secret"
        self.secret.write_text("a secret that is long enough for anybody")
        self.secret.chmod(0o600)
        self.count = 0
        self.faults = []
        self.said = []  # by all launchers, in order

    def train(self, name, settings):
        keys = [f"run.folder={self.folder}", f"run.name={name}", "run.log_every_steps=5", "model.hidden=[128,64]", "train.accumulation=1",
                "train.epochs=1000", "checkpoint.every_steps=0", "eval.every_steps=100000", "comm.timeout_s=4", *settings]
        if not any(key.startswith("train.max_steps") for key in keys):
            keys.append(f"train.max_steps={STEPS}")
        return [self.trireme, "train", ROOT / "examples/quick.toml", *[word for key in keys for word in ("--set", key)]]

    def start_host(self):
        self.count += 1
        return Host(self, self.count - 1)

    def fault(self, hosts):
        """One of those that can be had now."""
        living = [host for host in hosts if host.process.poll() is None and not host.was_struck]
        others = living if self.etcd and len(living) > 1 else [host for host in living if host is not hosts[0]] if not self.etcd else []
        kinds = ["kill a process", "kill a process", "stop a process"]
        kinds += ["kill a launcher", "stop a launcher"] if others else []
        kinds += ["pause a launcher"] if others and self.etcd else []
        kinds += ["join"] if len(living) < self.hosts else []
        kind = self.draw.choice(kinds)
        self.faults.append(kind)
        if kind == "join":
            return hosts.append(self.start_host())
        if kind == "pause a launcher":
            host = self.draw.choice(others)
            host.process.send_signal(signal.SIGSTOP)
            threading.Timer(self.draw.uniform(1, 12), host.process.send_signal, [signal.SIGCONT]).start()
            return None
        if kind in ("kill a launcher", "stop a launcher"):
            host = self.draw.choice(others)
            host.was_struck = True
            return host.process.send_signal(signal.SIGKILL if kind == "kill a launcher" else signal.SIGTERM)
        victims = self.draw.choice(living).processes()
        if victims:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.draw.choice(victims), signal.SIGKILL if kind == "kill a process" else signal.SIGSTOP)
        return None

    def run(self):
        hosts = [self.start_host() for _ in range(self.hosts)]
        instants = sorted(self.draw.uniform(0.5, 6) for _ in range(self.draw.randint(1, 4)))
        began = time.monotonic()
        try:
            for instant in instants:
                while time.monotonic() - began < instant and self.runs(hosts):
                    time.sleep(0.02)
                if self.runs(hosts):
                    self.fault(hosts)
            for host in hosts:
                host.process.wait(timeout=ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise Broken("a launcher has not ended") from None
        finally:
            for host in hosts:
                host.process.kill()
                host.reader.join()
        codes = [host.process.returncode for host in hosts if not host.was_struck] if self.etcd else [hosts[0].process.returncode]
        return self.judge(min(codes))

    def runs(self, hosts):
        return any(host.process.poll() is None for host in hosts) if self.etcd else hosts[0].process.poll() is None

    def judge(self, code):
        said = "".join(self.said)
        left = subprocess.run(["pgrep", "-f", f"run.folder={self.folder}"], capture_output=True, text=True).stdout
        if left:
            raise Broken(f"processes {left.split()} stay")
        if code != 0:
            known = re.search("no world can be formed|no restart is left|too few ranks would be left|have ended well, and"
                              # Others were paused: a leader that is told to stop hears of none, and stops the job.
                              "|SIGTERM: stopping|it has ended on the other hosts", said)
            if not known:
                raise Broken(f"exit code {code}")
            return f"ended with exit code {code}, as it may"
        begun = [(int(ranks), int(step) - 1) for step, ranks in
                 re.findall(r"\[0\] (?:training|resuming) [^\n]*: steps ([0-9]+) to [0-9]+, [^\n]*?([0-9]+) ranks?,", said)]
        found, expected = self.weights("run"), self.replay(begun)
        if found != expected:
            raise Broken(f"weights {found}, expected {expected}; worlds {begun}")
        return f"{len(begun)} world(s): " + ", ".join(f"{ranks} ranks from step {step}" for ranks, step in begun)

    def replay(self, begun):
        """The weights of a run that had these worlds."""
        stages = []
        for ranks, first in begun:
            stages = [stage for stage in stages if stage[1] < first]
            stages.append((ranks, first))
        for i, (ranks, first) in enumerate(stages):
            end = stages[i + 1][1] if i + 1 < len(stages) else STEPS
            settings = [key for key in self.settings if not key.startswith("checkpoint.")] + [f"train.max_steps={end}"]
            command = self.train("quiet", settings) + ["-n", str(ranks)] + (["--resume"] if first > 0 else [])
            quiet = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            if quiet.returncode != 0:
                raise Broken(f"the run without faults ended with exit code {quiet.returncode}: {quiet.stderr[-500:]}")
        return self.weights("quiet")

    def weights(self, name):
        found = re.search('"weights_xxh3": "([0-9a-f]+)"', (self.folder / name / "summary.json").read_text())
        return found[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--etcd", action="store_true")
    arguments = parser.parse_args()
    with local_etcd.serve() if arguments.etcd else contextlib.nullcontext() as address:
        soak(arguments, address)


def soak(arguments, address):
    broken, counts = [], collections.Counter()
    for number in range(arguments.rounds) if arguments.only is None else [arguments.only]:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="soak_elastic_"))
        job = Job(arguments.build, folder, random.Random(f"{arguments.seed} {number}"), address)
        about = f"{job.hosts} launcher(s) of {job.ranks}, {job.mode}, {job.restarts} restart(s), {job.spares} spare(s)"
        began = time.monotonic()
        try:
            outcome = job.run()
            shutil.rmtree(folder)
        except Broken as promise:
            outcome = f"BROKEN: {promise}; see {folder}"
            broken.append(number)
        counts.update(job.faults)
        print(f"round {number}: {about}: {', '.join(job.faults)}: {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{sum(counts.values())} faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    if broken:
        sys.exit(f"broken promises in rounds {broken}")


if __name__ == "__main__":
    main()
