#pragma once
// Several exchanges as one operation. All parts for one rank are one message of bytes: a head that describes
// the rest, then the part of each tensor. The receiver compares the head with the expected one before it
// takes an element. So ranks with different exchanges get an error even where the sizes of their messages are
// equal. A rank's part for itself is copied, and is in no message.

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/internal/group_state.h"

namespace trireme::comm {

class CoalescedExchange {
 public:
  /// Throws InvalidArgument that names the pair.
  CoalescedExchange(const std::vector<TensorExchange>& pairs, const GroupParts& parts);

  /// The element types of the pairs in order, which are the same on all ranks: "f32*2,i64".
  std::string layout() const;
  /// All that it reads and writes.
  Tensors tensors() const;
  /// The elements that this rank sends and expects, by pair, for messages.
  std::string describe() const;

  /// This rank's parts for itself.
  void copy_own() const;
  /// One tensor of bytes, rank by rank. `backend`: the one that allocates its memory, where it can; may be
  /// null.
  at::Tensor packed(c10d::Backend* backend) const;
  /// Buffer of the received bytes.
  at::Tensor room() const;
  /// Throws CommError where a rank has sent other tensors than are expected; nothing is written then.
  void check(const at::Tensor& received) const;
  void unpack(const at::Tensor& received) const;

  /// Bytes of the messages, by rank.
  const std::vector<std::int64_t>& sent_bytes() const { return sent_bytes_; }
  const std::vector<std::int64_t>& received_bytes() const { return received_bytes_; }

 private:
  /// One pair, as elements in a row, and how many of them are for, or from, each rank.
  struct Pair {
    at::Tensor output, input;
    std::vector<std::int64_t> to, from;
    at::ScalarType dtype() const { return input.scalar_type(); }
  };

  std::int64_t head_bytes() const;
  std::vector<std::int64_t> head(std::vector<std::int64_t> Pair::*numels, std::size_t rank) const;
  std::vector<std::int64_t> message_bytes(std::vector<std::int64_t> Pair::*numels) const;
  void check_head(const std::int64_t* found, std::size_t from) const;

  std::vector<Pair> pairs_;
  std::vector<int> world_ranks_;
  std::size_t rank_;
  c10::Device device_;
  std::vector<std::int64_t> sent_bytes_, received_bytes_;
};

/// Begins it. Waiting for the work checks, and puts the results where they belong.
Work start_exchange(const std::shared_ptr<const CoalescedExchange>& exchange, c10d::Backend& backend,
                    bool is_async);

}  // namespace trireme::comm
