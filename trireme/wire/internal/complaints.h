#pragma once
// Lines about connections that were rejected, for a log that a flood of them must not fill: the first few are
// written at once, then one line a minute counts the others. After a minute without one the first few are
// written again. Belongs to one thread; the time is the caller's.

#include <optional>
#include <string>
#include <utility>

namespace trireme::wire {

class Complaints {
 public:
  /// Counts begin with `where`, and cover `every_s`.
  explicit Complaints(std::string where, double every_s = 60) : where_(std::move(where)), every_s_(every_s) {}

  /// The text to write now that the connection of `peer` was rejected: `line`, or nothing where it is
  /// counted.
  std::optional<std::string> add(const std::string& line, const std::string& peer, double now_s);
  /// When the count is due; empty where nothing is counted.
  std::optional<double> due_s() const;
  /// WHERE"412 more connections were rejected in the last minute, last from ADDRESS"; empty before it is due.
  std::optional<std::string> take_count(double now_s);
  /// The same for counted ones, due or not.
  std::optional<std::string> take_rest();

 private:
  std::optional<std::string> count(const std::string& in_what_time);

  const std::string where_;
  const double every_s_;
  int num_written_ = 0;        ///< of the first few
  double last_written_s_ = 0;  ///< of any line
  double counts_from_s_ = 0;   ///< with something counted
  long long num_counted_ = 0;
  std::string last_peer_;
};

}  // namespace trireme::wire
