#pragma once
// A client's request to the small server (http_server.h), parsed from its bytes. Pure; thread-safe.

#include <string>
#include <string_view>

namespace trireme::http {

struct HttpRequest {
  std::string method;  ///< "GET"
  std::string path;    ///< without the query
  // Empty where there is none.
  std::string header_token;  ///< of "Authorization: Bearer TOKEN"
  std::string query_token;   ///< of "?token=TOKEN"
};

/// Whether its empty line is there: later bytes are not read.
bool is_whole(std::string_view request);

/// For any bytes; missing parts are empty.
HttpRequest parse_request(std::string_view request);

}  // namespace trireme::http
