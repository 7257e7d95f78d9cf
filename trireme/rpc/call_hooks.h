#pragma once
// Data that a layer above sends with calls and answers: gradients that flow back through them, for example.
// All functions are called by the code that encodes, decodes or runs; pairs of begin and end on one thread.

#include <cstddef>
#include <span>
#include <vector>

#include "trireme/rpc/ids.h"

namespace trireme::rpc {

/// Bytes that a layer above adds to a call or an answer; only that layer reads them.
using Annex = std::vector<std::byte>;

class CallHooks {
 public:
  virtual ~CallHooks() = default;
  /// Arguments or results are written between the two. `request`: the annex of the call that is answered;
  /// null when it is a call. Returns the annex to send.
  virtual void begin_write() = 0;
  virtual Annex end_write(WorkerId to, const Annex* request) = 0;
  /// They are read between the two.
  virtual void begin_read() = 0;
  virtual void end_read(WorkerId from, const Annex& annex) = 0;
  /// The function of a call runs between the two.
  virtual void begin_run(const Annex& annex) = 0;
  virtual void end_run() = 0;
};

}  // namespace trireme::rpc
