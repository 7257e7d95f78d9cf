#pragma once
// Where things are. Only paths.cpp is compiled with them, so that a compiler cache serves every other test
// wherever the checkout lies. TRIREME_TEST_BUNDLE=FOLDER: programs are in FOLDER/bin, files of the checkout
// in FOLDER/checkout (tools/gpu_bundle.sh).

#include <string>

namespace trireme::test {

/// Path of a program of this build: bin("trireme").
std::string bin(const std::string& name);

/// Path of a file or folder of the checkout: checkout("examples/quick.toml").
std::string checkout(const std::string& path);

/// The folder that this build is in.
std::string build_folder();

}  // namespace trireme::test
