#pragma once
// The functions that this program's workers run for others, by name. Rows are added while the program
// starts, by rpc::function (function.h), and never change: it is code, not state.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme::rpc {

class ServedCall;

struct FunctionRow {
  std::string name;
  std::string signature;  ///< for people: "at::Tensor (at::Tensor, long)"
  /// Decodes the arguments, runs, and answers; may throw, or answer later.
  void (*run)(const std::shared_ptr<ServedCall>&) = nullptr;

  /// Two programs that mean different things by one name have different ones.
  std::uint64_t fingerprint() const;
};

/// Adds the row. A taken name is an error of the next check_function_table().
const FunctionRow& add_function(FunctionRow row);
/// Null: there is none.
const FunctionRow* find_function(const std::string& name);
std::vector<std::string> function_names();
/// Throws InvalidArgument that names the functions that are there twice.
void check_function_table();
/// A type as its source has it.
std::string readable(const char* type_name);
/// Of a type whose only template argument is a function: its name.
std::string name_in(const char* type_name);

}  // namespace trireme::rpc
