#include "trireme/comm/internal/unequal_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "trireme/base/text.h"
#include "trireme/comm/internal/arguments.h"
#include "trireme/comm/internal/finishing_work.h"
#include "trireme/comm/internal/reduce_rows.h"

namespace trireme::comm {
namespace {

auto description(const char* operation, const UnequalParts& parts) {
  return [operation, rows = parts.rows, rank = parts.rank] {
    return text("; it is the exchange of an ", operation, "; rows of the ranks, on rank ", rank, ": ",
                layout_of(rows));
  };
}

c10d::AllToAllOptions exchange_options(bool is_async) {
  c10d::AllToAllOptions options;
  options.asyncOp = is_async;
  return options;
}

}  // namespace

Work start_unequal_all_gather(const UnequalParts& parts, c10d::Backend& backend, bool is_async) {
  const at::NoGradGuard no_grad;
  at::Tensor output = parts.output.detach();
  at::Tensor sent = at::cat(Tensors(parts.rows.size(), parts.input.detach()));
  std::vector<std::int64_t> from = parts.rows, to(parts.rows.size(), parts.input.size(0));
  Work exchange = backend.alltoall_base(output, sent, from, to, exchange_options(is_async));
  return c10::make_intrusive<FinishingWork>(std::move(exchange), description("all_gather", parts),
                                            [output, sent] {});
}

Work start_unequal_reduce_scatter(const UnequalParts& parts, const c10d::ReduceOp& op, c10d::Backend& backend,
                                  bool is_async) {
  const at::NoGradGuard no_grad;
  const auto size = static_cast<std::int64_t>(parts.rows.size());
  const at::Tensor output = parts.output.detach();
  at::Tensor sent = parts.input.detach();
  // The parts of all ranks, concatenated along dim 0.
  std::vector<std::int64_t> sizes = output.sizes().vec();
  std::vector<std::int64_t> from(parts.rows.size(), sizes[0]), to = parts.rows;
  sizes[0] *= size;
  at::Tensor received = at::empty(sizes, output.options());
  Work exchange = backend.alltoall_base(received, sent, from, to, exchange_options(is_async));
  return c10::make_intrusive<FinishingWork>(std::move(exchange), description("reduce_scatter", parts),
                                            [received, sent, output, size, op] {
                                              const at::NoGradGuard no_grad_at_the_end;
                                              if (output.numel() > 0)
                                                reduce_rows(received.view({size, -1}), op, output.view({-1}));
                                            });
}

}  // namespace trireme::comm
