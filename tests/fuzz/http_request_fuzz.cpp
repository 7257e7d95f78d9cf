// The request of a client to the HTTP server of the status page and metrics.
#include "tests/fuzz/reading.h"
#include "trireme/http/internal/http_request.h"

using namespace trireme;

namespace {

void expect_without(const std::string& text, const char* any) {
  if (text.find_first_of(any) != std::string::npos) __builtin_trap();
}

}  // namespace

extern "C" int fuzz_http_request(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_in(data, size);
  const http::HttpRequest request = http::parse_request(input);
  expect_without(request.method, " \r\n");
  expect_without(request.path, " ?\r\n");
  expect_without(request.query_token, " &\r\n");
  expect_without(request.header_token, "\n");
  http::is_whole(input);
  return 0;
}
