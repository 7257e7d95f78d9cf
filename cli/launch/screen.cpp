#include "cli/launch/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace trireme::cli {
namespace {

// Limits the memory for a line without an end.
constexpr std::size_t kLongestLine = 1 << 20;
constexpr const char* kRedraw = "\r\x1b[K";
constexpr std::string_view kClearLine = "\x1b[K";

/// 0: unknown.
std::size_t columns_of_stdout() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

Screen::Screen() : terminal_(::isatty(STDOUT_FILENO) == 1) {}

void Screen::write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return lost(fd);  // the reader has exited; the ranks continue without output
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Screen::lost(int fd) {
  if (fd != STDOUT_FILENO || std::exchange(stdout_lost_, true)) return;
  note(
      "standard output is closed; the ranks continue (runs of trireme train: see console.log in their "
      "folder)");
}

void Screen::line(int fd, std::string_view prefix, std::string_view text) {
  std::string whole = bar_shown_ ? kRedraw : "";
  bar_shown_ = false;
  whole.append(prefix).append(text).append("\n");
  write(fd, whole);
}

std::string_view Screen::cut_between_fields(std::string_view text, std::size_t columns) {
  if (text.size() <= columns) return text;
  const std::size_t end = text.rfind("  ", columns);
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end);
}

void Screen::bar(std::string_view prefix, std::string_view text) {
  if (text.empty()) return;
  // One column stays free, as a full line would wrap.
  const std::size_t columns = columns_of_stdout();
  if (columns > prefix.size()) text = cut_between_fields(text, columns - prefix.size() - 1);
  std::string whole = kRedraw;
  whole.append(prefix).append(text);
  bar_shown_ = true;
  write(STDOUT_FILENO, whole);
}

int Screen::bar_columns() const {
  constexpr std::size_t kPrefix = 4;
  return static_cast<int>(std::max(columns_of_stdout(), kPrefix) - kPrefix);
}

void Screen::note(std::string_view text) { line(STDERR_FILENO, "trireme launch: ", text); }

LineRelay::LineRelay(Screen& screen, int source, int target, std::string prefix, Bars bars)
    : screen_(&screen), source_(source), target_(target), prefix_(std::move(prefix)), bars_(bars) {}

bool LineRelay::pump() {
  std::array<char, 1 << 16> buffer;
  const ssize_t got = ::read(source_, buffer.data(), buffer.size());
  if (got > 0) {
    pending_.append(buffer.data(), static_cast<std::size_t>(got));
    relay_lines();
    return true;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  finish();
  return false;
}

void LineRelay::relay_lines() {
  std::string_view rest = pending_;
  const std::string_view ends = bars_ == Bars::kYes ? "\r\n" : "\n";
  for (auto end = rest.find_first_of(ends); end != std::string_view::npos; end = rest.find_first_of(ends)) {
    const bool redrawn = rest[end] == '\r' && rest.substr(end, 2) != "\r\n";
    std::string_view text = rest.substr(0, end);
    if (bars_ == Bars::kYes && text.starts_with(kClearLine)) text.remove_prefix(kClearLine.size());
    if (redrawn) {
      screen_->bar(prefix_, text);
    } else {
      relay(text);
      if (rest[end] == '\r') ++end;
    }
    rest.remove_prefix(end + 1);
  }
  if (rest.size() > kLongestLine) {
    relay(rest);
    rest = {};
  }
  pending_ = std::string(rest);
}

void LineRelay::relay(std::string_view line) {
  // Stack frames follow the message of a libtorch exception.
  constexpr std::size_t kMostLines = 128, kMostBytes = 2000;
  screen_->line(target_, prefix_, line);
  if (target_ != STDERR_FILENO) return;
  last_lines_.emplace_back(line.substr(0, kMostBytes));
  if (last_lines_.size() > kMostLines) last_lines_.pop_front();
}

void LineRelay::finish() {
  if (!pending_.empty()) relay(pending_);
  pending_.clear();
}

}  // namespace trireme::cli
