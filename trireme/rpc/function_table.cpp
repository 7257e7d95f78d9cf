#include "trireme/rpc/function_table.h"

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "trireme/base/error.h"

namespace trireme::rpc {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, FunctionRow> rows;
  std::vector<std::string> taken_twice;
};

Table& table() {
  static Table* const rows = new Table;  // outlives every other static object
  return *rows;
}

}  // namespace

std::uint64_t FunctionRow::fingerprint() const {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char each : signature) hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211ULL;
  return hash;
}

const FunctionRow& add_function(FunctionRow row) {
  const std::lock_guard lock(table().mutex);
  const auto [place, is_new] = table().rows.try_emplace(row.name, row);
  if (!is_new && place->second.run != row.run) table().taken_twice.push_back(row.name);
  return place->second;
}

const FunctionRow* find_function(const std::string& name) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().rows.find(name);
  return found == table().rows.end() ? nullptr : &found->second;
}

std::vector<std::string> function_names() {
  const std::lock_guard lock(table().mutex);
  std::vector<std::string> names;
  for (const auto& each : table().rows) {
    const bool is_ours = each.first.starts_with("trireme.") || each.first.starts_with("trireme::");
    if (!is_ours) names.push_back(each.first);
  }
  return names;
}

void check_function_table() {
  const std::lock_guard lock(table().mutex);
  if (table().taken_twice.empty()) return;
  throw InvalidArgument(text("two functions of this program have the name '", table().taken_twice.front(),
                             "' for remote calls; give each rpc::function a name of its own"));
}

std::string readable(const char* type_name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type_name, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type_name;
}

/// "trireme::rpc::internal::Named<&add>"; templates: "...Named<&(void add<int>(int))>".
std::string name_in(const char* type_name) {
  const std::string whole = readable(type_name);
  const std::size_t begin = whole.find('<') + 1;
  std::string name = whole.substr(begin, whole.rfind('>') - begin);
  if (name.starts_with('&')) name.erase(0, 1);
  if (name.starts_with('(') && name.ends_with(')')) name = name.substr(1, name.size() - 2);
  return name;
}

}  // namespace trireme::rpc
