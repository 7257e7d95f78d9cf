#pragma once
// Progress for people: on a terminal, also the launcher's, one line that is redrawn; elsewhere (files, pipes)
// a plain line every few seconds. Fields of a step are in the order of their importance. A bar that would not
// fit into the terminal is first made shorter, then loses its last fields: whole fields, never digits.
// Understands the trainer's records "step", "eval" and "note". Writes to one stream that it does not own; one
// thread.

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

/// How progress is shown.
enum class ConsoleStyle {
  kTerminal,  ///< a bar that is redrawn in place
  kPlain,     ///< lines
};

/// kTerminal when standard output is a terminal that can redraw a line, or a launcher's pipe to one
/// (TRIREME_TERMINAL is set: the launcher draws lines that end with "\r" in place).
ConsoleStyle style_of_stdout();

/// Characters in a line of the terminal that is standard output, or that the launcher shows it on
/// (TRIREME_TERMINAL); 0 when neither is known.
int columns_of_stdout();

/// How wide a console is, and how often it is written to.
struct ConsoleOptions {
  ConsoleStyle style = ConsoleStyle::kPlain;
  std::int64_t total_steps = 0;
  int columns = 0;        ///< the bar fits into a line of so many characters; 0: not known, taken as 80
  double redraw_s = 0.1;  ///< least time between two drawings of the bar
  double plain_s = 5;     ///< least time between two plain progress lines
};

class ConsoleSink : public Sink {
 public:
  ConsoleSink(std::ostream& out, const ConsoleOptions& options);
  /// Clears the bar.
  ~ConsoleSink() override;
  ConsoleSink(const ConsoleSink&) = delete;
  ConsoleSink& operator=(const ConsoleSink&) = delete;

  void write(const Record& record) override;

 private:
  void write_step(const Record& record);
  void write_line(const std::string& line);
  void clear_bar();
  /// The fields that fit into one line of the terminal.
  std::string bar_line(const Record& record) const;
  /// "step 120/1000", "loss 0.4312", "12400 samples/s", "eta 1m 02s", "lr 0.05", "data 1% comm 12%",
  /// "norm 2.31", "scale 65536": the most important first.
  std::vector<std::string> parts_of(const Record& record) const;

  std::ostream& out_;
  const ConsoleOptions options_;
  double drawn_s_ = 0;
  bool bar_shown_ = false;
};

}  // namespace trireme::telemetry
