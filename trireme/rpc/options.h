#pragma once
// Options of an Agent, and of a call. Values.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/rpc/call_hooks.h"
#include "trireme/rpc/directory.h"
#include "trireme/telemetry/trace.h"
#include "trireme/wire/node_loop.h"

namespace trireme::rpc {

struct AgentOptions {
  std::string name = {};                      ///< its name for calls; unique in the group
  std::shared_ptr<Directory> directory = {};  ///< where the workers of the group meet
  std::string group = "rpc";                  ///< several may meet in one directory
  std::size_t num_workers = 0;                ///< of the group; 0: any number, at any time
  double timeout_s = 60;                      ///< of calls, of joining and of looking for a worker
  std::size_t num_threads = 4;                ///< functions that compute at a time; see worker_pool.h
  std::size_t max_waiting_bytes = 512 << 20;  ///< of calls to one worker without an answer; then callers wait
  std::int64_t max_message_bytes = std::int64_t{1} << 30;  ///< of one call or answer
  /// Where to listen for workers of other hosts; those of this host meet at a Unix socket without a file.
  std::vector<wire::Address> listen = {};
  wire::Security security = {};
  bool shares_memory = true;   ///< with workers of this host; false: they too meet where it listens
  double lost_after_s = 3;     ///< a broken connection that the peer does not resume
  double silent_after_s = 30;  ///< a worker that acknowledges no message
  std::function<void()> on_thread_start = {};  ///< on every thread that runs functions
  std::function<void(const std::string& line)> report = {};
  std::shared_ptr<CallHooks> hooks = {};  ///< data that are sent with calls; see call_hooks.h
  telemetry::Trace* trace = nullptr;      ///< outlives the agent; null: none
};

struct CallOptions {
  double timeout_s = 0;  ///< 0: the agent's
  /// More than 1, for a function that may run twice: when the worker ends during the call, it is made again
  /// on the worker with that name then.
  int tries = 1;
};

}  // namespace trireme::rpc
