#pragma once
// Bytes of what stands behind an URL, read by ranges. A server that answers late, not at all or with "not
// now" is asked again, after longer and longer pauses; one that lies is named: that ignores ranges, sends
// others than were asked for, or something else than it had at first (by ETag, date and length). Immutable;
// thread-safe.

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

/// Without what may be secret in it: what stands behind '?', and before '@'.
std::string shown_url(const std::string& url);

/// Asks for the first byte. Its name is shown_url().
/// Throws InvalidArgument where there is no libcurl, DataError, with the URL: it cannot be had, now or by
/// ranges.
std::shared_ptr<const ByteSource> open_url(const std::string& url, const HttpOptions& options = {});

}  // namespace trireme::data
