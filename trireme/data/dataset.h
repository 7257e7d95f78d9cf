#pragma once
// The seam for data: how many samples there are, and the i-th one. Everything else (prefetching, sharding,
// batching) is built on these two. `get` and `get_batch` are const, thread-safe and deterministic.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/batch/fields.h"

namespace trireme::data {

/// One sample, or with a leading batch dim a batch of them. {image, label}, or with names:
/// {{{"query", query}, {"document", document}}, {{"clicked", clicked}}}; either may have no field at all.
struct Example {
  Fields input;   ///< image: f32 (channels, height, width); text: i64 (block)
  Fields target;  ///< what the objective takes: a class, i64, no dims; text: i64 (block), the token after
                  ///< each; numbers: f32

  /// Of a batch: how many samples.
  std::int64_t rows() const { return input.empty() ? target.rows() : input.rows(); }
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// 0 <= index < size(). Throws DataError when the sample cannot be read; the message names file and sample.
  virtual Example get(std::int64_t index) const = 0;
  /// Samples stacked in the given order: a leading batch dim. Overridden where a batch is cheaper at once.
  virtual Example get_batch(std::span<const std::int64_t> indices) const;
  /// Whether tensors of batches of as many samples may differ in size (data/collate.h). Pipelines that have
  /// to know all sizes ahead are refused then.
  virtual bool sizes_vary() const { return false; }
  /// The data set as it is in one epoch, where its samples vary from epoch to epoch (augmentations); null:
  /// it is the same in all of them.
  virtual std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const;
};

/// Throws DataError unless sample number `index` has the same fields as another of its batch.
void check_same_fields(const Fields& sample, const Fields& other, std::int64_t index);

/// Throws DataError, naming the sample, when a number of its inputs is infinite or not a number: one such
/// sample ends the training of the whole model.
void check_finite(const Example& batch, std::span<const std::int64_t> indices);

/// A data set as a configuration names it: its two splits and what a model has to know.
struct DataSource {
  std::string name;
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  std::vector<std::int64_t> input_shape =
      {};                               ///< of one sample, without the batch dim; empty: inputs have names
  std::int64_t num_classes = 0;         ///< text: size of the vocabulary; 0: targets are no classes
  std::int64_t targets_per_sample = 1;  ///< classes; text: one per token; 0: it varies
  std::string held_out = "test";        ///< what metrics call the second split: "test_accuracy"
};

struct DataOptions {
  std::string name = "fashion_mnist";
  std::string path = {};                  ///< folder of the files; empty: where Debian's package puts them
  int workers = 1;                        ///< loader threads per rank
  std::int64_t block = 64;                ///< text: characters per sample
  std::int64_t image_size = 224;          ///< image_folder: height and width that images are brought to
  std::string undecodable = "error";      ///< image_folder: "error" or "skip"
  std::vector<std::string> augment = {};  ///< images: changes to each training image, in this order
  std::int64_t crop_padding = 4;          ///< augmentation "crop": pixels of the frame
};

/// One row per source in data_table.cpp: "fashion_mnist", "image_folder", "mnist", "packed", "synthetic",
/// "text".
/// Throws InvalidArgument for an unknown name (nearest one named), DataError for missing, truncated or
/// foreign files. `seed` is that of the augmentations; `log` gets what is worth a warning while samples are
/// read.
DataSource open_data(const DataOptions& options, std::uint64_t seed = 0, const Log& log = Log());
std::vector<std::string> data_names();

}  // namespace trireme::data
