#pragma once
// Paths of programs and files. Only paths.cpp is compiled with them, so that a compiler cache serves all
// other tests for any location of the checkout. With TRIREME_TEST_BUNDLE=FOLDER, programs are in FOLDER/bin,
// and files of the checkout in FOLDER/checkout (tools/gpu_bundle.sh).

#include <string>

namespace trireme::test {

/// Path of a program of this build: bin("trireme").
std::string bin(const std::string& name);

/// Path of a file or folder of the checkout: checkout("examples/quick.toml").
std::string checkout(const std::string& path);

/// The folder of this build.
std::string build_folder();

}  // namespace trireme::test
