#pragma once
// Reduce-scatter, all-gather and exchanges of unequal parts over gloo as messages between the memory of the
// ranks' tensors, without copies of these. Gloo's threads run them, in the order of the operations. For
// gloo_backend.cpp alone, which sees gloo's headers.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/memory_ledger.h"
#include "trireme/base/rounding.h"
#include "trireme/comm/internal/reduce_rows.h"

namespace trireme::comm {

/// An operation of parts, one for each rank: messages between the memory of its tensors.
class PartsWork : public c10d::ProcessGroupGloo::AsyncWork {
 public:
  /// A send or receive.
  using Message = c10::intrusive_ptr<c10d::Work>;
  struct Operation {
    c10d::ProcessGroupGloo& gloo;  ///< outlives its works: it ends their threads
    c10d::OpType type;
    int tag;  ///< of all messages, which come in order between two ranks
    std::chrono::milliseconds timeout;
    at::Tensor output, input;  ///< with one dim
  };

  /// The name of the type has to fit a string without memory of its own (15 characters in libstdc++): after
  /// each operation, each of gloo's threads assigns it to one string of the group, without a lock, and a
  /// longer name is freed twice. (ProcessGroupGloo::runLoop(), pgStatus_->lastCompletedWorkName;
  /// libtorch 2.15.)
  PartsWork(const Operation& operation, const std::shared_ptr<gloo::Context>& context, std::uint64_t sequence)
      : AsyncWork(context, std::vector<std::vector<at::Tensor>>{{operation.output}}, operation.type, sequence,
                  operation.timeout, "trireme:gloo_parts", std::vector<at::Tensor>{operation.input}),
        operation_(operation) {
    const std::string name = c10d::opTypeToString(operation.type);
    require(name.size() <= std::string().capacity(), "gloo's threads cannot take an operation of type ", name,
            ": its name is longer than ", std::string().capacity(), " characters");
  }

  const std::vector<at::Tensor> getInputTensors() override { return {operation_.input}; }
  const std::vector<at::Tensor> getOutputTensors() override { return {operation_.output}; }

 protected:
  const Operation& operation() const { return operation_; }
  int rank() const { return operation_.gloo.getRank(); }
  int size() const { return operation_.gloo.getSize(); }
  bool is_other(int rank) const { return rank != operation_.gloo.getRank(); }

  Message send(const at::Tensor& from, int to_rank) const { return send(from, to_rank, operation_.tag); }
  Message receive(const at::Tensor& to, int from_rank) const {
    return receive(to, from_rank, operation_.tag);
  }
  Message send(const at::Tensor& from, int to_rank, int tag) const {
    std::vector<at::Tensor> tensors{from};
    return operation_.gloo.send(tensors, to_rank, tag);
  }
  Message receive(const at::Tensor& to, int from_rank, int tag) const {
    std::vector<at::Tensor> tensors{to};
    return operation_.gloo.recv(tensors, from_rank, tag);
  }
  void wait_for(const std::vector<Message>& works) const {
    for (const Message& each : works) {
      if (!each->wait(operation_.timeout)) throw CommError("the operation was aborted");
    }
  }

 private:
  const Operation operation_;
};

/// The input may be at its place in the output.
class AllGatherWork : public PartsWork {
 public:
  using PartsWork::PartsWork;

  void run() override {
    const at::NoGradGuard no_grad;
    const at::Tensor& input = operation().input;
    const auto part_of = [&](int rank) {
      return operation().output.narrow(0, rank * input.numel(), input.numel());
    };
    if (input.numel() == 0) return;
    std::vector<Message> works;
    for (int other = 0; other < size(); ++other) {
      if (!is_other(other)) continue;
      works.push_back(receive(part_of(other), other));
      works.push_back(send(input, other));
    }
    const at::Tensor mine = part_of(rank());
    if (mine.const_data_ptr() != input.const_data_ptr()) mine.copy_(input);
    wait_for(works);
  }
};

/// Parts of the input go to the ranks, and parts of the output come from them. Gloo's own operation silently
/// fills a part that is larger than the message, and ends the process over one that is smaller. Here the size
/// of a message is in its tag, so that another one is never received, and both ranks wait until the deadline.
class UnequalPartsWork : public PartsWork {
 public:
  /// Numbers of elements, by rank.
  struct Sizes {
    std::vector<std::int64_t> to, from;
  };
  UnequalPartsWork(const Operation& operation, Sizes sizes, const std::shared_ptr<gloo::Context>& context,
                   std::uint64_t sequence)
      : PartsWork(operation, context, sequence), sizes_(std::move(sizes)) {}

  void run() override {
    const at::NoGradGuard no_grad;
    std::vector<Message> works;
    std::int64_t sent = 0, received = 0;
    for (int other = 0; other < size(); ++other) {
      const auto at = static_cast<std::size_t>(other);
      const at::Tensor to = operation().input.narrow(0, sent, sizes_.to[at]),
                       from = operation().output.narrow(0, received, sizes_.from[at]);
      sent += to.numel();
      received += from.numel();
      if (!is_other(other)) {
        from.copy_(to);
        continue;
      }
      if (from.numel() > 0) works.push_back(receive(from, other, tag_of(from)));
      if (to.numel() > 0) works.push_back(send(to, other, tag_of(to)));
    }
    wait_for(works);
  }

 private:
  /// Another one for another size, still of this operation.
  int tag_of(const at::Tensor& part) const {
    constexpr std::uint64_t kSpread = 0x9e3779b97f4a7c15u;
    const auto spread = static_cast<std::uint64_t>(part.numel()) * kSpread >> 41U;  // 23 bits
    return operation().tag ^ static_cast<int>(spread);
  }

  const Sizes sizes_;
};

/// Memory for parts of other ranks that have come and are not added up yet, of an operation.
inline constexpr std::int64_t kArrivingBytes = 2 << 20;

/// Sums in rank order, piece by piece: the next piece arrives while one is added up. The output may be at its
/// place in the input.
class ReduceScatterWork : public PartsWork {
 public:
  ReduceScatterWork(const Operation& operation, const c10d::ReduceOp& op,
                    const std::shared_ptr<gloo::Context>& context, std::uint64_t sequence)
      : PartsWork(operation, context, sequence), op_(op) {}

  void run() override {
    const at::NoGradGuard no_grad;
    const at::Tensor& output = operation().output;
    if (output.numel() == 0) return;
    const std::int64_t room = kArrivingBytes / 2 / size() / static_cast<std::int64_t>(output.element_size());
    const std::int64_t numel = std::min(output.numel(), std::max<std::int64_t>(room, 1024));
    std::vector<Message> sends;
    const std::int64_t count = divide_up(output.numel(), numel);
    std::array<Piece, 2> pieces;
    for (Piece& each : std::span(pieces).first(count > 1 ? 2 : 1)) {
      each.rows = at::empty({size(), numel}, output.options());
      MemoryLedger::of_process().name(each.rows.const_data_ptr(), MemoryKind::kCommunication);
    }
    start(pieces[0], 0, sends);
    for (std::int64_t number = 0; number < count; ++number) {
      if (number + 1 < count) start(pieces[(number + 1) % 2], number + 1, sends);
      add_up(pieces[number % 2], number);
    }
    wait_for(sends);
  }

 private:
  struct Piece {
    at::Tensor rows;  ///< by rank
    std::vector<Message> receives;
  };

  /// Of rank's part.
  at::Tensor piece_of(const at::Tensor& parts, int rank, std::int64_t begin, std::int64_t numel) const {
    return parts.narrow(0, rank * operation().output.numel() + begin, numel);
  }
  std::pair<std::int64_t, std::int64_t> range_of(const Piece& piece, std::int64_t number) const {
    const std::int64_t begin = number * piece.rows.size(1);
    return {begin, std::min(piece.rows.size(1), operation().output.numel() - begin)};
  }

  void start(Piece& piece, std::int64_t number, std::vector<Message>& sends) const {
    const auto [begin, numel] = range_of(piece, number);
    const at::Tensor& input = operation().input;
    for (int other = 0; other < size(); ++other) {
      if (!is_other(other)) continue;
      piece.receives.push_back(receive(piece.rows[other].narrow(0, 0, numel), other));
      sends.push_back(send(piece_of(input, other, begin, numel), other));
    }
  }

  void add_up(Piece& piece, std::int64_t number) const {
    const auto [begin, numel] = range_of(piece, number);
    wait_for(std::exchange(piece.receives, {}));
    piece.rows[rank()].narrow(0, 0, numel).copy_(piece_of(operation().input, rank(), begin, numel));
    reduce_rows(piece.rows.narrow(1, 0, numel), op_, operation().output.narrow(0, begin, numel));
  }

  const c10d::ReduceOp op_;
};

}  // namespace trireme::comm
