#include "cli/top/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "trireme/base/clock.h"

namespace trireme::cli {
namespace {

constexpr int kCtrlZ = 26;
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[2J";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr int kMinColumns = 20, kMinRows = 4;

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

bool has_terminal() {
  const char* kind = std::getenv("TERM");
  const bool can_draw = kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
  return can_draw && ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
}

Terminal::Terminal() {
  ::tcgetattr(STDIN_FILENO, &before_);
  enter();
}

Terminal::~Terminal() { leave(); }

void Terminal::enter() const {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  write_all(kEnter);
}

void Terminal::leave() const {
  write_all(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

TextSize Terminal::size() const {
  TextSize size{.colours = std::getenv("NO_COLOR") == nullptr};
  winsize found{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &found) == 0 && found.ws_col > 0 && found.ws_row > 0) {
    size.columns = std::max<int>(found.ws_col, kMinColumns);
    size.rows = std::max<int>(found.ws_row, kMinRows);
  }
  return size;
}

void Terminal::draw(const std::vector<std::string>& lines) const {
  std::string frame = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) frame += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
  write_all(frame + "\x1b[J");
}

int Terminal::key(double timeout_s) {
  pollfd wait{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&wait, 1, static_cast<int>(whole_milliseconds(timeout_s).count())) <= 0) return 0;
  unsigned char key = 0;
  const ssize_t got = ::read(STDIN_FILENO, &key, 1);
  if (got < 0 && errno == EINTR) return 0;
  if (got <= 0) return kEnd;
  if (key == kCtrlZ) {
    leave();
    ::raise(SIGTSTP);
    enter();
    return 0;
  }
  return key;
}

}  // namespace trireme::cli
