#pragma once
// The Context holds a rank's view of its world: its rank, the group of all ranks, the rendezvous store, its
// log and status page. Passed by reference, outlives everything made from it. There is no global: several
// ranks may be threads of one process. A process may make several contexts of its environment, one after the
// other or side by side: each is a world of its own, and all ranks make them in one order. A context in an
// object of static duration ends in good order after main or std::exit(). Collective to make: every rank of
// the world does, and a rank that does not arrive by the deadline is named. Its destructor leaves in order (a
// rank 0 that serves the store last) within the deadline.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/comm/gpu_options.h"
#include "trireme/comm/group.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/telemetry/status_page.h"

namespace c10d {
class Store;
}

namespace trireme::comm {

/// How a rank meets the others, where it computes, and how they talk.
struct ContextOptions {
  /// A name of backend_infos(), or "auto": nccl for ranks with a GPU each, else shm on one host, else
  /// hierarchical. One that does not carry the device's tensors moves them by way of the host's memory, and
  /// lets ranks of a host share devices.
  std::string backend = "auto";
  std::string device = "auto";  ///< where this rank computes: a name of device_names()
  /// All-reduces between hosts: "auto" measures when a group is made and takes the fastest for each size;
  /// else a name of all_reduce_names() (all_reduce_setting.h). The same on all ranks.
  std::string all_reduce = "auto";
  /// Network of collectives between hosts, unless gloo runs them: a name of network_names()
  /// (all_reduce_setting.h); "auto" measures. The same on all ranks.
  std::string network = "tcp";
  double timeout_s = 60;  ///< deadline of the rendezvous, and for ranks that are gone, stuck or elsewhere
  double slow_timeout_s = 1800;  ///< for ranks that are alive and make progress; at least timeout_s counts
  int torch_threads = 0;         ///< threads of torch in this rank; 0: cores of the host / ranks on the host
  /// A name of pin_names() (pin.h): ranks of a machine, which are processes, on cores of their own while the
  /// context lives, with all threads that they have and start.
  std::string pin = "none";
  bool keep_freed_memory = true;  ///< see base/host.h: steps do not fault the same pages in again and again
  CudaOptions cuda = {};          ///< of the process, by its first context
  NcclOptions nccl = {};
};

struct ElasticOptions;

class Context {
 public:
  /// Joins the world that the environment describes. Throws InvalidArgument (bad environment, unknown
  /// backend) or CommError (ranks missing by the deadline: which; ranks disagree about the world: both sides
  /// named; port taken).
  static std::shared_ptr<Context> from_environment(const ContextOptions& options = {});
  static std::shared_ptr<Context> join(const LaunchEnvironment& environment,
                                       const ContextOptions& options = {});

  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  bool is_main() const { return rank() == 0; }
  const LaunchEnvironment& environment() const;
  /// The device of this rank, by its place on the host. It is the thread's current one.
  c10::Device device() const;

  /// The group of all ranks.
  Group& world();
  /// The group of this rank alone (MPI's COMM_SELF).
  Group& self();
  /// A group of the given world ranks. Collective over the whole world (every rank calls it, members or not,
  /// with the same list); empty for ranks that are no members.
  std::optional<Group> new_group(const std::vector<int>& world_ranks, const std::string& name);
  /// `wish`, or "WISH#2", "WISH#3", ... where groups of that name have been made: the same on all ranks, as
  /// they make groups in one order.
  std::string free_group_name(const std::string& wish) const;

  /// Which all-reduces between hosts the groups of all ranks take that were made so far: a text, the same on
  /// all ranks, for take_all_reduce_choices(); empty where all are on one host, and unless
  /// options.all_reduce is "auto". Collective over the world.
  std::string all_reduce_choices();
  /// From now on groups of the same ranks on the same hosts use the choices in `text`, so that their sums
  /// have its order. Other groups are not changed. The same text on all ranks, while no operation is in
  /// progress. Throws InvalidArgument for a malformed text.
  void take_all_reduce_choices(const std::string& text);

  const Log& log() const;
  /// The current activity of this rank, for the launcher and messages of other ranks. Lives as long as the
  /// context.
  telemetry::StatusPage& status();
  /// From now on the operations of the world, and of groups that are made later, are spans there; null:
  /// nowhere. The trace outlives all objects made from this context meanwhile. Not while another thread
  /// communicates.
  void set_trace(telemetry::Trace* trace);
  /// Where this rank's spans go; null when nothing is traced.
  telemetry::Trace* trace() const;
  c10d::Store& store();

 private:
  friend void run_ranks_as_threads(int, const std::function<void(Context&)>&, const ContextOptions&);
  friend void run_elastic(const ElasticOptions&, const std::function<void(Context&)>&);
  struct State;
  explicit Context(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Runs `body` as `num_ranks` ranks, each a thread of this process with backend "threads" (or
/// options.backend), and waits for all. The first exception of any rank is thrown again here after all ranks
/// have ended.
void run_ranks_as_threads(int num_ranks, const std::function<void(Context&)>& body,
                          const ContextOptions& options = {});

/// Names of the backends in the table, with the reason why one is not available here (empty if it is).
struct BackendInfo {
  std::string name;
  std::string summary;
  std::string unavailable_because;
};
/// One row for each backend, whether it can be used here or not, in the order of the table.
std::vector<BackendInfo> backend_infos();

}  // namespace trireme::comm
