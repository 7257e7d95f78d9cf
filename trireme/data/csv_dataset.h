#pragma once
// A table of numbers as text: a line of names, then a line per sample, cells between commas (RFC 4180). Read
// once and held as numbers: inputs f32, and the target a class where every one of its cells is a whole number
// from 0 on written without a point. Immutable; thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "trireme/data/byte_source.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

struct CsvColumns {
  std::vector<std::string> inputs = {};   ///< empty: all but the targets
  std::vector<std::string> targets = {};  ///< empty: the last
};

/// The numbers of a file.
struct CsvTable {
  CsvColumns columns;
  std::int64_t rows = 0;
  std::vector<float> inputs;         ///< (row, column)
  std::vector<double> targets;       ///< (row, column)
  bool targets_are_classes = false;  ///< one column, whole numbers from 0 on
};

/// Throws InvalidArgument for a column that there is none of (nearest one named), DataError with file, line
/// and column: a cell that is no finite number, a line with more or fewer cells, no line.
CsvTable read_csv(const ByteSource& file, const CsvColumns& columns);

class CsvDataset : public Dataset {
 public:
  /// Whether a sample's target is one class, as i64, or a row of f32 numbers.
  enum class Targets { kNumbers, kClasses };
  CsvDataset(CsvTable table, Targets targets) : table_(std::move(table)), targets_(targets) {}

  std::int64_t size() const override { return table_.rows; }
  /// input: f32 (columns); target: i64, a class, or f32 (columns).
  Example get(std::int64_t index) const override;
  /// One more than the largest class; 0: targets are numbers.
  std::int64_t num_classes() const;

 private:
  CsvTable table_;
  Targets targets_;
};

}  // namespace trireme::data
