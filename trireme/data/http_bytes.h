#pragma once
// Bytes of a URL, read by ranges. A server that answers late, not at all or with "not now" is asked again,
// after longer and longer pauses. A server with wrong answers is named in an error: it ignores ranges, sends
// other ranges than requested, or its content changes (by ETag, date and length). Immutable; thread-safe.

#include <memory>
#include <string>

#include "trireme/data/byte_source.h"

namespace trireme::data {

struct HttpOptions {
  double timeout_s = 60;           ///< of one request, which asks for 4 MiB at most
  int tries = 6;                   ///< of each request
  double backoff_s = 0.25;         ///< the first pause; each is twice the one before
  bool private_redirects = false;  ///< http::Request::private_redirects
};

/// Whether it begins with http:// or https://.
bool is_url(const std::string& path);

/// Without parts that may be secret: the text after '?', and before '@'.
std::string shown_url(const std::string& url);

/// Asks for the first byte. Its name is shown_url().
/// Throws InvalidArgument where there is no libcurl, DataError, with the URL: it cannot be had, now or by
/// ranges.
std::shared_ptr<const ByteSource> open_url(const std::string& url, const HttpOptions& options = {});

}  // namespace trireme::data
