#!/usr/bin/env python3
"""The recipes of docs/recipes say what the programs take, and name only what is there.

    recipes_test.py TRIREME        the program that the recipes start

The manifests are compared part with part, and with the schemas of Kubernetes, which the set-up fetches. The Slurm script runs, with stand-ins for srun and scontrol that start everything here.
"""
import copy
import json
import os
import pathlib
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs/recipes"
MANIFEST = RECIPES / "parameter-server.yaml"
SCRIPT = RECIPES / "parameter-server.slurm"
TRAIN = RECIPES / "train.slurm"
TRAIN_MANIFEST = RECIPES / "train.yaml"
TRIREME = ""
VERSIONS = {"Service": "v1", "PersistentVolumeClaim": "v1", "ConfigMap": "v1", "StatefulSet": "apps/v1", "PodDisruptionBudget": "policy/v1",
            "Job": "batch/v1"}

KINDS = {"Service": "io.k8s.api.core.v1.Service", "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
         "ConfigMap": "io.k8s.api.core.v1.ConfigMap", "StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
         "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget", "Job": "io.k8s.api.batch.v1.Job"}
VERSION = re.search(r"^KUBERNETES_VALIDATE_VERSION=(.*)$", (ROOT / "tools/versions.sh").read_text(), re.M)[1]
SCHEMAS = ROOT / f".deps/kubernetes-validate-{VERSION}/definitions-1.27.json"
DEFINITIONS = json.loads(SCHEMAS.read_text())["$defs"] if SCHEMAS.exists() else {}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}

SRUN = r"""#!/usr/bin/env bash
tasks=1 output=/dev/stdout
while [[ ${1:-} == --* ]]; do
  case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --output=*) output=${1#*=} ;;
  esac
  shift
done
for ((i = 0; i < tasks; ++i)); do SLURM_PROCID=$i "$@" >>"$output" 2>&1 & done
trap 'kill -KILL $(jobs -p)' EXIT
wait
"""


def name_of(schema):
    return schema["$ref"].rpartition("/")[2]


def references(schema):
    """The names of definitions that one speaks of."""
    return {each.rpartition("/")[2] for each in re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema))}


def is_of(value, name):
    """Whether it is of a type of JSON schema: true is no number."""
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def faults(value, schema, where):
    """What of a value its schema does not allow: the words of JSON schema that the definitions use, and no others."""
    if "$ref" in schema:
        yield from faults(value, DEFINITIONS[name_of(schema)], where)
    types = schema.get("type", list(TYPES))
    if not any(is_of(value, each) for each in ([types] if isinstance(types, str) else types)):
        yield f"{where} is {value!r}; expected {types}"
        return
    if "oneOf" in schema and all(any(faults(value, each, where)) for each in schema["oneOf"]):
        yield f"{where} is {value!r}, which is none of {schema['oneOf']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} is {value!r}; expected one of {schema['enum']}"
    if schema.get("format") in ("int32", "int64") and is_of(value, "integer") and abs(value) >= 1 << int(schema["format"][3:]) - 1:
        yield f"{where} is {value}, which is no {schema['format']}"
    if isinstance(value, list):
        for i, each in enumerate(value):
            yield from faults(each, schema.get("items", {}), f"{where}[{i}]")
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        yield from (f"{where} has no {name}" for name in schema.get("required", []) if name not in value)
        for name, each in value.items():
            if name not in properties and others is False:
                yield f"{where} has {name}, which is not there: {', '.join(sorted(properties))}"
            else:
                yield from faults(each, properties.get(name, others or {}), f"{where}.{name}")


def options_of(command):
    text = subprocess.run([TRIREME, command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z-]*", text))


def free_ports():
    """Two, one after the other, that no outgoing connection gets before somebody listens there."""
    while True:
        port = random.randrange(10240, 20000)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


class Manifests(unittest.TestCase):
    def setUp(self):
        self.all = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each]
        self.services = self.of("Service")

    def of(self, kind):
        return {each["metadata"]["name"]: each for each in self.all if each["kind"] == kind}

    def pods(self):
        for each in self.all:
            if "template" in each["spec"]:
                yield each, each["spec"]["template"]

    def test_kinds_are_of_versions_that_clusters_serve(self):
        for each in self.all:
            self.assertEqual(each["apiVersion"], VERSIONS[each["kind"]], each["metadata"]["name"])
        names = [(each["kind"], each["metadata"]["name"]) for each in self.all]
        self.assertEqual(len(names), len(set(names)))

    def test_what_is_selected_is_there(self):
        labels = [pod["metadata"]["labels"] for _, pod in self.pods()]
        for each in self.services.values():
            self.assertIn(each["spec"]["selector"], labels)
            self.assertEqual(each["spec"]["clusterIP"], "None")  # an address that is translated proves nothing
        for owner, pod in self.pods():
            if owner["kind"] != "StatefulSet":
                continue
            self.assertEqual(owner["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"])
            self.assertEqual(self.services[owner["spec"]["serviceName"]]["spec"]["selector"], pod["metadata"]["labels"])
        for budget in self.of("PodDisruptionBudget").values():
            self.assertIn(budget["spec"]["selector"]["matchLabels"], labels)

    def test_containers_have_what_their_commands_name(self):
        for owner, pod in self.pods():
            for container in pod["spec"]["containers"]:
                where = owner["metadata"]["name"]
                command = container["command"]
                variables = {each["name"] for each in container["env"]}
                self.assertEqual(set(re.findall(r"\$\((\w+)\)", " ".join(command))) - variables, set(), where)
                listens = {int(port) for port in re.findall(r"--listen=tcp:0\.0\.0\.0:(\d+)", " ".join(command))}
                self.assertEqual(listens, {each["containerPort"] for each in container.get("ports", [])}, where)
                claims = {each["metadata"]["name"] for each in owner["spec"].get("volumeClaimTemplates", [])}
                for mount in container.get("volumeMounts", []):
                    self.assertIn(mount["name"], claims, where)
                    self.assertIn(f"--folder={mount['mountPath']}/", " ".join(command), where)
                if command[0] == "trireme":
                    used = {word.split("=")[0] for word in command[2:]}
                    self.assertEqual(used - options_of(command[1]), set(), where)

    def test_addresses_in_commands_are_of_services_and_ports_that_are_there(self):
        found = re.findall(r"=tcp:(?!0\.0)([^.\s]+)\.([a-z-]+):(\d+)", MANIFEST.read_text())
        self.assertEqual(len(found), 3)
        stateful = self.of("StatefulSet")
        for pod, service, port in found:
            self.assertEqual(self.services[service]["spec"]["ports"][0]["port"], int(port))
            self.assertIn(pod, ("$(POD_NAME)", f"{service}-0"))
            self.assertIn(service, stateful)

    def test_the_coordinator_waits_for_all_servers_and_workers_are_ranks(self):
        coordinator = self.of("StatefulSet")["params-coordinator"]
        command = coordinator["spec"]["template"]["spec"]["containers"][0]["command"]
        servers = self.of("StatefulSet")["params-servers"]["spec"]["replicas"]
        self.assertIn(f"--servers={servers}", command)
        self.assertEqual(coordinator["spec"]["replicas"], 1)
        job = self.of("Job")["params-workers"]["spec"]
        self.assertEqual(job["completionMode"], "Indexed")
        self.assertEqual(job["completions"], job["parallelism"])  # a worker waits for the others
        self.assertIn(job["template"]["spec"]["restartPolicy"], ("Never", "OnFailure"))

    def faults_of(self, manifest):
        schema = {"$ref": KINDS[manifest["kind"]]}
        return list(faults(manifest, schema, f"{manifest['kind']} {manifest['metadata']['name']}"))

    @unittest.skipUnless(DEFINITIONS, f"the set-up has not fetched {SCHEMAS}")
    def test_schemas_of_kubernetes_hold(self):
        for each in self.all:
            self.assertEqual(self.faults_of(each), [])

    @unittest.skipUnless(DEFINITIONS, f"the set-up has not fetched {SCHEMAS}")
    def test_schemas_of_kubernetes_find_what_is_wrong(self):
        def wrong(kind, name, change):
            manifest = copy.deepcopy(self.of(kind)[name])
            change(manifest["spec"])
            return "\n".join(self.faults_of(manifest))

        def container(spec):
            return spec["template"]["spec"]["containers"][0]

        servers = ("StatefulSet", "params-servers")
        self.assertIn("has replica, which is not there", wrong(*servers, lambda spec: spec.update(replica=3)))
        self.assertIn("spec.replicas is '3'; expected", wrong(*servers, lambda spec: spec.update(replicas="3")))
        self.assertIn("is 4294967296, which is no int32", wrong(*servers, lambda spec: spec.update(replicas=1 << 32)))
        self.assertIn("spec has no selector", wrong(*servers, lambda spec: spec.pop("selector")))
        self.assertIn("containers[0].command[0] is 5", wrong(*servers, lambda spec: container(spec).update(command=[5])))
        self.assertIn("containers[0].env[0] has nam,", wrong(*servers, lambda spec: container(spec)["env"][0].update(nam="x")))
        self.assertIn("spec.maxUnavailable is True, which is none of",
                      wrong("PodDisruptionBudget", "params-servers", lambda spec: spec.update(maxUnavailable=True)))
        needed, left = set(), set(KINDS.values())
        while left:
            needed |= left
            left = set().union(*(references(DEFINITIONS[name]) for name in left)) - needed
        used = set()

        def note(schema):
            used.update(word for word in schema if word != "description" and not word.startswith("x-"))
            others = schema.get("additionalProperties", {})
            for each in [*schema.get("properties", {}).values(), schema.get("items", {}), *schema.get("oneOf", []),
                         others if isinstance(others, dict) else {}]:
                if each:
                    note(each)

        for name in needed:
            note(DEFINITIONS[name])
        # Words of JSON schema that faults() does not know would be passed over.
        self.assertEqual(used - {"$ref", "additionalProperties", "enum", "format", "items", "oneOf", "properties", "required",
                                 "type", "default"}, set())


class SlurmScript(unittest.TestCase):
    def test_its_options_are_those_of_the_programs(self):
        text = SCRIPT.read_text().replace("\\\n", " ")
        for command in ("serve-coordinator", "serve-params"):
            line = re.search(rf"trireme {command} (.*)", text).group(1)
            used = set(re.findall(r"--[a-z][a-z-]*", line))
            self.assertGreater(len(used), 2)
            self.assertEqual(used - options_of(command), set(), command)

    def test_it_starts_all_of_a_cluster_and_ends_with_the_workers(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            programs = {"srun": SRUN, "scontrol": "#!/bin/sh\necho localhost\n", "hostname": "#!/bin/sh\necho localhost\n",
                        "my-worker": "#!/bin/sh\n"
                        f"until grep -q 'server serves' '{folder}'/server-*.log 2>/dev/null; do sleep 0.05; done\n"
                        f"echo \"$@\" >> '{folder}/said'\n"}
            for program, text in programs.items():
                (folder / program).write_text(text)
                (folder / program).chmod(0o755)
            os.symlink(TRIREME, folder / "trireme")
            port = free_ports()
            environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "7",
                           "SLURM_JOB_NODELIST": "localhost", "SLURM_SUBMIT_DIR": name, "PARAMS_STATE": name,
                           "PARAMS_PORT": str(port), "WORKERS_PER_NODE": "2"}
            # A session of its own: what Slurm would end with the job is of this group, and ended below.
            job = subprocess.Popen([SCRIPT, "my-worker", "--steps", "5"], env=environment, cwd=name,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            try:
                said = job.communicate(timeout=100)[1]
            finally:
                os.killpg(job.pid, signal.SIGKILL)
            self.assertEqual(job.returncode, 0, said)
            self.assertIn("coordinator serves at", (folder / "coordinator.log").read_text())
            self.assertEqual(sorted((folder / "said").read_text().splitlines()),
                             [f"--steps 5 --coordinator tcp:localhost:{port} --rank {rank}" for rank in (0, 1)])
            self.assertEqual(stat.S_IMODE((folder / "secret").stat().st_mode), 0o600)

    def test_without_a_worker_it_says_what_is_missing(self):
        ran = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("say what a worker is", ran.stderr)


class TrainScript(unittest.TestCase):
    """On a real Slurm: tests/multiproc/slurm_test.cpp."""

    def ran(self, code):
        """What the job says, and what it asks of Slurm, when its step ends with the code."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for program, text in {"srun": f'echo "$@"; test -s "$TRIREME_SECRET_FILE"; exit {code}', "scontrol": 'echo "scontrol $@"'}.items():
                (folder / program).write_text(f"#!/bin/sh -e\n{text}\n")
                (folder / program).chmod(0o755)
            job = subprocess.run([TRAIN, "a.toml", "--set", "train.epochs=3"], capture_output=True, text=True, timeout=60, cwd=name,
                                 env={"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": name,
                                      "SLURM_CPUS_PER_TASK": "8"})
            self.assertEqual(job.returncode, code, job.stderr)
            self.assertEqual(sorted(each.name for each in folder.iterdir()), ["scontrol", "srun"])
            return job.stdout.splitlines()

    def test_its_options_are_those_of_train(self):
        words = self.ran(0)[0].split()
        self.assertEqual(words[words.index("trireme"):],
                         ["trireme", "train", "a.toml", "--set", "train.epochs=3"])
        self.assertIn("--set", options_of("train"))

    def test_only_a_job_that_was_interrupted_goes_back_into_the_queue(self):
        self.assertEqual(self.ran(143)[1:], ["scontrol requeue 7"])
        for code in (0, 3, 137):
            self.assertEqual(len(self.ran(code)), 1)

    def test_without_a_configuration_it_says_what_is_missing(self):
        ran = subprocess.run([TRAIN], capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("say what to train", ran.stderr)


class TrainManifest(unittest.TestCase):
    def setUp(self):
        self.all = {each["kind"]: each for each in yaml.safe_load_all(TRAIN_MANIFEST.read_text()) if each}
        self.job = self.all["Job"]["spec"]
        self.pod = self.job["template"]["spec"]
        self.container = self.pod["containers"][0]
        self.script = self.container["command"][2]

    @unittest.skipUnless(DEFINITIONS, f"the set-up has not fetched {SCHEMAS}")
    def test_schemas_of_kubernetes_hold(self):
        for kind, each in self.all.items():
            self.assertEqual(each["apiVersion"], VERSIONS[kind])
            self.assertEqual(list(faults(each, {"$ref": KINDS[kind]}, kind)), [])

    def test_parts_fit_each_other(self):
        service = self.all["Service"]
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])  # ranks meet before a pod is ready
        self.assertEqual(service["spec"]["selector"], self.job["template"]["metadata"]["labels"])
        self.assertEqual(self.pod["subdomain"], service["metadata"]["name"])
        self.assertEqual((self.job["completionMode"], self.job["completions"]), ("Indexed", self.job["parallelism"]))
        self.assertIn(f"--nnodes={self.job['completions']}", self.script)
        # A pod of an indexed Job is called after the Job and its index.
        self.assertIn(f"--master-addr={self.all['Job']['metadata']['name']}-0.{self.pod['subdomain']}", self.script)
        port = self.container["ports"][0]["containerPort"]
        self.assertIn(f"--master-port={port}", self.script)
        self.assertEqual(service["spec"]["ports"][0]["port"], port)
        mounts = {each["name"]: each["mountPath"] for each in self.container["volumeMounts"]}
        volumes = {each["name"]: each for each in self.pod["volumes"]}
        self.assertEqual(set(mounts), set(volumes))
        self.assertEqual(volumes["runs"]["persistentVolumeClaim"]["claimName"], self.all["PersistentVolumeClaim"]["metadata"]["name"])
        self.assertEqual(volumes["config"]["configMap"]["name"], self.all["ConfigMap"]["metadata"]["name"])
        self.assertIn(f"{mounts['config']}/{next(iter(self.all['ConfigMap']['data']))}", self.script)
        rule = self.job["podFailurePolicy"]["rules"][0]["onExitCodes"]
        self.assertEqual((rule["containerName"], rule["values"]), (self.container["name"], [2, 5]))  # as docs/errors.md has them
        self.assertEqual(self.pod["restartPolicy"], "Never")  # a failure policy takes no other

    def test_its_options_are_those_of_the_programs(self):
        line = re.search(r"trireme launch (.*) -- trireme train (.*)", self.script.replace("\\\n", " "))
        self.assertEqual(set(re.findall(r"--[a-z][a-z-]*", line.group(1))) - options_of("launch"), set())
        self.assertIn("--resume", options_of("train"))

    def test_two_pods_train_and_resume_after_a_second_start(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            os.symlink(TRIREME, folder / "trireme")
            for epochs, sentence in (("1", "training mlp on synthetic"), ("2", "resuming mlp on synthetic: steps 17 to 32")):
                config = self.all["ConfigMap"]["data"]["train.toml"].replace("/runs", f"{folder}/runs")
                (folder / "train.toml").write_text(config.replace("epochs = 20", f"epochs = {epochs}"))
                port = free_ports()
                script = (self.script.replace("/runs", f"{folder}/runs").replace("/config", name).replace("train-0.train", "127.0.0.1")
                          .replace("29500", str(port)))
                environment = {"PATH": f"{folder}:{os.environ['PATH']}", "TRIREME_SECRET": "0123456789abcdef0123456789abcdef",
                               "OMP_NUM_THREADS": "1"}
                pods = [subprocess.Popen(["/bin/sh", "-c", script], cwd=name, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                         env={**environment, "INDEX": str(index), "TRIREME_HOST_ID": f"pod{index}"},
                                         start_new_session=True) for index in (0, 1)]
                try:
                    said = [pod.communicate(timeout=100)[0] for pod in pods]
                finally:
                    for pod in pods:
                        if pod.poll() is None:
                            os.killpg(pod.pid, signal.SIGKILL)
                self.assertEqual([pod.returncode for pod in pods], [0, 0], said)
                self.assertIn(sentence, said[0])
            self.assertEqual(len(list((folder / "runs").iterdir())), 1)  # the second start went on in the folder of the first


if __name__ == "__main__":
    TRIREME = sys.argv.pop(1)
    unittest.main()
