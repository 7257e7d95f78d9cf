#include "trireme/comm/internal/heartbeat.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "trireme/base/clock.h"

namespace trireme::comm {
namespace {

// Share of a core. A thread that computes gets more even on a crowded core; a thread that sleeps a
// millisecond at a time uses less.
constexpr double kMinShareOfCore = 0.05;
constexpr double kWindow_s = 2;
constexpr double kMinCpu_s = 0.02;

std::string one_line(std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

}  // namespace

std::string encode(const Heartbeat& beat) {
  std::ostringstream out;
  out << beat.number << ' ' << beat.progress_counter << ' ' << beat.publications << ' ' << beat.leaves << ' '
      << beat.waits;
  for (const int rank : beat.waits_for) out << ' ' << rank;
  for (const auto& line : {beat.operation, beat.action, beat.own_work}) out << '\n' << one_line(line);
  return std::move(out).str();
}

std::optional<Heartbeat> decode_heartbeat(const std::string& encoded) {
  std::istringstream lines(encoded);
  std::array<std::string, 4> line;
  for (auto& each : line) std::getline(lines, each);
  Heartbeat beat;
  beat.operation = line[1];
  beat.action = line[2];
  beat.own_work = line[3];
  std::istringstream numbers(line[0]);
  numbers >> beat.number >> beat.progress_counter >> beat.publications >> beat.leaves >> beat.waits;
  const bool complete = !numbers.fail() && std::ranges::count(encoded, '\n') == 3;
  for (int rank = 0; numbers >> rank;) beat.waits_for.push_back(rank);
  if (!complete || !numbers.eof()) return std::nullopt;
  return beat;
}

SignsOfLife::SignsOfLife(std::shared_ptr<telemetry::StatusPage> page, std::function<double()> cpu_s)
    : page_(std::move(page)), cpu_s_(std::move(cpu_s)) {}

std::uint64_t SignsOfLife::look(const telemetry::Status& status, bool waits) {
  const bool changed = status.updated_s != changed_s_;
  changed_s_ = status.updated_s;
  if (uses_processor(waits) || changed || !status.own_work.empty()) ++signs_;
  return signs_;
}

bool SignsOfLife::uses_processor(bool waits) {
  const double now = now_s();
  const double cpu = cpu_s_();
  const double passed_s = now - looked_at_s_;
  const bool enough = cpu - cpu_then_s_ >= std::max(kMinCpu_s, kMinShareOfCore * passed_s);
  if (enough || waits || passed_s > kWindow_s) {
    looked_at_s_ = now;
    cpu_then_s_ = cpu;
  }
  return enough && !waits;
}

double cpu_s_of(clockid_t clock) {
  std::timespec used{};
  if (::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double cpu_s_of_other_threads() {
  return cpu_s_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s_of(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace trireme::comm
