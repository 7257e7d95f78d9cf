#pragma once
// Turns SIGINT and SIGTERM into a request to stop at the next good moment. While the object lives, the
// first such signal is only remembered; one that comes more than a second later ends the process as if
// nothing had been installed (a launcher may deliver the same Ctrl-C twice). The handlers before it are
// restored by the destructor. At most one per process at a time; reading is thread-safe.

#include <csignal>

namespace trireme {

class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// The signal that asked for the stop; 0 while none has.
  int signal() const;

 private:
  struct sigaction interrupt_before_, terminate_before_;
};

}  // namespace trireme
