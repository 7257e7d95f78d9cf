#include "trireme/train/state_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::train {
namespace {

constexpr char kFieldEnd = '\t';

/// One line per tensor: name, type and sizes.
std::string catalogue_of(const checkpoint::TensorMap& tensors) {
  std::string lines;
  for (const auto& [name, tensor] : tensors) {
    lines += name + kFieldEnd + std::to_string(static_cast<int>(tensor.scalar_type()));
    for (const std::int64_t size : tensor.sizes()) lines += kFieldEnd + std::to_string(size);
    lines += '\n';
  }
  return lines;
}

std::int64_t whole_number(const std::string& digits) {
  std::int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

}  // namespace

StateExchange::StateExchange(comm::Group world, const checkpoint::TensorMap& mine)
    : world_(std::move(world)) {
  const std::vector<std::string> all = world_.all_gather_text(catalogue_of(mine));
  for (int rank = 0; rank < world_.size(); ++rank) {
    for (const std::string& line : split(all[static_cast<std::size_t>(rank)], '\n')) {
      if (line.empty()) continue;
      const std::vector<std::string> fields = split(line, kFieldEnd);
      Entry found{.sizes = {}, .type = static_cast<at::ScalarType>(whole_number(fields[1])), .holders = {}};
      for (std::size_t i = 2; i < fields.size(); ++i) found.sizes.push_back(whole_number(fields[i]));
      Entry& entry = entries_.try_emplace(fields[0], found).first->second;
      require(entry.sizes == found.sizes && entry.type == found.type, "'", fields[0], "' is ",
              at::IntArrayRef(entry.sizes), " on rank ", entry.holders.empty() ? rank : entry.holders[0],
              " and ", at::IntArrayRef(found.sizes), " on rank ", rank);
      entry.holders.push_back(rank);
    }
  }
}

bool StateExchange::holds(const Entry& entry, int rank) const {
  return std::binary_search(entry.holders.begin(), entry.holders.end(), rank);
}

checkpoint::TensorMap StateExchange::gather(const checkpoint::TensorMap& mine,
                                            const std::function<bool(const std::string&)>& wanted) {
  const at::NoGradGuard no_grad;
  checkpoint::TensorMap all;
  if (world_.rank() == 0) all = mine;
  if (wanted) std::erase_if(all, [&](const auto& item) { return !wanted(item.first); });
  for (const auto& [name, entry] : entries_) {
    if (holds(entry, 0) || (wanted && !wanted(name))) continue;
    const int source = entry.holders.front();
    if (world_.rank() == source) {
      world_.send(mine.at(name).contiguous(), 0);
    } else if (world_.rank() == 0) {
      at::Tensor tensor = at::empty(entry.sizes, entry.type);
      world_.recv(tensor, source);
      all.emplace(name, std::move(tensor));
    }
  }
  return all;
}

void StateExchange::check(const checkpoint::TensorMap& found, const char* what) const {
  for (const auto& [name, entry] : entries_) {
    const auto source = found.find(name);
    if (source == found.end()) throw DataError(text("the checkpoint has no ", what, " '", name, "'"));
    const at::Tensor& tensor = source->second;
    if (tensor.sizes() != at::IntArrayRef(entry.sizes) || tensor.scalar_type() != entry.type) {
      throw DataError(text("the checkpoint's ", what, " '", name, "' has shape ", tensor.sizes(),
                           " and type ", tensor.scalar_type(), ", this run's ", at::IntArrayRef(entry.sizes),
                           " and ", entry.type));
    }
  }
}

void StateExchange::scatter(const checkpoint::TensorMap& found, const checkpoint::TensorMap& mine,
                            const char* what) {
  const at::NoGradGuard no_grad;
  const bool is_main = world_.rank() == 0;
  if (is_main) check(found, what);
  for (const auto& [name, entry] : entries_) {
    at::Tensor tensor = is_main ? found.at(name).contiguous() : at::empty(entry.sizes, entry.type);
    if (static_cast<int>(entry.holders.size()) == world_.size()) {
      world_.broadcast(tensor, 0);
    } else if (is_main) {
      for (const int holder : entry.holders) {
        if (holder != 0) world_.send(tensor, holder);
      }
    } else if (holds(entry, world_.rank())) {
      world_.recv(tensor, 0);
    }
    if (const auto target = mine.find(name); target != mine.end()) at::Tensor(target->second).copy_(tensor);
  }
}

}  // namespace trireme::train
