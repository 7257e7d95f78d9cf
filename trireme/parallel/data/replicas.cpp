#include "trireme/parallel/data/internal/replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/dtype.h"
#include "trireme/comm/text_difference.h"
#include "trireme/parallel/data/broadcast.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{25} << 20;

/// The form for communication: a complex tensor is sent as real and imaginary parts.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

std::string shape_of(const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : tensor.sizes()) sizes.push_back(std::to_string(size));
  return text("(", join(sizes), ")");
}

/// A property that must be equal on all ranks: its name, and its value on this rank.
struct Fact {
  std::string name;
  std::string value;
};

std::vector<Fact> facts_of(const Replica& replica, const DataParallelOptions& options) {
  std::vector<Fact> facts;
  for (const auto& [name, tensor] : replica.parameters) {
    facts.push_back(
        {text("parameter '", name, "'"), text(shape_of(tensor), " ", comm::name_of(tensor.scalar_type()),
                                              tensor.requires_grad() ? "" : " without gradient")});
  }
  for (const auto& [name, tensor] : replica.buffers) {
    facts.push_back(
        {text("buffer '", name, "'"), text(shape_of(tensor), " ", comm::name_of(tensor.scalar_type()))});
  }
  facts.push_back({"option bucket_mib", text(options.bucket_mib)});
  facts.push_back({"option first_bucket_mib", text(options.first_bucket_mib)});
  facts.push_back({"option unused_parameters", text(static_cast<int>(options.unused_parameters))});
  facts.push_back({"option broadcast_buffers", options.broadcast_buffers ? "on" : "off"});
  facts.push_back({"option check_replicas_every", text(options.check_replicas_every)});
  facts.push_back({"option scale", options.scale == ReduceScale::kMean ? "mean" : "sum"});
  facts.push_back({"option hook", options.hook ? options.hook->describe() : "none"});
  return facts;
}

constexpr char kNameEnd = '\t';

std::string to_text(const std::vector<Fact>& facts) {
  std::string all;
  for (const Fact& fact : facts) all += fact.name + kNameEnd + fact.value + '\n';
  return all;
}

std::vector<Fact> from_text(const std::string& all) {
  std::vector<Fact> facts;
  for (const std::string& line : split(all, '\n')) {
    const auto end = line.find(kNameEnd);
    if (end != std::string::npos) facts.push_back({line.substr(0, end), line.substr(end + 1)});
  }
  return facts;
}

/// The first difference between two ranks, with both values.
std::string first_difference(const std::vector<Fact>& ours, int our_rank, const std::vector<Fact>& theirs,
                             int their_rank) {
  const auto same = [](const Fact& a, const Fact& b) { return a.name == b.name && a.value == b.value; };
  const auto [a, b] = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end(), same);
  const auto find = [](const std::vector<Fact>& facts, const std::string& name) -> std::string {
    for (const Fact& fact : facts) {
      if (fact.name == name) return fact.value;
    }
    return "missing";
  };
  const Fact& fact = a != ours.end() ? *a : *b;
  const std::string there = find(theirs, fact.name);
  if (a != ours.end() && there == fact.value) {
    return text("in place ", a - ours.begin() + 1, " is ", a->name, " on rank ", our_rank, " and ", b->name,
                " on rank ", their_rank);
  }
  return text(fact.name, " is ", find(ours, fact.name), " on rank ", our_rank, " and ", there, " on rank ",
              their_rank);
}

/// Rejects complex parameters that require a gradient.
void require_real(const optim::NamedTensors& parameters) {
  for (const auto& [name, tensor] : parameters) {
    require(!tensor.is_complex() || !tensor.requires_grad(), "parameter '", name, "' is complex (",
            comm::name_of(tensor.scalar_type()),
            "), and only real gradients are reduced; register its real and imaginary parts as one parameter, "
            "at::view_as_real(parameter), and call at::view_as_complex() on that in forward");
  }
}

}  // namespace

void check_replicas(comm::Group& group, const Replica& replica, const DataParallelOptions& options,
                    const char* advice) {
  const auto difference = comm::find_text_difference(group, to_text(facts_of(replica, options)));
  if (difference) {
    throw CommError(text("the ranks of group '", group.name(), "' have different models or options: ",
                         first_difference(from_text(difference->of_rank), difference->rank,
                                          from_text(difference->of_other_rank), difference->other_rank),
                         "; ", advice));
  }
  if (group.size() > 1) require_real(replica.parameters);
}

void broadcast_module(comm::Group& group, const torch::nn::Module& module) {
  broadcast_tensors(group, module.parameters(), /*root=*/0);
  broadcast_tensors(group, module.buffers(), /*root=*/0);
}

std::vector<at::Tensor> tensors_of(const optim::NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

Coalesced::Coalesced(const comm::Group& group, std::vector<at::Tensor> tensors)
    : tensors_(std::move(tensors)) {
  std::int64_t numel = 0;
  for (const at::Tensor& tensor : tensors_) numel += tensor.numel() * (tensor.is_complex() ? 2 : 1);
  const at::Tensor& first = tensors_.front();
  flat_ = group.allocate(
      numel, first.options().dtype(c10::toRealValueType(first.scalar_type())).requires_grad(false));
}

template <class Copy>
void Coalesced::for_each_part(Copy&& copy) {
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors_) {
    const at::Tensor real = as_real(tensor);
    copy(real, flat_.narrow(0, offset, real.numel()).view(real.sizes()));
    offset += real.numel();
  }
}

void Coalesced::start(comm::Group& group, int root) {
  root_ = root;
  if (group.rank() == root) {
    for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { part.copy_(tensor); });
  }
  pending_ = group.broadcast_async(flat_, root);
}

void Coalesced::finish(const comm::Group& group) {
  std::exchange(pending_, {}).wait();
  if (group.rank() == root_) return;
  for_each_part([](const at::Tensor& tensor, const at::Tensor& part) { tensor.copy_(part); });
}

void Coalesced::give_up() { std::exchange(pending_, {}).wait(); }

std::vector<std::vector<at::Tensor>> packs_of(const std::vector<at::Tensor>& tensors,
                                              std::int64_t chunk_bytes) {
  std::vector<std::vector<at::Tensor>> packs;
  std::map<std::pair<at::ScalarType, std::string>, std::pair<std::size_t, std::int64_t>> open;
  for (const at::Tensor& tensor : tensors) {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    const auto [found, is_new] =
        open.try_emplace({tensor.scalar_type(), tensor.device().str()}, packs.size(), 0);
    auto& [pack, filled] = found->second;
    if (is_new || filled + bytes > chunk_bytes) {
      pack = packs.size();
      filled = 0;
      packs.emplace_back();
    }
    packs[pack].push_back(tensor);
    filled += bytes;
  }
  return packs;
}

void broadcast_tensors(comm::Group& group, const std::vector<at::Tensor>& tensors, int root) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (auto& pack : packs_of(tensors, kChunkBytes)) {
    Coalesced coalesced(group, std::move(pack));
    coalesced.start(group, root);
    coalesced.finish(group);
  }
}

}  // namespace trireme::parallel
