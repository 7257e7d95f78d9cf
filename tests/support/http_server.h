#pragma once
// An HTTP server for tests, on 127.0.0.1 or where the test says: it answers GET with ranges from what it was
// given, and before each answer asks the test whether to do something else instead. One thread per
// connection, until the end of the test.

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
  std::string bytes;   ///< status line, headers and all
  bool hangs = false;  ///< then nothing more, and the connection stays
};

struct HttpQuestion {
  int number = 0;  ///< of all that were asked, from 0 on
  std::string path;
  std::string range;  ///< "bytes=0-99"; empty: all
};

class HttpServer {
 public:
  /// What is to be sent for this question instead of the right answer, which is handed in; none: that.
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

/// "HTTP/1.1 503 ...", with a body.
std::string http_status(int status, const std::string& body = "");

}  // namespace trireme::test
