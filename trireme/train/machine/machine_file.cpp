#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"
#include "trireme/base/toml.h"
#include "trireme/base/toml_nesting.h"
#include "trireme/train/config/run_config.h"
#include "trireme/train/machine/machine.h"

namespace trireme::train {
namespace {

constexpr int kMaxRanks = 1 << 20;

/// A number of the file: its place, its unit, and its plausible range.
struct NumberRow {
  const char* table;
  const char* key;
  const char* unit;
  double min, max;
  bool is_needed = true;
};

constexpr NumberRow kNumbers[] = {
    {"device", "product_share", "the achieved share of the peak", 0.01, 1},
    {"device", "memory_gib", "GiB of a rank", 0.01, 1e5},
    {"device", "reserved_gib", "GiB of a rank that its tensors cannot have", 0, 1e5, false},
    {"device", "memory_gb_per_s", "GB/s", 0.1, 1e5},
    {"hosts", "count", "hosts", 1, kMaxRanks},
    {"hosts", "ranks", "ranks of a host", 1, 1024},
    {"links.within", "gb_per_s", "GB/s of a rank in one direction", 0.001, 1e4, false},
    {"links.within", "latency_us", "microseconds", 0, 1e5, false},
    {"links.between", "gb_per_s", "GB/s of a host in one direction", 0.001, 1e4, false},
    {"links.between", "latency_us", "microseconds", 0, 1e5, false},
};
constexpr NumberRow kPeak = {"device.peak_tflops", "", "TFLOP/s of dense products", 0.001, 1e5};

/// Keys of the file that are not numbers, as "table.key".
const std::set<std::string> kWords = {"name", "device.name"};

std::string path_of(const NumberRow& row) { return text(row.table, ".", row.key); }

std::vector<std::string> known_keys() {
  std::vector<std::string> keys(kWords.begin(), kWords.end());
  for (const std::string& precision : precision_names()) keys.push_back(text(kPeak.table, ".", precision));
  for (const NumberRow& row : kNumbers) keys.push_back(path_of(row));
  return keys;
}

class MachineFile {
 public:
  MachineFile(const toml::table& root, const std::string& file) : root_(root), file_(file) {}

  Machine machine() {
    check_known(root_, "");
    Machine machine{.name = word("name"), .device = {}, .links = {}};
    DeviceFacts& device = machine.device;
    device.name = word("device.name");
    for (const std::string& precision : precision_names()) {
      if (const auto peak = number(kPeak, text(kPeak.table, ".", precision)))
        device.peak_flop_s[precision] = 1e12 * *peak;
    }
    require(!device.peak_flop_s.empty(), file_, ": device.peak_tflops is missing; expected TFLOP/s by ",
            "train.precision, such as peak_tflops = { bf16 = 312 }");
    device.product_share = of("device.product_share");
    device.memory_bytes = 0x1p30 * of("device.memory_gib");
    device.reserved_bytes = 0x1p30 * of("device.reserved_gib");
    require(device.reserved_bytes < device.memory_bytes, file_, ": device.reserved_gib is ",
            of("device.reserved_gib"), ", and device.memory_gib ", of("device.memory_gib"),
            "; expected less than that");
    device.memory_bytes_per_s = 1e9 * of("device.memory_gb_per_s");
    machine.hosts = whole("hosts.count");
    machine.ranks_of_host = whole("hosts.ranks");
    require(machine.num_ranks() <= kMaxRanks, file_, ": hosts.count x hosts.ranks is ", machine.num_ranks(),
            "; expected at most ", kMaxRanks);
    machine.links.ranks_of_host = machine.ranks_of_host;
    machine.links.within = link("links.within", machine.ranks_of_host > 1, 1);
    machine.links.between = link("links.between", machine.hosts > 1, machine.ranks_of_host);
    return machine;
  }

 private:
  std::string place(const toml::node& node) const { return text(file_, ":", node.source().begin.line, ": "); }

  /// Rejects keys that are not known and not a table of known keys.
  void check_known(const toml::table& table, const std::string& prefix) const {
    static const std::vector<std::string> kKnown = known_keys();
    for (const auto& [key, node] : table) {
      const std::string path = prefix + printable(std::string(key.str()));
      const bool is_table = std::ranges::any_of(
          kKnown, [&](const std::string& known) { return known.starts_with(path + "."); });
      if (is_table) {
        require(node.is_table(), place(node), "'", path, "' is a table: write [", path,
                "] and its keys below");
        check_known(*node.as_table(), path + ".");
      } else {
        require(std::ranges::find(kKnown, path) != kKnown.end(), place(node), "unknown key '", path, "'",
                suggest(path, kKnown));
      }
    }
  }

  const toml::node* find(const std::string& path) const { return root_.at_path(path).node(); }

  std::string word(const std::string& path) const {
    const toml::node* node = find(path);
    require(node != nullptr, file_, ": ", path, " is missing; expected a text");
    const auto value = node->value_exact<std::string>();
    require(value.has_value() && !value->empty(), place(*node), path, ": expected a text in quotes");
    return printable(*value);
  }

  std::optional<double> number(const NumberRow& row, const std::string& path) const {
    const toml::node* node = find(path);
    if (node == nullptr) return std::nullopt;
    const std::optional<double> value = node->is_number() ? node->value<double>() : std::nullopt;
    require(value.has_value(), place(*node), path, ": expected a number (", row.unit, ")");
    require(*value >= row.min && *value <= row.max, place(*node), path, " = ", *value, ": expected ", row.min,
            " to ", row.max, " (", row.unit, "); check the unit");
    return value;
  }

  const NumberRow& row_of(const std::string& path) const {
    return *std::ranges::find(kNumbers, path, path_of);
  }

  /// 0 if the key is optional and missing.
  double of(const std::string& path) const {
    const NumberRow& row = row_of(path);
    const std::optional<double> value = number(row, path);
    require(value.has_value() || !row.is_needed, file_, ": ", path, " is missing; expected ", row.min, " to ",
            row.max, " (", row.unit, ")");
    return value.value_or(0);
  }

  int whole(const std::string& path) const {
    const double value = of(path);
    require(value == std::floor(value), file_, ": ", path, " = ", value, ": expected a whole number");
    return static_cast<int>(value);
  }

  /// `sharers`: ranks that share the bandwidth.
  LinkFacts link(const std::string& table, bool is_needed, int sharers) const {
    const double gb_per_s = of(table + ".gb_per_s");
    require(gb_per_s > 0 || !is_needed, file_, ": ", table, ".gb_per_s is missing; expected ",
            row_of(table + ".gb_per_s").unit);
    if (gb_per_s == 0) return {.latency_s = 0, .bytes_per_s = 1e30};
    return {.latency_s = 1e-6 * of(table + ".latency_us"), .bytes_per_s = 1e9 * gb_per_s / sharers};
  }

  const toml::table& root_;
  const std::string& file_;
};

}  // namespace

std::int64_t Machine::limit_bytes() const {
  return static_cast<std::int64_t>(device.memory_bytes - device.reserved_bytes);
}

Machine parse_machine(const std::string& content, const std::string& name) {
  if (const auto line = line_of_deep_key(content))
    throw InvalidArgument(text(name, ":", *line, ": a key of more than ", kMaxKeyParts, " parts"));
  toml::table root;
  try {
    root = toml::parse(content, name);
  } catch (const toml::parse_error& error) {
    throw InvalidArgument(text(name, ":", error.source().begin.line, ": ", error.description()));
  }
  return MachineFile(root, name).machine();
}

Machine read_machine(const std::filesystem::path& file) {
  return parse_machine(read_bounded_stream(file, kMaxConfigBytes, "description of a machine"), file.string());
}

}  // namespace trireme::train
