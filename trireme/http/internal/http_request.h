#pragma once
// What a client asks the small server (http_server.h) for, as its bytes say it. Pure; thread-safe.

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

/// Whether its empty line is there: what follows it is not read.
bool is_whole(std::string_view request);

/// Whatever the bytes are; what is missing is empty.
HttpRequest parse_request(std::string_view request);

}  // namespace trireme::http
