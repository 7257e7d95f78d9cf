#!/usr/bin/env python3
"""Tries the project out on one GPU, in at most six minutes, and measures it beside PyTorch.

    gpu_check [--device cuda|stand_in|cpu] [--only SECTION...] [--short] [--budget SECONDS] [--out FOLDER]

Part of the folder that tools/gpu_bundle.sh makes. Needs a Python with torch, whose libtorch the programs take; no network.
Sections run in the order of their worth, each within its own time limit:

    device    the GPU, its driver, torch, `trireme doctor`
    tests     nccl with one rank; operations of groups whose ranks share the GPU
    modes     the table of modes: data, pipeline, tensor and context parallelism, ZeRO 1 to 3, bf16, fp16, offload
    verify    gpt and resnet18 on two ranks against one rank, in fp32, bf16 and fp16
    resume    a run killed by SIGKILL and resumed, beside one that was not disturbed
    figures   training steps beside PyTorch's, share of the measured peak, idle share, offload, a pipeline of two stages

Each result is one line of JSON on stdout and in FOLDER/gpu_check.jsonl, written at once: a check that is cut off has told
what it found. Output of the programs is in FOLDER/SECTION.log. Exit code: 0 if all that ran was right, 1 if something
failed, 2 if the folder cannot be used here.

--device stand_in and cpu try the script itself without a GPU; --short takes small models and few steps.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent
BIN = ROOT / "bin"
EXAMPLES = ROOT / "checkout" / "examples"
TEXT = ROOT / "checkout" / "LICENSE"
TABLES = {"cuda": "TableOnGpu", "stand_in": "TableOnStandIn", "cpu": "Table"}
BUDGET_S = 360  # for which the limits of the sections are
SECONDS = {"device": 25, "tests": 40, "modes": 100, "verify": 60, "resume": 35, "figures": 140}


class Check:
    """What a section has: the options, its log, the time that is left to it, and where its results go."""

    def __init__(self, options, results, section, seconds):
        self.options, self.results, self.section = options, results, section
        self.end = time.monotonic() + seconds
        self.log = open(options.out / f"{section}.log", "w")

    def left(self, most=1e9):
        return max(1.0, min(most, self.end - time.monotonic()))

    def is_over(self):
        return time.monotonic() >= self.end

    def tell(self, what, ok=None, **values):
        record = {"section": self.section, "what": what, **({} if ok is None else {"ok": bool(ok)}), **values}
        self.results.add(record)
        return ok

    def environment(self):
        environment = dict(os.environ, TRIREME_TEST_BUNDLE=str(ROOT), XDG_CACHE_HOME=str(self.options.out / "cache"))
        if self.options.device == "stand_in":
            environment["LD_PRELOAD"] = str(BIN / "stand_in_device.so")
        return environment

    def start(self, command, **options):
        """A process in a process group of its own, so that what it has started ends with it."""
        self.log.write(f"$ {' '.join(map(str, command))}\n")
        self.log.flush()
        return subprocess.Popen([str(word) for word in command], cwd=self.options.work, env=self.environment(), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **options)

    def finish(self, process, most=1e9):
        """(exit code, output); the exit code is "timeout" where the time was over."""
        try:
            output, _ = process.communicate(timeout=self.left(most))
            code = process.returncode
        except subprocess.TimeoutExpired:
            end_group(process)
            output, _ = process.communicate()
            code = "timeout"
        self.log.write(f"{output}\nexit code {code}\n")
        self.log.flush()
        return code, output

    def run(self, *command, most=1e9):
        begin = time.monotonic()
        code, output = self.finish(self.start(command), most)
        return code, output, round(time.monotonic() - begin, 1)

    def train(self, name, *settings, ranks=1, example="quick.toml", words=(), most=60):
        """(exit code, output, seconds, summary) of a run in the folder of work."""
        command = [BIN / "trireme", "train", EXAMPLES / example, "-n", ranks, *words]
        for setting in (f"run.name={name}", "run.folder=runs", *self.on_device(ranks), *settings):
            command += ["--set", setting]
        code, output, seconds = self.run(*command, most=most)
        return code, output, seconds, self.summary(name)

    def on_device(self, ranks):
        """Ranks share the one GPU by way of the host's memory: nccl takes one rank for each GPU."""
        return [f"train.device={self.options.device}"] + (["comm.backend=shm"] if ranks > 1 else [])

    def graphs(self):
        """Other devices have none: with "auto" layers run as they are there."""
        return f"train.graph={'on' if self.options.device == 'cuda' else 'auto'}"

    def summary(self, name):
        path = self.options.work / "runs" / name / "summary.json"
        return json.loads(path.read_text()) if path.exists() else {}


class Results:
    def __init__(self, path):
        self.file, self.failures, self.lock = open(path, "w"), 0, threading.Lock()

    def add(self, record):
        line = json.dumps(record)
        with self.lock:
            self.failures += record.get("ok") is False
            print(line, flush=True)
            self.file.write(line + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def tail(output, lines=4):
    return [line[:300] for line in output.strip().splitlines()[-lines:]]


# Sections.

def device(check):
    code, output, _ = check.run("nvidia-smi", "--query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit",
                                "--format=csv,noheader", most=10) if check.options.device == "cuda" else (0, "none", 0)
    check.tell("gpu", code == 0, gpu=output.strip(), cores=os.cpu_count(), commit=(ROOT / "commit").read_text().strip())
    code, output, _ = check.run(sys.executable, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())", most=20)
    check.tell("torch of this Python", found=tail(output, 1))
    code, output, seconds = check.run(BIN / "trireme", "doctor", most=20)
    lines = [line for line in output.splitlines() if re.search("gpu|nccl|cuda|libtorch|shm", line, re.I)]
    check.tell("doctor", code == 0, seconds=seconds, lines=[line[:200] for line in lines[:12]])


def tests(check):
    code, output, seconds = check.run(BIN / "gpu")
    report_tests(check, "gpu tests", [output], code == 0, seconds)


def report_tests(check, what, outputs, ended, seconds):
    found = "\n".join(outputs)
    passed = set(re.findall(r"^\[       OK \] (\S+)", found, re.M))
    skipped = set(re.findall(r"^\[  SKIPPED \] (\S+)", found, re.M))
    failed = set(re.findall(r"^\[  FAILED  \] ([^\s,]+/?[^\s,]*)", found, re.M)) - {str(n) for n in range(1000)}
    wanted = check.options.device == "cuda"
    check.tell(what, ended and not failed and (passed or not wanted) and not (skipped and wanted), seconds=seconds,
               passed=len(passed), skipped=len(skipped), failed=sorted(failed))


def modes(check):
    table = TABLES[check.options.device]
    filters = f"{table}/*" if not check.options.short else f"{table}/*Dp2*:{table}/*Pp2*"
    shards = max(1, min(12, os.cpu_count() * 3 // 4))
    begin = time.monotonic()
    processes = []
    for shard in range(shards):
        words = ["env", f"GTEST_TOTAL_SHARDS={shards}", f"GTEST_SHARD_INDEX={shard}", BIN / "multiproc", f"--gtest_filter={filters}"]
        processes.append(check.start(words))
    # Each reads its own: a full pipe would stop a program.
    answers = [None] * shards

    def collect(number):
        answers[number] = check.finish(processes[number])

    readers = [threading.Thread(target=collect, args=(number,)) for number in range(shards)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    report_tests(check, "table of modes", [output for _, output in answers], all(code == 0 for code, _ in answers),
                 round(time.monotonic() - begin, 1))


def verify(check):
    small = ["model.layers=2", "model.width=64", "train.global_batch=8", "data.name=text", f"data.path={TEXT}"]
    images = ["data.name=synthetic", f"train.global_batch={8 if check.options.short else 32}"]  # a processor's fp16 is slow
    cases = [("gpt", "gpt_char.toml", small), ("resnet18", "resnet18.toml", images)]
    for model, example, settings in cases:
        for way, more in (("fp32", []), ("bf16", []), ("fp16", ["scaler.initial=1024"]), ("bf16 graphs", [check.graphs()])):
            if check.is_over():
                check.tell(f"{model} {way}", skipped="the time of the section is over")
                continue
            # From the fourth step on layers are replayed.
            command = [BIN / "trireme", "verify", EXAMPLES / example, "-n", 2, "--steps", 6 if "graphs" in way else 2]
            for setting in [*check.on_device(2), *settings, f"train.precision={way.split()[0]}", *more]:
                command += ["--set", setting]
            code, output, seconds = check.run(*command, most=30)
            check.tell(f"{model} {way}", code == 0, seconds=seconds, verdict=tail(output, 3))


def resume(check):
    settings = ["train.max_steps=120", "train.epochs=50", "checkpoint.every_steps=20", "run.log_every_steps=1", "eval.every_steps=100000"]
    code, output, seconds, whole = check.train("whole", *settings, ranks=2, most=20)
    check.tell("undisturbed", code == 0, seconds=seconds, loss=whole.get("train_loss"), said=tail(output, 1))
    command = [BIN / "trireme", "train", EXAMPLES / "quick.toml", "-n", 2]
    for setting in ["run.name=killed", "run.folder=runs", *check.on_device(2), *settings]:
        command += ["--set", setting]
    process = check.start(command)
    folder = check.options.work / "runs" / "killed"
    while process.poll() is None and not check.is_over() and not list(folder.glob("checkpoints/step-*40*")):
        time.sleep(0.01)
    end_group(process)  # the launcher and its ranks
    check.finish(process, 5)
    saved = sorted(path.name for path in folder.glob("checkpoints/step-*"))
    code, output, seconds = check.run(*command, "--resume", most=20)
    resumed = check.summary("killed")
    loss, other = whole.get("train_loss"), resumed.get("train_loss")
    near = bool(loss and other and abs(loss - other) <= 1e-4 * abs(loss))
    check.tell("killed and resumed", code == 0 and near, seconds=seconds, loss=other, checkpoints=saved,
               same_bits=whole.get("weights_xxh3") == resumed.get("weights_xxh3"), said=tail(output, 1))


class Utilisation:
    """Percent of the time in which the GPU ran something, sampled by the driver, over the life of a with statement."""

    def __init__(self, check):
        self.check, self.samples, self.process = check, [], None

    def __enter__(self):
        if self.check.options.device == "cuda":
            self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=utilization.gpu,power.draw,memory.used", "--format=csv,noheader,nounits", "-lms", "100"],
                                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.terminate()
        for line in self.process.communicate()[0].splitlines():
            values = re.findall(r"[\d.]+", line)
            if len(values) == 3:
                self.samples.append([float(value) for value in values])

    def fields(self):
        busy = [sample for sample in self.samples if sample[0] > 0]
        if not busy:
            return {}
        # Starting up is not training: the busiest half.
        busy = sorted(busy)[len(busy) // 2:]
        middle = [statistics.median(column) for column in zip(*busy)]
        return {"idle_share": round(1 - middle[0] / 100, 3), "watts": middle[1], "memory_mib": max(s[2] for s in busy)}


def last_json(output):
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


PEAK = """
import sys, time, torch
n, device = int(sys.argv[1]), sys.argv[2]
a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
for _ in range(3): a @ b
wait(); begin = time.perf_counter()
for _ in range(10): a @ b
wait(); product = 2 * n ** 3 * 10 / (time.perf_counter() - begin)
host = torch.empty(n * n * 2, dtype=torch.uint8, pin_memory=device == "cuda"); there = torch.empty_like(host, device=device)
there.copy_(host); wait(); begin = time.perf_counter()
for _ in range(10): there.copy_(host, non_blocking=True)
wait()
import json; print(json.dumps({"product_flops": product, "link_bytes_per_s": host.numel() * 10 / (time.perf_counter() - begin)}))
"""

# Multiplications and additions of a sample, forward and backward: for gpt 6 N a token and attention's 12 L w T
# (Kaplan et al., arXiv 2001.08361; Megatron-LM, arXiv 2104.04473); for ResNet-50 three forwards of 4.1 G multiply-adds (He et al., arXiv 1512.03385).
GPT_TOKENS = 1024
FLOPS_OF_SAMPLE = {"gpt124": GPT_TOKENS * (6 * 123.6e6 + 12 * 12 * 768 * GPT_TOKENS), "resnet50_224": 3 * 2 * 4.1e9}


def figures(check):
    short, place = check.options.short, check.options.device
    # PyTorch has neither the stand-in nor, where only its folder is, itself.
    has_peer = place != "stand_in" and check.run(sys.executable, "-c", "import torch", most=30)[0] == 0
    peak = {}
    if has_peer:
        code, output, _ = check.run(sys.executable, "-c", PEAK, 8192 if not short else 512, place, most=25)
        peak = last_json(output)
        check.tell("peak of a bf16 product, and the link to pinned memory", code == 0, **peak)
    works = [("gpt124", ["--optimizer", "adamw"], [], 20), ("resnet50_224", ["--memory-format", "channels_last"], ["--channels-last"], 20)]
    if short:
        works = [("mlp", [], [], 3)]
    for model, ours_only, theirs_only, steps in works:
        both = ["--model", model, "--precision", "bf16", "--steps", steps]
        if "adamw" in ours_only:
            theirs_only = ["--optimizer", "adamw"]
        ways = {"plain": [BIN / "bench_training_step", *both, *ours_only, "--device", place, "--plain"],
                "data parallel": [BIN / "bench_training_step", *both, *ours_only, "--device", place],
                "zero 3": [BIN / "bench_training_step", *both, *ours_only, "--device", place, "--zero", 3]}
        if has_peer:
            peer = [sys.executable, ROOT / "peers" / "training_step.py", *both, *theirs_only, "--device", place]
            ways.update({"PyTorch": peer, "PyTorch DDP": [*peer, "--ddp"]})
        measured = {}
        # The systems alternate, so that a clock that changes changes all of them.
        for turn in range(1 if short else 2):
            for way, command in ways.items():
                if check.is_over():
                    continue
                with Utilisation(check) as utilisation:
                    code, output, _ = check.run(*command, most=40)
                found = last_json(output)
                if code != 0 or "samples_per_s" not in found:
                    check.tell(f"{model}: {way}", False, code=code, said=tail(output))
                    continue
                measured.setdefault(way, []).append(found["samples_per_s"])
                share = found["samples_per_s"] * FLOPS_OF_SAMPLE[model] / peak["product_flops"] if peak and model in FLOPS_OF_SAMPLE else None
                check.tell(f"{model}: {way}", samples_per_s=round(found["samples_per_s"], 1), step_ms=round(found["step_ms"], 3),
                           share_of_measured_peak=share and round(share, 3), turn=turn, **utilisation.fields())
        for way, peer in (("plain", "PyTorch"), ("data parallel", "PyTorch DDP")):
            if way in measured and peer in measured:
                ratio = statistics.median(measured[way]) / statistics.median(measured[peer])
                check.tell(f"{model}: {way} over {peer}", ratio=round(ratio, 3))
    shape = ["model.layers=12", "model.heads=12", "model.width=768", "data.block=1024"] if not short else ["model.layers=2", "data.block=32"]
    shared = [f"data.path={TEXT}", *shape, "train.global_batch=8", f"train.max_steps={30 if not short else 4}", "lr.schedule=constant",
              "lr.warmup_steps=0", "lr.decay_steps=0", "eval.every_steps=100000", "train.precision=bf16", "run.log_every_steps=5"]
    cases = [("trainer", 1, []), ("trainer with graphs", 1, [check.graphs()]), ("optimizer state in pinned memory", 1, ["offload.optimizer=host"]),
             ("two stages on one device", 2, ["parallel.pipeline=2", "parallel.partition=parameters"])]
    if place == "cpu":  # the host's memory is its own
        cases = [case for case in cases if "pinned" not in case[0]]
    for name, ranks, settings in cases:
        if check.is_over():
            check.tell(f"gpt: {name}", skipped="the time of the section is over")
            continue
        with Utilisation(check) as utilisation:
            code, output, seconds, summary = check.train(name.replace(" ", "_"), *shared, *settings, ranks=ranks, example="gpt_char.toml", most=40)
        moved = {}
        if summary.get("offloaded_bytes") and summary.get("samples_per_s"):
            # The state comes and goes once in each step of 8 samples, while the device computes.
            moved = {"copied_bytes_per_s": 2 * summary["offloaded_bytes"] * summary["samples_per_s"] / 8}
        check.tell(f"gpt: {name}", code == 0, samples_per_s=summary.get("samples_per_s"), seconds=seconds, said=tail(output, 2), **moved,
                   **utilisation.fields())


# The whole.

def link_torch():
    """The programs look for libtorch in lib/trireme/torch; returns why they cannot find it."""
    spec = importlib.util.find_spec("torch")
    link = ROOT / "lib" / "trireme" / "torch"
    if spec is None:
        return None if link.exists() else f"{sys.executable} has no torch; run this script with a Python that has it"
    if not link.exists() or os.path.realpath(link) != os.path.realpath(spec.submodule_search_locations[0]):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(spec.submodule_search_locations[0])
    answer = subprocess.run([BIN / "trireme-torch", "--version"], capture_output=True, text=True)
    return None if answer.returncode == 0 else f"the programs do not start here: {answer.stderr.strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(TABLES), default="cuda")
    parser.add_argument("--only", nargs="+", choices=list(SECONDS), default=list(SECONDS))
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS")
    parser.add_argument("--out", type=pathlib.Path, default=os.environ.get("OUT", "gpu_check_results"))
    options = parser.parse_args()
    if (reason := link_torch()) is not None:
        print(f"gpu_check: {reason}", file=sys.stderr)
        return 2
    options.out = pathlib.Path(options.out).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    results, begin = Results(options.out / "gpu_check.jsonl"), time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        options.work = pathlib.Path(work)
        for name in options.only:
            left = options.budget - (time.monotonic() - begin)
            if left < 5:
                results.add({"section": name, "what": "section", "skipped": "the budget is spent"})
                continue
            started = time.monotonic()
            limit_s = SECONDS[name] * options.budget / BUDGET_S
            check = Check(options, results, name, min(left, limit_s))
            try:
                globals()[name](check)
            except Exception as error:  # the other sections still tell something
                check.tell("section", False, error=f"{type(error).__name__}: {error}")
            check.tell("section", seconds=round(time.monotonic() - started, 1), limit_s=limit_s)
    results.add({"section": "all", "what": "all", "ok": results.failures == 0, "failures": results.failures,
                 "seconds": round(time.monotonic() - begin, 1)})
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
