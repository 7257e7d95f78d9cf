#pragma once
// The terminal as a screen that is drawn again and again: the alternate screen, keys without Enter. What was
// there before comes back with the end of the object. At most one; one thread.

#include <termios.h>

#include <string>
#include <vector>

#include "cli/top/top_text.h"

namespace trireme::cli {

/// Whether standard input and output are a terminal that can be drawn on.
bool has_terminal();

class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  TextSize size() const;
  /// In one write, line by line over the previous ones: nothing flickers.
  void draw(const std::vector<std::string>& lines) const;
  /// Waits for a key; 0 when there is none within the time, or a signal came. Ctrl-Z stops the process as
  /// usual.
  int key(double timeout_s);

  static constexpr int kCtrlC = 3, kCtrlD = 4, kEnd = -1;  ///< kEnd: the terminal is gone

 private:
  void enter() const;
  void leave() const;

  termios before_{};
};

}  // namespace trireme::cli
