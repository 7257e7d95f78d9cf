// Which all-reduce is chosen for which size, and why.

#include <charconv>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/text_table.h"
#include "cli/topology/report.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

using topology::Algorithm;

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},     {"B", 1},      {"KB", 1e3},      {"MB", 1e6},
                           {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};

double parse_size(std::string_view word, const std::string& all) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const std::string_view rest = trim(word.substr(static_cast<std::size_t>(end - word.data())));
  for (const Unit& unit : kUnits) {
    const double bytes = number * unit.bytes;
    if (error == std::errc() && rest == unit.name && bytes >= 1 && bytes <= 1e15) return bytes;
  }
  throw InvalidArgument(text("--why is '", all, "', of which '", word,
                             "' is no size; expected bytes with or without a unit, such as 1KB,64KiB,25MB"));
}

std::string size_text(double bytes) {
  std::string shown = rate_text(bytes);
  return shown.substr(0, shown.size() - 2);
}

/// The ranks, and the costs of a message between them.
topology::Network network(const TopologyReport& report) {
  topology::Network result = network_of(report.table);
  result.cost.gamma_s_per_byte = 1 / report.sum_bytes_per_s;
  return result;
}

}  // namespace

std::vector<double> parse_sizes(const std::string& words) {
  std::vector<double> sizes;
  for (const std::string& word : split(words, ',')) sizes.push_back(parse_size(trim(word), words));
  return sizes;
}

void print_choices(std::ostream& out, const TopologyReport& report, const std::vector<double>& sizes) {
  const topology::Network over = network(report);
  const char* members = report.table.num_hosts() > 1 ? "hosts" : "ranks, as if each were a host";
  out << "\nAn all-reduce between " << over.members << " " << members << ", by formula\n";
  if (over.members == 1) {
    out << "There is no other rank to reduce with: start it with -n N, or on several hosts.\n";
    return;
  }
  TextTable shown{.columns = {Align::kRight, Align::kLeft}, .rows = {{"size", "fastest"}}};
  for (const Algorithm each : topology::algorithms()) {
    shown.columns.push_back(Align::kRight);
    shown.rows[0].push_back(name_of(each));
  }
  for (const double size : sizes) {
    const auto fastest = estimate_all_reduce(over.members, size, over.cost).front();
    std::vector<std::string> row = {size_text(size), name_of(fastest.algorithm)};
    for (const Algorithm each : topology::algorithms())
      row.push_back(seconds_text(all_reduce_s(each, over.members, size, over.cost)));
    shown.rows.push_back(row);
  }
  print(out, shown);
  out << "\nn = " << over.members << ", a = " << seconds_text(over.cost.alpha_s)
      << " per message, 1/b = " << rate_text(1 / over.cost.beta_s_per_byte)
      << " on the way, 1/c = " << rate_text(report.sum_bytes_per_s) << " added up, S = size";
  const int power = 1 << (31 - __builtin_clz(static_cast<unsigned>(over.members)));
  if (power != over.members) out << ", p = " << power;
  out << "\n";
  TextTable formulas{.columns = {Align::kLeft, Align::kLeft}, .rows = {}};
  for (const Algorithm each : topology::algorithms())
    formulas.rows.push_back({name_of(each), formula_of(each, over.members)});
  print(out, formulas);
}

std::string choices_to_json(const TopologyReport& report, const std::vector<double>& sizes) {
  using Json = nlohmann::ordered_json;
  const topology::Network over = network(report);
  Json choices = Json::array();
  for (const double size : sizes) {
    Json seconds;
    for (const Algorithm each : topology::algorithms())
      seconds[name_of(each)] = all_reduce_s(each, over.members, size, over.cost);
    const auto fastest = estimate_all_reduce(over.members, size, over.cost).front();
    choices.push_back({{"bytes", size}, {"fastest", name_of(fastest.algorithm)}, {"seconds", seconds}});
  }
  const Json json = {{"members", over.members},
                     {"alpha_s", over.cost.alpha_s},
                     {"beta_s_per_byte", over.cost.beta_s_per_byte},
                     {"gamma_s_per_byte", over.cost.gamma_s_per_byte},
                     {"choices", choices}};
  return json.dump(2) + "\n";
}

}  // namespace trireme::cli
