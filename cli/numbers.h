#pragma once
// What an option's number may be, for CLI11, in words a person would use. Values without state.

#include <CLI/CLI.hpp>

namespace trireme::cli {

/// "'two' is no number above 0".
CLI::Validator above_zero();
CLI::Validator zero_or_more();
/// A number from 0 to 1.
CLI::Validator share();

}  // namespace trireme::cli
