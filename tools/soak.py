#!/usr/bin/env python3
"""Breaks running trainings at random, again and again, and says how they ended.

    tools/soak.sh [--minutes N] [--seed S] [--rounds N] [--only ROUND] [--modes NAME,...] [--faults NAME,...] [--build FOLDER]

Each round trains examples/quick.toml in one of the modes below, does one of the faults below to it at a random
instant, and goes on from there with --resume. What is promised: a fault that ends the run ends all of it within two
deadlines, with its exit code and with the right rank by name; one that can be waited for does not end it; no process
and no file of it stays; and the weights at the end have the bits of a run that nothing was done to. The last lines
count the faults and name each round that broke a promise: its folder is kept, and --seed S --only ROUND does the same
again (the same fault; the instant as far as the machine allows). What cannot be done on this machine is skipped by
name. Two launchers are two hosts where that can be had: network namespaces with a cable between them (soak_cable.py).
A cable that is cut for less than a third of the deadline is waited for; one that is cut for longer may end the run,
and so may one that loses frames again and again.
"""

import argparse
import functools
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import soak_cable

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPEDREAM = ["parallel.pipeline=2", "parallel.schedule=pipedream", "train.accumulation=1"]
DILOCO = ["parallel.local_steps=12", "parallel.local_ranks=2", "parallel.local_fragments=2", "parallel.local_delay=5",
          "parallel.outer_optimizer=nesterov"]
MODES = {  # launchers, ranks of each, settings
    "dp2": (1, 2, []),
    "dp4": (1, 4, []),
    "gloo2": (1, 2, ["comm.backend=gloo"]),
    "gloo3": (1, 3, ["comm.backend=gloo"]),
    "zero1": (1, 2, ["parallel.zero=1"]),
    "zero2": (1, 2, ["parallel.zero=2"]),
    "zero3": (1, 3, ["parallel.zero=3"]),
    "zero3-gloo": (1, 2, ["parallel.zero=3", "comm.backend=gloo"]),
    "pp2": (1, 2, ["parallel.pipeline=2"]),
    "dp2pp2": (1, 4, ["parallel.pipeline=2"]),
    "zb2": (1, 2, ["parallel.pipeline=2", "parallel.schedule=zb-h1"]),
    "rr3": (1, 3, ["parallel.pipeline=3", "parallel.schedule=1f1b-rr", "train.accumulation=1"]),
    "tp2": (1, 2, ["parallel.tensor=2"]),
    "tp2-gloo": (1, 2, ["parallel.tensor=2", "comm.backend=gloo"]),
    "int8": (1, 2, ["parallel.compression=int8"]),
    "power-sgd": (1, 2, ["parallel.compression=power-sgd"]),
    "offload2": (1, 2, ["parallel.zero=1", "optimizer.name=adamw", "offload.optimizer=files"]),
    "local2": (1, 2, ["parallel.local_steps=7"]),
    "diloco4": (1, 4, DILOCO),
    "diloco-hosts4": (2, 2, DILOCO),
    "pipedream": (1, 2, PIPEDREAM),
    "pipedream-gloo": (1, 2, PIPEDREAM + ["comm.backend=gloo"]),
    "hosts2": (2, 1, []),
    "hosts4": (2, 2, []),
    "hosts-zero3": (2, 1, ["parallel.zero=3"]),
    "hosts-pp2": (2, 1, ["parallel.pipeline=2"]),
}
DEADLINE_S = 6  # comm.timeout_s
GOODBYE_S = 60  # of a launcher whose ranks are done, for those of other hosts
ROOM_S = 15  # for a busy machine to start and end processes
HANG_S = 120


class Broken(Exception):
    """A promise that was not kept."""


def promise(kept, what):
    if not kept:
        raise Broken(what)


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(met, limit_s):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if met():
            return True
        time.sleep(0.02)
    return met()


def processes_with(mark):
    """Those whose environment has it."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes() and is_alive(path.parent.name):
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


class Job:
    """A training with one launcher or two, in a folder of its own."""

    def __init__(self, build, mode, folder, variables=None, settings=(), resume=False, before=(), cable=None, program=None):
        self.launchers_, self.per_launcher, of_mode = MODES[mode]
        self.mark = f"TRIREME_SOAK={folder}.{time.monotonic_ns()}"
        self.scratch = folder / "tmp"
        self.scratch.mkdir(exist_ok=True)
        train = ["train", str(ROOT / "examples/quick.toml")] + (["--resume"] if resume else [])
        for setting in [f"run.folder={folder}/runs", "train.epochs=8", "checkpoint.every_steps=40", "run.log_every_steps=5",
                        "optimizer.momentum=0.9", f"comm.timeout_s={DEADLINE_S}", "comm.torch_threads=1", *of_mode, *settings]:
            train += ["--set", setting]
        port = free_port()
        secret = folder / "secret"
        secret.write_text("the secret of a soak, which is long\n")
        secret.chmod(0o600)
        self.processes, self.said = [], []
        for host in range(self.launchers_):
            environment = dict(os.environ, TMPDIR=str(self.scratch), **dict([self.mark.split("=", 1)]), **(variables or {}))
            command = [str(build / "bin/trireme"), *train, "-n", str(self.per_launcher)]
            if program:
                command = [str(build / "bin/trireme"), "launch", "-n", str(self.per_launcher), "--frozen-grace", str(DEADLINE_S),
                           "--", program, *train[1:]]
            if self.launchers_ > 1:
                environment["TRIREME_HOST_ID"] = f"soak-{host}"
                inside, address = (cable.inside(host), cable.address(0)) if cable else ([], "127.0.0.1")
                command = [*inside, str(build / "bin/trireme"), "launch", "-n", str(self.per_launcher), "--nnodes", str(self.launchers_),
                           "--node-rank", str(host), "--frozen-grace", str(2 * DEADLINE_S), "--master-addr", address, "--master-port", str(port), "--secret-file",
                           str(secret), "--", *([program, *train[1:]] if program else [str(build / "bin/trireme-torch"), *train])]
            said = folder / f"said.{host}{'.resumed' if resume else ''}"
            with open(said, "w") as to:
                self.processes.append(subprocess.Popen([*before, *command], stdout=to, stderr=to, env=environment))
            self.said.append(said)

    def ranks(self, launcher):
        pid = self.processes[launcher].pid
        try:
            return [int(each) for each in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def has_started(self):
        return self.ended() or all(len(self.ranks(each)) == self.per_launcher for each in range(self.launchers_))

    def ended(self):
        return all(each.poll() is not None for each in self.processes)

    def output(self):
        return "".join(each.read_text(errors="replace") for each in self.said)

    def end_within(self, limit_s):
        promise(wait_until(self.ended, limit_s), f"has not ended within {limit_s:.0f} s")
        promise(wait_until(lambda: not processes_with(self.mark), 10), "leaves processes")
        left = [each.name for each in self.scratch.iterdir()]
        promise(not left, f"leaves {', '.join(left)} in TMPDIR")
        return [each.returncode for each in self.processes]

    def kill(self):
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGKILL)
        for each in self.processes:
            each.kill()
            each.wait()


def free_port():
    """Which no outgoing connection gets before the launcher listens there."""
    while True:
        port = random.randrange(10240, 20000)
        with socket.socket() as one, socket.socket() as next_one:
            try:
                one.bind(("127.0.0.1", port))
                next_one.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


class Round:
    def __init__(self, build, mode, fault, draw, folder, quiet):
        self.build, self.mode, self.draw, self.folder = build, mode, draw, folder
        self.quiet_weights, self.quiet_s = quiet
        self.story = fault
        self.job = None
        self.cable = cable_of(mode)
        try:
            getattr(self, FAULTS[fault])()
            self.go_on()
        finally:
            if self.job:
                self.job.kill()
            if self.cable:
                self.cable.remove()

    def start(self, **options):
        self.job = self.new_job(**options)
        promise(wait_until(self.job.has_started, HANG_S), "does not start")
        time.sleep(self.draw.random() * self.quiet_s)

    def new_job(self, **options):
        return Job(self.build, self.mode, self.folder, cable=self.cable, **options)

    def victim(self):
        """A rank's number and process; None when the run was over before."""
        launcher, place = self.draw.randrange(self.job.launchers_), self.draw.randrange(self.job.per_launcher)
        ranks = self.job.ranks(launcher)
        if len(ranks) < self.job.per_launcher:
            self.story += ", too late"
            return None
        self.story += f" rank {launcher * self.job.per_launcher + place}"
        return launcher * self.job.per_launcher + place, ranks[place]

    def ends_with(self, code, words=(), limit_s=2 * DEADLINE_S + ROOM_S):
        codes = self.job.end_within(limit_s)
        said = self.job.output()
        if "too late" in self.story or set(codes) == {0}:
            self.story += "" if "too late" in self.story else ", too late"
            return
        of_others = 3 if len(codes) > 1 else code  # a launcher whose ranks have lost those of another
        promise(code in codes and set(codes) <= {0, code, of_others}, f"ends with {codes}, not with {code}")
        for each in words:
            promise(each in said, f"does not say '{each}'")

    def broken_rank(self, which, words):
        self.start()
        victim = self.victim()
        if victim:
            try:
                os.kill(victim[1], which)
            except ProcessLookupError:
                self.story += ", too late"
            words = [each.format(rank=victim[0], pid=victim[1]) for each in words]
        self.ends_with(3, words)

    def kill_a_rank(self):
        self.broken_rank(signal.SIGKILL, ["rank {rank} (pid {pid}) was killed by SIGKILL"])

    def freeze_a_rank(self):
        self.broken_rank(signal.SIGSTOP, ["rank {rank} (pid {pid})"])

    def pause_a_rank(self):
        self.start()
        victim = self.victim()
        if victim:
            for which, then_s in [(signal.SIGSTOP, self.draw.random()), (signal.SIGCONT, 0)]:
                try:
                    os.kill(victim[1], which)
                except ProcessLookupError:
                    break
                time.sleep(then_s)
        promise(self.job.end_within(HANG_S) == [0] * self.job.launchers_, "does not wait for a rank that pauses")

    def kill_a_launcher(self):
        self.start()
        self.draw.choice(self.job.processes).kill()
        codes = self.job.end_within(2 * DEADLINE_S + ROOM_S)
        promise(set(codes) <= {0, 3, -signal.SIGKILL}, f"ends with {codes}")

    def cut(self, until):
        how = self.draw.choice(sorted(soak_cable.Cable.CUTS))
        self.story += f" ({how})"
        self.start()
        self.cable.cut(how)
        try:
            return until()
        finally:
            self.cable.put_back(how)

    def cut_cable(self):
        def is_over():  # but for the launcher of the first host, which keeps the store for those that it cannot see
            return self.job.ended() or "in good order" in self.job.said[0].read_text(errors="replace")

        def ends():
            wait_until(is_over, 2 * DEADLINE_S + ROOM_S)
            return self.ends_as_cut(self.job.end_within(GOODBYE_S + ROOM_S if is_over() else 0))

        self.cut(ends)

    def cut_cable_shortly(self):
        seconds = self.draw.uniform(0.1, DEADLINE_S)
        self.story += f" for {seconds:.1f} s"
        self.cut(lambda: time.sleep(seconds))
        codes = self.job.end_within(HANG_S)
        promise(seconds > DEADLINE_S / 3 or set(codes) == {0}, f"does not wait for a cable: ends with {codes}")
        self.ends_as_cut(codes)

    def ends_as_cut(self, codes):
        """Each host by itself: the run was over, or it names who is out of reach."""
        if set(codes) == {0}:
            self.story += ", too late" if self.story.startswith("cut ") else ""
            return
        for host, code in enumerate(codes):
            said = self.job.said[host].read_text(errors="replace")
            if code == 0:
                promise((self.folder / "runs/quick/summary.json").exists(), f"host {host} ends with 0 before the run is over")
                continue
            promise(code == 3, f"host {host} ends with {code}, not with 3")
            others = [rank for rank in range(2 * self.job.per_launcher) if rank // self.job.per_launcher != host]
            lost = [f"error: .*rank(s)? ([0-9]+, )*{each}\\b" for each in others]
            if host == 1:
                lost += ["error: .*(the store that the launcher of the first host serves|the store at )"]
            promise(any(re.search(each, said) for each in lost), f"host {host} does not name whom it has lost")

    def lose_frames(self):
        """For the rest of the run a switch drops all frames for a moment, again and again."""
        how = self.draw.choice(["dropping", "dropping one way", "dropping the other way"])
        dropped_s, passed_s = self.draw.uniform(0.01, 0.05), self.draw.uniform(0.1, 0.4)
        self.story += f" ({how}, {1000 * dropped_s:.0f} of {1000 * (dropped_s + passed_s):.0f} ms)"
        self.start()
        end = time.monotonic() + HANG_S
        while not self.job.ended() and time.monotonic() < end:
            self.cable.cut(how)
            time.sleep(dropped_s)
            self.cable.put_back(how)
            time.sleep(passed_s)
        codes = self.job.end_within(0)
        if set(codes) != {0}:  # TCP doubles its wait for each segment that is lost again: it may exceed the deadline
            promise(set(codes) <= {0, 3}, f"ends with {codes}")
            promise(0 not in codes or (self.folder / "runs/quick/summary.json").exists(), "a host ends with 0 before the run is over")
            promise("of rank " in self.job.output() and "does not carry its bytes" in self.job.output(), "does not name the link")
            self.story += ", to the deadline"

    def refuse_memory(self):
        """A rank gets no more address space: an allocation fails, or the run needs none."""
        self.start()
        victim = self.victim()
        if victim:
            spare = self.draw.randrange(0, 4 << 20)
            self.story += f" ({spare >> 10} KiB left)"
            try:
                size = int(pathlib.Path(f"/proc/{victim[1]}/statm").read_text().split()[0]) * resource.getpagesize()
                resource.prlimit(victim[1], resource.RLIMIT_AS, (size + spare, size + spare))
            except (OSError, ValueError, IndexError):
                self.story += ", too late"
        codes = self.job.end_within(HANG_S)
        if set(codes) == {0}:
            self.story += "" if "too late" in self.story else ", too late"
            return
        promise(set(codes) <= {0, 3, 70}, f"ends with {codes}")
        named = re.search(rf"error: .*rank {victim[0]}\b|\[{victim[0]}\] trireme: error: ", self.job.output())
        promise(named, f"does not name rank {victim[0]}")

    def exceed_group(self):
        """Another process fills the memory of the ranks' control group: the kernel kills some of them."""
        group = memory_group() / f"soak-{os.getpid()}-{time.monotonic_ns()}"
        group.mkdir()
        filler = None
        try:
            enter = ["bash", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
            self.start(before=enter)
            used = int((group / "memory.usage_in_bytes").read_text())
            (group / "memory.limit_in_bytes").write_text(str(used + (4 << 20)))
            fill = "import pathlib, time; pathlib.Path('/proc/self/oom_score_adj').write_text('-1000'); held = b'x' * (96 << 20); time.sleep(600)"
            filler = subprocess.Popen([*enter, sys.executable, "-c", fill], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            codes = self.job.end_within(2 * DEADLINE_S + ROOM_S)
        finally:
            if filler:
                filler.kill()
                filler.wait()
            if self.job:
                self.job.kill()
            if wait_until(lambda: not (group / "cgroup.procs").read_text(), 10):
                group.rmdir()
        if set(codes) == {0}:
            self.story += ", too late"
            return
        promise(set(codes) <= {0, 3, -signal.SIGKILL}, f"ends with {codes}")
        said = self.job.output()
        told = "was killed by SIGKILL" in said or "cannot reserve" in said or -signal.SIGKILL in codes
        promise(told, "does not say that a rank was killed, or got no memory")

    def throw_in_a_hook(self):
        place = self.draw.choice(["data", "forward", "backward", "objective", "gradients", "step", "evaluation"])
        rank = self.draw.randrange(self.job_ranks())
        call = self.draw.randrange(1, {"data": 8000, "evaluation": 4}.get(place, 240))
        kind = self.draw.choice(["data", "other"])
        self.story += f" ({place}, call {call} on rank {rank}, {kind})"
        self.start(program=str(self.build / "bin/rank_hooks"), variables={"TRIREME_TEST_THROW": f"{place} {rank} {call} {kind}"})
        wait_until(lambda: self.job.ended() or "has had enough" in self.job.output(), HANG_S)
        # Any exception of code that reads a sample is an error of the data, and any of the model is one of its user.
        code = 4 if kind == "data" or place == "data" else 2 if place in ("forward", "backward", "objective") else 70
        self.ends_with(code,
                       [f"[{rank}] rank_hooks: error: ", f"the hook of rank {rank} ({place}) has had enough"])

    def job_ranks(self):
        return MODES[self.mode][0] * MODES[self.mode][1]

    def slow_disk(self):
        seconds = self.draw.choice(["0.05", "0.2"])
        self.story += f" ({seconds} s for each fsync)"
        self.start(variables={"LD_PRELOAD": str(self.build / "bin/slow_fsync.so"), "TRIREME_TEST_FSYNC_S": seconds})
        promise(self.job.end_within(HANG_S) == [0] * self.job.launchers_, "does not wait for a slow disk")

    def full_disk(self):
        size_kib = self.draw.randrange(900, 1600)
        self.story += f" of {size_kib} KiB"
        runs = self.folder / "runs"
        kept = self.folder / "kept"
        runs.mkdir()
        kept.mkdir()
        script = 'mount -t tmpfs -o size="$1"k none "$2" || exit 99; folder=$2 keep=$3; shift 3; "$@"; code=$?; cp -a "$folder/." "$keep"; exit $code'
        self.start(before=["unshare", "--mount", "bash", "-c", script, "bash", str(size_kib), str(runs), str(kept)])
        self.ends_with(4, ["No space left on device"], HANG_S)
        runs.rmdir()
        kept.rename(runs)

    def damage_data(self):
        packed = self.folder / "packed"
        subprocess.run([self.build / "bin/trireme", "data", "pack", "synthetic", packed, "--shard-mib", "1"], check=True,
                       stdout=subprocess.DEVNULL)
        shard = self.draw.choice(sorted(packed.glob("train-*.trr")))
        whole = shard.read_bytes()
        at = self.draw.randrange(5000, len(whole) // 2)
        self.data = ["data.name=packed", f"data.path={packed}"]
        self.story += f" at {at} of {shard.name}"
        self.job = self.new_job(settings=self.data)
        time.sleep(self.draw.random() * self.quiet_s)
        with open(shard, "r+b") as file:
            file.seek(at)
            file.write(bytes(each ^ 255 for each in whole[at:at + 40]))
        self.ends_with(4, [shard.name], HANG_S)
        shard.write_bytes(whole)

    data = []

    def go_on(self):
        """To the end, with the bits of a quiet run."""
        if (self.folder / "runs/quick/summary.json").exists():
            return self.compare()
        for resume in (True, False):  # before the first checkpoint there is nothing to go on from
            self.job = self.new_job(settings=self.data, resume=resume)
            codes = self.job.end_within(HANG_S)
            if not resume or "no valid checkpoint" not in self.job.output():
                break
        promise(set(codes) == {0}, f"does not go on: ends with {codes}")
        self.compare()

    def compare(self):
        summary = self.folder / "runs/quick/summary.json"
        promise(summary.exists(), "ends without a summary.json")
        found = json.loads(summary.read_text())
        promise(found["weights_xxh3"] == self.quiet_weights, "ends with other weights than a quiet run")


FAULTS = {
    "kill": "kill_a_rank",
    "freeze": "freeze_a_rank",
    "pause": "pause_a_rank",
    "launcher": "kill_a_launcher",
    "cut": "cut_cable",
    "short-cut": "cut_cable_shortly",
    "lost-frames": "lose_frames",
    "memory": "refuse_memory",
    "group-memory": "exceed_group",
    "hook": "throw_in_a_hook",
    "slow-disk": "slow_disk",
    "full-disk": "full_disk",
    "damaged-data": "damage_data",
}


def memory_group():
    """The folder of this process's control group of memory, version 1."""
    rows = [row.split(":", 2) for row in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    return pathlib.Path("/sys/fs/cgroup/memory" + next((path for _, kind, path in rows if kind == "memory"), "/none"))


@functools.cache
def why_no_hosts():
    return soak_cable.unavailable_because()


def cable_of(mode):
    """A new one between the two hosts of the mode; None: it has one host, or hosts cannot be had."""
    return soak_cable.Cable() if MODES[mode][0] > 1 and not why_no_hosts() else None


def what_is_missing(fault, mode, build):
    """Why this machine cannot do that; None when it can."""
    if fault == "slow-disk" and not (build / "bin/slow_fsync.so").exists():
        return "slow_fsync.so is not built"
    if fault == "hook" and not (build / "bin/rank_hooks").exists():
        return "rank_hooks is not built"
    if fault == "group-memory" and not os.access(memory_group() / "cgroup.procs", os.W_OK):
        return "no control group of memory, version 1, can be made here"
    if fault in ("cut", "short-cut", "lost-frames"):
        return why_no_hosts() if MODES[mode][0] > 1 else "one host has no cable"
    if fault == "full-disk":
        if MODES[mode][0] > 1:
            return "two launchers share no file system that is mounted for one"
        with tempfile.TemporaryDirectory() as folder:
            mounts = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder], capture_output=True)
        if mounts.returncode != 0:
            return "no file system can be mounted here"
    return None


def quiet_run(build, mode, known):
    if mode not in known:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-soak-quiet-"))
        cable = cable_of(mode)
        job = Job(build, mode, folder, cable=cable)
        began = time.monotonic()
        try:
            codes = job.end_within(HANG_S)
            promise(set(codes) == {0}, f"a quiet run ends with {codes}: {job.output()[-400:]}")
            weights = json.loads((folder / "runs/quick/summary.json").read_text())["weights_xxh3"]
            known[mode] = (weights, time.monotonic() - began)
        finally:
            job.kill()
            if cable:
                cable.remove()
            shutil.rmtree(folder)
    return known[mode]


def names_of(table, given, what):
    names = given.split(",")
    for each in names:
        if each not in table:
            sys.exit(f"there is no {what} {each}; there are {', '.join(table)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="no round begins later")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10**9)
    parser.add_argument("--only", type=int)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    options = parser.parse_args()
    modes = names_of(MODES, options.modes, "mode")
    faults = names_of(FAULTS, options.faults, "fault")
    build = options.build.resolve()
    if not (build / "bin/trireme").exists():
        sys.exit(f"{build}/bin/trireme is not there; build it with: make build")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end = time.monotonic() + 60 * options.minutes
    quiet, injected, broken, skipped = {}, 0, [], set()
    number = -1
    while number + 1 < options.rounds and time.monotonic() < end:
        number += 1
        if options.only is not None:
            number = options.only
        draw = random.Random(f"{options.seed}/{number}")
        mode, fault = draw.choice(modes), draw.choice(faults)
        missing = what_is_missing(fault, mode, build)
        if missing:
            skipped.add(f"{fault} in {mode}: {missing}")
        else:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-soak-"))
            began = time.monotonic()
            try:
                done = Round(build, mode, fault, draw, folder, quiet_run(build, mode, quiet))
                injected += "too late" not in done.story
                print(f"{number}: {mode}: {done.story}: survived, {time.monotonic() - began:.1f} s", flush=True)
                shutil.rmtree(folder)
            except KeyboardInterrupt:
                shutil.rmtree(folder)
                print(f"{number}: {mode}: {fault}: interrupted", flush=True)
                return 130
            except Broken as error:
                injected += 1
                broken.append(number)
                print(f"{number}: {mode}: {fault}: {error}; see {folder}", flush=True)
        if options.only is not None:
            break
    for each in sorted(skipped):
        print(f"skipped: {each}")
    for each in broken:
        print(f"not survived: --seed {options.seed} --only {each}")
    print(f"{injected} faults injected, {injected - len(broken)} survived")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
