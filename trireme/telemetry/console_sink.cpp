#include "trireme/telemetry/console_sink.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>

#include "trireme/base/printable.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

constexpr std::size_t kWidestBar = 24, kNarrowestBar = 6;
constexpr std::size_t kColumnsOfATerminal = 80;
constexpr int kFewestColumns = 20;  // less is not a width: older launchers only set a flag
constexpr const char* kClearLine = "\x1b[K";

std::string format(const char* pattern, double value) {
  char buffer[48];
  // The sign of a NaN has no meaning.
  std::snprintf(buffer, sizeof buffer, pattern, std::isnan(value) ? std::fabs(value) : value);
  return buffer;
}

std::string bar(double done, std::size_t width) {
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
  std::string result(width, ' ');
  std::fill_n(result.begin(), filled, '=');
  return text('[', result, ']');
}

/// As many leading parts as fit into `columns` characters. No part is cut.
std::string joined(const std::vector<std::string>& parts, std::size_t columns) {
  std::string line;
  for (const std::string& part : parts) {
    const std::string more = line.empty() ? part : "  " + part;
    if (line.size() + more.size() > columns) break;
    line += more;
  }
  return line;
}

/// The measures of an evaluation: "  test accuracy 0.9112  test loss 0.2519".
std::string measures_of(const Record& record) {
  std::string result;
  for (const auto& [name, value] : record.fields) {
    if (name == "step" || name == "samples" || name == "time_s") continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    result += text("  ", words, " ", format("%.4f", std::get<double>(value)));
  }
  return result;
}

}  // namespace

ConsoleStyle style_of_stdout() {
  const char* terminal = std::getenv("TERM");
  const bool redraws = terminal != nullptr && std::string_view(terminal) != "dumb";
  const bool draws = ::isatty(STDOUT_FILENO) == 1 || std::getenv("TRIREME_TERMINAL") != nullptr;
  return draws && redraws ? ConsoleStyle::kTerminal : ConsoleStyle::kPlain;
}

int columns_of_stdout() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) return size.ws_col;
  const char* of_launcher = std::getenv("TRIREME_TERMINAL");
  const int columns = of_launcher == nullptr ? 0 : std::atoi(of_launcher);
  return columns >= kFewestColumns ? columns : 0;
}

ConsoleSink::ConsoleSink(std::ostream& out, const ConsoleOptions& options) : out_(out), options_(options) {}

ConsoleSink::~ConsoleSink() {
  clear_bar();
  out_ << std::flush;
}

void ConsoleSink::write(const Record& record) {
  if (record.event == "step") return write_step(record);
  if (record.event == "eval") {
    return write_line(text("step ", record.number("step", 0), measures_of(record)));
  }
  if (record.event == "note" && !record.fields.empty()) {
    if (const auto* note = std::get_if<std::string>(&record.fields.front().second)) write_line(*note);
  }
}

void ConsoleSink::write_step(const Record& record) {
  const bool terminal = options_.style == ConsoleStyle::kTerminal;
  const bool last = record.number("step", 0) >= static_cast<double>(options_.total_steps);
  const double min_s = terminal ? options_.redraw_s : options_.plain_s;
  if (!last && drawn_s_ > 0 && now_s() - drawn_s_ < min_s) return;
  drawn_s_ = now_s();
  if (!terminal) return write_line(joined(parts_of(record), std::string::npos));
  out_ << kClearLine << bar_line(record) << '\r' << std::flush;
  bar_shown_ = true;
}

void ConsoleSink::write_line(const std::string& line) {
  clear_bar();
  out_ << printable_message(line) << std::endl;
}

void ConsoleSink::clear_bar() {
  if (bar_shown_) out_ << kClearLine;
  bar_shown_ = false;
}

std::string ConsoleSink::bar_line(const Record& record) const {
  // One column stays free: a full line would wrap.
  const std::size_t columns =
      (options_.columns > 0 ? static_cast<std::size_t>(options_.columns) : kColumnsOfATerminal) - 1;
  constexpr std::size_t kFrame = 3;  // "[", "] "
  const std::size_t for_parts = columns - std::min(columns, kNarrowestBar + kFrame);
  const std::string parts = joined(parts_of(record), for_parts);
  if (parts.empty()) return joined(parts_of(record), columns);  // no room for a bar next to the step
  const std::size_t for_bar = columns - std::min(columns, parts.size() + kFrame);
  const double total = std::max(1.0, static_cast<double>(options_.total_steps));
  std::string line =
      text(bar(record.number("step", 0) / total, std::clamp(for_bar, kNarrowestBar, kWidestBar)), ' ', parts);
  line.resize(std::min(line.size(), columns));
  return line;
}

namespace {

/// Another rank that waits longer for data, and the loading stage that this rank waits for.
std::string slowest_in_words(const Record& record) {
  constexpr double kWorthAWord = 0.01;
  const double mine = record.number("data_wait", 0), most = record.number("data_wait_most", mine);
  if (most < kWorthAWord) return "";
  std::vector<std::string> words;
  if (most > mine + kWorthAWord)
    words.push_back(text("rank ", record.number("data_wait_rank", 0), ": ", format("%.0f", 100 * most), "%"));
  if (record.has("data_wait_stage")) words.push_back(record.words("data_wait_stage"));
  return words.empty() ? "" : text(" (", join(words), ")");
}

}  // namespace

namespace {

/// "gpu 87% 12.0 GiB": the mean utilization of the GPUs, and the most memory that one of them uses.
std::string gpus_in_words(const Record& record) {
  double utilization = 0, most_bytes = -1;
  int told = 0;
  for (int gpu = 0;; ++gpu) {
    const std::string used = text("gpu_", gpu, "_utilization"),
                      bytes = text("gpu_", gpu, "_memory_used_bytes");
    if (!record.has(used) && !record.has(bytes)) break;
    if (record.has(used)) utilization += record.number(used, 0), ++told;
    most_bytes = std::max(most_bytes, record.number(bytes, -1));
  }
  std::vector<std::string> words;
  if (told > 0) words.push_back(format("%.0f", 100 * utilization / told) + "%");
  if (most_bytes >= 0) words.push_back(human_bytes(static_cast<std::uint64_t>(most_bytes)));
  return words.empty() ? "" : "gpu " + join(words, " ");
}

}  // namespace

std::vector<std::string> ConsoleSink::parts_of(const Record& record) const {
  const auto step = static_cast<std::int64_t>(record.number("step", 0));
  std::vector<std::string> parts = {text("step ", step, "/", options_.total_steps),
                                    "loss " + format("%.4f", record.number("loss", 0)),
                                    format("%.0f", record.number("samples_per_s", 0)) + " samples/s"};
  const double step_s = record.number("step_s", 0);
  if (step < options_.total_steps && step_s > 0) {
    parts.push_back("eta " + human_duration(step_s * static_cast<double>(options_.total_steps - step)));
  }
  parts.push_back("lr " + format("%.3g", record.number("lr", 0)));
  if (record.has("batch")) parts.push_back("batch " + format("%.0f", record.number("batch", 0)));
  if (record.has("data_wait") && record.has("comm_wait")) {
    parts.push_back(text("data ", format("%.0f", 100 * record.number("data_wait", 0)), "%",
                         slowest_in_words(record), " comm ",
                         format("%.0f", 100 * record.number("comm_wait", 0)), "%"));
  }
  if (std::string gpus = gpus_in_words(record); !gpus.empty()) parts.push_back(std::move(gpus));
  if (record.has("grad_norm")) parts.push_back("norm " + format("%.3g", record.number("grad_norm", 0)));
  if (record.has("noise_scale")) parts.push_back("noise " + format("%.3g", record.number("noise_scale", 0)));
  if (record.has("loss_scale")) parts.push_back("scale " + format("%.0f", record.number("loss_scale", 0)));
  return parts;
}

}  // namespace trireme::telemetry
