#pragma once
// One step of a list of transfers, as one rank carries it out: everything that it sends and receives in the
// step is under way at once. Belongs to one thread.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "trireme/topology/all_reduce_steps.h"
#include "trireme/topology/internal/connections.h"
#include "trireme/wire/element.h"

namespace trireme::topology {

/// Memory of the transfers of a step.
struct StepData {
  int rank = 0;
  std::span<const std::byte> held;  ///< the values that this rank sends, and adds to received ones
  std::span<std::byte> result;      ///< destination of received values: the same memory, or a part of its own
  std::int64_t result_begin = 0;    ///< the element that `result` begins with
  wire::Element element = wire::Element::kF32;
  wire::Reduction reduction = wire::Reduction::kSum;
};

class ExchangeStep {
 public:
  /// `transfers`: those that this rank sends or receives, at most one each way with any other. Long ones go
  /// over all lanes, a piece over each.
  ExchangeStep(std::span<const Transfer> transfers, const StepData& on, Connections& connections,
               std::vector<std::byte>& scratch);
  void carry_out(const Deadline& deadline);

 private:
  struct Send {
    Line line;
    std::span<const std::byte> left;
  };
  /// Received values replace the target, or are added to it: block by block as they come, or at the end of
  /// the step where this rank sends the same elements, or several send them.
  struct Receive {
    Line line;
    std::span<std::byte> target;
    const std::byte* held = nullptr;   ///< this rank's values of the elements
    std::span<std::byte> buffer = {};  ///< where it goes until it is added; empty where it replaces
    bool adds_at_end = false;
    std::size_t arrived = 0;  ///< bytes
    std::size_t added = 0;
    bool done() const { return arrived == target.size(); }
  };

  std::vector<std::pair<Line, Transfer>> pieces_of(int peer, const Transfer& transfer) const;
  std::span<const std::byte> held_of(const Transfer& transfer) const;
  std::span<std::byte> target_of(const Transfer& transfer) const;
  void give_buffers();
  bool push(Send& send);
  bool pull(Receive& receive);
  void add_block(Receive& receive);
  void add_at_end();
  bool move();
  void wait(const Deadline& deadline);

  const StepData on_;
  Connections& connections_;
  std::vector<std::byte>& scratch_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

}  // namespace trireme::topology
