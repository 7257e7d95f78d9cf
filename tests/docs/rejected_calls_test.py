#!/usr/bin/env python3
"""A remote call that cannot be compiled has one error with one sentence, and not those of the templates below it.

    rejected_calls_test.py BUILD_FOLDER
"""
import pathlib
import subprocess
import sys
import tempfile

from snippets_test import compiler, without_precompiled_header

INCLUDE = '#include "trireme/rpc/agent.h"\nusing namespace trireme;\n'
#: What is wrong, the source, and what the only error says.
ROWS = [
    ("a tensor without its include",
     "namespace at { class Tensor { int first = 0, second = 0; public: int get() { return first + second; } }; }\n"
     "int size(const at::Tensor& x) { return at::Tensor(x).get(); }\n"
     'int use(rpc::Agent& agent, const at::Tensor& x) { return agent.rpc_sync("w1", rpc::function<"size", &size>, x); }\n',
     "tensors (include trireme/remote/autograd.h)"),
    ("a pointer in a container",
     "struct Shard { int count(const std::vector<std::shared_ptr<int>>& x) { return static_cast<int>(x.size()); } };\n"
     "int use(const rpc::RRef<Shard>& shard) { return shard.rpc_sync<&Shard::count>(std::vector<std::shared_ptr<int>>()); }\n",
     "an argument of this function cannot be sent to another worker"),
    ("a result that stays where it is",
     "std::shared_ptr<int> make() { return nullptr; }\n"
     'void use(rpc::Agent& agent) { agent.rpc_sync<&make>("w1"); }\n',
     "the result of this function cannot be sent: use remote()"),
    ("an argument of another type",
     "struct Shard { int count(const std::string& x) { return static_cast<int>(x.size()); } };\n"
     "int use(const rpc::RRef<Shard>& shard) { return shard.rpc_sync<&Shard::count>(3); }\n",
     "the function takes arguments of other types"),
    ("an argument too few",
     "struct Shard { int count(const std::string& x) { return static_cast<int>(x.size()); } };\n"
     "void use(const rpc::RRef<Shard>& shard) { shard.remote<&Shard::count>(); }\n",
     "the function takes another number of arguments"),
]
GOOD = ("struct Shard { int count(const std::string& x) { return static_cast<int>(x.size()); } };\n"
        'int use(const rpc::RRef<Shard>& shard) { return shard.rpc_sync<&Shard::count>({.timeout_s = 2}, "abc"); }\n')


def errors_of(source, command, folder):
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "call.cpp"
        path.write_text(INCLUDE + source)
        done = subprocess.run([*command, path], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=280)
    return [line for line in done.stderr.split("\n") if " error: " in line]


def mistakes(build):
    command, folder = compiler(build)
    command = without_precompiled_header(command)
    if errors := errors_of(GOOD, command, folder):
        yield f"a call that fits does not compile: {errors}"
    for what, source, sentence in ROWS:
        errors = errors_of(source, command, folder)
        if len(errors) != 1 or sentence not in errors[0]:
            yield f"{what}: expected one error that says '{sentence}', found {errors}"


if __name__ == "__main__":
    found = list(mistakes(pathlib.Path(sys.argv[1])))
    sys.stderr.write("".join(f"{each}\n" for each in found))
    sys.exit(1 if found else 0)
