#include "trireme/http/internal/answer.h"

#include <algorithm>
#include <cctype>

#include "trireme/base/text.h"

namespace trireme::http {
namespace {

constexpr std::size_t kMostHeaderBytes = 256 << 10;  // of one answer and the responses before it

}  // namespace

bool Answer::take_body(std::string_view bytes) {
  num_body_bytes_ += bytes.size();
  if (num_body_bytes_ > max_bytes_) {
    failure_ = text("the answer is longer than ", max_bytes_, " bytes");
    return false;
  }
  const bool is_read = !follows_ || !is_redirection_ || !reply_.headers.contains("location");
  if (is_read) reply_.body.append(bytes);
  return true;
}

/// A status line begins a new response. Headers of an earlier one, such as a proxy's or "100 Continue", are
/// dropped.
bool Answer::take_header(std::string_view line) {
  num_header_bytes_ += line.size();
  if (num_header_bytes_ > kMostHeaderBytes) {
    failure_ = text("its headers are longer than ", kMostHeaderBytes, " bytes");
    return false;
  }
  if (line.starts_with("HTTP/")) {
    reply_.headers.clear();
    const std::size_t space = line.find(' ');
    is_redirection_ = space != std::string_view::npos && line.substr(space + 1).starts_with('3');
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return true;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  reply_.headers[name] = trim(line.substr(colon + 1));
  return true;
}

}  // namespace trireme::http
