#pragma once
// Parameters that are one after the other in a table of a parameter server. Pushes and pulls go by chunks:
// each is pushed as soon as all of its gradients are there, and waited for when one of its parameters is
// needed. Of the chunks that wait for a connection, those that the next forward uses first go first. One
// thread.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/optim/optimizer.h"
#include "trireme/ps/client.h"

namespace trireme::parallel {

/// A parameter, and how much of the model is used before it: from 0, below 1.
struct ServedParameter {
  std::string name;
  at::Tensor parameter;
  double place = 0;
};

class ServedTable {
 public:
  /// `states`: the servers' state of each element, in their order. Opens the table. Throws the exceptions of
  /// ps::Client::open_table().
  ServedTable(ps::Client& client, ps::TableSpec spec, std::vector<std::string_view> states,
              const std::vector<ServedParameter>& parameters);

  std::size_t num_parameters() const { return items_.size(); }
  const std::string& name_of(std::size_t i) const { return items_[i].name; }

  /// The gradient of parameter i is final for this step; whole chunks are pushed. Throws InvalidArgument: no
  /// gradient, or a second time in a step.
  void give(std::size_t i, double lr, std::deque<ps::Pending>& pushes);
  /// Those that have not been given; the next step's come after it.
  void give_rest(double lr, std::deque<ps::Pending>& pushes);
  /// Something was given in a step that has not ended.
  bool is_amid_step() const;
  /// Nothing was given: of a step that was broken off, and whose pushes the servers have dropped or made.
  void forget_step();

  /// Drops the residual of a compression of pushes.
  void forget_left_out();

  /// All values are asked for. Waits for those that were asked for before: they come to the same memory.
  void pull();
  /// Waits until all have come, and leaves the parameters unchanged. Throws the error of the pull.
  void wait_for_pull();
  /// Whether the values of parameter i that were asked for are here, without waiting.
  bool has_arrived(std::size_t i) const;
  /// Waits until parameter i has the requested values. Returns the lowest clock of a worker that they
  /// include; none where they were there. Throws the error of the pull, each time.
  std::optional<ps::WorkerClock> finish_pull(std::size_t i);

  /// This rank's values to the servers, and with them, where there is one, the optimizer's state of these
  /// names ("momentum/fc1.weight"). Waits.
  void assign();
  void restore(const std::map<std::string, at::Tensor>& state);
  /// The servers' values into the parameters, and their state into these tensors. Waits.
  void pull_state(const std::map<std::string, at::Tensor>& state);

 private:
  struct Item {
    std::string name;
    at::Tensor parameter;
    std::size_t begin = 0;                        ///< of its elements in the table
    std::size_t first_chunk = 0, num_chunks = 0;  ///< that have some of them
    bool is_given = false, has_arrived = true;
  };
  struct Chunk {
    std::size_t num_items = 0;  ///< that have elements in it
    std::size_t num_given = 0;
    wire::Priority priority = 0;
    std::optional<ps::Pending> pulling;
  };

  std::size_t num_elements() const { return values_.size(); }
  std::size_t begin_of(std::size_t chunk) const { return chunk * spec_.chunk_elements; }
  std::size_t size_of(std::size_t chunk) const { return spec_.elements_of(chunk); }
  std::shared_ptr<std::vector<float>> free_buffer();
  std::vector<float> values_of_parameters() const;
  std::vector<float> state_row(const std::map<std::string, at::Tensor>& state, std::string_view kind) const;
  void take_state_row(const std::map<std::string, at::Tensor>& state, std::string_view kind,
                      std::vector<float>& row) const;

  ps::Client& client_;
  const ps::TableSpec spec_;
  ps::TableId table_ = 0;
  const std::vector<std::string_view> states_;
  std::vector<Item> items_;
  std::vector<Chunk> chunks_;
  std::vector<float> values_;  ///< as they were pulled
  /// Buffers of pushes; a buffer is used again when all receivers have it.
  std::vector<std::shared_ptr<std::vector<float>>> buffers_;
  std::shared_ptr<std::vector<float>> gradients_;  ///< of this step; null before the first
};

}  // namespace trireme::parallel
