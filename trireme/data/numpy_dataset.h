#pragma once
// Samples in arrays of NumPy, one array per field, the first dim of which is that of samples: files NAME.npy,
// or members of an uncompressed .npz (np.savez). A sample is read on request; only the headers stay in
// memory. Floats become f32, whole numbers i64, of either byte order. Inputs of bytes (u1) with a height and
// a width are images, and become f32 in [0, 1]. Immutable; thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "trireme/data/byte_source.h"
#include "trireme/data/class_labels.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

/// Names of the arrays that are a sample's input and its target, in this order.
struct NumpyDatasetOptions {
  std::vector<std::string> inputs = {"x"};
  std::vector<std::string> targets = {"y"};
};

/// An array within a source: a .npy file, or a member of an archive.
struct NumpyArray {
  std::string name;
  std::shared_ptr<const ByteSource> source;
  std::int64_t offset = 0, size = 0;
};

/// Of a .npz file.
std::vector<NumpyArray> arrays_of_npz(const std::shared_ptr<const ByteSource>& archive);

class NumpyDataset : public Dataset {
 public:
  /// Throws InvalidArgument for a field that there is no array of. Throws DataError, with file and array:
  /// other formats and types, columns before rows (Fortran order), lengths that do not fit, first dims that
  /// differ, images whose channels come last.
  NumpyDataset(const std::vector<NumpyArray>& arrays, const NumpyDatasetOptions& options);
  ~NumpyDataset() override;

  std::int64_t size() const override;
  /// One field has no name, several have those of the arrays.
  Example get(std::int64_t index) const override;
  /// Of the only target, where it is one whole number per sample; else none. Reads it all.
  ClassLabels labels(const std::vector<std::int64_t>& ignored = {}) const;
  /// "sample 7 of array 'y' of FILE", of the first target.
  std::string label_name(std::int64_t index) const;
  /// Throws DataError unless the only target is one whole number per sample.
  void check_class_target() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme::data
