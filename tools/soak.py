#!/usr/bin/env python3
"""Breaks running trainings at random and says how they ended.

    tools/random_faults.py [--seed N] [--rounds N] [--modes NAME,...] [--build FOLDER]

Each round starts examples/quick.toml in one of the modes below, waits until it trains, and kills a rank (SIGKILL),
freezes one (SIGSTOP) or kills the launcher. What is promised: everything ends by the deadline, the victim is named
with its process id, and no process is left. A round that broke the promise keeps its folder, which is said, and the
exit code is 1. A seed names the same faults, not the same moments.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PIPEDREAM = ["parallel.pipeline=2", "parallel.schedule=pipedream", "train.accumulation=1"]
MODES = {  # ranks, settings
    "dp2": (2, []),
    "dp4": (4, []),
    "gloo2": (2, ["comm.backend=gloo"]),
    "gloo3": (3, ["comm.backend=gloo"]),
    "zero1": (2, ["parallel.zero=1"]),
    "zero3": (3, ["parallel.zero=3"]),
    "zero3-gloo": (2, ["parallel.zero=3", "comm.backend=gloo"]),
    "pp2": (2, ["parallel.pipeline=2"]),
    "dp2pp2": (4, ["parallel.pipeline=2"]),
    "pipedream": (2, PIPEDREAM),
    "pipedream-gloo": (2, PIPEDREAM + ["comm.backend=gloo"]),
}
DEADLINE_S = 4  # comm.timeout_s
HANG_S = 60
START_S = 60


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
        time.sleep(0.05)
    return met()


def break_one(program, mode, draw, folder):
    """What became of the round, and whether it was as promised."""
    num_ranks, settings = MODES[mode]
    command = [str(program), "train", str(ROOT / "examples/quick.toml"), "-n", str(num_ranks)]
    for setting in [f"run.folder={folder}", "train.epochs=100000", f"comm.timeout_s={DEADLINE_S}", *settings]:
        command += ["--set", setting]
    out, err = folder / "out", folder / "err"
    with open(out, "w") as to_out, open(err, "w") as to_err:
        launcher = subprocess.Popen(command, stdout=to_out, stderr=to_err)
    ranks = []
    try:
        trains = lambda: launcher.poll() is not None or "step 50" in out.read_text() + err.read_text()
        if not wait_until(trains, START_S) or launcher.poll() is not None:
            return f"did not start: {err.read_text()[-300:]}", False
        time.sleep(draw.random())
        children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
        ranks = [int(pid) for pid in children.split()]
        fault, victim = draw.choice(["killed", "frozen", "launcher killed"]), draw.randrange(num_ranks)
        began = time.monotonic()
        if fault == "launcher killed":
            launcher.kill()
        else:
            os.kill(ranks[victim], signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        ended = wait_until(lambda: launcher.poll() is not None, HANG_S)
        gone = wait_until(lambda: not any(is_alive(pid) for pid in ranks), HANG_S)
        named = fault == "launcher killed" or f"rank {victim} (pid {ranks[victim]})" in err.read_text()
        what = fault if fault == "launcher killed" else f"rank {victim} {fault}"
        faults = [text for text, found in [("hangs", not ended), ("left processes", not gone),
                                           ("did not name the victim", not named)] if found]
        return f"{what}: {', '.join(faults) or 'ended as promised'} after {time.monotonic() - began:.1f} s", not faults
    finally:
        for pid in [launcher.pid, *ranks]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    options = parser.parse_args()
    modes = options.modes.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        sys.exit(f"there is no mode {unknown[0]}; there are {', '.join(MODES)}")
    program = options.build / "bin/trireme"
    if not program.exists():
        sys.exit(f"{program} is not there; build it with: make build")
    draw = random.Random(options.seed)
    broken = 0
    for number in range(options.rounds):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="trireme-fault-"))
        mode = draw.choice(modes)
        story, kept = break_one(program, mode, draw, folder)
        print(f"{number}: {mode}: {story}" + ("" if kept else f"; see {folder}"), flush=True)
        broken += not kept
        if kept:
            shutil.rmtree(folder)
    print(f"{options.rounds - broken} of {options.rounds} ended as promised")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
