#pragma once
// Runs a program to its end and takes what it prints.

#include <string>
#include <vector>

namespace trireme::cli {

/// What a program prints on standard output; empty when it cannot be run or fails. Both are cut at a
/// deadline. `environment` ("NAME=value") is added to this process's own.
std::string output_of(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment = {});

}  // namespace trireme::cli
