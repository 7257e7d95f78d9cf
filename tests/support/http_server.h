#pragma once
// An HTTP server for tests, on 127.0.0.1 or another address. It answers GET requests, also for ranges, from
// its files. Before each response a test function can replace it. One thread per connection, until the end of
// the test.

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme::test {

struct HttpFile {
  std::string content;
  std::string etag = "\"1\"";
};

struct HttpAnswer {
  std::string bytes;   ///< status line, headers and body
  bool hangs = false;  ///< sends nothing more and keeps the connection open
};

struct HttpQuestion {
  int number = 0;  ///< number among all requests, from 0 on
  std::string path;
  std::string range;  ///< "bytes=0-99"; empty: the whole file
};

class HttpServer {
 public:
  /// Returns the response to send instead of the right one, `right`. Nothing: the right one is sent.
  using Twist = std::function<std::optional<HttpAnswer>(const HttpQuestion&, const std::string& right)>;

  explicit HttpServer(std::string address = "127.0.0.1");
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url(const std::string& path) const;
  void put(const std::string& path, const HttpFile& file);
  void twist(const Twist& twist);
  int num_questions() const;

 private:
  void accept_all();
  void serve(int connection);
  std::string answer_to(const HttpQuestion& question) const;

  const std::string address_;
  int listens_ = -1, port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable ends_;
  bool ending_ = false;
  std::map<std::string, HttpFile> files_;
  Twist twist_;
  int num_questions_ = 0;
  std::vector<std::thread> connections_;
  std::thread accepts_;
};

/// A response "HTTP/1.1 503 ..." with a body.
std::string http_status(int status, const std::string& body = "");

}  // namespace trireme::test
