#include "trireme/parallel/pipeline/internal/transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/parallel/pipeline/internal/edge_codec.h"
#include "trireme/telemetry/trace.h"

namespace trireme::parallel {
namespace {

/// Receives that are posted ahead of the program.
constexpr std::size_t kPostedAhead = 2;
constexpr std::size_t kMaxDims = 14;
/// The fields of a tensor's spec: dtype, whether it has a gradient, memory layout, length of its name, number
/// of dims, dims.
constexpr std::size_t kSpecWords = 5 + kMaxDims;

void send_names(comm::Group& group, const std::string& names, int destination) {
  at::Tensor letters = at::empty({static_cast<std::int64_t>(names.size())}, at::kByte);
  std::copy(names.begin(), names.end(), letters.data_ptr<std::uint8_t>());
  if (!names.empty()) group.send(letters, destination);
}

std::string receive_names(comm::Group& group, std::int64_t length, int source) {
  at::Tensor letters = at::empty({length}, at::kByte);
  if (length > 0) group.recv(letters, source);
  const auto* first = letters.const_data_ptr<std::uint8_t>();
  return {first, first + length};
}

bool contains(const std::vector<std::size_t>& places, std::size_t place) {
  return std::find(places.begin(), places.end(), place) != places.end();
}

}  // namespace

TensorSpec spec_of(const at::Tensor& tensor, std::string name) {
  return {.sizes = tensor.sizes().vec(),
          .type = tensor.scalar_type(),
          .name = std::move(name),
          .channels_last = tensor.dim() == 4 && !tensor.is_contiguous() &&
                           tensor.is_contiguous(at::MemoryFormat::ChannelsLast)};
}

at::Tensor in_order(const at::Tensor& tensor, const TensorSpec& spec) {
  const at::Tensor lying = tensor.contiguous(spec.format());
  return spec.channels_last ? lying.permute({0, 2, 3, 1}) : lying;
}

std::string to_text(const TensorSpec& spec) {
  std::vector<std::string> dims;
  for (const std::int64_t dim : spec.sizes) dims.push_back(std::to_string(dim));
  return text(spec.name.empty() ? "" : "'" + spec.name + "' ", "(", join(dims), ") ",
              c10::toString(spec.type));
}

std::string to_text(const std::vector<TensorSpec>& specs) {
  if (specs.size() == 1) return to_text(specs[0]);
  std::vector<std::string> all;
  for (const TensorSpec& spec : specs) all.push_back(to_text(spec));
  return text(specs.size(), " tensors: ", join(all, "; "));
}

std::vector<TensorSpec> specs_of(const Fields& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(spec_of(tensor, name));
  return specs;
}

bool EdgeSpec::has_gradient(std::size_t tensor) const { return !contains(without_gradient, tensor); }

std::vector<TensorSpec> EdgeSpec::gradients() const {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (has_gradient(i)) specs.push_back(tensors[i]);
  }
  return specs;
}

Transfers::Transfers(comm::Group group, c10::Device device, const ActivationCompression& compression)
    : group_(std::move(group)),
      device_(device),
      codec_(std::make_unique<const EdgeCodec>(compression, device)) {}
Transfers::~Transfers() = default;

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
    Arrival& arrival = posted_.emplace_back();
    for (std::size_t i = 0; i < next->specs.size(); ++i) {
      const TensorSpec& spec = next->specs[i];
      const bool is_encoded = !contains(next->as_they_are, i) && codec_->encodes(spec);
      if (is_encoded) arrival.encoded.emplace(i, spec);
      at::Tensor tensor =
          is_encoded
              ? codec_->room_for(spec)
              : at::empty(spec.sizes, at::device(device_).dtype(spec.type).memory_format(spec.format()));
      at::Tensor room = is_encoded ? tensor : in_order(tensor, spec);
      arrival.pending.push_back(group_.recv_async(room, next->source));
      arrival.tensors.add(spec.name, std::move(tensor));
    }
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

Fields Transfers::wait(Arrival arrival) {
  for (comm::Pending& pending : arrival.pending) wait_for(pending);
  if (arrival.encoded.empty()) return std::move(arrival.tensors);
  std::size_t place = 0;
  return arrival.tensors.map([&](const at::Tensor& tensor) {
    const auto spec = arrival.encoded.find(place++);
    return spec == arrival.encoded.end() ? tensor : codec_->decode(tensor, spec->second);
  });
}

void Transfers::send(const Fields& tensors, const Outgoing& how) {
  while (!sends_.empty() && sends_.front().second.done()) sends_.pop_front();
  std::size_t i = 0;
  for (const auto& [name, tensor] : tensors) {
    const bool is_encoded = !contains(how.as_they_are, i) && codec_->encodes(spec_of(tensor));
    at::Tensor whole =
        is_encoded ? codec_->encode(tensor, Random(how.seed, i).bits()) : in_order(tensor, how.specs[i]);
    ++i;
    sent_bytes_ += static_cast<std::int64_t>(whole.nbytes());
    comm::Pending pending = group_.send_async(whole, how.destination);
    sends_.emplace_back(std::move(whole), std::move(pending));
  }
}

void Transfers::finish() {
  for (auto& [tensor, pending] : sends_) wait_for(pending);
  sends_.clear();
  if (!posted_.empty()) throw InternalError("a pipeline has not received all that its program announced");
}

void send_spec(comm::Group& group, const EdgeSpec& spec, int destination) {
  const auto count = static_cast<std::int64_t>(spec.tensors.size());
  group.send(at::full({1}, count, at::kLong), destination);
  at::Tensor words = at::zeros({count, static_cast<std::int64_t>(kSpecWords)}, at::kLong);
  auto* word = words.data_ptr<std::int64_t>();
  std::string names;
  for (std::size_t i = 0; i < spec.tensors.size(); ++i, word += kSpecWords) {
    const auto& [sizes, type, name, channels_last] = spec.tensors[i];
    require(sizes.size() <= kMaxDims, "a tensor of ", sizes.size(),
            " dims cannot go from stage to stage; at most ", kMaxDims, " are possible");
    word[0] = static_cast<std::int64_t>(type);
    word[1] = spec.has_gradient(i) ? 1 : 0;
    word[2] = channels_last ? 1 : 0;
    word[3] = static_cast<std::int64_t>(name.size());
    word[4] = static_cast<std::int64_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), word + 5);
    names += name;
  }
  group.send(words, destination);
  send_names(group, names, destination);
}

EdgeSpec receive_spec(comm::Group& group, int source) {
  at::Tensor count = at::zeros({1}, at::kLong);
  group.recv(count, source);
  at::Tensor words =
      at::zeros({count.item<std::int64_t>(), static_cast<std::int64_t>(kSpecWords)}, at::kLong);
  group.recv(words, source);
  const std::string names = receive_names(group, words.select(1, 3).sum().item<std::int64_t>(), source);
  EdgeSpec spec;
  const auto* word = words.const_data_ptr<std::int64_t>();
  std::size_t begin = 0;
  for (std::int64_t i = 0; i < words.size(0); ++i, word += kSpecWords) {
    if (word[1] == 0) spec.without_gradient.push_back(spec.tensors.size());
    const auto length = static_cast<std::size_t>(word[3]);
    spec.tensors.push_back({.sizes = {word + 5, word + 5 + word[4]},
                            .type = static_cast<at::ScalarType>(word[0]),
                            .name = names.substr(begin, length),
                            .channels_last = word[2] != 0});
    begin += length;
  }
  return spec;
}

}  // namespace trireme::parallel
