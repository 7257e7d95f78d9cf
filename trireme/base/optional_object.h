#pragma once
// Optional shared objects of the library: code that needs a toolkit or a library of its own to compile is in
// one of them. It is loaded on request, and never unloaded. Thread-safe.

#include <string>

namespace trireme {

/// Path of the file: by the environment variable, or next to the program, or in its ../lib. Empty where there
/// is none.
std::string find_optional_object(const std::string& file_name, const char* variable);

struct OptionalObject {
  void* library = nullptr;
  std::string missing_because;  ///< empty when it is there

  /// False when the object has no such function: it is of another version.
  template <class Function>
  bool find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(find_symbol(name));
    return function != nullptr;
  }

 private:
  void* find_symbol(const char* name) const;
};

/// Its symbols are visible to all objects where `global`. `advice` ends the message of a file that cannot be
/// loaded.
OptionalObject load_optional_object(const std::string& path, bool global, const std::string& advice);

}  // namespace trireme
