#pragma once
// A table of numbers as text: a line per sample, cells between commas (RFC 4180), and before them a line of
// names, or none. Read once and held as numbers: inputs f32, and the target a class or f32. Immutable;
// thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "trireme/data/byte_source.h"
#include "trireme/data/class_labels.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

struct CsvColumns {
  std::vector<std::string> inputs = {};   ///< empty: all but the targets
  std::vector<std::string> targets = {};  ///< empty: the last
};

/// Whether the first line holds the names of columns. kByContent: yes where no cell of it is a number, no
/// where all are; columns are named "1", "2" and so on then.
enum class CsvHeader { kByContent, kYes, kNo };

/// Format and columns of a file.
struct CsvOptions {
  CsvColumns columns = {};
  CsvHeader header = CsvHeader::kByContent;
  char separator = ',';
  TargetMeaning target = TargetMeaning::kByValues;
  std::vector<std::int64_t> ignored_labels = {};  ///< of no class
};

/// The numbers of a file.
struct CsvTable {
  CsvColumns columns;
  std::int64_t rows = 0;
  std::vector<float> inputs;         ///< (row, column)
  std::vector<double> targets;       ///< (row, column)
  bool targets_are_classes = false;  ///< as was asked; by values: one column, whole numbers from 0 on
  ClassLabels labels;                ///< of classes, by line
};

/// Throws InvalidArgument for an unknown column (the nearest name is given). Throws it also for an input
/// without a name, such as the index that pandas writes. Throws DataError with file, line and column: a cell
/// that is not a finite number, or not a class where classes are requested; a line with more or fewer cells;
/// no line; a first line that may be names or numbers.
CsvTable read_csv(const ByteSource& file, const CsvOptions& options);

class CsvDataset : public Dataset {
 public:
  /// Whether a sample's target is one class, as i64, or a row of f32 numbers.
  enum class Targets { kNumbers, kClasses };
  CsvDataset(CsvTable table, Targets targets) : table_(std::move(table)), targets_(targets) {}

  std::int64_t size() const override { return table_.rows; }
  /// input: f32 (columns); target: i64, a class, or f32 (columns).
  Example get(std::int64_t index) const override;
  const ClassLabels& labels() const { return table_.labels; }

 private:
  CsvTable table_;
  Targets targets_;
};

}  // namespace trireme::data
