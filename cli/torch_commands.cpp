// The commands of `trireme-torch`: those that need tensors.

#include <torch/headeronly/version.h>

#include "cli/backends.h"
#include "cli/checkpoint.h"
#include "cli/command.h"
#include "cli/profile.h"
#include "cli/train.h"
#include "cli/verify.h"
#include "trireme/base/text.h"

namespace trireme::cli {

std::vector<Command> commands(const Arguments&) {
  return {train_command(run_train), verify_command(run_verify), profile_command(run_profile),
          checkpoint_command(run_checkpoint), backends_command(list_backends)};
}

std::string version_details() { return text(" (libtorch ", TORCH_VERSION, ")"); }

}  // namespace trireme::cli
