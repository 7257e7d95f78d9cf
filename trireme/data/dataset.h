#pragma once
// The seam for data: how many samples there are, and the i-th one. Everything else (prefetching, sharding,
// batching) is built on these two. `get` and `get_batch` are const, thread-safe and deterministic.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

/// One sample, or with a leading batch dim a batch of them.
struct Example {
  at::Tensor input;   ///< image: f32 (channels, height, width); text: i64 (block)
  at::Tensor target;  ///< class: i64, no dims; text: i64 (block), the token after each
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// 0 <= index < size(). Throws DataError when the sample cannot be read; the message names file and sample.
  virtual Example get(std::int64_t index) const = 0;
  /// Samples stacked in the given order: a leading batch dim. Overridden where a batch is cheaper at once.
  virtual Example get_batch(std::span<const std::int64_t> indices) const;
};

/// Throws DataError, naming the sample, when a target of the batch of these samples is outside [0,
/// num_classes): kernels only say so after the fact, or not at all.
void check_targets(const Example& batch, std::span<const std::int64_t> indices, std::int64_t num_classes);

/// A data set as a configuration names it: its two splits and what a model has to know.
struct DataSource {
  std::string name;
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  std::vector<std::int64_t> input_shape;  ///< of one sample, without the batch dim
  std::int64_t num_classes = 0;           ///< text: size of the vocabulary
  std::int64_t targets_per_sample = 1;    ///< text: one per token
  std::string held_out = "test";          ///< what metrics call the second split: "test_accuracy"
};

struct DataOptions {
  std::string name = "fashion_mnist";
  std::string path = {};    ///< folder of the files; empty: where Debian's package puts them
  int workers = 1;          ///< loader threads per rank
  std::int64_t block = 64;  ///< text: characters per sample
};

/// One row per source in data_table.cpp: "fashion_mnist", "mnist", "synthetic", "text". Throws
/// InvalidArgument for an unknown name (nearest one named), DataError for missing, truncated or foreign
/// files.
DataSource open_data(const DataOptions& options);
std::vector<std::string> data_names();

}  // namespace trireme::data
