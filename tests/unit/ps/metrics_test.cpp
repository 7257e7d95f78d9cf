// Metrics as text, and the port that serves them.

#include "trireme/ps/metrics.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <vector>

#include "trireme/ps/metrics_port.h"

namespace trireme::ps {
namespace {

/// Checks every line of the format. Help and type of a name come once, before its values, and the name is
/// valid.
void expect_well_formed(const std::string& metrics) {
  static const std::regex kSample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-z]+="([^"\\\n]|\\.)*"\})? -?[0-9.e+-]+)re");
  std::istringstream lines(metrics);
  std::set<std::string> typed, samples;
  std::string line, word, kind, name;
  ASSERT_EQ(metrics.back(), '\n');
  while (std::getline(lines, line)) {
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      std::istringstream(line) >> word >> word >> name >> kind;
      EXPECT_TRUE(typed.insert(name).second) << "twice: " << line;
      EXPECT_TRUE(kind == "counter" || kind == "gauge" || kind == "histogram") << line;
      EXPECT_EQ(kind == "counter", name.ends_with("_total")) << line;
      continue;
    }
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, kSample)) << line;
    const std::string sample = match[1];
    EXPECT_TRUE(sample == name || (kind == "histogram" && sample.starts_with(name + "_"))) << line;
    EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
  }
  EXPECT_GT(typed.size(), 5U);
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, ServerMetricsFollowPrometheusFormat) {
  ServerStatus status;
  status.held.counts.pushes = 7;
  status.held.counts.rejected[ErrorKind::kWrongEpoch] = 3;
  for (const std::uint64_t steps : {0, 0, 3, 1000}) status.held.counts.staleness.add(steps);
  status.held.backup.add(12, 2);
  status.channels = {{"refused: \"a\\b\"\nc", 1}, {"frames sent", 5}};
  const std::string metrics = metrics_text(status);
  expect_well_formed(metrics);
  for (const char* line :
       {"trireme_ps_pushes_total 7", "trireme_ps_requests_refused_total{why=\"wrong epoch\"} 3",
        "trireme_ps_pull_staleness_bucket{le=\"0\"} 2", "trireme_ps_pull_staleness_bucket{le=\"2\"} 2",
        "trireme_ps_pull_staleness_bucket{le=\"4\"} 3", "trireme_ps_pull_staleness_bucket{le=\"+Inf\"} 4",
        "trireme_ps_pull_staleness_sum 1003", "trireme_ps_pull_staleness_count 4",
        "trireme_ps_lag_records{role=\"backup\"} 2",
        "trireme_ps_channel_events_total{event=\"refused: \\\"a\\\\b\\\"\\nc\"} 1"})
    EXPECT_TRUE(has_line(metrics, line)) << line << " is not in\n" << metrics;
}

TEST(Metrics, CoordinatorMetricsFollowPrometheusFormat) {
  ClusterStatus status;
  status.num_lost = 4;
  status.takeovers = 2;
  const std::string metrics = metrics_text(status);
  expect_well_formed(metrics);
  EXPECT_TRUE(has_line(metrics, "trireme_ps_cluster_partitions{state=\"lost\"} 4")) << metrics;
  EXPECT_TRUE(has_line(metrics, "trireme_ps_takeovers_total 2")) << metrics;
  EXPECT_TRUE(has_line(metrics, "trireme_ps_leads 1")) << metrics;
  EXPECT_TRUE(has_line(metrics_text_of_one_who_waits(), "trireme_ps_leads 0"));
}

class MetricsPortTest : public testing::Test {
 protected:
  wire::Socket connect() {
    auto socket = wire::try_connect(port.endpoint(), Deadline::after_s(60));
    EXPECT_TRUE(socket.has_value());
    return std::move(*socket);
  }
  /// Sends a request and reads until the port closes the connection.
  std::string ask(const wire::Socket& socket, const std::string& request) {
    wire::send_all(socket, std::as_bytes(std::span(request)), Deadline::after_s(60));
    std::string answer;
    for (char bytes[1000];;) {
      pollfd wait = {socket.fd(), POLLIN, 0};
      if (::poll(&wait, 1, 60'000) != 1) return answer + "[nothing more in a minute]";
      const ssize_t count = ::recv(socket.fd(), bytes, sizeof bytes, 0);
      if (count <= 0) return answer;
      answer.append(bytes, static_cast<std::size_t>(count));
    }
  }
  std::string ask(const std::string& request) { return ask(connect(), request); }

  MetricsPort port{{"127.0.0.1", 0}};
};

TEST_F(MetricsPortTest, AnswersGetWithLastPublishedText) {
  EXPECT_TRUE(ask("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.0 503 "));
  port.publish("a 1\n");
  port.publish("a 2\n");
  const std::string answer = ask("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.0 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4"), std::string::npos) << answer;
  EXPECT_NE(answer.find("Content-Length: 4\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\na 2\n")) << answer;
}

TEST_F(MetricsPortTest, RejectsEverythingElse) {
  port.publish("a 1\n");
  EXPECT_TRUE(ask("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 404 "));
  EXPECT_TRUE(ask("POST /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 405 "));
  EXPECT_TRUE(ask("\n\n").starts_with("HTTP/1.0 405 "));
  EXPECT_TRUE(ask(std::string(4097, 'x')).starts_with("HTTP/1.0 431 "));
}

TEST_F(MetricsPortTest, ServesOthersBesideClientsThatSayNothing) {
  port.publish("a 1\n");
  std::vector<wire::Socket> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connect());
  EXPECT_TRUE(ask("GET /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200 "));
  EXPECT_EQ(ask(silent.back(), "G"), "") << "it is late, and is closed";
}

}  // namespace
}  // namespace trireme::ps
