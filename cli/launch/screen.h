#pragma once
// Output of the launcher: whole lines of the ranks with "[rank] " before them, to standard output and
// standard error. On a terminal, the progress bar of rank 0 is below them. Each line is one write. Not
// thread-safe.

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::cli {

class Screen {
 public:
  Screen();
  /// With the newline added.
  void line(int fd, std::string_view prefix, std::string_view text);
  /// Redraws a line that ends in "\r"; only where shows_bars().
  void bar(std::string_view prefix, std::string_view text);
  /// A line of the launcher itself, on standard error.
  void note(std::string_view text);
  /// The beginning of a text that takes at most so many characters and ends before two blanks, as fields do:
  /// numbers stay whole. Empty where there is none.
  static std::string_view cut_between_fields(std::string_view text, std::size_t columns);
  bool shows_bars() const { return terminal_; }
  /// Characters that a bar may take behind "[0] "; 0 when that is not known.
  int bar_columns() const;

 private:
  void write(int fd, std::string_view text);
  void lost(int fd);
  bool terminal_;
  bool stdout_lost_ = false;
  bool bar_shown_ = false;
};

/// Turns what one rank writes into one pipe into lines on the screen.
class LineRelay {
 public:
  /// Does not own `source`, which does not block. `bars`: "\r" ends a line that is redrawn in place.
  enum class Bars { kNo, kYes };
  LineRelay(Screen& screen, int source, int target, std::string prefix, Bars bars);

  /// Of the lines that are still to come.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  /// Relays what is there; false when the pipe is at its end, which ends the last line too.
  bool pump();
  /// Ends the last line.
  void finish();
  /// The last lines that were relayed, the oldest first; of each the beginning.
  std::vector<std::string> last_lines() const { return {last_lines_.begin(), last_lines_.end()}; }

 private:
  void relay_lines();
  void relay(std::string_view line);

  Screen* screen_;
  int source_;
  int target_;
  std::string prefix_;
  Bars bars_;
  std::string pending_;
  std::deque<std::string> last_lines_;
};

}  // namespace trireme::cli
