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
  // UCX reads these when it is loaded; whoever sets them has it his way. What a peer does that goes away is
  // no news by itself, what it means is in our errors; a program's output and its signals are its own.
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
