#include "trireme/base/optional_object.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "trireme/base/text.h"

namespace trireme {

std::string find_optional_object(const std::string& file_name, const char* variable) {
  if (const char* given = std::getenv(variable)) return given;
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& folder : {program, program.parent_path() / "lib"}) {
    if (std::filesystem::exists(folder / file_name)) return folder / file_name;
  }
  return {};
}

void* OptionalObject::find_symbol(const char* name) const { return ::dlsym(library, name); }

OptionalObject load_optional_object(const std::string& path, bool global, const std::string& advice) {
  OptionalObject object;
  object.library = ::dlopen(path.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (object.library == nullptr) {
    const char* reason = ::dlerror();
    object.missing_because =
        text("cannot load ", path, ": ", reason ? reason : "unknown reason", ". ", advice);
  }
  return object;
}

}  // namespace trireme
