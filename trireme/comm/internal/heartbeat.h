#pragma once
// A rank's report to the others a few times per second, and its measure of progress.

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/telemetry/status_page.h"

namespace trireme::comm {

struct Heartbeat {
  std::uint64_t number = 0;
  std::uint64_t progress_counter = 0;  ///< grows as long as the rank makes progress
  std::uint64_t publications = 0;      ///< of its last operations; grows when there is something new to read
  bool leaves = false;                 ///< in good order: this is its last beat
  bool waits = false;                  ///< for other ranks, in an operation
  std::vector<int> waits_for;          ///< the world ranks that have not come to that operation
  std::string operation;               ///< the one it waits in, else its last one
  std::string action;
  std::string own_work;
};

std::string encode(const Heartbeat& beat);
/// Nothing of text that encode() did not write.
std::optional<Heartbeat> decode_heartbeat(const std::string& encoded);

/// Counts the signs that this rank makes progress. Its status page changes, or it is in declared work of its
/// own. Or it uses CPU time outside of waits for other ranks (inside of one it may only be spinning).
class SignsOfLife {
 public:
  /// `cpu_s`: the processor time that the rank has used so far.
  SignsOfLife(std::shared_ptr<telemetry::StatusPage> page, std::function<double()> cpu_s);
  /// To be called now and then; returns the count so far.
  std::uint64_t look(const telemetry::Status& status, bool waits);
  telemetry::Status status() const { return page_->read(); }

 private:
  bool uses_processor(bool waits);

  const std::shared_ptr<telemetry::StatusPage> page_;
  const std::function<double()> cpu_s_;
  std::uint64_t signs_ = 0;
  double changed_s_ = 0;  ///< of the status page
  double looked_at_s_ = 0, cpu_then_s_ = 0;
};

/// Processor time of the whole process, without the calling thread's.
double cpu_s_of_other_threads();
/// Processor time of one thread; 0 when there is no such thread any more.
double cpu_s_of(clockid_t thread);

}  // namespace trireme::comm
