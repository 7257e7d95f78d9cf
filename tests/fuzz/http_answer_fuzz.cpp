// The answer of an HTTP server as libcurl passes it to the client. There is no socket, so that many inputs
// per second are possible. The input's parts, between bytes 0x1f, are consecutive answers, as a proxy answers
// before the server. Each part has header lines up to an empty one, then a body in pieces. The last byte sets
// the length of a piece and whether redirections are followed. URLs of redirections are parsed, too.
#include <algorithm>

#include "tests/fuzz/reading.h"
#include "trireme/http/internal/answer.h"
#include "trireme/http/internal/redirection.h"

using namespace trireme;

namespace {

constexpr std::size_t kMaxAnswerBytes = 100;

void expect(bool holds) {
  if (!holds) __builtin_trap();
}

/// Returns false when the answer is complete.
bool take(http::Answer& answer, std::string_view part, std::size_t piece) {
  while (!part.empty()) {
    const std::string_view line = part.substr(0, part.find('\n') + 1);
    if (line.empty() || line == "\n" || line == "\r\n") break;
    if (!answer.take_header(line)) return false;
    part.remove_prefix(line.size());
  }
  for (; !part.empty(); part.remove_prefix(std::min(piece, part.size())))
    if (!answer.take_body(part.substr(0, piece))) return false;
  return true;
}

void read_redirecting_url(const std::string& url) {
  const http::Target target = http::Target::parse(url);
  http::is_private(target.host);
  http::objection(target, http::Target::parse(target.text()));
  http::with_user_of("http://user:word@data.example/x", url);
}

}  // namespace

extern "C" int fuzz_http_answer(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input = fuzz::text_in(data, size - 1);
  const bool follows = (data[size - 1] & 1) != 0;
  http::Answer answer(kMaxAnswerBytes, follows);
  bool is_whole = true;
  for (const std::string_view part : fuzz::parts_of(input, 12))
    is_whole = is_whole && take(answer, part, 1 + data[size - 1] / 2);
  const http::Reply& reply = answer.reply();
  expect(is_whole == answer.failure().empty() && reply.body.size() <= kMaxAnswerBytes);
  for (const auto& [name, value] : reply.headers) {
    expect(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }));
    expect(name.find('\n') == std::string::npos && value.find('\n') == std::string::npos);
  }
  const auto location = reply.headers.find("location");
  if (location != reply.headers.end()) read_redirecting_url(location->second);
  read_redirecting_url(std::string(input));
  return 0;
}
