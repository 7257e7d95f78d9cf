#include "trireme/data/http_bytes.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/data/loading_report.h"
#include "trireme/http/http_client.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kMaxPerRequest = 4 << 20;

struct ByteRange {
  std::int64_t first = 0, last = 0;
};

/// "bytes 0-99/1234", or "bytes */1234", whose range is 0 to -1.
struct ContentRange {
  ByteRange range;
  std::int64_t total = 0;

  static std::optional<ContentRange> parse(std::string_view line) {
    if (!line.starts_with("bytes ")) return std::nullopt;
    line.remove_prefix(6);
    ContentRange found;
    if (line.starts_with("*/")) {
      line.remove_prefix(1);
      found.range.last = -1;
    } else if (!take(line, found.range.first) || !line.starts_with('-') || !(line.remove_prefix(1), true) ||
               !take(line, found.range.last)) {
      return std::nullopt;
    }
    if (!line.starts_with('/')) return std::nullopt;
    line.remove_prefix(1);
    return take(line, found.total) && line.empty() ? std::optional(found) : std::nullopt;
  }

 private:
  static bool take(std::string_view& line, std::int64_t& number) {
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
    if (error != std::errc() || number < 0) return false;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    return true;
  }
};

bool may_pass(int status) { return status == 0 || status == 408 || status == 429 || status >= 500; }

class HttpBytes : public ByteSource {
 public:
  HttpBytes(const std::string& url, const HttpOptions& options)
      : url_(url), name_(shown_url(url)), options_(options) {
    require(options.tries >= 1 && options.timeout_s > 0 && options.backoff_s >= 0,
            "a request needs a try and time");
    const http::Reply reply = ask({0, 0}, [](const http::Reply&) { return std::string(); });
    const auto range = ContentRange::parse(header(reply, "content-range"));
    const bool empty = reply.status == 416 && range && range->total == 0;
    if (!empty && (reply.status != 206 || !range)) refuse({0, 0}, reply);
    size_ = range->total;
    identity_ = identity_of(reply);
    version_ = text(size_, " bytes, ", identity_, ", ", std::hex, Random::key_of(url));
  }

  const std::string& name() const override { return name_; }
  std::int64_t size() const override { return size_; }
  const std::string& version() const override { return version_; }
  std::int64_t read_ahead() const override { return std::int64_t{1} << 20; }

  void read(std::int64_t offset, std::span<std::byte> into) const override {
    check_range(*this, offset, into.size());
    const StageScope reading(Stage::kRead);
    count_read(into.size());
    while (!into.empty()) {
      const auto size = std::min(static_cast<std::int64_t>(into.size()), kMaxPerRequest);
      const std::string body = get({offset, offset + size - 1});
      std::memcpy(into.data(), body.data(), body.size());
      into = into.subspan(body.size());
      offset += size;
    }
  }

 private:
  std::string get(const ByteRange& range) const {
    const auto size = static_cast<std::size_t>(range.last - range.first + 1);
    const http::Reply reply = ask(range, [&](const http::Reply& found) {
      return found.status == 206 && found.body.size() != size
                 ? text("it answers with ", found.body.size(), " bytes where ", size, " were asked for")
                 : std::string();
    });
    const auto answered = ContentRange::parse(header(reply, "content-range"));
    if (reply.status == 416 || (answered && answered->total != size_) ||
        (reply.status == 206 && identity_of(reply) != identity_)) {
      throw DataError(text(name_, " has changed while it was in use: it was ", size_, " bytes, ", identity_,
                           ", now it is ", answered ? text(answered->total, " bytes, ") : "",
                           identity_of(reply), "; leave the files of a data set alone, and start again"));
    }
    if (reply.status != 206 || !answered || answered->range.first != range.first ||
        answered->range.last != range.last)
      refuse(range, reply);
    return reply.body;
  }

  /// Sends the request up to `tries` times, until `flaw` finds no fault in the answer. Throws DataError after
  /// the last try.
  template <class Flaw>
  http::Reply ask(const ByteRange& range, const Flaw& flaw) const {
    std::string why;
    for (int tried = 0; tried < options_.tries; ++tried) {
      if (tried > 0) {
        count_retry();
        std::this_thread::sleep_for(
            std::chrono::duration<double>(options_.backoff_s * (1 << std::min(tried - 1, 10))));
      }
      http::Reply reply = send(range);
      if (reply.rejection != http::Rejection::kNone) reject_redirection(reply);
      why = reply.status == 0        ? reply.failure
            : may_pass(reply.status) ? text("it answers ", reply.status, " ", reply.body.substr(0, 200))
                                     : flaw(reply);
      if (why.empty()) return reply;
    }
    throw DataError(text("cannot read bytes ", range.first, " to ", range.last, " of ", name_, ", asked ",
                         options_.tries, " times, for ", options_.timeout_s, " s each: ", why));
  }

  http::Reply send(const ByteRange& range) const {
    std::unique_ptr<http::Client> client = take_client();
    const auto size = static_cast<std::size_t>(range.last - range.first + 1);
    // Leaves room for an error page. A server that ignores ranges is cut off early.
    http::Reply reply = client->send({.url = url_,
                                      .range = text(range.first, '-', range.last),
                                      .timeout_s = options_.timeout_s,
                                      .most_bytes = std::max(size, std::size_t{64} << 10),
                                      .way = http::Way::kAsEnvironmentSays,
                                      .private_redirects = options_.private_redirects});
    // A too long body fails as a whole, but the status line was valid and says more.
    if (reply.status == 0 && reply.answered == 200) reply.status = 200;
    const std::lock_guard lock(mutex_);
    clients_.push_back(std::move(client));
    return reply;
  }

  [[noreturn]] void reject_redirection(const http::Reply& reply) const {
    const bool is_private = reply.rejection == http::Rejection::kPrivate;
    throw DataError(text("cannot read ", name_, ": ", reply.failure,
                         is_private ? "; where that is meant, name it as the source, or set "
                                      "data.private_redirects = true (HttpOptions::private_redirects)"
                                    : "; name where it leads as the source, if you trust that"));
  }

  [[noreturn]] void refuse(const ByteRange& range, const http::Reply& reply) const {
    if (reply.status == 200)
      throw DataError(text(name_, " is behind a server that ignores ranges: asked for bytes ", range.first,
                           " to ", range.last, ", it sends the whole; use one that can, or copy the file"));
    if (reply.status != 206)
      throw DataError(
          text("cannot read ", name_, ": the server answers ", reply.status, " ", reply.body.substr(0, 200)));
    throw DataError(text("cannot read ", name_, ": asked for bytes ", range.first, " to ", range.last,
                         ", the server says that it sends '", header(reply, "content-range"), "'"));
  }

  static std::string header(const http::Reply& reply, const char* name) {
    const auto found = reply.headers.find(name);
    return found == reply.headers.end() ? "" : found->second;
  }

  static std::string identity_of(const http::Reply& reply) {
    const std::string etag = header(reply, "etag");
    return etag.empty() ? "of " + header(reply, "last-modified") : "ETag " + etag;
  }

  std::unique_ptr<http::Client> take_client() const {
    const std::lock_guard lock(mutex_);
    if (clients_.empty()) return std::make_unique<http::Client>();
    auto client = std::move(clients_.back());
    clients_.pop_back();
    return client;
  }

  const std::string url_, name_;
  const HttpOptions options_;
  std::string identity_, version_;
  std::int64_t size_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<http::Client>> clients_;  ///< idle connections, under the mutex
};

}  // namespace

bool is_url(const std::string& path) { return path.starts_with("http://") || path.starts_with("https://"); }

std::string shown_url(const std::string& url) {
  std::string shown = url.substr(0, url.find('?'));
  const std::size_t host = shown.find("://") + 3, at = shown.rfind('@', shown.find('/', host));
  if (at != std::string::npos && at >= host) shown.erase(host, at + 1 - host);
  return shown;
}

std::shared_ptr<const ByteSource> open_url(const std::string& url, const HttpOptions& options) {
  return std::make_shared<HttpBytes>(url, options);
}

}  // namespace trireme::data
