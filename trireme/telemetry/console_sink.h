#pragma once
// Progress for people: on a terminal, also the launcher's, one line that is redrawn, elsewhere (files, pipes)
// a plain line every few seconds. Understands the trainer's records "step", "eval" and "note". Writes to one
// stream that it does not own; one thread.

#include <cstdint>
#include <iosfwd>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/telemetry/sink.h"

namespace trireme::telemetry {

enum class ConsoleStyle {
  kTerminal,  ///< a bar that is redrawn in place
  kPlain,     ///< lines
};

/// kTerminal when standard output is a terminal that can redraw a line, or a launcher's pipe to one
/// (TRIREME_TERMINAL is set: the launcher draws what ends with "\r" in place).
ConsoleStyle style_of_stdout();

/// Characters in a line of the terminal that is standard output; 0 when it is none.
int columns_of_stdout();

struct ConsoleOptions {
  ConsoleStyle style = ConsoleStyle::kPlain;
  std::int64_t total_steps = 0;
  int columns = 0;        ///< the bar is cut to fit into a line; 0: as long as it is
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
  /// "step 120/1000  loss 0.4312  12400 samples/s  lr 0.0500  eta 1m 02s"
  std::string progress_of(const Record& record) const;

  std::ostream& out_;
  const ConsoleOptions options_;
  double drawn_s_ = 0;
  bool bar_shown_ = false;
};

}  // namespace trireme::telemetry
