#include "trireme/topology/internal/ucx_object.h"

#include <cstdlib>
#include <utility>

#include "trireme/base/optional_object.h"
#include "trireme/base/text.h"

namespace trireme::topology {
namespace {

constexpr const char* kFileName = "libtrireme_ucx.so";

UcxObject load() {
  const std::string path = find_optional_object(kFileName, "TRIREME_UCX_OBJECT");
  if (path.empty())
    return {.missing_because =
                text(kFileName, " is not next to the program: build where UCX is (package libucx-dev)")};
  // UCX reads these when it is loaded. Values that the user has set stay. UCX's messages about a peer that is
  // gone are redundant: Trireme's errors report the effect. Output and signals belong to the program.
  for (const auto& [name, value] :
       {std::pair{"UCX_LOG_LEVEL", "fatal"}, {"UCX_LOG_FILE", "stderr"}, {"UCX_HANDLE_ERRORS", "none"}})
    ::setenv(name, value, /*overwrite=*/0);
  return load_ucx_object(path);
}

}  // namespace

UcxObject load_ucx_object(const std::string& path) {
  const OptionalObject loaded =
      load_optional_object(path, /*global=*/false, "It needs UCX (package libucx0)");
  UcxObject object{.missing_because = loaded.missing_because};
  if (loaded.missing_because.empty() && !loaded.find("trireme_ucx_make_worker", object.make_worker))
    object.missing_because = text(path, " is from another version: build it again");
  return object;
}

const UcxObject& ucx_object() {
  static const UcxObject object = load();
  return object;
}

}  // namespace trireme::topology
