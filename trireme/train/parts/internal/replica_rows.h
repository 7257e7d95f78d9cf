#pragma once
// State of each replica of a model, or each site, is a row of one tensor in a checkpoint. Another number of
// them takes over the rows of missing replicas.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/train/step/state_part.h"

namespace trireme::train {

/// `tensor` has one row.
checkpoint::Shard row_shard(const std::string& name, const at::Tensor& tensor, std::int64_t row,
                            std::int64_t num_rows);

/// The most rows that a tensor under `prefix` has, which as many replicas have written; 0: there is none.
std::int64_t stored_rows(const std::string& prefix, const StoredSizes& stored);

/// Rows of a checkpoint for one of the replicas that there are now: its own and, `num_rows` by `num_rows`,
/// those after the last one.
class StoredRows {
 public:
  void add(const std::string& name, const at::Tensor& row, std::int64_t index, std::int64_t num_rows,
           std::int64_t num_stored);
  const checkpoint::Shards& shards() const { return shards_; }
  /// They have been filled: added ones become the sum of their rows; zeros where there are none.
  void take_sums() const;
  /// The same with their mean; of whole numbers, the first.
  void take_means() const;

 private:
  struct Row {
    at::Tensor of;
    std::vector<at::Tensor> stored = {};
  };
  checkpoint::Shards shards_;
  std::vector<Row> rows_;
};

}  // namespace trireme::train
