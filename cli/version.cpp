#include "cli/version.h"

#include <filesystem>

#include "trireme/base/optional_object.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

}  // namespace

std::string version_line() {
  const bool has_cuda =
      std::filesystem::exists(find_optional_object("libtrireme_cuda.so", "TRIREME_CUDA_OBJECT"));
  return text(kBuildFacts.version, ", libtorch ", kBuildFacts.libtorch, ", ", kCompiler, ", commit ",
              kBuildFacts.commit, has_cuda ? ", CUDA object" : ", no CUDA object");
}

}  // namespace trireme::cli
