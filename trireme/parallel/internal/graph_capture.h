#pragma once
// Shared by graphed_step.h and graphed_layer.h: the scope of a capture.

#include <atomic>

#include "trireme/batch/fields.h"
#include "trireme/comm/device_graph.h"

namespace trireme::parallel {

/// Captures of this process that are under way.
inline std::atomic<int> captures_under_way = 0;

/// Records into `graph` while it lives. Its destructor ends a capture that an exception has left.
class Capture {
 public:
  explicit Capture(comm::DeviceGraph& graph) : graph_(graph) {
    graph_.begin();
    ++captures_under_way;
  }
  /// Throws c10::Error: something was issued that cannot be recorded.
  void end() {
    ended_ = true;
    --captures_under_way;
    graph_.end();
  }
  ~Capture() {
    if (ended_) return;
    --captures_under_way;
    try {
      graph_.end();
    } catch (const std::exception&) {
      // The exception that has left the capture is thrown already.
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

 private:
  comm::DeviceGraph& graph_;
  bool ended_ = false;
};

/// The same names, sizes and dtypes.
bool are_alike(const Fields& one, const Fields& other);

}  // namespace trireme::parallel
