#include "trireme/parallel/pipeline/internal/transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {
namespace {

/// Receives that are posted before the program comes to them.
constexpr std::size_t kPostedAhead = 2;
constexpr std::size_t kMostDims = 14;

}  // namespace

TensorSpec spec_of(const at::Tensor& tensor) {
  return {.sizes = tensor.sizes().vec(), .type = tensor.scalar_type()};
}

std::string to_text(const TensorSpec& spec) {
  std::vector<std::string> dims;
  for (const std::int64_t dim : spec.sizes) dims.push_back(std::to_string(dim));
  return text("(", join(dims), ") ", c10::toString(spec.type));
}

void Transfers::begin(Announcement next_incoming) {
  next_incoming_ = std::move(next_incoming);
  posted_.clear();
  sends_.clear();
  post();
}

void Transfers::post() {
  while (posted_.size() < kPostedAhead) {
    const std::optional<Incoming> next = next_incoming_();
    if (!next) return;
    at::Tensor tensor = at::empty(next->spec.sizes, next->spec.type);
    comm::Pending pending = group_.recv_async(tensor, next->source);
    posted_.push_back({.tensor = std::move(tensor), .pending = std::move(pending)});
  }
}

void Transfers::wait_for(comm::Pending& pending) {
  const telemetry::TraceScope span(telemetry::main_of(group_.trace()), "wait", "wait");
  const double begin_s = now_s();
  pending.wait();
  waited_s_ += now_s() - begin_s;
}

Arrival Transfers::receive() {
  if (posted_.empty()) throw InternalError("a pipeline receives more than its program announced");
  Arrival next = std::move(posted_.front());
  posted_.pop_front();
  post();
  return next;
}

at::Tensor Transfers::wait(Arrival arrival) {
  wait_for(arrival.pending);
  return std::move(arrival.tensor);
}

void Transfers::send(const at::Tensor& tensor, int destination) {
  while (!sends_.empty() && sends_.front().second.done()) sends_.pop_front();
  at::Tensor whole = tensor.contiguous();
  comm::Pending pending = group_.send_async(whole, destination);
  sends_.emplace_back(std::move(whole), std::move(pending));
}

void Transfers::finish() {
  for (auto& [tensor, pending] : sends_) wait_for(pending);
  sends_.clear();
  if (!posted_.empty()) throw InternalError("a pipeline has not received all that its program announced");
}

void send_spec(comm::Group& group, const TensorSpec& spec, int destination) {
  require(spec.sizes.size() <= kMostDims, "a tensor of ", spec.sizes.size(),
          " dims cannot go from stage to stage; at most ", kMostDims, " are possible");
  at::Tensor words = at::zeros({static_cast<std::int64_t>(kMostDims + 2)}, at::kLong);
  auto* word = words.data_ptr<std::int64_t>();
  *word++ = static_cast<std::int64_t>(spec.type);
  *word++ = static_cast<std::int64_t>(spec.sizes.size());
  std::copy(spec.sizes.begin(), spec.sizes.end(), word);
  group.send(words, destination);
}

TensorSpec receive_spec(comm::Group& group, int source) {
  at::Tensor words = at::zeros({static_cast<std::int64_t>(kMostDims + 2)}, at::kLong);
  group.recv(words, source);
  const auto* word = words.const_data_ptr<std::int64_t>();
  return {.sizes = {word + 2, word + 2 + word[1]}, .type = static_cast<at::ScalarType>(word[0])};
}

}  // namespace trireme::parallel
