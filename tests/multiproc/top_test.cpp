// `trireme top` and the launcher's metrics on live runs of two ranks.

#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/ports.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"
#include "trireme/wire/socket.h"

namespace trireme::test {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The body of the response to GET, or the whole response if it is not a success.
std::string get(const std::string& url, const std::string& header = "") {
  const std::string rest = url.substr(std::string("http://").size());
  const std::size_t slash = rest.find('/');
  const auto socket =
      wire::try_connect(wire::Endpoint::parse(rest.substr(0, slash), "the URL"), Deadline::after_s(60));
  if (!socket) return "nobody listens";
  const std::string request = text("GET ", rest.substr(slash), " HTTP/1.1\r\n", header, "\r\n");
  wire::send_all(*socket, std::as_bytes(std::span(request)), Deadline::after_s(60));
  std::string answer;
  for (char bytes[4096];;) {
    pollfd wait = {socket->fd(), POLLIN, 0};
    if (::poll(&wait, 1, 60'000) != 1) return answer + "[nothing more in a minute]";
    const ssize_t count = ::recv(socket->fd(), bytes, sizeof bytes, 0);
    if (count <= 0) break;
    answer.append(bytes, static_cast<std::size_t>(count));
  }
  return answer.starts_with("HTTP/1.0 200 ") ? answer.substr(answer.find("\r\n\r\n") + 4) : answer;
}

/// From "http://" to the next blank.
std::string url_in(const std::string& words) {
  const std::size_t begin = words.find("http://");
  return begin == std::string::npos ? "" : words.substr(begin, words.find_first_of(" \n", begin) - begin);
}

/// A training that lasts until it is stopped.
class TopTest : public testing::Test {
 protected:
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {bin("trireme"),
                                        "train",
                                        checkout("examples/quick.toml"),
                                        "-n",
                                        "2",
                                        "--set",
                                        text("run.folder=", folder.path().string()),
                                        "--set",
                                        "run.name=live",
                                        "--set",
                                        "train.epochs=100000"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  ChildResult top(const std::vector<std::string>& more) const {
    std::vector<std::string> command = {bin("trireme"), "top", (folder / "live").string()};
    command.insert(command.end(), more.begin(), more.end());
    return run(command);
  }
  Json view() const {
    const ChildResult result = top({"--json", "--interval", "0.5"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  }
  /// The first view for which `holds` is true.
  template <class Holds>
  Json view_in_which(Holds&& holds) const {
    for (const Deadline deadline = Deadline::after_s(100); !deadline.expired();) {
      const Json found = view();
      if (found.is_object() && holds(found)) return found;
    }
    ADD_FAILURE() << "no such view";
    return {};
  }
  static Json rank_of(const Json& view, int rank) {
    for (const Json& each : view["ranks"])
      if (each["rank"] == rank) return each;
    return {};
  }
  static bool both_step(const Json& view) {
    return view["ranks"].size() == 2 && rank_of(view, 0)["step"] > 0 && rank_of(view, 1)["step"] > 0;
  }

  const TemporaryFolder folder;
};

TEST_F(TopTest, ShowsGrowingStepsAndNamesAwaitedRank) {
  ChildProcess world(train());
  ASSERT_TRUE(world.wait_for_output("step ", 100));
  const Json first = view_in_which(both_step);
  EXPECT_EQ(first["world_size"], 2);
  EXPECT_EQ(std::filesystem::path(first["run"]).filename(), "live");
  EXPECT_GT(rank_of(first, 1)["rss_bytes"], 1 << 20);
  EXPECT_GT(rank_of(first, 1)["memory_peak_bytes"]["weights"], 0);
  EXPECT_GT(rank_of(first, 0)["link_bytes_per_s"], 0);
  const Json later = view_in_which([&](const Json& view) {
    return rank_of(view, 0)["step"] > rank_of(first, 0)["step"] &&
           rank_of(view, 1)["step"] > rank_of(first, 1)["step"];
  });
  const int victim = rank_of(later, 1)["pid"];
  // The repeatedly stopped and continued rank makes progress, but slower than the other one.
  std::atomic<bool> ends{false};
  std::thread slows([&] {
    while (!ends) {
      ::kill(victim, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ::kill(victim, SIGCONT);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  const Json slow = view_in_which([](const Json& view) {
    return view["straggler"].is_object() && view["straggler"]["rank"] == 1 && !view["straggler"]["stopped"];
  });
  ends = true;
  slows.join();
  EXPECT_GT(slow["straggler"]["cost_share"], 0.05);
  EXPECT_THAT(std::string(slow["straggler"]["message"]), HasSubstr("most in "));
  EXPECT_EQ(slow["ranks"][0]["rank"], 1) << "the slowest comes first";
  ::kill(victim, SIGSTOP);
  const Json stopped = view_in_which([](const Json& view) { return rank_of(view, 1)["stopped"] == true; });
  EXPECT_EQ(stopped["straggler"]["rank"], 1);
  EXPECT_THAT(std::string(stopped["straggler"]["message"]), HasSubstr("rank 1 is stopped by a signal"));
  ::kill(victim, SIGCONT);
  const ChildResult table = top({"--once"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("live on "), HasSubstr("2 ranks, step "), HasSubstr("RANK")));
  world.send_signal(SIGINT);
  world.wait(100);
  const ChildResult ended = top({"--once"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("is not live: interrupted after "), HasSubstr("trireme runs ")));
}

TEST_F(TopTest, DrawsOnTerminalAndRestoresIt) {
  ChildProcess world(train());
  ASSERT_TRUE(world.wait_for_output("step ", 100));
  view_in_which(both_step);
  // `script` gives the command a terminal of its own.
  const std::string command = text(bin("trireme"), " top ", (folder / "live").string());
  const ChildResult drawn = run({"bash", "-c", text("printf q | script -qec '", command, "' /dev/null")},
                                {{"TERM", "xterm"}, {"NO_COLOR", "1"}}, 60);
  EXPECT_EQ(drawn.exit_code, 0) << drawn.out << drawn.err;
  EXPECT_THAT(drawn.out, AllOf(HasSubstr("\x1b[?1049h"), HasSubstr("live on "), HasSubstr("\x1b[K\r"),
                               HasSubstr("RANK")));
  EXPECT_TRUE(drawn.out.ends_with("\x1b[?25h\x1b[?1049l")) << drawn.out;
  const ChildResult unknown = run({bin("trireme"), "top", "nosuch"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("there is no run 'nosuch': expected its folder"),
                                 HasSubstr("/live (2 ranks)")));
  world.send_signal(SIGINT);
  world.wait(100);
}

TEST_F(TopTest, ShowsBytesOfCheckpointsAndOffload) {
  ChildProcess world(train(
      {"--set", "offload.optimizer=files", "--set", text("offload.folder=", (folder / "scratch").string())}));
  ASSERT_TRUE(world.wait_for_output("step ", 100));
  const auto bytes = [](const Json& rank, const char* use, const char* direction) {
    return rank["disk_bytes_per_s"][use][direction].get<double>();
  };
  view_in_which([&](const Json& view) {
    const Json rank = rank_of(view, 1);
    return both_step(view) && bytes(rank, "offload", "read") > 0 && bytes(rank, "offload", "written") > 0 &&
           bytes(rank, "data", "read") == 0;
  });
  view_in_which([&](const Json& view) {
    return both_step(view) && bytes(rank_of(view, 0), "checkpoints", "written") > 0;
  });
  world.send_signal(SIGINT);
  world.wait(100);
}

TEST_F(TopTest, ContinuesWhenLauncherRestartsRanks) {
  ChildProcess world(train({"--max-restarts", "1"}));
  ASSERT_TRUE(world.wait_for_output("step ", 100));
  const Json before = view_in_which(both_step);
  ChildProcess server(
      {bin("trireme"), "top", (folder / "live").string(), "--serve", "0", "--interval", "0.2"});
  ASSERT_TRUE(server.wait_for_output("Ctrl-C ends", 60));
  const std::string url = url_in(server.output());
  const int victim = rank_of(before, 0)["pid"];
  ::kill(victim, SIGKILL);
  const std::string view_url = url.substr(0, url.find("?")) + "view.json" + url.substr(url.find("?"));
  bool is_another = false;
  for (const Deadline deadline = Deadline::after_s(100); !is_another && !deadline.expired();) {
    const Json view = Json::parse(get(view_url), nullptr, /*allow_exceptions=*/false);
    is_another = view.is_object() && both_step(view) && rank_of(view, 0)["pid"] != victim &&
                 rank_of(view, 0)["steps_per_s"] > 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(is_another);
  world.send_signal(SIGINT);
  world.wait(100);
  EXPECT_EQ(server.wait(60).exit_code, 0);
}

TEST_F(TopTest, ServesPageAndViewsToTokenHolder) {
  ChildProcess world(train());
  ASSERT_TRUE(world.wait_for_output("step ", 100));
  view_in_which(both_step);
  ChildProcess server({bin("trireme"), "top", (folder / "live").string(), "--serve", "0"});
  ASSERT_TRUE(server.wait_for_output("Ctrl-C ends", 60));
  const std::string url = url_in(server.output());
  const std::string base = url.substr(0, url.find("?")), query = url.substr(url.find("?"));
  EXPECT_THAT(get(url),
              AllOf(HasSubstr("<!doctype html>"), HasSubstr("EventSource"), Not(HasSubstr("src="))));
  const Json view = Json::parse(get(base + "view.json" + query));
  EXPECT_EQ(view["ranks"].size(), 2U);
  EXPECT_FALSE(view["ranks"][0]["spans"].empty());
  EXPECT_THAT(get(base), HasSubstr("HTTP/1.0 401 "));
  EXPECT_THAT(get(base + "view.json?token=x"), HasSubstr("HTTP/1.0 401 "));
  world.send_signal(SIGINT);
  world.wait(100);
  const ChildResult ended = server.wait(60);
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.out, HasSubstr("has ended: interrupted after "));
}

TEST_F(TopTest, TheLauncherHasMetricsForPrometheus) {
  const std::string token_file = folder / "token";
  const std::string port = text(free_port());
  ChildProcess world(train({"--metrics-port", port, "--metrics-token-file", token_file}));
  ASSERT_TRUE(world.wait_for_output("metrics at http://", 100));
  ASSERT_TRUE(world.wait_for_output("step ", 100));
  view_in_which(both_step);
  std::string token;
  std::ifstream(token_file) >> token;
  EXPECT_GE(token.size(), 32U);
  EXPECT_EQ(std::filesystem::status(token_file).permissions(), std::filesystem::perms(0600));
  const std::string url = text("http://127.0.0.1:", port, "/metrics");
  const std::string metrics = get(url, text("Authorization: Bearer ", token, "\r\n"));
  EXPECT_THAT(metrics,
              AllOf(HasSubstr("trireme_run_ranks{run=\"live\""), HasSubstr("trireme_rank_step{rank=\"1\"} "),
                    HasSubstr("activity=\"backward\",waits=\"no\"}")));
  EXPECT_THAT(get(url), AllOf(HasSubstr("HTTP/1.0 401 "), Not(HasSubstr("trireme_rank"))));
  world.send_signal(SIGINT);
  const ChildResult ended = world.wait(100);
  EXPECT_THAT(ended.err, HasSubstr(text("/metrics with the token in ", token_file)));
}

}  // namespace
}  // namespace trireme::test
