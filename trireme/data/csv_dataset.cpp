#include "trireme/data/csv_dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// A longer line is no line of numbers.
constexpr std::size_t kMostLineBytes = 16 << 20;

/// Cells line by line, a piece of the file at a time.
class CsvReader {
 public:
  explicit CsvReader(const ByteSource& file) : file_(file) {}

  /// The next line's cells, without quotes; false: there is none. Empty lines are passed over.
  bool next(std::vector<std::string>& cells) {
    do {
      cells.assign(1, "");
      number_ = next_number_;
      if (!read_line(cells)) return false;
    } while (cells.size() == 1 && cells[0].empty());
    return true;
  }
  std::int64_t number() const { return number_; }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(text(file_.name(), ", line ", number_, what));
  }

 private:
  bool read_line(std::vector<std::string>& cells) {
    bool quoted = false, any = false;
    std::size_t bytes = 0;
    for (int byte = get(); byte >= 0; byte = get()) {
      any = true;
      if (++bytes > kMostLineBytes) fail(text(": it is longer than ", kMostLineBytes, " bytes"));
      const char c = static_cast<char>(byte);
      if (c == '\n') ++next_number_;
      if (quoted) {
        if (c != '"')
          cells.back() += c;
        else if (peek() == '"')
          cells.back() += static_cast<char>(get());
        else
          quoted = false;
      } else if (c == '"' && cells.back().empty()) {
        quoted = true;
      } else if (c == ',') {
        cells.emplace_back();
      } else if (c == '\n') {
        return true;
      } else if (c != '\r' || peek() != '\n') {
        cells.back() += c;
      }
    }
    if (quoted) fail(": a quotation mark is not closed");
    return any;
  }

  int peek() {
    if (at_ == piece_.size()) {
      const std::int64_t size = std::min<std::int64_t>(1 << 20, file_.size() - read_);
      if (size == 0) return -1;
      const bool first = read_ == 0;
      piece_ = read_text(file_, read_, size);
      read_ += size;
      at_ = first && piece_.starts_with("\xef\xbb\xbf") ? 3 : 0;
      if (at_ == piece_.size()) return peek();
    }
    return static_cast<unsigned char>(piece_[at_]);
  }
  int get() {
    const int byte = peek();
    if (byte >= 0) ++at_;
    return byte;
  }

  const ByteSource& file_;
  std::int64_t read_ = 0, number_ = 1, next_number_ = 1;
  std::string piece_;
  std::size_t at_ = 0;
};

std::vector<std::size_t> places_of(const std::vector<std::string>& wanted,
                                   const std::vector<std::string>& names, const std::string& file) {
  std::vector<std::size_t> places;
  for (const std::string& name : wanted) {
    const auto found = std::ranges::find(names, name);
    require(found != names.end(), file, " has no column '", name, "'", suggest(name, names));
    places.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  return places;
}

double number_in_cell(const CsvReader& reader, const std::string& cell, const std::string& column) {
  std::string_view digits = trim(cell);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size() &&
      std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max()))
    return value;
  reader.fail(text(", column '", column, "': '", cell.substr(0, 80), "' is no finite number"));
}

bool is_class_cell(const std::string& cell) {
  const std::string_view digits = trim(cell);
  return !digits.empty() && digits.size() <= 15 &&
         std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
}

CsvColumns chosen(const CsvColumns& asked, const std::vector<std::string>& names) {
  CsvColumns columns = asked;
  if (columns.targets.empty()) columns.targets = {names.back()};
  if (columns.inputs.empty()) {
    std::ranges::copy_if(names, std::back_inserter(columns.inputs), [&](const std::string& name) {
      return std::ranges::find(columns.targets, name) == columns.targets.end();
    });
  }
  return columns;
}

}  // namespace

CsvTable read_csv(const ByteSource& file, const CsvColumns& columns) {
  CsvReader reader(file);
  std::vector<std::string> names, cells;
  if (!reader.next(names))
    throw DataError(text(file.name(), " is empty; expected a line with the names of columns"));
  for (std::string& name : names) name = trim(name);
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size())
    reader.fail(text(": two columns have one name: ", join(names)));
  CsvTable table{.columns = chosen(columns, names), .inputs = {}, .targets = {}};
  require(!table.columns.inputs.empty(), file.name(), " has no column for an input, only ", join(names));
  const auto inputs = places_of(table.columns.inputs, names, file.name());
  const auto targets = places_of(table.columns.targets, names, file.name());
  table.targets_are_classes = targets.size() == 1;
  for (; reader.next(cells); ++table.rows) {
    if (cells.size() != names.size())
      reader.fail(text(" has ", cells.size(), " cells, and the first line names ", names.size(), " columns"));
    for (const std::size_t i : inputs)
      table.inputs.push_back(static_cast<float>(number_in_cell(reader, cells[i], names[i])));
    for (const std::size_t i : targets) {
      table.targets.push_back(number_in_cell(reader, cells[i], names[i]));
      table.targets_are_classes = table.targets_are_classes && is_class_cell(cells[i]);
    }
  }
  if (table.rows == 0) throw DataError(text(file.name(), " has no line of numbers behind its names"));
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

std::int64_t CsvDataset::num_classes() const {
  return targets_ == Targets::kNumbers ? 0 : static_cast<std::int64_t>(std::ranges::max(table_.targets)) + 1;
}

}  // namespace trireme::data
