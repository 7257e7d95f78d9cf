#include "trireme/schedule/validate.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/checks.h"

namespace trireme::schedule {

Form form_of(const Program& program) {
  const bool steps = std::any_of(program.ranks.begin(), program.ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), [](const Action& action) {
      return action.kind == ActionKind::kReduceGrad || action.kind == ActionKind::kStep;
    });
  });
  if (steps && (has_transfers(program) || program.update_every == 0)) return Form::kStep;
  return has_transfers(program) ? Form::kTransfers : Form::kOrder;
}

void validate(const Program& program, const ValidateOptions& options) {
  require(program.num_stages >= 1 && program.num_microbatches >= 1 && !program.ranks.empty(), "program '",
          program.name, "' needs at least 1 stage, 1 micro-batch and 1 rank, found ", program.num_stages,
          ", ", program.num_microbatches, " and ", program.ranks.size());
  require(program.replicas.empty() || static_cast<int>(program.replicas.size()) == program.num_stages,
          "program '", program.name, "' has ", program.num_stages, " stages, but replicas of ",
          program.replicas.size());
  const Holders holders(program);
  check_lists(program, holders, options.form);
  if (options.form != Form::kOrder) check_links(program, holders);
  check_progress(program, holders, options);
}

}  // namespace trireme::schedule
