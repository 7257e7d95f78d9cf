#include "trireme/autopsy/operation_text.h"

#include <charconv>
#include <string_view>

#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

constexpr std::string_view kWaitsFor = "; waits for ranks ", kOfGroup = " of group ";

}  // namespace

std::uint64_t operation_number(const std::string& operation) {
  const std::size_t mark = operation.find('#');
  std::uint64_t number = 0;
  if (mark != std::string::npos)
    std::from_chars(operation.data() + mark + 1, operation.data() + operation.size(), number);
  return number;
}

std::string operation_group(const std::string& operation) {
  const std::size_t begin = operation.find(kOfGroup);
  if (begin == std::string::npos) return {};
  const std::size_t name = begin + kOfGroup.size();
  return operation.substr(name, operation.find_first_of(",;", name) - name);
}

bool is_open(const std::string& operation) {
  return operation.find(", running") != std::string::npos || operation.find(", failed") != std::string::npos;
}

std::vector<int> ranks_waited_for(const std::string& operation) {
  const std::size_t at = operation.rfind(kWaitsFor);
  std::vector<int> ranks;
  if (at == std::string::npos) return ranks;
  for (const std::string& word : split(std::string_view(operation).substr(at + kWaitsFor.size()), ',')) {
    int rank = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), rank).ec == std::errc())
      ranks.push_back(rank);
  }
  return ranks;
}

std::string without_waits(const std::string& operation) {
  return operation.substr(0, operation.rfind(kWaitsFor));
}

}  // namespace trireme::autopsy
