#include "trireme/comm/internal/coalesced_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"
#include "trireme/comm/dtype.h"
#include "trireme/comm/internal/arguments.h"
#include "trireme/comm/internal/finishing_work.h"

namespace trireme::comm {
namespace {

constexpr const char* kOperation = "all_to_all_coalesced";
/// Parts begin at multiples of this, the size of the largest element.
constexpr std::int64_t kAlignment = 16;
/// Most pairs that an error message lists.
constexpr std::size_t kMaxDescribed = 8;

std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, kAlignment); }

std::int64_t bytes_of(const at::Tensor& tensor, std::int64_t numel) {
  return numel * static_cast<std::int64_t>(tensor.element_size());
}

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

std::string elements_in_words(std::int64_t numel, std::int64_t dtype) {
  return text(numel, " ", name_of(static_cast<at::ScalarType>(dtype)));
}

void check_equal_parts(const TensorExchange& pair, const std::string& where, std::int64_t size) {
  require(pair.output.scalar_type() == pair.input.scalar_type() && pair.output.numel() == pair.input.numel(),
          kOperation, ": 'output'", where, " has ", pair.output.numel(), " elements of ",
          name_of(pair.output.scalar_type()), ", but 'input' has ", pair.input.numel(), " of ",
          name_of(pair.input.scalar_type()));
  require(pair.input.numel() % size == 0, kOperation, ": 'input'", where, " has ", pair.input.numel(),
          " elements, which cannot be split into ", size, " equal parts");
}

void check_unequal_parts(const TensorExchange& pair, const std::string& where, const GroupParts& parts) {
  const int size = static_cast<int>(parts.world_ranks.size());
  const std::string place = kOperation + where;
  check_rows(place.c_str(), "output", pair.output, pair.rows.from, size);
  check_rows(place.c_str(), "input", pair.input, pair.rows.to, size);
  check_exchanged_rows(place.c_str(), pair.output, pair.input, pair.rows, parts.rank);
}

void check_pair(const TensorExchange& pair, std::size_t number, c10::Device device, const GroupParts& parts) {
  const std::string where = text(" of pair ", number);
  check_tensor(kOperation, text("output", where).c_str(), pair.output);
  check_tensor(kOperation, text("input", where).c_str(), pair.input);
  for (const at::Tensor& tensor : {pair.output, pair.input}) {
    require(tensor.device() == device, kOperation, ": a tensor", where, " lies on ", tensor.device().str(),
            ", and the input of pair 0 on ", device.str(), ": all lie on one device");
  }
  if (pair.rows.to.empty() && pair.rows.from.empty())
    return check_equal_parts(pair, where, static_cast<std::int64_t>(parts.world_ranks.size()));
  check_unequal_parts(pair, where, parts);
}

}  // namespace

CoalescedExchange::CoalescedExchange(const std::vector<TensorExchange>& pairs, const GroupParts& parts)
    : world_ranks_(parts.world_ranks),
      rank_(static_cast<std::size_t>(parts.rank)),
      device_(pairs.empty() || !pairs[0].input.defined() ? c10::Device(c10::kCPU) : pairs[0].input.device()) {
  const std::size_t size = world_ranks_.size();
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [output, input, rows] = pairs[i];
    check_pair(pairs[i], i, device_, parts);
    pairs_.push_back({.output = output.detach().view({-1}),
                      .input = input.detach().view({-1}),
                      .to = numels_of(input, rows.to, size),
                      .from = numels_of(output, rows.from, size)});
  }
  sent_bytes_ = message_bytes(&Pair::to);
  received_bytes_ = message_bytes(&Pair::from);
}

std::string CoalescedExchange::layout() const {
  std::vector<std::string> words;
  for (std::size_t begin = 0, end = 0; begin < pairs_.size(); begin = end) {
    while (end < pairs_.size() && pairs_[end].dtype() == pairs_[begin].dtype()) ++end;
    const std::string name = name_of(pairs_[begin].dtype());
    words.push_back(end - begin == 1 ? name : text(name, "*", end - begin));
  }
  return join(words, ",").substr(0, kMaxLayoutCharacters);
}

Tensors CoalescedExchange::tensors() const {
  Tensors all;
  for (const Pair& pair : pairs_) all.insert(all.end(), {pair.output, pair.input});
  return all;
}

std::string CoalescedExchange::describe() const {
  std::string words = text("; ", kOperation, " of rank ", world_ranks_[rank_], ": ", pairs_.size(),
                           pairs_.size() == 1 ? " tensor" : " tensors");
  for (std::size_t i = 0; i < std::min(pairs_.size(), kMaxDescribed); ++i) {
    const Pair& pair = pairs_[i];
    words += text(i == 0 ? ": " : "; ", "tensor ", i, " of ", name_of(pair.dtype()), " sends ",
                  at::IntArrayRef(pair.to), " and expects ", at::IntArrayRef(pair.from));
  }
  return words + (pairs_.size() > kMaxDescribed ? "; ..." : "");
}

/// The number of pairs, then dtype and number of elements of each part.
std::vector<std::int64_t> CoalescedExchange::head(std::vector<std::int64_t> Pair::*numels,
                                                  std::size_t rank) const {
  std::vector<std::int64_t> head = {static_cast<std::int64_t>(pairs_.size())};
  for (const Pair& pair : pairs_) {
    head.push_back(static_cast<std::int64_t>(pair.dtype()));
    head.push_back((pair.*numels)[rank]);
  }
  return head;
}

std::int64_t CoalescedExchange::head_bytes() const {
  return aligned(static_cast<std::int64_t>(sizeof(std::int64_t) * (1 + 2 * pairs_.size())));
}

std::vector<std::int64_t> CoalescedExchange::message_bytes(std::vector<std::int64_t> Pair::*numels) const {
  std::vector<std::int64_t> bytes(world_ranks_.size(), 0);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    if (rank == rank_) continue;
    bytes[rank] = head_bytes();
    for (const Pair& pair : pairs_) bytes[rank] += aligned(bytes_of(pair.input, (pair.*numels)[rank]));
  }
  return bytes;
}

void CoalescedExchange::copy_own() const {
  for (const Pair& pair : pairs_) {
    const auto before = [&](const std::vector<std::int64_t>& numels) {
      return std::accumulate(numels.begin(), numels.begin() + static_cast<std::ptrdiff_t>(rank_),
                             std::int64_t{0});
    };
    pair.output.narrow(0, before(pair.from), pair.from[rank_])
        .copy_(pair.input.narrow(0, before(pair.to), pair.to[rank_]));
  }
}

at::Tensor CoalescedExchange::packed(c10d::Backend* backend) const {
  const at::NoGradGuard no_grad;
  const std::int64_t all = sum_of(sent_bytes_);
  const auto options = at::TensorOptions(at::kByte).device(device_);
  const bool has_own = backend != nullptr && device_.is_cpu() && backend->supportsTensorAlloc(0);
  at::Tensor message = has_own ? backend->allocateTensor(all, options) : at::empty({all}, options);
  std::vector<std::int64_t> taken(pairs_.size(), 0);
  std::int64_t begin = 0;
  for (std::size_t rank = 0; rank < world_ranks_.size(); ++rank) {
    std::int64_t at = begin + head_bytes();
    if (rank != rank_) {
      std::vector<std::int64_t> words = head(&Pair::to, rank);
      at::Tensor bytes = at::empty({static_cast<std::int64_t>(words.size() * sizeof words[0])}, at::kByte);
      std::memcpy(bytes.mutable_data_ptr(), words.data(), words.size() * sizeof words[0]);
      message.narrow(0, begin, bytes.numel()).copy_(bytes);
    }
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const std::int64_t numel = pairs_[i].to[rank];
      const at::Tensor part = pairs_[i].input.narrow(0, std::exchange(taken[i], taken[i] + numel), numel);
      if (rank == rank_ || numel == 0) continue;
      const std::int64_t bytes = bytes_of(part, numel);
      message.narrow(0, at, bytes).copy_(part.view(at::kByte));
      at += aligned(bytes);
    }
    begin += sent_bytes_[rank];
  }
  return message;
}

at::Tensor CoalescedExchange::room() const {
  return at::empty({sum_of(received_bytes_)}, at::TensorOptions(at::kByte).device(device_));
}

void CoalescedExchange::check_head(const std::int64_t* found, std::size_t from) const {
  const std::vector<std::int64_t> expected = head(&Pair::from, from);
  const auto differs = [&](const auto& sent, const auto& wanted) {
    throw CommError(text(kOperation, ": rank ", world_ranks_[from], " sends ", sent, " to rank ",
                         world_ranks_[rank_], ", which expects ", wanted,
                         "; all ranks have to name the same pairs, with rows that agree"));
  };
  if (found[0] != expected[0]) differs(text(found[0], " tensors"), expected[0]);
  for (std::size_t i = 1; i < expected.size(); i += 2) {
    if (found[i] == expected[i] && found[i + 1] == expected[i + 1]) continue;
    differs(text(elements_in_words(found[i + 1], found[i]), " as tensor ", i / 2),
            elements_in_words(expected[i + 1], expected[i]));
  }
}

void CoalescedExchange::check(const at::Tensor& received) const {
  Tensors heads;
  std::int64_t begin = 0;
  for (std::size_t rank = 0; rank < world_ranks_.size(); ++rank) {
    if (rank != rank_) heads.push_back(received.narrow(0, begin, head_bytes()));
    begin += received_bytes_[rank];
  }
  const at::Tensor all = at::cat(heads).cpu();  // from a device: one copy, which synchronizes
  const auto* bytes = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::int64_t> words(1 + 2 * pairs_.size());
  for (std::size_t rank = 0; rank < world_ranks_.size(); ++rank) {
    if (rank == rank_) continue;
    std::memcpy(words.data(), bytes, words.size() * sizeof words[0]);
    check_head(words.data(), rank);
    bytes += head_bytes();
  }
}

void CoalescedExchange::unpack(const at::Tensor& received) const {
  std::vector<std::int64_t> filled(pairs_.size(), 0);
  std::int64_t begin = 0;
  for (std::size_t rank = 0; rank < world_ranks_.size(); ++rank) {
    std::int64_t at = begin + head_bytes();
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const std::int64_t numel = pairs_[i].from[rank];
      const at::Tensor part = pairs_[i].output.narrow(0, std::exchange(filled[i], filled[i] + numel), numel);
      if (rank == rank_ || numel == 0) continue;
      const std::int64_t bytes = bytes_of(part, numel);
      part.view(at::kByte).copy_(received.narrow(0, at, bytes));
      at += aligned(bytes);
    }
    begin += received_bytes_[rank];
  }
}

Work start_exchange(const std::shared_ptr<const CoalescedExchange>& exchange, c10d::Backend& backend,
                    bool is_async) {
  at::Tensor sent = exchange->packed(&backend), received = exchange->room();
  std::vector<std::int64_t> to = exchange->sent_bytes(), from = exchange->received_bytes();
  c10d::AllToAllOptions options;
  options.asyncOp = is_async;
  Work messages = backend.alltoall_base(received, sent, from, to, options);
  return c10::make_intrusive<FinishingWork>(
      std::move(messages), [exchange] { return exchange->describe(); },
      [exchange, sent, received] {
        const at::NoGradGuard no_grad_at_the_end;
        exchange->check(received);
        exchange->copy_own();
        exchange->unpack(received);
      });
}

}  // namespace trireme::comm
