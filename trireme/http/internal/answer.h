#pragma once
// One answer of an HTTP server, as libcurl hands it over: lines of headers and pieces of the body, within
// limits. One thread.

#include <cstddef>
#include <string>
#include <string_view>

#include "trireme/http/http_client.h"

namespace trireme::http {

class Answer {
 public:
  /// `most_bytes` of a body. `follows`: redirections, whose bodies are not read.
  Answer(std::size_t most_bytes, bool follows) : max_bytes_(most_bytes), follows_(follows) {}

  /// A line with its end. False where the headers are too long: failure() has the reason, and the answer is
  /// over.
  bool take_header(std::string_view line);
  /// The same of the next bytes of the body.
  bool take_body(std::string_view bytes);

  bool follows() const { return follows_; }
  /// Of this end; empty: none.
  const std::string& failure() const { return failure_; }
  Reply& reply() { return reply_; }

 private:
  const std::size_t max_bytes_;
  const bool follows_;
  Reply reply_;
  std::size_t num_header_bytes_ = 0;
  std::size_t num_body_bytes_ = 0;
  bool is_redirection_ = false;
  std::string failure_;
};

}  // namespace trireme::http
