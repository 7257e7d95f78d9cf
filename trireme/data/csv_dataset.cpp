#include "trireme/data/csv_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/data/internal/csv_reader.h"

namespace trireme::data {
namespace {

using Cells = std::vector<std::string>;

/// The first column names, for an error message.
std::string shown(const Cells& names) {
  constexpr std::size_t kSome = 8;
  Cells some;
  for (std::size_t i = 0; i < std::min(names.size(), kSome); ++i) some.push_back(printable(names[i]));
  return text(join(some), names.size() > kSome ? ", ..." : "");
}

/// The finite number in a cell; nullopt: the cell has something else.
std::optional<double> number_in(const std::string& cell) {
  std::string_view digits = trim(cell);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole_cell = error == std::errc() && end == digits.data() + digits.size();
  if (!whole_cell || !(std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max())))
    return std::nullopt;
  return value;
}

/// Advice if another separator occurs in the cells; else empty.
std::string separator_advice(const Cells& cells, char separator) {
  for (const char other : {';', '\t', '|', ','}) {
    const bool found = std::ranges::any_of(
        cells, [&](const std::string& cell) { return cell.find(other) != std::string::npos; });
    if (found && other != separator) {
      const std::string name = other == '\t' ? "\\t" : std::string(1, other);
      return text("; where '", name, "' stands between cells, set data.separator = \"", name, "\"");
    }
  }
  return "";
}

/// Whether cells are "0", "1", "2" and so on: pandas' names of unnamed columns, or numbers.
bool counts_columns(const Cells& cells, std::size_t first) {
  for (std::size_t i = first; i < cells.size(); ++i) {
    if (trim(cells[i]) != std::to_string(i - first)) return false;
  }
  return cells.size() > first;
}

/// The lines of a table: column names, given or generated, and numbers.
class Table {
 public:
  Table(const ByteSource& file, const CsvOptions& options)
      : file_(file), options_(options), reader_(file, options.separator) {
    if (!reader_.next(cells_)) throw DataError(text(file.name(), " is empty; expected a line per sample"));
    first_is_sample_ = !first_has_names();
    for (std::size_t i = 0; i < cells_.size(); ++i)
      names_.push_back(first_is_sample_ ? std::to_string(i + 1) : std::string(trim(cells_[i])));
    if (std::set<std::string>(names_.begin(), names_.end()).size() != names_.size())
      reader_.fail(text(": two columns have one name: ", shown(names_)));
  }

  /// The requested columns, or the default.
  CsvColumns columns() const {
    CsvColumns columns = options_.columns;
    const bool all_inputs = columns.inputs.empty();
    if (columns.targets.empty()) columns.targets = {names_.back()};
    if (all_inputs) {
      std::ranges::copy_if(names_, std::back_inserter(columns.inputs), [&](const std::string& name) {
        return std::ranges::find(columns.targets, name) == columns.targets.end();
      });
    }
    require(!columns.inputs.empty(), file_.name(), " has no column for an input, only ", shown(names_),
            separator_advice(cells_, options_.separator));
    if (all_inputs) check_named(columns);
    return columns;
  }

  std::vector<std::size_t> places_of(const std::vector<std::string>& wanted) const {
    std::map<std::string_view, std::size_t> known;
    for (std::size_t i = 0; i < names_.size(); ++i) known.emplace(names_[i], i);
    std::vector<std::size_t> places;
    for (const std::string& name : wanted) {
      const auto found = known.find(name);
      if (found == known.end()) {
        throw InvalidArgument(text(file_.name(), " has no column '", name, "'", suggest(name, names_),
                                   first_is_sample_
                                       ? text("; its first line holds numbers, so its columns are "
                                              "named 1 to ",
                                              names_.size(), " (data.header)")
                                       : ""));
      }
      places.push_back(found->second);
    }
    return places;
  }

  /// Reads the next sample's cells; false: no more lines.
  bool next_sample() {
    if (std::exchange(first_is_sample_, false)) return true;
    if (!reader_.next(cells_)) return false;
    if (cells_.size() != names_.size())
      reader_.fail(
          text(" has ", cells_.size(), " cells, and the first line has ", names_.size(), " columns"));
    return true;
  }
  std::int64_t line() const { return reader_.number(); }

  double number(std::size_t column) const {
    if (const auto number = number_in(cells_[column])) return *number;
    fail(column, trim(cells_[column]).empty()
                     ? ": the cell is empty, and every value is needed; fill it in, or leave the line out"
                     : text(": '", printable(cells_[column]), "' is no finite number", advice(column)));
  }
  double whole_number(std::size_t column) const {
    constexpr double kMaxExact = 9007199254740992;  // 2^53
    const double value = number(column);
    if (value != std::floor(value) || std::abs(value) > kMaxExact) {
      fail(column, text(": '", printable(cells_[column]),
                        "' is no class, which is a whole number from 0 on; for numbers set data.target = "
                        "\"number\", or an objective of numbers such as mean_squared_error"));
    }
    return value;
  }
  bool is_class(std::size_t column) const {
    const std::string_view digits = trim(cells_[column]);
    if (!digits.empty() && digits.size() <= 15 &&
        std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }))
      return true;
    const double value = number(column);
    return value == std::floor(value) && std::abs(value) < 1e15 &&
           std::ranges::find(options_.ignored_labels, static_cast<std::int64_t>(value)) !=
               options_.ignored_labels.end();
  }

 private:
  bool first_has_names() const {
    if (options_.header != CsvHeader::kByContent) return options_.header == CsvHeader::kYes;
    const auto is_number = [](const std::string& cell) { return number_in(cell).has_value(); };
    const auto number = std::ranges::find_if(cells_, is_number);
    if (number == cells_.end()) return true;
    if (trim(cells_[0]).empty() && counts_columns(cells_, 1)) return true;
    const auto name = std::ranges::find_if_not(cells_, is_number);
    if (name == cells_.end() && !counts_columns(cells_, 0)) return false;
    const std::string what = name == cells_.end() ? text(" holds 0 to ", cells_.size() - 1,
                                                         ", which may be names of columns or a sample")
                                                  : text(" holds the number '", printable(*number), "' and '",
                                                         printable(*name), "', which is none");
    reader_.fail(text(what, "; set data.header = \"yes\" where it holds names, \"no\" where it is a sample",
                      separator_advice(cells_, options_.separator)));
  }

  void check_named(const CsvColumns& columns) const {
    const auto unnamed = [](const std::string& name) { return name.empty() || name.starts_with("Unnamed:"); };
    const auto by_default = [&](const std::string& name) {
      const std::vector<std::string>& targets = options_.columns.targets;
      return unnamed(name) && std::ranges::find(targets, name) == targets.end();
    };
    const auto found = std::ranges::find_if(names_, by_default);
    if (found == names_.end()) return;
    std::vector<std::string> others;
    for (const std::string& name : columns.inputs) {
      if (!unnamed(name)) others.push_back(text('"', printable(name), '"'));
    }
    const auto column = found - names_.begin() + 1;
    const std::string what = text(file_.name(), ", line 1: column ", column, " has no name",
                                  found->empty() ? "" : text(" but '", printable(*found), "'"));
    require(column == 1 || column < std::ssize(names_), what, ", and is the last; remove a '",
            options_.separator,
            "' at the end of lines, or name the columns to take in data.inputs and data.targets");
    constexpr std::size_t kSome = 8;
    const bool all = others.size() <= kSome;
    throw InvalidArgument(
        text(what,
             "; it may be the index of a table, which says nothing of a sample: write the file without it "
             "(pandas: to_csv(..., index=False)), or name the columns to take: data.inputs = [",
             join(std::span(others).first(all ? others.size() : kSome)), all ? "]" : ", ...]"));
  }

  /// Advice for a cell that is not a number.
  std::string advice(std::size_t column) const {
    const std::string& cell = cells_[column];
    std::string with_point = cell;
    std::ranges::replace(with_point, ',', '.');
    if (number_in(with_point)) return "; write decimals with a point, and thousands without a comma";
    const bool is_target =
        std::ranges::find(options_.columns.targets, names_[column]) != options_.columns.targets.end() ||
        (options_.columns.targets.empty() && column + 1 == names_.size());
    return is_target && options_.target != TargetMeaning::kNumber ? "; number the classes from 0 on" : "";
  }

  [[noreturn]] void fail(std::size_t column, const std::string& what) const {
    reader_.fail(text(", column '", printable(names_[column]), '\'', what));
  }

  const ByteSource& file_;
  const CsvOptions& options_;
  CsvReader reader_;
  Cells cells_, names_;
  bool first_is_sample_ = false;
};

void read_targets(const Table& table, const std::vector<std::size_t>& targets, TargetMeaning meaning,
                  CsvTable& into) {
  for (const std::size_t i : targets) {
    const bool is_class = meaning == TargetMeaning::kClass;
    into.targets.push_back(is_class ? table.whole_number(i) : table.number(i));
    into.targets_are_classes = into.targets_are_classes && (is_class || table.is_class(i));
    if (into.targets_are_classes)
      into.labels.add(static_cast<std::int64_t>(into.targets.back()), table.line());
  }
}

}  // namespace

CsvTable read_csv(const ByteSource& file, const CsvOptions& options) {
  Table lines(file, options);
  CsvTable table{
      .columns = lines.columns(), .inputs = {}, .targets = {}, .labels = ClassLabels(options.ignored_labels)};
  const auto inputs = lines.places_of(table.columns.inputs), targets = lines.places_of(table.columns.targets);
  require(options.target != TargetMeaning::kClass || targets.size() == 1, file.name(),
          ": data.targets names ", targets.size(),
          " columns, and a class is one; for numbers set data.target = \"number\"");
  table.targets_are_classes = targets.size() == 1 && options.target != TargetMeaning::kNumber;
  for (; lines.next_sample(); ++table.rows) {
    for (const std::size_t i : inputs) table.inputs.push_back(static_cast<float>(lines.number(i)));
    read_targets(lines, targets, options.target, table);
  }
  if (table.rows == 0) throw DataError(text(file.name(), " has no line of numbers after its names"));
  if (!table.targets_are_classes) table.labels = ClassLabels();
  return table;
}

Example CsvDataset::get(std::int64_t index) const {
  require(index >= 0 && index < size(), "row ", index, " of ", size(), " was asked for");
  const auto row = [index](const auto& values, const std::vector<std::string>& columns) {
    const auto count = static_cast<std::int64_t>(columns.size());
    at::Tensor tensor = at::empty({count}, at::kFloat);
    for (std::int64_t i = 0; i < count; ++i)
      tensor.data_ptr<float>()[i] = static_cast<float>(values[static_cast<std::size_t>(index * count + i)]);
    return tensor;
  };
  if (targets_ == Targets::kNumbers)
    return {row(table_.inputs, table_.columns.inputs), row(table_.targets, table_.columns.targets)};
  const auto number = static_cast<std::int64_t>(table_.targets[static_cast<std::size_t>(index)]);
  return {row(table_.inputs, table_.columns.inputs), at::scalar_tensor(number, at::kLong)};
}

}  // namespace trireme::data
