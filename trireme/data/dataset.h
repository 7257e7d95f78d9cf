#pragma once
// Data whose samples have numbers: how many there are, and the i-th one. Everything else (prefetching,
// sharding, batching) is built on these two. `get` and `get_batch` are const, thread-safe and deterministic.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/data/example.h"
#include "trireme/data/training_data.h"

namespace trireme::data {

class Dataset : public TrainingData {
 public:
  /// 0 <= index < size(). Throws DataError when the sample cannot be read; the message names file and sample.
  virtual Example get(std::int64_t index) const = 0;
  /// Samples stacked in the given order: a leading batch dim. Overridden where a batch is cheaper at once.
  virtual Example get_batch(std::span<const std::int64_t> indices) const;
  /// The targets of that batch. Overridden where they cost less to read than the inputs.
  virtual Fields get_targets(std::span<const std::int64_t> indices) const;
  /// The data set as it is in one epoch, where its samples vary from epoch to epoch (augmentations); null:
  /// it is the same in all of them.
  virtual std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const;
  /// Relative cost of computing with a sample, in any unit: the length of a text. Called for all samples of a
  /// global batch on each rank: it has to be found without reading the sample.
  virtual double cost(std::int64_t index) const;
  /// Where samples are in shards, one after the other: the end of each. Empty: they are not.
  virtual std::vector<std::int64_t> shard_ends() const { return {}; }

  /// The first samples.
  Example trial_batch(std::int64_t samples) const override;
  /// A Loader (data/loader.h).
  std::unique_ptr<BatchStream> open(const StreamOptions& options) const override;
};

/// The same data, whose samples have numbers. Throws InvalidArgument for those that are made as they are
/// asked for.
std::shared_ptr<const Dataset> indexed(std::shared_ptr<const TrainingData> data);

/// A data set by its name in a configuration: its two splits and the facts that a model needs.
struct DataSource {
  std::string name;
  std::shared_ptr<const TrainingData> train;
  std::shared_ptr<const Dataset> test;  ///< null: there is none, and nothing is evaluated
  std::vector<std::int64_t> input_shape =
      {};                               ///< of one sample, without the batch dim; empty: inputs have names
  std::int64_t num_classes = 0;         ///< text: size of the vocabulary; 0: targets are no classes
  std::int64_t targets_per_sample = 1;  ///< classes; text: one per token; 0: it varies
  std::string held_out = "test";        ///< name of the second split in metrics: "test_accuracy"
  /// Warnings, logged once for all ranks: files that are left out.
  std::vector<std::string> notes = {};
  /// Digests of the splits' content (data/content_digest.h): a resumed run compares it with the checkpoint's.
  /// Empty: not known, and numbers of samples alone are compared.
  std::string train_digest = {}, test_digest = {};
};

/// Pixels that an image may have: those beyond which Pillow warns of a decompression bomb.
inline constexpr std::int64_t kMaxPixels = 89'478'485;

/// The table [data] of a configuration: the data, their place, and options of reading. open_data() takes it.
struct DataOptions {
  std::string name = "fashion_mnist";
  std::string path = {};                  ///< folder of the files; empty: where Debian's package puts them
  int workers = 0;                        ///< loader threads per rank; 0: as many as steps need
  std::int64_t prefetch = 4;              ///< steps read ahead, at first
  std::int64_t read_ahead_mib = 512;      ///< bound of automatic read-ahead
  std::string balance = "count";          ///< "cost" or "dynamic" (Balance)
  bool drop_last = false;                 ///< the last batch of an epoch, where it is not full
  std::int64_t open_shards = 0;           ///< shards read at a time (data/sampler.h); 0: all
  std::int64_t block = 64;                ///< text: characters per sample
  std::int64_t image_size = 224;          ///< image_folder: height and width that images are brought to
  std::int64_t most_pixels = kMaxPixels;  ///< of an image that is decoded
  std::string undecodable = "error";      ///< handling of unreadable samples: "error" or "skip"
  std::int64_t retries = 3;               ///< of reads that failed for a reason that may pass
  std::vector<std::string> augment = {};  ///< images: changes to each training image, in this order
  std::int64_t crop_padding = 4;          ///< augmentation "crop": pixels of the frame
  std::string test_path = {};             ///< csv, numpy, webdataset: the second split, as path is the first
  std::vector<std::string> inputs = {};   ///< the same: fields that go into the model; empty: they decide
  std::vector<std::string> targets = {};  ///< the same for targets
  std::string cache = {};                 ///< folder of data that are cached from run to run; empty: none
  std::int64_t cache_mib = 10240;         ///< of blocks of URLs in that folder, at most
  std::int64_t cache_memory_mib = 32;     ///< of those that were used last, in memory
  std::int64_t cache_samples_mib = 0;     ///< images that are kept decoded (data/kept_samples.h)
  bool private_redirects = false;         ///< of URLs: HttpOptions::private_redirects
  std::string target = "auto";            ///< meaning of a target: "class", "number", "auto" (TargetMeaning)
  std::int64_t num_classes = 0;           ///< 0: by the labels (data/class_labels.h)
  std::string header = "auto";            ///< csv: whether the first line has names: "yes", "no", "auto"
  std::string separator = ",";            ///< csv: the character between cells
  std::vector<std::int64_t> ignored_labels = {};  ///< of no class: objective.ignored_classes
};

/// Meaning of a target: a class (i64), or a number (f32). By values: a class where all are whole from 0 on.
enum class TargetMeaning { kByValues, kClass, kNumber };
/// Of DataOptions::target. Throws InvalidArgument for another text.
TargetMeaning target_meaning(const std::string& target);

/// Whether the targets of that source are columns or arrays, whose meaning the objective decides where
/// DataOptions::target does not: csv, numpy. False: they have one meaning, or the name is unknown.
bool has_columns(const std::string& name);

/// The source as DataOptions::target and num_classes ask: whole numbers become f32 with "number", and there
/// may be more classes than occur. open_data() has done so; for sources of a program's own. Throws
/// InvalidArgument for fewer classes than there are, and for a text whose targets were to be numbers.
DataSource with_target_options(DataSource source, const DataOptions& options);

/// One row per source in data_table.cpp: "csv", "fashion_mnist", "image_folder", "mnist", "numpy", "packed",
/// "synthetic", "text", "webdataset". Throws InvalidArgument for an unknown name (nearest one named),
/// DataError for missing, truncated or foreign files. `seed` is that of the augmentations; `log` gets
/// warnings while samples are read.
DataSource open_data(const DataOptions& options, std::uint64_t seed = 0, const Log& log = Log());
std::vector<std::string> data_names();

}  // namespace trireme::data
