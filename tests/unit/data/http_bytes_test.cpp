#include "trireme/data/http_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tests/support/http_server.h"
#include "tests/support/ports.h"
#include "trireme/base/error.h"
#include "trireme/data/loading_report.h"

namespace trireme::data {
namespace {

using test::http_status;
using test::HttpAnswer;
using test::HttpQuestion;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::string digits(std::size_t size) {
  std::string digits;
  for (std::size_t i = 0; digits.size() < size; ++i) digits += std::to_string(i);
  digits.resize(size);
  return digits;
}

class HttpBytes : public testing::Test {
 protected:
  HttpBytes() { server_.put("shard.tar", {.content = content_}); }
  std::shared_ptr<const ByteSource> open() { return open_url(server_.url("shard.tar"), kHasty); }
  void fails(const ByteSource& source, const std::string& why) {
    EXPECT_THAT([&] { read_text(source, 10, 90); },
                ThrowsMessage<DataError>(AllOf(HasSubstr(server_.url("shard.tar")), HasSubstr(why))));
  }
  /// Replaces the answers to the next `times` requests.
  void twist(int times, const std::function<HttpAnswer(const std::string& right)>& answer) {
    const int from = server_.num_questions();
    server_.twist([=](const HttpQuestion& question, const std::string& right) {
      return question.number < from + times ? std::optional(answer(right)) : std::nullopt;
    });
  }
  static constexpr HttpOptions kHasty = {.timeout_s = 60, .tries = 3, .backoff_s = 0.001};
  const std::string content_ = digits(100000);
  test::HttpServer server_;
};

TEST_F(HttpBytes, AnyRangeIsReadByOneQuestion) {
  const auto source = open();
  EXPECT_EQ(source->size(), 100000);
  EXPECT_EQ(source->name(), server_.url("shard.tar"));
  EXPECT_EQ(read_text(*source, 0, 100000), content_);
  EXPECT_EQ(read_text(*source, 99990, 10), content_.substr(99990));
  EXPECT_EQ(read_text(*source, 5, 0), "");
  EXPECT_EQ(server_.num_questions(), 3);
  EXPECT_THROW(read_text(*source, 99990, 11), DataError);
}

TEST_F(HttpBytes, LongRangesAreReadPieceByPiece) {
  const std::string content = digits((9 << 20) + 5);
  server_.put("long", {.content = content});
  const auto source = open_url(server_.url("long"), kHasty);
  EXPECT_TRUE(read_text(*source, 3, (9 << 20) + 1) == content.substr(3, (9 << 20) + 1));
  EXPECT_EQ(server_.num_questions(), 1 + 3);
}

TEST_F(HttpBytes, EmptyFileHasNoBytes) {
  server_.put("empty", {.content = ""});
  EXPECT_EQ(open_url(server_.url("empty"), kHasty)->size(), 0);
}

TEST_F(HttpBytes, ServerThatRecoversIsAskedAgain) {
  const auto source = open();
  LoadingCounts counts;
  {
    const LoadingMeter meter(counts);
    for (const int status : {500, 503, 429, 408}) {
      twist(2, [&](const std::string&) { return HttpAnswer{http_status(status, "not now")}; });
      EXPECT_EQ(read_text(*source, 10, 90), content_.substr(10, 90)) << status;
    }
  }
  EXPECT_EQ(counts.retries, 4 * 2);
  EXPECT_EQ(counts.bytes_read, 4 * 90);
  twist(2, [](const std::string& right) { return HttpAnswer{right.substr(0, right.size() - 7)}; });
  EXPECT_EQ(read_text(*source, 10, 90), content_.substr(10, 90));
  twist(2, [](const std::string&) { return HttpAnswer{""}; });
  EXPECT_EQ(read_text(*source, 10, 90), content_.substr(10, 90));
}

TEST_F(HttpBytes, NamesServerThatDoesNotRecover) {
  const auto source = open();
  twist(3, [&](const std::string&) { return HttpAnswer{http_status(503, "being mended")}; });
  fails(*source, "asked 3 times");
  twist(3, [&](const std::string&) { return HttpAnswer{http_status(503, "being mended")}; });
  fails(*source, "503 being mended");
  twist(3, [](const std::string& right) { return HttpAnswer{right.substr(0, right.size() - 7)}; });
  fails(*source, "7 bytes remaining");
}

TEST_F(HttpBytes, SilentServerIsNamedAtTimeout) {
  const auto source = open_url(server_.url("shard.tar"), {.timeout_s = 0.3, .tries = 2, .backoff_s = 0.001});
  twist(2, [](const std::string& right) {
    return HttpAnswer{right.substr(0, right.size() - 7), /*hangs=*/true};
  });
  fails(*source, "timed out");
}

TEST_F(HttpBytes, MissingFileIsReportedAtOnce) {
  EXPECT_THAT(
      [&] { open_url(server_.url("absent.tar"), kHasty); },
      ThrowsMessage<DataError>(AllOf(HasSubstr("absent.tar"), HasSubstr("404"), HasSubstr("no such thing"))));
  EXPECT_EQ(server_.num_questions(), 1);
  const std::string nowhere = "http://127.0.0.1:" + std::to_string(test::free_port()) + "/x";
  EXPECT_THAT([&] { open_url(nowhere, kHasty); }, ThrowsMessage<DataError>(HasSubstr(nowhere)));
}

TEST_F(HttpBytes, RejectsPrivateRedirectionUnlessRequested) {
  const std::string redirection =
      "HTTP/1.1 302 Found\r\nConnection: close\r\nContent-Length: 0\r\nLocation: " +
      server_.url("shard.tar") + "\r\n\r\n";
  server_.twist([&](const HttpQuestion& question, const std::string&) {
    return question.path == "/elsewhere" ? std::optional(HttpAnswer{redirection}) : std::nullopt;
  });
  EXPECT_THAT(
      [&] { open_url(server_.url("elsewhere"), kHasty); },
      ThrowsMessage<DataError>(AllOf(HasSubstr(server_.url("elsewhere")), HasSubstr("it redirects to"),
                                     HasSubstr("data.private_redirects = true"))));
  EXPECT_EQ(server_.num_questions(), 1) << "asking again would not help";
  HttpOptions asked_for = kHasty;
  asked_for.private_redirects = true;
  EXPECT_EQ(read_text(*open_url(server_.url("elsewhere"), asked_for), 10, 90), content_.substr(10, 90));
}

TEST_F(HttpBytes, ServerThatIgnoresRangesIsRejected) {
  const std::string whole =
      "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + std::to_string(content_.size()) +
      "\r\n\r\n" + content_;
  const auto source = open();
  twist(1, [&](const std::string&) { return HttpAnswer{whole}; });
  fails(*source, "ignores ranges");
  twist(1, [&](const std::string&) { return HttpAnswer{whole}; });
  EXPECT_THAT([&] { open(); }, ThrowsMessage<DataError>(HasSubstr("ignores ranges")));
}

TEST_F(HttpBytes, RejectsServerWithAnotherRangeOrLength) {
  const auto source = open();
  const auto changed = [](std::string right, const std::string& from, const std::string& to) {
    return HttpAnswer{right.replace(right.find(from), from.size(), to)};
  };
  twist(1, [&](const std::string& right) { return changed(right, "bytes 10-99", "bytes 11-100"); });
  fails(*source, "bytes 11-100/100000");
  twist(1, [&](const std::string& right) { return changed(right, "bytes 10-99", "bytes 9-99"); });
  fails(*source, "bytes 9-99/100000");
  twist(1, [&](const std::string& right) { return changed(right, "bytes 10-99", "bytes 10-98"); });
  fails(*source, "bytes 10-98/100000");
  twist(1, [&](const std::string& right) { return changed(right, "bytes 10-99/", "ninety of "); });
  fails(*source, "ninety of 100000");
  twist(3,
        [&](const std::string& right) { return changed(right, "Content-Length: 90", "Content-Length: 80"); });
  fails(*source, "80 bytes where 90");
  twist(3, [&](const std::string& right) {
    HttpAnswer longer = changed(right, "Content-Length: 90", "Content-Length: 95");
    longer.bytes += "12345";
    return longer;
  });
  fails(*source, "95 bytes where 90");
}

TEST_F(HttpBytes, NoticesFileThatChangesDuringRead) {
  const auto source = open();
  const std::string version = source->version();
  server_.put("shard.tar", {.content = content_, .etag = "\"2\""});
  fails(*source, "changed while it was in use");
  EXPECT_NE(open()->version(), version);
  server_.put("shard.tar", {.content = content_ + "more"});
  fails(*source, "changed while it was in use");
  server_.put("shard.tar", {.content = "less"});
  fails(*source, "changed while it was in use");
  server_.put("shard.tar", {.content = content_});
  EXPECT_EQ(read_text(*source, 10, 90), content_.substr(10, 90));
}

TEST_F(HttpBytes, SecretsAreSentButNotShown) {
  std::string url = server_.url("shard.tar") + "?signature=abc";
  std::string asked;
  server_.twist([&](const HttpQuestion& question, const std::string&) {
    asked = question.path;
    return std::nullopt;
  });
  EXPECT_EQ(open_url(url, kHasty)->name(), server_.url("shard.tar"));
  EXPECT_EQ(asked, "/shard.tar?signature=abc");
  url.insert(7, "user:word@");
  EXPECT_EQ(open_url(url, kHasty)->name(), server_.url("shard.tar"));
}

TEST_F(HttpBytes, ManyThreadsReadAtOnce) {
  const auto source = open();
  std::vector<std::jthread> threads;
  for (std::int64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (std::int64_t at = i; at < 100000; at += 20011)
        EXPECT_EQ(read_text(*source, at, 100000 - at), content_.substr(static_cast<std::size_t>(at)));
    });
  }
}

}  // namespace
}  // namespace trireme::data
