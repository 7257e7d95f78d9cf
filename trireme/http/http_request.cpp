#include "trireme/http/internal/http_request.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::http {
namespace {

bool starts_with_name(std::string_view line, std::string_view name) {
  return line.size() > name.size() && line[name.size()] == ':' &&
         std::equal(name.begin(), name.end(), line.begin(),
                    [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

std::string_view bearer_in(std::string_view head) {
  constexpr std::string_view kName = "authorization", kScheme = "Bearer ";
  while (!head.empty()) {
    const std::size_t end = std::min(head.find('\n'), head.size());
    const std::string_view line = trim(head.substr(0, end));
    head.remove_prefix(std::min(end + 1, head.size()));
    if (!starts_with_name(line, kName)) continue;
    const std::string_view value = trim(line.substr(kName.size() + 1));
    if (value.starts_with(kScheme)) return trim(value.substr(kScheme.size()));
  }
  return {};
}

std::string_view token_in(std::string_view query) {
  constexpr std::string_view kName = "token=";
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    if (query.substr(0, end).starts_with(kName)) return query.substr(kName.size(), end - kName.size());
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return {};
}

}  // namespace

bool is_whole(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos || request.find("\n\n") != std::string_view::npos;
}

HttpRequest parse_request(std::string_view request) {
  const std::size_t line_end = std::min(request.find_first_of("\r\n"), request.size());
  const std::vector<std::string> words = split(request.substr(0, line_end), ' ');
  const std::string target = words.size() < 2 ? std::string() : words[1];
  const std::size_t query_at = std::min(target.find('?'), target.size());
  const std::string_view query = std::string_view(target).substr(std::min(query_at + 1, target.size()));
  return {.method = words[0],
          .path = target.substr(0, query_at),
          .header_token = std::string(bearer_in(request.substr(line_end))),
          .query_token = std::string(token_in(query))};
}

}  // namespace trireme::http
