#include "trireme/comm/internal/cross_all_reduce.h"

#include <ATen/ops/from_blob.h>

#include <optional>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/all_reduce_setting.h"

namespace trireme::comm {
namespace {

using wire::Element;
using wire::Reduction;

std::optional<Element> carried_element(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Element::kF32;
    case at::kDouble:
      return Element::kF64;
    case at::kBFloat16:
      return Element::kBf16;
    case at::kHalf:
      return Element::kF16;
    case at::kInt:
      return Element::kI32;
    case at::kLong:
      return Element::kI64;
    default:
      return {};
  }
}

std::optional<Reduction> carried_reduction(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    default:
      return {};
  }
}

bool is_carried(const at::Tensor& tensor) { return tensor.device().is_cpu() && tensor.is_contiguous(); }

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

Deadline deadline_after(std::chrono::milliseconds timeout) {
  return Deadline::after_s(static_cast<double>(timeout.count()) / 1000);
}

/// The endpoints that the ranks publish under their keys, by rank.
std::vector<wire::Endpoint> endpoints_of_all(const BackendRequest& request,
                                             const std::vector<std::string>& names,
                                             const wire::Endpoint& mine, const Deadline& deadline) {
  const auto key = [](int rank) { return text("all_reduce/", rank); };
  const std::string told = mine.text();
  request.store->set(key(request.rank), std::vector<std::uint8_t>(told.begin(), told.end()));
  std::vector<std::string> keys;
  for (int rank = 0; rank < request.size; ++rank) keys.push_back(key(rank));
  try {
    request.store->wait(keys, whole_milliseconds(deadline.remaining_s()));
  } catch (const std::exception&) {
    std::vector<std::string> missing;
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
      if (!request.store->check({keys[rank]})) missing.push_back(names[rank]);
    }
    throw CommError(text("group ", request.group_name, ": ", join(missing),
                         " did not come to connect for all-reduces between hosts within ",
                         human_duration(request.timeout_s)));
  }
  std::vector<wire::Endpoint> endpoints;
  for (const std::string& each : keys) {
    endpoints.push_back(
        wire::Endpoint::parse(request.store->get_to_str(each), "the address of a rank for all-reduces"));
  }
  return endpoints;
}

}  // namespace

std::unique_ptr<CrossAllReduce> CrossAllReduce::make(const BackendRequest& group,
                                                     const BackendRequest& request, c10d::Backend& gloo) {
  if (request.all_reduce == kAllReduceByGloo) return {};
  const Deadline deadline = Deadline::after_s(request.timeout_s);
  const wire::Socket listening = wire::listen_at({request.interface_addr, 0});
  topology::Membership membership{.rank = request.rank,
                                  .endpoints = {},
                                  .names = {},
                                  .hosts = request.host_ids,
                                  .secret = request.secret,
                                  .purpose = text("all-reduces of ", request.group_name),
                                  .network = request.network};
  for (const int rank : request.world_ranks) membership.names.push_back(text("rank ", rank));
  membership.endpoints = endpoints_of_all(request, membership.names, listening.local(), deadline);
  try {
    std::unique_ptr<CrossAllReduce> made(new CrossAllReduce(listening, membership, deadline));
    if (request.all_reduce != kAllReduceAuto) {
      made->choice_ = AllReduceBook::forced(request.all_reduce, request.size);
      return made;
    }
    const auto by_gloo = [&](std::span<float> values) {
      std::vector<at::Tensor> tensors{
          at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat)};
      try {
        gloo.allreduce(tensors)->wait(whole_milliseconds(deadline.remaining_s()));
      } catch (const c10::Error& error) {
        throw CommError(text("gloo: ", error.what_without_backtrace()));
      } catch (const std::exception& error) {
        throw CommError(text("gloo: ", error.what()));
      }
    };
    const auto set_lanes = [&](int lanes) {
      made->exchange_.set_lanes(lanes, listening, membership, deadline);
    };
    const auto measure = [&] {
      return topology::measure_choice(made->exchange_, by_gloo, set_lanes, deadline);
    };
    made->choice_ = group.all_reduce_book->agree(group, measure, deadline);
    // Another group may have chosen more lanes: this group's connections are not open yet.
    if (made->choice_->lanes != made->exchange_.num_lanes()) set_lanes(made->choice_->lanes);
    return made;
  } catch (const CommError& error) {
    throw CommError(text("group ", request.group_name, ": all-reduces between hosts: ", error.what()));
  }
}

bool CrossAllReduce::all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                                std::chrono::milliseconds timeout) {
  const auto element = carried_element(tensor.scalar_type());
  const auto reduction = carried_reduction(op);
  if (!element || !reduction || !is_carried(tensor)) return false;
  const auto algorithm = choice_->of(static_cast<double>(tensor.nbytes()));
  if (!algorithm) return false;
  exchange_.all_reduce(
      {.algorithm = *algorithm, .element = *element, .reduction = *reduction, .data = bytes_of(tensor)},
      deadline_after(timeout));
  return true;
}

bool CrossAllReduce::reduce_scatter(const at::Tensor& sum, const at::Tensor& parts, const c10d::ReduceOp& op,
                                    std::chrono::milliseconds timeout) {
  const auto element = carried_element(sum.scalar_type());
  const auto reduction = carried_reduction(op);
  if (!element || !reduction || !is_carried(sum) || !is_carried(parts)) return false;
  exchange_.reduce_scatter(
      {.element = *element, .reduction = *reduction, .parts = bytes_of(parts), .sum = bytes_of(sum)},
      deadline_after(timeout));
  return true;
}

bool CrossAllReduce::all_gather(const at::Tensor& parts, std::chrono::milliseconds timeout) {
  if (!is_carried(parts)) return false;
  exchange_.all_gather(bytes_of(parts), deadline_after(timeout));
  return true;
}

}  // namespace trireme::comm
