#!/usr/bin/env python3
"""How long does a run stand still after a rank is killed, and how many steps are lost? For replicas, ZeRO 3 and a
pipeline: a restart of all ranks from the latest checkpoint, and an elastic job that continues with a spare, a new process,
or fewer ranks.

    bench/elastic.py [--ranks 8] [--repeats 5] [--hidden 512] [--only STATE]
    bench/elastic.py --leader [--repeats 5]
    bench/elastic.py --goodput 10 [--every 120] [--ranks 4]

Seconds are from the kill to the report of the next new step, by the clock of this script. Steps lost are those that the
run computes again: reported before the kill, or under way, without the one that was under way. The median and the range
of REPEATS kills of a rank drawn at random. Each row also has the time of a step without and with copies in memory.

With --leader the launcher that leads is killed with its two ranks, of three launchers on this machine; etcd has to be installed.

With --goodput a random rank is killed every EVERY seconds, for that many minutes. Shares of the wall time are those of the
run's summary.json.
"""
import argparse
import json
import os
import pathlib
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import local_etcd  # noqa: E402
TRIREME = pathlib.Path(os.environ.get("TRIREME_BUILD", ROOT / "build/release")) / "bin/trireme"
MODES = {
    "replicas": ([], []),
    "ZeRO 3": (["parallel.zero=3"], ["checkpoint.in_memory_every_steps=1"]),
    "pipeline of 2 ranks, replicated": (["parallel.pipeline=2", "parallel.microbatches=4"], ["checkpoint.in_memory_every_steps=1"]),
    "pipeline of all ranks": (["parallel.pipeline=RANKS", "model.hidden=LAYERS"], ["checkpoint.in_memory_every_steps=1"]),
}
WAYS = {
    "restart of all ranks": (["--max-restarts", "1"], ["checkpoint.every_steps=50"]),
    "elastic, spare": (["--elastic", "--spares", "1"], None),
    "elastic, new process": (["--elastic", "--max-restarts", "1"], None),
    "elastic, fewer ranks": (["--elastic", "--min-ranks", "1"], None),
}


def settings(pairs):
    return [word for pair in pairs for word in ("--set", pair)]


def start(folder, ranks, options, keys, steps):
    command = [TRIREME, "train", ROOT / "examples/quick.toml", "-n", str(ranks), *options, *settings([
        f"run.folder={folder}", "run.name=run", "run.log_every_steps=1", "train.accumulation=1", "train.global_batch=64", "eval.every_steps=1000000",
        "checkpoint.every_steps=0", "train.epochs=100000", f"train.max_steps={steps}", *keys])]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ranks_of(launcher):
    """Processes of the ranks, without spares and servers."""
    found = []
    for pid in subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True).stdout.split():
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if not any(each.startswith(b"TRIREME_SPARE=") for each in variables):
            found.append(int(pid))
    return found


def kill_once(folder, ranks, options, keys, draw):
    """Seconds of the pause, and steps that are computed again."""
    launcher = start(folder, ranks, options, keys, steps=1000000)
    told, killed, last, first = [], None, 0, None
    for line in launcher.stdout:
        told.append(line)
        began = re.search(r"(?:training|resuming) .*: steps ([0-9]+) to", line)
        step = re.search(r"^\[0\] step ([0-9]+)/.*samples/s", line)
        if began and killed:
            first = int(began[1])
        if not step:
            continue
        if killed and first is not None and int(step[1]) >= first:
            pause = time.monotonic() - killed
            break
        if killed is None and int(step[1]) >= 120:
            # What the launcher has printed may lag.
            last = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])["step"]
            os.kill(draw.choice(ranks_of(launcher)), signal.SIGKILL)
            killed = time.monotonic()
    else:
        sys.exit("".join(told[-30:]))
    launcher.send_signal(signal.SIGINT)
    launcher.send_signal(signal.SIGINT)
    launcher.kill()
    launcher.wait()
    # The report of a step comes during the next one.
    return pause, max(0, last + 1 - first)


def step_ms(folder, ranks, options, keys):
    launcher = start(folder, ranks, options, keys, steps=400)
    out, _ = launcher.communicate()
    rate = re.search(r"completed after .*, ([0-9]+) samples/s", out)
    return 64 / float(rate[1]) * 1000 if rate else sys.exit(out)


def kill_leader(folder, etcd, keys):
    """Seconds from the kill of the leading launcher to the next step, and steps that are computed again."""
    secret = folder / "secret"
    secret.write_text("a secret that is long enough for anybody")
    secret.chmod(0o600)
    lines, launchers = queue.Queue(), []

    def read(launcher):
        for line in launcher.stdout:
            lines.put(line)

    for host in range(3):
        command = [TRIREME, "launch", "-n", "2", "--nnodes", "1:3", "--elastic", "--rendezvous", f"{etcd}/{folder.name}", "--join-wait", "20",
                   "--secret-file", secret, "--", TRIREME, "train", ROOT / "examples/quick.toml",
                   *settings([f"run.folder={folder}", "run.name=run", "run.log_every_steps=1", "train.accumulation=1", "train.global_batch=48",
                              "eval.every_steps=1000000", "checkpoint.every_steps=0", "train.epochs=100000", *keys])]
        launchers.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                          env={**os.environ, "TRIREME_HOST_ID": f"host{host}", "OMP_NUM_THREADS": "1"}))
        threading.Thread(target=read, args=(launchers[-1],), daemon=True).start()
        while f"host {host} has joined" not in lines.get(timeout=60):  # the first one leads
            pass
    killed, first = None, None
    while True:
        line = lines.get(timeout=60)
        began = re.search(r"(?:training|resuming) .*: steps ([0-9]+) to", line)
        step = re.search(r"^\[0\] step ([0-9]+)/.*samples/s", line)
        if began and killed:
            first = int(began[1])
        if step and killed is None and int(step[1]) >= 120:
            last = json.loads((folder / "run/metrics.jsonl").read_text().splitlines()[-1])["step"]
            launchers[0].kill()
            killed = time.monotonic()
        elif step and first is not None and int(step[1]) >= first:
            break
    pause = time.monotonic() - killed
    for launcher in launchers:
        launcher.kill()
        launcher.wait()
    return pause, max(0, last + 1 - first)


def print_leader(arguments):
    print("| state | from the kill of the leader to the next step, s | steps lost |")
    print("| --- | ---: | ---: |")
    with local_etcd.serve() as etcd:
        for mode in ("replicas", "ZeRO 3"):
            keys = [key for part in MODES[mode] for key in part] + [f"model.hidden={[arguments.hidden] * 2}"]
            found = []
            for _ in range(arguments.repeats):
                with tempfile.TemporaryDirectory() as temporary:
                    found.append(kill_leader(pathlib.Path(temporary), etcd, keys))
            print(f"| {mode} | {spread([pause for pause, _ in found], '.2f')} | {spread([lost for _, lost in found], '.0f')} |", flush=True)


def goodput(folder, ranks, options, keys, minutes, every, draw):
    """The summary of a run that loses a rank every `every` seconds, and the number of kills."""
    command = start(folder, ranks, options, keys, steps=100000000)
    kills, end = 0, time.monotonic() + 60 * minutes
    # What it prints is read, so that its pipe does not fill.
    reader = threading.Thread(target=command.stdout.read, daemon=True)
    reader.start()
    while (left := end - time.monotonic()) > every:
        time.sleep(every)
        os.kill(draw.choice(ranks_of(command)), signal.SIGKILL)
        kills += 1
    time.sleep(left)
    command.send_signal(signal.SIGINT)
    command.wait()
    return json.loads((folder / "run/summary.json").read_text()), kills


def print_goodput(arguments, draw):
    shares = ["", "_data_wait", "_saving", "_evaluation", "_lost", "_starting", "_recovering"]
    print("| way | kills | steps lost | training | data wait | saving | evaluation | lost steps | starting | recovering |")
    print("| --- |" + " ---: |" * 9)
    for way, options, keys in [
            ("restart of all ranks", ["--max-restarts", "1000"], ["checkpoint.interval=auto"]),
            ("elastic, new process", ["--elastic", "--max-restarts", "1000"], ["checkpoint.interval=auto", "checkpoint.in_memory_every_steps=1"])]:
        with tempfile.TemporaryDirectory() as temporary:
            keys = [*keys, f"checkpoint.mean_time_between_failures_s={arguments.every}", "parallel.zero=3",
                    f"model.hidden={[arguments.hidden] * 2}"]
            summary, kills = goodput(pathlib.Path(temporary), arguments.ranks, options, keys, arguments.goodput, arguments.every, draw)
        cells = [f"{100 * summary['goodput' + share]:.1f} %" for share in shares]
        print(f"| {way} | {kills} | {summary['lost_steps']:.0f} | {' | '.join(cells)} |", flush=True)


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--leader", action="store_true")
    parser.add_argument("--goodput", type=float, default=0, metavar="MINUTES")
    parser.add_argument("--every", type=float, default=120, help="seconds between kills (with --goodput)")
    parser.add_argument("--only", default="", help="rows whose state contains this")
    arguments = parser.parse_args()
    draw = random.Random(1)
    if arguments.leader:
        return print_leader(arguments)
    if arguments.goodput:
        return print_goodput(arguments, draw)
    print("| state | way | from the kill to the next step, s | steps lost | step, ms |")
    print("| --- | --- | ---: | ---: | ---: |")
    for mode, (keys, in_memory) in MODES.items():
        if arguments.only not in mode:
            continue
        layers = [arguments.hidden] * (arguments.ranks if "all ranks" in mode else 2)
        keys = [key.replace("RANKS", str(arguments.ranks)).replace("LAYERS", str(layers)) for key in keys]
        if not any(key.startswith("model.hidden") for key in keys):
            keys = [*keys, f"model.hidden={layers}"]
        for way, (options, own) in WAYS.items():
            if way == "elastic, fewer ranks" and "all ranks" in mode:
                continue  # as many stages as ranks
            more = own if own is not None else in_memory
            with tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(temporary)
                found = [kill_once(folder, arguments.ranks, options, [*keys, *more], draw) for _ in range(arguments.repeats)]
                step = step_ms(folder, arguments.ranks, options, [*keys, *more])
            print(f"| {mode} | {way} | {spread([pause for pause, _ in found], '.2f')} | {spread([lost for _, lost in found], '.0f')} | {step:.2f} |", flush=True)


if __name__ == "__main__":
    main()
