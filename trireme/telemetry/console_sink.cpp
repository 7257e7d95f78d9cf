#include "trireme/telemetry/console_sink.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>

#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

constexpr int kBarWidth = 24;
constexpr const char* kClearLine = "\x1b[K";

std::string format(const char* pattern, double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

std::string bar(double done) {
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kBarWidth);
  std::string result(kBarWidth, ' ');
  std::fill_n(result.begin(), filled, '=');
  return text('[', result, ']');
}

/// "  test accuracy 0.9112  test loss 0.2519": what an evaluation has found.
std::string measures_of(const Record& record) {
  std::string result;
  for (const auto& [name, value] : record.fields) {
    if (!name.ends_with("_accuracy") && !name.ends_with("_loss")) continue;
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
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
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
  const double least_s = terminal ? options_.redraw_s : options_.plain_s;
  if (!last && drawn_s_ > 0 && now_s() - drawn_s_ < least_s) return;
  drawn_s_ = now_s();
  if (!terminal) return write_line(progress_of(record));
  const double total = std::max(1.0, static_cast<double>(options_.total_steps));
  std::string line = text(bar(record.number("step", 0) / total), ' ', progress_of(record));
  // One character stays free: a full line would move to the next.
  if (options_.columns > 0) line.resize(std::min<std::size_t>(line.size(), options_.columns - 1));
  out_ << kClearLine << line << '\r' << std::flush;
  bar_shown_ = true;
}

void ConsoleSink::write_line(const std::string& line) {
  clear_bar();
  out_ << line << std::endl;
}

void ConsoleSink::clear_bar() {
  if (bar_shown_) out_ << kClearLine;
  bar_shown_ = false;
}

std::string ConsoleSink::progress_of(const Record& record) const {
  const auto step = static_cast<std::int64_t>(record.number("step", 0));
  std::string line =
      text("step ", step, "/", options_.total_steps, "  loss ", format("%.4f", record.number("loss", 0)),
           "  ", format("%.0f", record.number("samples_per_s", 0)), " samples/s  lr ",
           format("%.3g", record.number("lr", 0)));
  const double step_s = record.number("step_s", 0);
  if (step < options_.total_steps && step_s > 0) {
    line += text("  eta ", human_duration(step_s * static_cast<double>(options_.total_steps - step)));
  }
  return line;
}

}  // namespace trireme::telemetry
